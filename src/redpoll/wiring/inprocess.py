"""Names that all wirings of a process see, and connections between these wirings, on any loops and threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from redpoll.blocking.handover import Handover
from redpoll.errors import Closed, NameTaken, PeerLost, ProtocolError, RedpollError
from redpoll.locks import new_lock
from redpoll.platforms import after_fork
from redpoll.wiring.board import Board
from redpoll.wiring.connection import Answer, DirectConnection
from redpoll.wiring.names import Scope
from redpoll.wiring.protocol import refusal

__all__ = ["Neighbour", "ProcessConnection"]

_lock = new_lock()
_names: dict[tuple[str, str], Neighbour] = {}
#: Functions to call when a name appears, by the name.
_watchers: dict[tuple[str, str], dict[Callable[[], object], Neighbour]] = {}


def _forget() -> None:
    """Drop everything in a forked child: it belongs to the parent."""
    global _lock  # noqa: PLW0603  # it may be held by a thread that is not here
    _lock = new_lock()
    _names.clear()
    _watchers.clear()


after_fork(_forget)


class Neighbour:
    """A wiring as other wirings of its process see it.

    Args:
        board: The board of the wiring; made on its loop.
    """

    def __init__(self, board: Board) -> None:
        self.board = board
        self.handover = Handover(board.loop)
        self.closed = False
        self._connections: dict[Neighbour, ProcessConnection] = {}

    # Names, for every thread

    def claim(self, kind: str, name: str) -> None:
        """Claim a name in this process.

        Raises:
            NameTaken: Another wiring has it.
        """
        with _lock:
            owner = _names.setdefault((kind, name), self)
            found = list(_watchers.get((kind, name), {}).items())
        if owner is not self:
            raise NameTaken(kind, name, "another wiring of this process has it")
        for watcher, place in found:
            place.handover.post(watcher)

    def release(self, kind: str, name: str) -> None:
        """Release a name."""
        with _lock:
            if _names.get((kind, name)) is self:
                del _names[kind, name]

    def release_all(self) -> None:
        """Release all names."""
        with _lock:
            for key in [key for key, owner in _names.items() if owner is self]:
                del _names[key]

    def watch(self, kind: str, name: str, changed: Callable[[], object]) -> Callable[[], object]:
        """Call a function, another one for each watch, on this wiring's loop when a name appears; return the watch's end."""
        with _lock:
            _watchers.setdefault((kind, name), {})[changed] = self
        return partial(_unwatch, (kind, name), changed)

    # Connections

    def find(self, kind: str, name: str, *, is_global: bool = False) -> ProcessConnection | None:
        """Return the connection to another owner of a name in this process; with `is_global`, only if its scope is GLOBAL."""
        with _lock:
            owner = _names.get((kind, name))
            if owner is None or owner is self or owner.closed or self.closed:
                return None
            if is_global:
                made = owner.board.exchanges.get(name) if kind == "exchange" else owner.board.queues.get(name)
                if made is None or made.scope is not Scope.GLOBAL:
                    return None
            connection = self._connections.get(owner)
            if connection is None or not connection.up or not connection.twin.up:
                connection, twin = ProcessConnection(self, owner), ProcessConnection(owner, self)
                connection.twin, twin.twin = twin, connection
                self._connections[owner], owner._connections[self] = connection, twin
        return connection

    def forget(self, connection: ProcessConnection) -> None:
        """Forget a lost connection."""
        with _lock:
            self._connections = {other: known for other, known in self._connections.items() if known is not connection}

    def close(self) -> None:
        """Release all names, and close all connections."""
        self.release_all()
        with _lock:
            self.closed = True
            connections = list(self._connections.values())
            self._connections.clear()
        for connection in connections:
            connection.up = False
            connection.twin.lose_soon(self.board.incoming.taken(connection))
        self.handover.close()


class ProcessConnection(DirectConnection):
    """Connection to another wiring of this process: messages are not packed, and a burst wakes the other loop once."""

    twin: ProcessConnection
    place = "this process"

    def __init__(self, own: Neighbour, other: Neighbour) -> None:
        self._own = own
        self._other = other
        #: Calls that wait for answers.
        self._asking: set[asyncio.Future[Answer]] = set()
        super().__init__(own.board, other.board.identity, other.board.run)

    def enter(self) -> None:
        """Add it to the connections of its board, on its loop: the other wiring may have made it, on another thread."""
        self._own.handover.post(super().enter)

    def send_credit(self, number: int, taken: int) -> None:
        """Hand the credit over."""
        self.post(self.twin.credit, number, taken)

    def tell(self, word: dict[str, Any]) -> None:
        """Hand a word over."""
        self.post(self.twin.hear, word, _unheard)

    async def ask(self, word: dict[str, Any], timeout: float | None) -> Answer:
        """Hand a word over, and wait for the answer."""
        answered: asyncio.Future[Answer] = self.board.loop.create_future()
        own = self._own.handover

        def reply(answer: Answer) -> None:
            own.post(_settle, (answered, answer))

        self._asking.add(answered)
        try:
            self.post(self.twin.hear, word, reply)
            async with asyncio.timeout(timeout):
                return await answered
        except TimeoutError:
            raise PeerLost(self.place, f"no answer in {timeout:g} s") from None
        finally:
            self._asking.discard(answered)

    def hear(self, word: dict[str, Any], reply: Callable[[Answer], object]) -> None:
        """Handle a word of the other end."""
        try:
            answer = self.said(word) if self.up else refusal(Closed("wiring"))
        except ProtocolError as error:
            answer = refusal(error)
        if isinstance(answer, dict):
            reply(answer)
            return
        task = self.board.loop.create_task(_answer(answer, reply))
        self._own.board.tasks.add(task)
        task.add_done_callback(self._own.board.tasks.discard)

    def lose(self, error: RedpollError, *, final: bool) -> None:
        """Handle the end of the other wiring."""
        self._own.forget(self)
        super().lose(error, final=final)
        for answered in self._asking:
            _settle(answered, error)

    def lose_soon(self, taken: list[tuple[int, int]]) -> None:
        """Note, on the other end's thread, that it has closed, and what it had taken."""
        self._own.handover.post(self._lose_finally, (taken,))

    def _lose_finally(self, taken: list[tuple[int, int]]) -> None:
        self.took(taken)
        self.lose(PeerLost(self.place, "it was closed"), final=True)

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call a function on the loop of the other end."""
        self._other.handover.post(call, arguments)


def _unwatch(key: tuple[str, str], watcher: Callable[[], object]) -> None:
    """End a watch."""
    with _lock:
        watchers = _watchers.get(key, {})
        if watchers.pop(watcher, None) is not None and not watchers:
            del _watchers[key]


def _settle(answered: asyncio.Future[Answer], answer: Answer | RedpollError) -> None:
    if answered.done():
        return
    if isinstance(answer, dict):
        answered.set_result(answer)
    else:
        answered.set_exception(answer)


def _unheard(_: Answer) -> None:
    """Discard the answer."""


async def _answer(answer: Awaitable[Answer], reply: Callable[[Answer], object]) -> None:
    try:
        reply(await answer)
    except asyncio.CancelledError:
        reply(refusal(Closed("wiring")))
        raise
