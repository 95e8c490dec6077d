"""The resident of a bus for threads on the loop thread, and the threads of its callbacks."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from _thread import start_new_thread
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from redpoll.blocking.futures import ThreadFuture
from redpoll.blocking.handover import Handover
from redpoll.blocking.iteration import Iteration
from redpoll.blocking.resident import Resident
from redpoll.blocking.verbs import Attribute, Face, handover_to_wait, wait
from redpoll.bus.awaitables import called
from redpoll.bus.broadcast import BroadcastSubscription
from redpoll.bus.bus import Bus
from redpoll.bus.notifications.listener import Listener
from redpoll.bus.rpc.server import Server
from redpoll.bus.tasks import Worker
from redpoll.checks import check_function, require, seconds
from redpoll.errors import Closed, UsageError

__all__ = ["EVENTS", "THREADS", "BusResident", "Running"]

_log = logging.getLogger("redpoll.bus")

#: Threads for callbacks of broadcasts at most, of one bus.
THREADS: Final = 64
#: Callbacks of progress and of the state that wait for the one before, at most, of one bus; what comes then is not told.
EVENTS: Final = 10_000
#: Seconds that a bus has to close where nobody waits for that, and that its callbacks have to hear what happened.
_EVICTION: Final = 0.5

#: Seconds between two checks for dropped objects.
_LOOK: Final = 0.5

RunsT = TypeVar("RunsT", Worker, Server, Listener, BroadcastSubscription)


class BusResident(Resident):
    """The resident of a bus on the loop thread.

    Args:
        bus: The bus.

    Attributes:
        bus: The bus.
    """

    name = "bus"

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self._entered = False
        self._life = threading.RLock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._event_thread = 0
        #: Callbacks that were handed to it, by the loop alone; and those that returned there.
        self._posted = self._told = 0
        self._full = False
        #: Functions that give back objects of threads, by weak references to these; and the references that were dropped.
        self._held: dict[weakref.ref[Any], Callable[[], object]] = {}
        self._dropped: deque[weakref.ref[Any]] = deque()

    def __repr__(self) -> str:
        return f"<blocking {self.bus!r}>"

    @property
    def handover(self) -> Handover:
        """The way to the loop."""
        thread = self._thread
        if thread is None:
            raise Closed(self.name, None if self._entered else "use it inside of: with bus")
        if thread.handover.forked:
            raise UsageError(
                "this bus belongs to the process that forked this one", "make a bus of its own in the child"
            )
        return thread.handover

    # Life

    def enter(self) -> None:
        """Connect."""
        with self._life:
            if self._entered:
                raise UsageError("this bus was entered before", "make another one")
            self._entered = True
            self._move_in(self._start)

    async def _start(self, handover: Handover) -> None:  # noqa: ARG002
        await self.bus.__aenter__()

    def close(self, drain: float | None) -> None:
        """Close."""
        if drain is not None and drain != 0:
            require("drain", drain, seconds)
        if self._is_inherited:
            return
        waited = True
        try:
            waited = self._move_out(partial(self.bus.close, drain), drain)
            if waited:
                self._wait_for_events()
        finally:
            if waited:
                for pool in self._pools.values():
                    pool.shutdown(wait=False)

    def _wait_for_events(self) -> None:
        """Wait for callbacks, but not for one that blocks."""
        pool = self._pools.get("events")
        if pool is None or threading.get_ident() == self._event_thread:
            return
        told = ThreadFuture()
        with suppress(RuntimeError, TimeoutError):  # it was closed before, or a callback blocks
            pool.submit(told.finish, None, None)
            told.result(_EVICTION)

    async def evict(self, patience: float) -> None:
        """For the library. See `Resident.evict`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(patience, _EVICTION)):
                await self.bus.close(patience)

    def stop(self, drain: float | None = 0) -> None:
        """For the library. See `Resident.stop`."""
        self.close(drain)

    # Objects of threads

    def look_after(self, held: object, give_back: Callable[[], object]) -> None:
        """On the loop: call a function some time after an object was dropped.

        For objects that are given back by a finalizer when they are dropped, from which Ctrl-C may keep them.
        """
        # Nothing but C runs when it is dropped.
        self._held[weakref.ref(held, self._dropped.append)] = give_back
        if len(self._held) == 1:
            asyncio.get_running_loop().call_later(_LOOK, self._look)

    def _look(self) -> None:
        try:
            while self._dropped:
                self._held.pop(self._dropped.popleft())()
        finally:
            # If one cannot be given back, the others are, at the next look.
            if self._held:
                asyncio.get_running_loop().call_later(_LOOK, self._look)

    def give_back(self, give_back: Callable[[], object]) -> None:
        """Call a function on the loop, soon, if there is one."""
        thread = self._thread
        if thread is not None and not thread.handover.forked:
            thread.handover.post(give_back)

    # Callbacks

    def in_thread(self, callback: Callable[[Any], object]) -> Callable[[Any], Any]:
        """A coroutine function that calls a plain one in a thread."""

        async def call(value: Any) -> Any:
            pool = self._pool("callbacks", THREADS)
            return await asyncio.get_running_loop().run_in_executor(pool, copy_context().run, called, callback, value)

        return call

    def soon(self, callback: Callable[..., object], what: str) -> Callable[..., None]:
        """A plain function that has another one called in the bus's own thread for that, one call after the other.

        Raises:
            ConfigError: It is no function.
        """
        check_function("callback", callback, "a callback is a plain function; it is called in a thread")

        def called(*args: Any) -> None:
            self._event_thread = threading.get_ident()
            try:
                callback(*args)
            except BaseException:  # noqa: BLE001  # a callback may raise anything, and call `sys.exit`
                _log.exception("%s failed", what)
            finally:
                self._told += 1

        def post(*args: Any) -> None:
            full, self._full = self._full, self._posted - self._told >= EVENTS
            if self._full:
                if not full:
                    _log.warning("%s is not called: %d callbacks wait for one that does not return", what, EVENTS)
                return
            self._posted += 1
            with suppress(RuntimeError):  # the program ends
                self._pool("events", 1).submit(called, *args)

        return post

    def _pool(self, what: str, threads: int) -> ThreadPoolExecutor:
        if what not in self._pools:
            self._pools[what] = ThreadPoolExecutor(threads, f"redpoll bus {what}")
        return self._pools[what]

    def iterate(self, source: AsyncIterator[Any], wrap: Callable[[Any], Any] = lambda value: value) -> Iteration[Any]:
        """An asynchronous iterator, for threads."""
        return Iteration(self.handover, partial(handover_to_wait, self), source, self.name, wrap)


class Running(Face[RunsT]):
    """A service that runs on the loop while a block does."""

    _home: BusResident

    active = Attribute[bool]()
    """True if it receives work: not while the engine reconnects, nor when it is closed."""

    def __enter__(self) -> Self:
        """Begin. Ctrl-C leaves nothing that runs."""
        wait(self._home, self._target.__aenter__, undo=self._leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. Ctrl-C ends the draining."""
        self._close(self._target.__aexit__, kind, error, trace)

    def close(self, drain: float | None = 0.0) -> None:
        """Take no more work, and wait for running handlers; work that does not end in time is stopped, or goes back.

        Args:
            drain: Seconds to wait; None is no limit.

        Ctrl-C ends the draining.
        """
        self._close(self._target.close, drain)

    def _close(self, close: Callable[..., Any], *args: Any) -> None:
        try:
            handover = self._home.handover
        except Closed:  # the bus is, and this with it
            self._let_go()
            return
        try:
            wait(self._home, close, *args)
        except Closed:
            self._let_go()
        except BaseException:
            # Ctrl-C, maybe before anything was begun. Nothing comes in between before this one call.
            start_new_thread(handover.post, (self._leave,))
            raise

    def _let_go(self) -> None:
        """Release threads and processes that outlive the bus."""

    def _leave(self, _: object = None) -> None:
        """On the loop: close, though nobody waits."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # it has ended, and this with it
            return
        closing = loop.create_task(self._target.close())
        _leaving.add(closing)
        closing.add_done_callback(_leaving.discard)


_leaving: Final[set[asyncio.Task[None]]] = set()
