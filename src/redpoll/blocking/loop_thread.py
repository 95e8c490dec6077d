"""The thread that runs the event loop of all nodes and buses for threads; a process has one."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import time
import warnings
from _thread import start_new_thread
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Protocol

from redpoll.blocking.futures import ThreadFuture
from redpoll.blocking.handover import Handover
from redpoll.errors import Closed, RedpollError
from redpoll.locks import check_unlocked, holds_lock, new_lock
from redpoll.platforms import after_fork
from redpoll.runner import loop_factory

__all__ = ["AT_EXIT", "LoopResident", "LoopThread", "enter"]

#: Seconds for unsent messages to leave when a program exits without closing.
AT_EXIT: Final = 2.0

#: Seconds without an answer after which the loop is assumed to be blocked by a hook or a callback.
_BLOCKED: Final = 2.0

_logger = logging.getLogger("redpoll.blocking")


class LoopResident(Protocol):
    """An object that runs on the loop thread: a node, a bus."""

    async def evict(self, patience: float) -> None:
        """On the loop: end, and settle all waits, within a number of seconds. Does nothing if it has ended."""

    def stop(self, drain: float | None = ...) -> None:
        """Stop, and leave the loop."""

    def inherit(self) -> None:
        """Close inherited resources in a forked child."""


class LoopThread:
    """An event loop in a thread of its own; uvloop's if that is installed.

    It is a daemon thread, stopped by an exit handler.

    Only the loop removes residents, after their end. So no interruption of a thread that starts, closes or waits can
    leave another thread waiting forever.

    Attributes:
        handover: Takes calls for the loop.
        residents: The residents, each with a future that ends when it is gone; the thread ends with the last one.
    """

    handover: Handover

    def __init__(self) -> None:
        self.residents: dict[LoopResident, ThreadFuture] = {}
        self._up = ThreadFuture()
        self._over = ThreadFuture()
        self._ending: asyncio.Event
        self._evictions: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="redpoll loop", daemon=True)

    def begin(self) -> None:
        """Start the thread, and wait until the loop runs."""
        _all.add(self)
        # In another thread: `Thread.start` waits in a way that Ctrl-C can break.
        start_new_thread(self._start, ())
        self._up.result()

    def _start(self) -> None:
        try:
            self._thread.start()
        except BaseException as error:  # noqa: BLE001  # raised on the waiting thread
            self._is_over(error)

    def end_when_begun(self) -> None:
        """End without residents, also if the loop does not run yet."""
        self._up.add_done_callback(self._begun_in_vain)

    def _begun_in_vain(self, begun: Future[Any]) -> None:
        if begun.exception() is None:
            self.handover.post(self._ending.set)

    # For threads

    def see_off(
        self, resident: LoopResident, ending: Callable[[], Awaitable[None]], seconds: float | None = None
    ) -> bool:
        """End a resident, remove it, and wait until it is gone.

        Args:
            resident: The resident; nothing is done if it is gone.
            ending: Called on the loop; ends it.
            seconds: The limit; None is no limit. If a callback blocks the loop, the end happens when that returns.

        Returns:
            False if it did not wait: this is a signal handler that interrupted its thread in a moment for which the loop may
            wait. The resident ends nevertheless.

        Ctrl-C cancels `ending`, and is raised when the resident is gone; a second one is raised at once, while the resident
        still ends.
        """
        if holds_lock():
            self.handover.post(self._begin_to_see_off, (resident, ending))
            return False
        try:
            self.handover.run(self._see_off, resident, ending, limit=seconds)
        except Closed:  # the loop has ended, and the resident with it
            pass
        except TimeoutError:
            if self._is_blocked():
                _logger.warning("a callback blocks the event loop: %r is closed when it returns", resident)
                return True
        except BaseException:
            # Ctrl-C, perhaps before the beginning. Nothing can interrupt before this one call.
            start_new_thread(self.evict, (resident,))
            self.wait(resident)
            raise
        self.wait(resident)
        return True

    def evict(self, resident: LoopResident, patience: float = 0) -> None:
        """End a resident within a number of seconds, and remove it."""
        self.handover.post(self._evict, (resident, patience))

    def wait(self, resident: LoopResident) -> None:
        """Wait until a resident is gone, and, if it was the last one, the thread."""
        gone = self.residents.get(resident)
        if gone is not None:
            gone.exception()
        if not self.residents:
            self._join(None)

    def _join(self, seconds: float | None) -> bool:
        """Wait for the end of the thread; return False if it has not ended in time."""
        try:
            self._over.result(seconds)
        except TimeoutError:
            return False
        # Not by `Thread.join`, which Ctrl-C can break; the thread is at its last step.
        while self._thread in threading.enumerate():
            time.sleep(0.0001)
        return True

    def end(self, seconds: float) -> bool:
        """End all residents within a number of seconds, and wait for the thread; return False if a callback blocks it."""
        for resident in list(self.residents):
            self.evict(resident, seconds)
        over = self._join(seconds)
        while not over and not self._is_blocked():
            over = self._join(_BLOCKED)
        return over

    def _is_blocked(self) -> bool:
        try:
            self.handover.run(_nothing, limit=_BLOCKED)
        except TimeoutError:
            return True
        except Closed:
            pass
        return False

    # The loop

    async def _see_off(self, resident: LoopResident, ending: Callable[[], Awaitable[None]]) -> None:
        if resident in self.residents:
            try:
                await ending()
            finally:
                self._let_go(resident)

    def _evict(self, resident: LoopResident, patience: float = 0) -> None:
        self._begin_to_see_off(resident, lambda: resident.evict(patience))

    def _begin_to_see_off(self, resident: LoopResident, ending: Callable[[], Awaitable[None]]) -> None:
        task = self.handover.loop.create_task(self._see_off(resident, ending))
        self._evictions.add(task)
        task.add_done_callback(self._evictions.discard)

    def _let_go(self, resident: LoopResident) -> None:
        global _shared  # noqa: PLW0603  # one a process
        with _lock:
            gone = self.residents.pop(resident, None)
            if not self.residents:
                if _shared is self:
                    _shared = None
                self._ending.set()
        if gone is not None:
            gone.finish(None, None)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                try:
                    runner.run(self._main())
                except BaseException:
                    if not self._up.done():
                        raise
                    # By a callback, such as `sys.exit`.
                    _logger.exception("a callback ended the event loop, and with it all nodes for threads")
                    self._end_all(runner)
                finally:
                    if self._up.done():
                        self.handover.close()
        except BaseException as error:
            if self._up.done():
                _logger.exception("the event loop of all nodes for threads could not be closed")
            self._is_over(error)
        else:
            self._is_over(None)

    def _is_over(self, error: BaseException | None) -> None:
        """Note the end of the thread, perhaps by an error, and remove all residents."""
        for resident in list(self.residents):
            self._let_go(resident)
        if self._up.done():
            self.handover.end()
        else:
            self._up.finish(None, error)
        _all.discard(self)
        self._over.finish(None, None)

    async def _main(self) -> None:
        self._ending = asyncio.Event()
        self.handover = Handover(asyncio.get_running_loop())
        self._up.finish(None, None)
        await self._ending.wait()

    def _end_all(self, runner: asyncio.Runner) -> None:
        """End all residents, even if callbacks end the loop again."""
        global _shared  # noqa: PLW0603  # one a process
        with _lock:
            if _shared is self:
                _shared = None
        end = time.monotonic() + AT_EXIT
        while self.residents and time.monotonic() < end:
            try:
                runner.run(self._evict_all())
            except BaseException:
                _logger.exception("a callback ended the event loop once more")

    async def _evict_all(self) -> None:
        for resident in list(self.residents):
            self._evict(resident)
        await asyncio.wait(self._evictions)

    def inherit(self) -> None:
        """Adapt to a forked child, in which the thread does not run."""
        if hasattr(self, "handover"):
            self.handover.abandon()
        for resident in list(self.residents):
            resident.inherit()


_lock = new_lock()
_shared: LoopThread | None = None
#: All threads that have not ended; one that is ending is no longer shared.
_all: set[LoopThread] = set()
#: A forked child's copies of its parent's threads: their event loops seem to run, so they cannot be dropped.
_inherited: list[LoopThread] = []


def enter(resident: LoopResident) -> LoopThread:
    """Add a resident to the shared loop thread, which is started for the first one. `LoopThread.see_off` removes it.

    Raises:
        UsageError: This is the thread of a loop, which would wait for itself; or see `check_unlocked`.
    """
    global _shared  # noqa: PLW0603  # one a process
    check_unlocked()
    for each in list(_all):
        if each._up.done():
            each.handover.check_thread()
    try:
        for each in list(_all):
            if resident in each.residents:  # it is leaving: its thread was interrupted while waiting for that
                each.wait(resident)
        with _lock:
            thread = _shared
            if thread is None:
                thread = LoopThread()
                thread.begin()
            thread.residents[resident] = ThreadFuture()
            _shared = thread
            return thread
    except BaseException:
        # Ctrl-C, perhaps after the resident was added. Nothing can interrupt before this one call.
        start_new_thread(_turn_away, (resident,))
        raise


def _turn_away(resident: LoopResident) -> None:
    """Remove a resident whose entering was interrupted, and end a thread that was started for it alone."""
    with _lock:
        for thread in list(_all):
            if resident in thread.residents:
                thread.evict(resident)
            elif not thread.residents:
                thread.end_when_begun()


def _after_fork() -> None:
    global _lock, _shared  # noqa: PLW0603  # as above
    _lock = new_lock()
    _shared = None
    for thread in list(_all):
        _inherited.append(thread)
        thread.inherit()
    _all.clear()


def _nothing() -> None:
    pass


def _at_exit() -> None:
    # The threads that still wait are daemons. The errors that end their waits are not printed: a thread that writes while
    # the interpreter ends can abort it.
    if _all:  # else nobody waits
        threading.excepthook = partial(_print_others, threading.excepthook)
    for thread in list(_all):
        residents = list(thread.residents)
        texts = [f"{resident!r} was not stopped before the program ended" for resident in residents]
        # Does not wait if a callback blocks the loop.
        if residents and thread.end(AT_EXIT):
            for resident in residents:
                resident.stop(0)
        for text in texts:
            warnings.warn(text, ResourceWarning, stacklevel=1)


def _print_others(hook: Callable[[Any], object], failure: Any) -> None:
    """Pass the error that ended a thread to its hook, unless it is redpoll's, or that of a closed communicator."""
    if not issubclass(failure.exc_type, (RedpollError, ConnectionAbortedError)):
        hook(failure)


after_fork(_after_fork)
atexit.register(_at_exit)
