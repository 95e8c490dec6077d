"""Connections between wirings, or of one to itself, and both ends of the pipes that they carry."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain
from typing import Any, Protocol, TypeAlias

from redpoll.errors import PeerLost, ProtocolError, RedpollError
from redpoll.wiring.inlet import Inlet
from redpoll.wiring.names import AtLimit, Limits, Scope, Style
from redpoll.wiring.outlet import Outlet
from redpoll.wiring.protocol import Batch, check_answer, refusal
from redpoll.wiring.waiting import Waiters

__all__ = [
    "AT_ONCE",
    "NO_MESSAGES",
    "TELL_AFTER",
    "Answer",
    "DirectTrunk",
    "Join",
    "LocalTrunk",
    "Pipe",
    "Port",
    "Trunk",
]

Answer: TypeAlias = dict[str, Any]
"""The answer to a word."""

#: Maximum bindings established over one trunk at a time: so each is answered in time, however many there are.
AT_ONCE = 100

#: Seconds after which the other end is sent a small credit.
TELL_AFTER = 0.05

#: Pieces that one pipe sends before the next waiting one has its turn.
_TURN = 4

NO_MESSAGES = Batch([], 0)
"""No messages."""


class _Exchange(Protocol):
    """What pipes, and the queues that join them, need of an exchange."""

    name: str
    scope: Scope
    style: Style
    limits: Limits
    at_limit: AtLimit
    closed: bool
    pipes: list[Pipe]
    opening: dict[Pipe, asyncio.Event]
    drainers: Waiters

    def stage_out(self) -> None: ...
    def drained(self) -> None: ...
    def room_changed(self) -> None: ...
    def pipe_changed(self) -> None: ...
    def pipe_lost(self, pipe: Pipe) -> None: ...
    def count_unconfirmed(self, count: int) -> None: ...
    def take_back(self, pipe: Pipe) -> None: ...
    def remove(self, pipe: Pipe) -> None: ...


class _Owner(Protocol):
    """What a trunk needs of the wiring at its own end."""

    loop: asyncio.AbstractEventLoop
    trunks: dict[tuple[bytes, bytes], list[Trunk]]
    next_number: Callable[[], int]

    def hear(self, trunk: Trunk, word: dict[str, Any]) -> Answer | Awaitable[Answer]: ...
    def trunk_lost(self, trunk: Trunk, *, final: bool) -> None: ...


class Join:
    """A queue bound to an exchange, at the exchange's end.

    Attributes:
        exchange: The exchange.
        queue: The name of the queue.
        everywhere: True if the queue's scope is GLOBAL, so that its name denotes one queue only.
        pipe: The pipe to the queue; None before it is first opened.
        base: The number before which the queue's owner had taken all messages when the pipe was lost.
        up: True while the queue's owner has the pipe open.
        asker: The trunk over which the queue's owner requested it; None if it did not.
    """

    def __init__(self, exchange: _Exchange, queue: str) -> None:
        self.exchange = exchange
        self.queue = queue
        self.everywhere = False
        self.pipe: Pipe | None = None
        self.base = 0
        self.up = False
        self.asker: Trunk | None = None


class Pipe:
    """A pipe, at the exchange's end.

    Attributes:
        exchange: The exchange.
        number: Its number at both ends, in one run of its owner.
        outlet: Its sending half.
        trunk: The trunk that carries it; None while that is lost.
        carrier: The trunk that carries it, or carried it last; None before the first one.
        handle: Its handle at the other end.
        joins: Its queues by name, each with the joins of all bindings that have it.
        disputed: True if the other end was asked on opening whether another pipe leads there.
        ending: True while it only sends waiting messages.
    """

    def __init__(self, exchange: _Exchange, number: int, outlet: Outlet) -> None:
        self.exchange = exchange
        self.number = number
        self.outlet = outlet
        self.trunk: Trunk | None = None
        self.carrier: Trunk | None = None
        self.disputed = False
        self.handle = 0
        self.joins: dict[str, list[Join]] = {}
        self.ending = False
        #: Name of its queue, if its exchange balances.
        self.queue = ""
        #: Joins for which it is being opened.
        self.opening: list[Join] = []
        #: Name of the queue that left last.
        self._left: tuple[str, ...] = ()
        #: True while it waits for its trunk to become writable.
        self.starved = False

    def add(self, join: Join) -> None:
        """Add a queue to its receivers."""
        known = self.joins.setdefault(join.queue, [])
        if join not in known:
            known.append(join)

    def drop(self, join: Join) -> bool:
        """Remove a join; return True if its queue has no other join."""
        known = self.joins.get(join.queue, [])
        if join in known:
            known.remove(join)
            if not known:
                del self.joins[join.queue]
                self._left = (join.queue,)
                return True
        return False

    @property
    def bound(self) -> list[Join]:
        """All its joins."""
        return list(chain.from_iterable(self.joins.values()))

    @property
    def queues(self) -> tuple[str, ...]:
        """The names of the queues that received the messages sent: its receivers, or the queue that left last."""
        return tuple(self.joins) or self._left or tuple(each.queue for each in self.opening)

    def led_where(self, trunk: Trunk) -> bool:
        """Return True if it led to the wiring to which a trunk leads."""
        return self.carrier is not None and self.carrier.leads_where(trunk)

    def leads_to(self, queue: str) -> bool:
        """Return whether it brings messages to a queue, or is being opened for it."""
        return queue in self.joins or any(each.queue == queue for each in self.opening)

    @property
    def promised(self) -> int:
        """The number before which all messages arrive by this pipe, or are missing.

        With `Style.BALANCE`, waiting messages may still be given to another pipe.
        """
        return self.outlet.sent if self.exchange.style is Style.BALANCE else self.outlet.next

    def pump(self) -> None:
        """Send waiting messages, as far as the other end has room and the trunk is writable."""
        outlet = self.outlet
        trunk = self.trunk
        if trunk is None or not outlet.up:
            return
        while trunk.writable:
            chunk = outlet.take()
            if chunk is None:
                break
            trunk.send_data(self, *chunk)
            if not outlet.waiting:
                break
        else:
            trunk.starve(self)
            return
        if outlet.tail:
            trunk.send_data(self, outlet.mark())
        if self.ending and outlet.empty:
            self.end()
        elif self.exchange.drainers:
            self.exchange.drained()

    def end(self) -> None:
        """Close it: all is sent, or taken back."""
        trunk, self.trunk = self.trunk, None
        if trunk is not None:
            trunk.end(self)

    def credited(self, taken: int) -> None:
        """Process credit of the other end."""
        if self.outlet.credit(taken):
            self.pump()
            self.exchange.room_changed()

    def lost(self) -> None:
        """Detach the trunk, which is lost; the caller tells the exchange that its pipes changed."""
        self.trunk = None
        self.starved = False
        self.outlet.up = False
        for join in self.bound:
            if join.up:
                join.up = False
                join.base = self.outlet.taken
        self.exchange.pipe_lost(self)


class Port:
    """A pipe, at the queues' end.

    Attributes:
        inlet: Its receiving half.
        number: Its number at both ends, in one run of its owner.
        run: That run.
        identity: The identity of the wiring that opened it.
        handle: Its handle at this end.
        trunk: The trunk that carries it; None while that is lost.
        quiet: True while credit is held back, as a word with more information is about to be sent.
        lost_at: Time when the trunk was lost, on the loop's clock.
    """

    def __init__(
        self,
        exchange: str,
        key: tuple[str, ...],
        first: int,
        limits: Limits,
        trunk: Trunk,
        number: int,
        handle: int,
        widen: Callable[[Port], None],
    ) -> None:
        self.inlet = Inlet(exchange, key, first, limits, self._freed)
        self.inlet.owner = self
        self.number = number
        self.run = trunk.run
        self.identity = trunk.identity
        self.handle = handle
        self.trunk: Trunk | None = trunk
        self.quiet = False
        self.lost_at = 0.0
        #: Called when the other end may have to be granted more, as a queue has left.
        self._widen = widen
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def _freed(self) -> None:
        """Send credit to the other end: now if it is much, else soon."""
        if self.trunk is None or self.quiet:
            return
        if self.inlet.due:
            self.tell()
        elif self._timer is None:
            self._timer = self._loop.call_later(TELL_AFTER, self._tell_late)

    def _tell_late(self) -> None:
        self._timer = None
        if self.inlet.taken > self.inlet.told:
            self.tell()

    def tell(self) -> None:
        """Send credit to the other end."""
        if self.trunk is not None:
            self.trunk.send_credit(self.number, self.inlet.tell())
            if self.inlet.shrunk and self.inlet.sources:
                self._widen(self)

    def lose(self) -> None:
        """Detach the trunk, which is lost."""
        self.trunk = None
        self.lost_at = self._loop.time()
        self.stop()

    def stop(self) -> None:
        """Send no more credit."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


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

    def __init__(self, board: _Owner, identity: bytes, run: bytes) -> None:
        self.board = board
        self.identity = identity
        self.run = run
        self.up = True
        self.pipes: dict[int, Pipe] = {}
        self.ports: dict[int, Port] = {}
        #: Pipes of exchanges that balance, by exchange and queue.
        self.balanced: dict[tuple[_Exchange, str], Pipe] = {}
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

    #: True if the other end sees names of this process; True if it sees all names.
    sees_process = False
    sees_all = False

    @property
    @abstractmethod
    def place(self) -> str:
        """The address of the other end, for people."""

    @property
    @abstractmethod
    def writable(self) -> bool:
        """True if it takes more data at once."""

    def sees(self, scope: Scope) -> bool:
        """Return True if the other end sees names of a scope."""
        return self.sees_all or scope is Scope.GLOBAL or (self.sees_process and scope is Scope.PROCESS)

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
    def send_data(self, pipe: Pipe, first: int, batch: Batch = NO_MESSAGES) -> None:
        """Send messages to the other end of a pipe; with none, tell it that no message before `first` follows."""

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
                self.send_data(pipe, *chunk)
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
        """Process a word of the other end; return the answer, which may be an error.

        Raises:
            ProtocolError: The word is malformed, or unknown.
        """
        try:
            answer = self.board.hear(self, word)
        except ProtocolError:
            raise
        except RedpollError as error:
            return refusal(error)
        return answer if isinstance(answer, dict) else _said_later(answer)

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


class DirectTrunk(Trunk):
    """Base of trunks within a process: messages are not packed, and room at the other end is the only limit.

    Attributes:
        twin: The trunk of the other end.
    """

    sees_process = True
    writable = True
    twin: DirectTrunk

    def call_writable(self) -> None:
        """Do nothing: it is always writable."""

    @abstractmethod
    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call a function of the other end, in order."""

    def send_data(self, pipe: Pipe, first: int, batch: Batch = NO_MESSAGES) -> None:
        """Hand the messages over."""
        self.post(self.twin.data, pipe.handle, first, pipe.promised, batch.messages, batch.size)


class LocalTrunk(DirectTrunk):
    """Trunk to the same wiring: nothing is ever lost."""

    sees_all = True
    place = "here"

    def __init__(self, board: _Owner, identity: bytes, run: bytes) -> None:
        self.twin = self
        super().__init__(board, identity, run)

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call a function."""
        call(*arguments)

    def send_credit(self, number: int, taken: int) -> None:
        """Process the credit later: the caller is in the middle of its work."""
        self.board.loop.call_soon(self.credit, number, taken)

    def tell(self, word: dict[str, Any]) -> None:
        """Process the word."""
        self.said(word)

    async def ask(self, word: dict[str, Any], timeout: float | None) -> Answer:
        """Process the word, and return the answer."""
        async with asyncio.timeout(timeout):
            answer = self.said(word)
            return answer if isinstance(answer, dict) else await answer


async def _said_later(answer: Awaitable[Answer]) -> Answer:
    try:
        return await answer
    except RedpollError as error:
        return refusal(error)
