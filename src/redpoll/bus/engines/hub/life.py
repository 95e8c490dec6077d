"""Signs of life: a thread of this process tells the hubs of its workers that they live.

A handler that computes on the event loop for a minute keeps it from answering the hub's pings; this thread has a link of
its own to each hub. A frozen process, or a call that keeps the interpreter lock, stops it as well.

Signs have tokens: they go to the node alone that greeted as a hub does over this link, never to what listens there later.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final

from redpoll.address import Address
from redpoll.bus.awaitables import Done
from redpoll.bus.engines.hub import protocol as p
from redpoll.config import Config
from redpoll.locks import new_lock
from redpoll.node import Node, Received
from redpoll.platforms import after_fork

__all__ = ["Life", "life"]

_log = logging.getLogger("redpoll.bus")

#: Seconds between two signs, of each that a keep-alive has.
_SHARE: Final = 0.4
#: The keep-alive, in seconds, of a node without one.
_LONG: Final = 5.0
#: Bytes of a sign beside its name and token, at most.
_SIGN: Final = 16


#: Consumers in one answer to a hub.
_CONSUMERS: Final = 100

_Where = tuple[Address, Config]
_Suspend = Callable[[int], list[list[int]]]


class Life:
    """The members of hubs in this process that live, and the thread that says so while there are any."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[str, _Where, weakref.WeakMethod[_Suspend]]] = {}
        self._lock = new_lock()
        self._changed = threading.Condition(self._lock)
        self._thread: _Thread | None = None
        self._wake: Callable[[], object] | None = None

    def add(self, name: str, token: str, address: Address, config: Config, suspend: _Suspend) -> None:
        """Send signs of a member to the hub at an address, with its token and the options of its node.

        Its method `suspend` is called in the thread when the hub asks what it has begun, as its loop is blocked. The member
        itself is not kept alive.
        """
        with self._lock:
            self._members[name] = token, (address, config), weakref.WeakMethod(suspend)
            if self._thread is None:
                self._wake = None
                self._thread = _Thread(self._run)
                self._thread.start()

    def remove(self, name: str) -> Awaitable[None]:
        """Send none any more; the thread ends with the last member. Return an awaitable, done when it has ended."""
        with self._lock:
            known = self._members.pop(name, None)
            thread = self._thread
            if known is None or self._members or thread is None:
                return Done(None)
            self._thread = None
            self._changed.notify()
            if self._wake is not None:
                self._wake()
        return thread.wait_ended()

    @property
    def _period(self) -> float:
        configs = (config for _, (_, config), _ in self._members.values())
        return _SHARE * min((each.keepalive or _LONG for each in configs), default=_LONG)

    def _run(self, own: _Thread) -> None:
        while True:
            with self._lock:
                # Most engines of short programs have ended by then.
                if self._changed.wait_for(lambda: self._thread is not own, self._period):
                    return
            try:
                asyncio.run(self._beat(own))
            except Exception:  # noqa: BLE001  # it is logged
                # Workers would be lost without a sign; the next try is after the same pause.
                _log.exception("signs of life for hubs failed, and begin again")

    async def _beat(self, own: _Thread) -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        hubs: dict[_Where, _Hub] = {}
        try:
            while True:
                with self._lock:
                    if self._thread is not own:
                        return
                    self._wake = partial(loop.call_soon_threadsafe, over.set)
                    wheres = {where for _, where, _ in self._members.values()}
                    period = self._period
                for where in hubs.keys() - wheres:
                    await hubs.pop(where).stop()
                for where in wheres:
                    try:
                        if where not in hubs:
                            hub = _Hub(self, where)
                            await hub.node.start()
                            hubs[where] = hub
                        hubs[where].show(period)
                    except Exception:  # noqa: BLE001  # it is logged
                        # The other hubs are shown theirs.
                        _log.exception("no sign of life for the hub at %s", where[0])
                with suppress(TimeoutError):
                    async with asyncio.timeout(period):
                        await over.wait()
        finally:
            with self._lock:
                if self._thread is own:
                    self._wake = None
            for hub in hubs.values():
                await hub.stop()

    def members(self, where: _Where) -> list[tuple[str, str]]:
        """Return the names and tokens of the members of a hub."""
        with self._lock:
            return [(name, token) for name, (token, place, _) in self._members.items() if place == where]

    def begun(self, where: _Where, name: str, question: int) -> tuple[str, list[list[int]]]:
        """Return the token of a member of a hub, and what it has begun: it begins nothing more."""
        token, place, method = self._members.get(name, ("", None, None))
        suspend = None if method is None or place != where else method()
        return token, [] if suspend is None else suspend(question)


class _Hub:
    """A hub that is shown signs of life, by a node of its own."""

    def __init__(self, life: Life, where: _Where) -> None:
        self._life = life
        self._where = where
        self.node: Node[Any] = Node(self._heard, where[1])
        # The first message of the hub over this session; replies go to that very node, or fail.
        self._greeting: Received[Any] | None = None
        self._dialling: asyncio.Future[None] | None = None
        self._seconds = 0.0

    def show(self, seconds: float) -> None:
        """Send the signs, which have so many seconds; dial the hub before if it did not greet."""
        self._seconds = seconds
        if self._greeting is not None:
            self._sign(self._greeting)
        elif self._dialling is None or self._dialling.done():
            self._dialling = asyncio.ensure_future(self.node.ready(self._where[0], timeout=seconds))
            self._dialling.add_done_callback(_ended)

    def _sign(self, greeting: Received[Any]) -> None:
        def sent(future: asyncio.Future[None]) -> None:
            _ended(future)
            if (future.cancelled() or future.exception()) and self._greeting is greeting:
                self._greeting = None

        for records in _parts(self._life.members(self._where)):
            ((body, _),) = p.pack(records)
            self.node.send(greeting.reply(body), timeout=self._seconds).add_done_callback(sent)

    def _heard(self, message: Received[Any]) -> None:
        """Send signs to a hub that greets, and answer one that asks what a member has begun.

        What else it says is passed over: it takes this for a client.
        """
        for kind, *values in p.unpack(message.data, p.FROM_HUB):
            if kind == p.GREET:
                self._greeting = message
                self._sign(message)
            elif kind == p.STALLED:
                name, question = values
                token, begun = self._life.begun(self._where, name, question)
                for start in range(0, len(begun), _CONSUMERS):
                    ((body, _),) = p.pack([[p.BEGUN, name, token, question, begun[start : start + _CONSUMERS]]])
                    self.node.send(message.reply(body)).add_done_callback(_ended)

    async def stop(self) -> None:
        """Stop."""
        try:
            await self.node.stop(0)
        except Exception:  # noqa: BLE001  # it is logged
            _log.exception("a node of signs of life did not stop")


class _Thread(threading.Thread):
    """The thread, whose end can be awaited; a loop that waits for it continues."""

    def __init__(self, run: Callable[[_Thread], None]) -> None:
        super().__init__(name="redpoll life", daemon=True)
        self._call = run
        self._ended: Future[None] = Future()

    def run(self) -> None:
        """Send signs of life."""
        try:
            self._call(self)
        finally:
            self._ended.set_result(None)

    async def wait_ended(self) -> None:
        """Wait for its end, of which nothing is left but to return."""
        await asyncio.shield(asyncio.wrap_future(self._ended))
        self.join()


def _parts(members: list[tuple[str, str]]) -> Iterator[list[list[Any]]]:
    """Yield signs for one message each: as many as a hub reads in one from a peer that did not say hello."""
    part: list[list[Any]] = []
    room = p.MAX_HELLO
    for name, token in members:
        size = _SIGN + len(name) + len(token.encode())
        if part and size > room:
            yield part
            part, room = [], p.MAX_HELLO
        part.append([p.ALIVE, name, token])
        room -= size
    yield part


def _ended(future: asyncio.Future[None]) -> None:
    """Pass over a sign that was not sent, and a hub that is not there: the next try is soon."""
    if not future.cancelled():
        future.exception()


life: Final = Life()
"""That of this process."""


after_fork(life.__init__)  # type: ignore[misc]  # the threads of the parent are not here
