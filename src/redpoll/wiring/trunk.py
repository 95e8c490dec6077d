"""A trunk carries all pipes between a wiring and another one, or itself, both ways, and what they tell one another."""

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

#: Bindings that are wired over one trunk at a time: each has an answer in time, however many there are.
AT_ONCE = 100

#: Pieces that one pipe sends before the next one that waits has its turn.
_TURN = 4


class Trunk(ABC):
    """What all trunks have.

    Attributes:
        board: Whose it is.
        identity: Of the other end, 16 bytes.
        run: Of the other end: what it is in one run and never in another.
        up: Whether the other end is there.
        pipes: Those that lead there, by number.
        ports: Those that come from there, by handle.
        joins: Of these, the queues that are bound because the other end asked for it, by exchange and queue.
    """

    def __init__(self, board: Board, identity: bytes, run: bytes) -> None:
        self.board = board
        self.identity = identity
        self.run = run
        self.up = True
        self.pipes: dict[int, Pipe] = {}
        self.ports: dict[int, Port] = {}
        #: The pipes of exchanges that balance, by exchange and queue.
        self.balanced: dict[tuple[Exchange, str], Pipe] = {}
        self.joins: dict[tuple[str, str], Join] = {}
        #: Bindings that are wired over it at a time.
        self.turn = asyncio.Semaphore(AT_ONCE)
        #: Called with the error when it is lost.
        self.watchers: dict[Callable[[RedpollError], object], None] = {}
        self._starved: deque[Pipe] = deque()
        #: Whether `resume` will be called.
        self._called = False
        board.trunks.setdefault((identity, run), []).append(self)

    # What differs

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the other end is, for whoever reads it."""

    #: Whether the other end sees names of this process, and all names.
    sees_process = False
    sees_all = False

    @property
    @abstractmethod
    def writable(self) -> bool:
        """Whether it takes more data now."""

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
        """Have `resume` called once it takes more."""

    @abstractmethod
    def send_data(self, pipe: Pipe, chunk: Chunk) -> None:
        """Bring messages to the other end of a pipe."""

    @abstractmethod
    def send_mark(self, pipe: Pipe, first: int) -> None:
        """Tell it that nothing before a number comes any more."""

    @abstractmethod
    def send_credit(self, number: int, taken: int) -> None:
        """Tell the other end that all before a number of a pipe of its was taken."""

    @abstractmethod
    def tell(self, word: dict[str, Any]) -> None:
        """Tell the other end something, behind all that was sent; nobody says whether it came."""

    @abstractmethod
    def ask(self, word: dict[str, Any], timeout: float | None) -> Awaitable[Answer]:
        """Tell the other end something, behind all that was sent, and wait for what it says."""

    async def request(self, word: dict[str, Any], timeout: float | None = None) -> Answer:
        """Ask the other end.

        Raises:
            WiringError: What it says went wrong.
            LinkError: It cannot be reached, or is gone, or did not answer in time.
        """
        if not self.up:
            raise PeerLost(self.place, "it is gone")
        return check_answer(await self.ask(word, timeout))

    # For pipes

    def starve(self, pipe: Pipe) -> None:
        """A pipe has more than the trunk takes now."""
        if not pipe.starved:
            pipe.starved = True
            self._starved.append(pipe)
            if not self._called:
                self._called = True
                self.call_writable()

    def resume(self) -> None:
        """It takes more: pipes that wait have their turns."""
        starved = self._starved
        # What does not get all of it away now waits again below.
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
        """Nothing more comes by a pipe."""
        self.pipes.pop(pipe.number, None)
        if self.balanced.get((pipe.exchange, pipe.queue)) is pipe:
            del self.balanced[pipe.exchange, pipe.queue]
        if self.up:
            self.tell({"word": "end", "pipe": pipe.number})

    # From the other end

    def data(self, handle: int, first: int, said: int, messages: list[bytes], size: int) -> None:
        """Messages came."""
        port = self.ports.get(handle)
        if port is not None:
            port.inlet.arrived(first, said, messages, size)

    def credit(self, number: int, taken: int) -> None:
        """Messages were taken at the other end."""
        pipe = self.pipes.get(number)
        if pipe is not None and taken > pipe.outlet.taken:
            pipe.credited(taken)

    def took(self, numbers: Iterable[Any]) -> None:
        """What the other end had taken by each pipe as it gave that up: pairs of numbers, from outside."""
        for each in numbers:
            match each:
                case (int(number), int(taken)) if (pipe := self.pipes.get(number)) is not None:
                    pipe.outlet.credit(taken)

    def said(self, word: dict[str, Any]) -> Answer | Awaitable[Answer]:
        """The other end said something: what to answer.

        Raises:
            ProtocolError: It is none that is known here.
        """
        return self.board.hear(self, word)

    def lose(self, error: RedpollError, *, final: bool) -> None:
        """The other end is gone.

        Args:
            error: Why.
            final: Whether it said so, and will not be back.
        """
        if not self.up:
            return
        self.up = False
        self._starved.clear()
        same = self.board.trunks[self.identity, self.run]
        same.remove(self)
        if not same:
            del self.board.trunks[self.identity, self.run]
        self.board.trunk_lost(self, final=final)
        watchers, self.watchers = self.watchers, {}
        for watcher in watchers:
            watcher(error)


class LocalTrunk(Trunk):
    """To the same wiring: nothing is packed, and nothing is ever lost."""

    sees_process = True
    sees_all = True

    @property
    def place(self) -> str:
        """Here."""
        return "here"

    @property
    def writable(self) -> bool:
        """Always."""
        return True

    def call_writable(self) -> None:
        """It always is."""

    def send_data(self, pipe: Pipe, chunk: Chunk) -> None:
        """Hand the messages over."""
        self.data(pipe.handle, chunk.first, pipe.promised, chunk.batch.messages, chunk.batch.size)

    def send_mark(self, pipe: Pipe, first: int) -> None:
        """Hand the number over."""
        self.data(pipe.handle, first, pipe.promised, [], 0)

    def send_credit(self, number: int, taken: int) -> None:
        """Not at once: what gives it is in the midst of something."""
        self.board.loop.call_soon(self.credit, number, taken)

    def tell(self, word: dict[str, Any]) -> None:
        """Say it."""
        self.said(word)

    async def ask(self, word: dict[str, Any], timeout: float | None) -> Answer:
        """Say it, and answer."""
        try:
            async with asyncio.timeout(timeout):
                answer = self.said(word)
                return answer if isinstance(answer, dict) else await answer
        except ProtocolError:
            raise
        except RedpollError as error:
            return refusal(error)
