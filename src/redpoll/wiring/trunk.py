"""A trunk: carries all pipes and words between a wiring and another one, or itself, both ways."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any

from redpoll.errors import PeerLost, ProtocolError, RedpollError
from redpoll.wiring.outlet import Chunk
from redpoll.wiring.pipe import Join, Pipe
from redpoll.wiring.port import Port
from redpoll.wiring.words import check_answer, refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from redpoll.wiring.board import Board
    from redpoll.wiring.exchange import Exchange

__all__ = ["AT_ONCE", "LocalTrunk", "Trunk"]

Answer = dict[str, Any]

#: Maximum bindings established over one trunk at a time: so each is answered in time, however many there are.
AT_ONCE = 100

#: Pieces that one pipe sends before the next waiting one has its turn.
_TURN = 4


class Trunk(ABC):
    """The base of all trunks.

    Attributes:
        board: The exchanges and queues of this end.
        identity: The identity of the other end, 16 bytes.
        run: The random id of the other end's run.
        up: True while the other end is there.
        pipes: Pipes to the other end, by number.
        ports: Pipes from the other end, by handle.
        joins: Joins of queues that the other end requested, by exchange and queue.
    """

    def __init__(self, board: Board, identity: bytes, run: bytes) -> None:
        self.board = board
        self.identity = identity
        self.run = run
        self.up = True
        self.pipes: dict[int, Pipe] = {}
        self.ports: dict[int, Port] = {}
        #: Pipes of exchanges that balance, by exchange and queue.
        self.balanced: dict[tuple[Exchange, str], Pipe] = {}
        self.joins: dict[tuple[str, str], Join] = {}
        #: Limits the bindings established over it at a time.
        self.turn = asyncio.Semaphore(AT_ONCE)
        #: Functions called with the error when it is lost.
        self.watchers: dict[Callable[[RedpollError], object], None] = {}
        self._starved: deque[Pipe] = deque()
        #: True if `pump` will be called.
        self._called = False
        self.enter()

    def enter(self) -> None:
        """Add it to the trunks of its board, unless it is lost."""
        if self.up:
            self.board.trunks.setdefault((self.identity, self.run), []).append(self)

    # Differences

    @property
    @abstractmethod
    def place(self) -> str:
        """The address of the other end, for people."""

    #: True if the other end sees names of this process; True if it sees all names.
    sees_process = False
    sees_all = False

    @property
    @abstractmethod
    def writable(self) -> bool:
        """True if it takes more data at once."""

    def leads_where(self, other: Trunk) -> bool:
        """Return True if another trunk leads to the same run of the same wiring, as far as that can be known."""
        same = self.identity == other.identity and self.run == other.run
        return same and self.sees_process == other.sees_process

    async def is_rival_of(self, holder: Trunk) -> bool:  # noqa: ARG002  # between processes
        """Return True if it claims the identity of another live trunk, and did not prove to lead to the same wiring."""
        return False

    def give_up(self, error: RedpollError) -> None:
        """Treat it as lost."""
        self.lose(error, final=False)

    @abstractmethod
    def call_writable(self) -> None:
        """Call `pump` once it takes more data."""

    @abstractmethod
    def send_data(self, pipe: Pipe, chunk: Chunk) -> None:
        """Send messages to the other end of a pipe."""

    @abstractmethod
    def send_mark(self, pipe: Pipe, first: int) -> None:
        """Tell the other end that no message before a number follows."""

    @abstractmethod
    def send_credit(self, number: int, taken: int) -> None:
        """Tell the other end that all messages of one of its pipes before a number were taken."""

    @abstractmethod
    def tell(self, word: dict[str, Any]) -> None:
        """Send a word behind all earlier data, without waiting for an answer."""

    @abstractmethod
    def ask(self, word: dict[str, Any], timeout: float | None) -> Awaitable[Answer]:
        """Send a word behind all earlier data, and wait for the answer."""

    async def request(self, word: dict[str, Any], timeout: float | None = None) -> Answer:
        """Send a word and return the answer.

        Raises:
            WiringError: The other end answered with an error.
            LinkError: The other end cannot be reached, is gone, or did not answer in time.
        """
        if not self.up:
            raise PeerLost(self.place, "it is gone")
        return check_answer(await self.ask(word, timeout))

    # For pipes

    def starve(self, pipe: Pipe) -> None:
        """Queue a pipe that has more data than the trunk takes now."""
        if not pipe.starved:
            pipe.starved = True
            self._starved.append(pipe)
            if not self._called:
                self._called = True
                self.call_writable()

    def pump(self) -> None:
        """Send data of waiting pipes, in turn."""
        starved = self._starved
        # A pipe that is not done waits again below.
        self._called = True
        while starved and self.writable:
            pipe = starved.popleft()
            pipe.starved = False
            for _ in range(_TURN):
                chunk = pipe.outlet.take() if pipe.trunk is self else None
                if chunk is None:
                    break
                self.send_data(pipe, chunk)
            if pipe.trunk is not self:
                continue
            if len(starved) and not pipe.outlet.empty:
                pipe.starved = True
                starved.append(pipe)
            else:
                pipe.pump()
        self._called = bool(starved)
        if starved:
            self.call_writable()

    def end(self, pipe: Pipe) -> None:
        """Close a pipe."""
        self.pipes.pop(pipe.number, None)
        if self.balanced.get((pipe.exchange, pipe.queue)) is pipe:
            del self.balanced[pipe.exchange, pipe.queue]
        if self.up:
            self.tell({"word": "end", "pipe": pipe.number})

    # From the other end

    def data(self, handle: int, first: int, said: int, messages: list[bytes], size: int) -> None:
        """Process received messages."""
        port = self.ports.get(handle)
        if port is not None:
            port.inlet.arrived(first, said, messages, size)

    def credit(self, number: int, taken: int) -> None:
        """Process received credit."""
        pipe = self.pipes.get(number)
        if pipe is not None and taken > pipe.outlet.taken:
            pipe.credited(taken)

    def took(self, numbers: Iterable[Any]) -> None:
        """Process pairs of pipe number and taken messages, sent by the other end as it closes; not validated yet."""
        for each in numbers:
            match each:
                case (int(number), int(taken)) if (pipe := self.pipes.get(number)) is not None:
                    pipe.outlet.credit(taken)

    def said(self, word: dict[str, Any]) -> Answer | Awaitable[Answer]:
        """Process a word of the other end; return the answer.

        Raises:
            ProtocolError: The word is unknown.
        """
        return self.board.hear(self, word)

    def lose(self, error: RedpollError, *, final: bool) -> None:
        """Handle the loss of the other end.

        Args:
            error: The reason.
            final: True if it closed for good.
        """
        if not self.up:
            return
        self.up = False
        self._starved.clear()
        same = self.board.trunks.get((self.identity, self.run), [])
        if self in same:
            same.remove(self)
            if not same:
                del self.board.trunks[self.identity, self.run]
        self.board.trunk_lost(self, final=final)
        watchers, self.watchers = self.watchers, {}
        for watcher in watchers:
            watcher(error)


class LocalTrunk(Trunk):
    """Trunk to the same wiring: messages are not packed, and nothing is ever lost."""

    sees_process = True
    sees_all = True

    @property
    def place(self) -> str:
        """Always "here"."""
        return "here"

    @property
    def writable(self) -> bool:
        """True."""
        return True

    def call_writable(self) -> None:
        """Do nothing: it is always writable."""

    def send_data(self, pipe: Pipe, chunk: Chunk) -> None:
        """Hand the messages over."""
        self.data(pipe.handle, chunk.first, pipe.promised, chunk.batch.messages, chunk.batch.size)

    def send_mark(self, pipe: Pipe, first: int) -> None:
        """Hand the number over."""
        self.data(pipe.handle, first, pipe.promised, [], 0)

    def send_credit(self, number: int, taken: int) -> None:
        """Process the credit later: the caller is in the middle of its work."""
        self.board.loop.call_soon(self.credit, number, taken)

    def tell(self, word: dict[str, Any]) -> None:
        """Process the word."""
        self.said(word)

    async def ask(self, word: dict[str, Any], timeout: float | None) -> Answer:
        """Process the word, and return the answer."""
        try:
            async with asyncio.timeout(timeout):
                answer = self.said(word)
                return answer if isinstance(answer, dict) else await answer
        except ProtocolError:
            raise
        except RedpollError as error:
            return refusal(error)
