"""Connections between wirings, or of one to itself, and the pipes that they carry, at the exchanges' end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain
from typing import Any, Protocol, TypeAlias

from redpoll.errors import PeerLost, ProtocolError, RedpollError
from redpoll.wiring.names import AtLimit, Limits, Scope, Style
from redpoll.wiring.protocol import Batch, check_answer, refusal
from redpoll.wiring.receiver import Receiver
from redpoll.wiring.sender import Sender
from redpoll.wiring.waiting import Waiters

__all__ = [
    "AT_ONCE",
    "MAX_ENDED",
    "NO_MESSAGES",
    "Answer",
    "Connection",
    "DirectConnection",
    "LocalConnection",
    "Pipe",
    "Subscription",
]

Answer: TypeAlias = dict[str, Any]
"""The answer to a word."""

#: Maximum bindings established over one connection at a time: so each is answered in time, however many there are.
AT_ONCE = 100

#: Maximum closed pipes whose lost other ends are still to be told.
MAX_ENDED = 1000

#: Pieces that one pipe sends before the next waiting one has its turn.
_TURN = 4

NO_MESSAGES = Batch([], 0)
"""No messages."""


class _Exchange(Protocol):
    """An exchange, as pipes and subscribing queues see it."""

    name: str
    scope: Scope
    style: Style
    limits: Limits
    at_limit: AtLimit
    closed: bool
    pipes: list[Pipe]
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
    """The wiring at a connection's own end, as the connection sees it."""

    loop: asyncio.AbstractEventLoop
    connections: dict[bytes, list[Connection]]
    ended: deque[tuple[bytes, bytes, int]]
    next_number: Callable[[], int]

    def hear(self, connection: Connection, word: dict[str, Any]) -> Answer | Awaitable[Answer]: ...
    def connection_lost(self, connection: Connection, error: RedpollError, *, final: bool) -> None: ...


class Subscription:
    """A queue bound to an exchange, at the exchange's end.

    Attributes:
        exchange: The exchange.
        queue: The name of the queue.
        is_global: True if the queue's scope is GLOBAL, so that its name denotes one queue only.
        pipe: The pipe to the queue; None before it is first opened.
        base: The number before which the queue's owner had taken all messages when the pipe was lost.
        up: True while the queue's owner has the pipe open.
        asker: The connection over which another wiring requested it; None if this one did.
        attempt: The number of that wiring's last request, which news of it repeat; 0 if it gave none.
        key: Identifies its pipe among those of one connection: the queues of an exchange that distributes share one.
    """

    def __init__(self, exchange: _Exchange, queue: str) -> None:
        self.exchange = exchange
        self.queue = queue
        self.is_global = False
        self.pipe: Pipe | None = None
        self.base = 0
        self.up = False
        self.asker: Connection | None = None
        self.attempt = 0
        self.key = exchange, queue if exchange.style is Style.BALANCE else ""

    def tell_asker(self, carrier: Connection | None, error: RedpollError) -> None:
        """Tell the wiring that requested it that it is lost, unless that is at the other end of its pipe and knows."""
        if self.asker is not None and self.asker is not carrier:
            for each in self.asker.same:
                # This end alone may be about to lose one of them, with what is told over it.
                if each.up:
                    self.tell(each, error)

    def tell(self, connection: Connection, error: RedpollError) -> None:
        """Tell the other end of a connection, which requested it, that it is lost."""
        names = {"exchange": self.exchange.name, "queue": self.queue}
        connection.tell({"word": "unwired", **names, "attempt": self.attempt, **refusal(error)})


class Pipe(Sender):
    """A pipe, at the exchange's end.

    Attributes:
        key: The key of its subscriptions.
        exchange: The exchange.
        number: Its number at both ends, in one run of its owner.
        connection: The connection that carries it; None while that is lost.
        carrier: The connection that carries it, or carried it last, or over which it is opened first.
        opened: True once the other end has opened it.
        subscriptions: Its queues by name, each with the subscriptions of all bindings that have it.
        ending: True while it only sends waiting messages.
        untold: Queues that left while it was lost, with the number behind the last message for each.
    """

    def __init__(self, key: tuple[_Exchange, str], carrier: Connection) -> None:
        self.key = key
        self.exchange = exchange = key[0]
        super().__init__(exchange.limits, exchange.at_limit)
        self.number = carrier.board.next_number()
        self.connection: Connection | None = None
        self.carrier = carrier
        self.opened = False
        self.subscriptions: dict[str, list[Subscription]] = {}
        self.ending = False
        self.untold: dict[str, int] = {}
        #: Subscriptions for which it is being opened.
        self.opening: list[Subscription] = []
        #: Name of the queue that left last.
        self._left: tuple[str, ...] = ()
        #: Queues that left while messages for them waited here, with the number behind the last one.
        self._leaving: dict[str, int] = {}
        #: True while it waits for its connection to become writable.
        self.waits_writable = False

    def add(self, subscription: Subscription) -> None:
        """Add a queue to its receivers."""
        known = self.subscriptions.setdefault(subscription.queue, [])
        if subscription not in known:
            known.append(subscription)

    def drop(self, subscription: Subscription) -> bool:
        """Remove a subscription; return True if its queue has no other subscription."""
        known = self.subscriptions.get(subscription.queue, [])
        if subscription in known:
            known.remove(subscription)
            if not known:
                del self.subscriptions[subscription.queue]
                self._left = (subscription.queue,)
                self._leaving = {name: end for name, end in self._leaving.items() if end > self.sent}
                self._leaving[subscription.queue] = self.next
                return True
        return False

    def awaits(self, queue: str) -> bool:
        """Return True if a queue that left was not sent all its messages: at the other end it leaves after the last one."""
        return self._leaving.get(queue, 0) > self.sent

    @property
    def bound(self) -> list[Subscription]:
        """All its subscriptions."""
        return list(chain.from_iterable(self.subscriptions.values()))

    @property
    def queues(self) -> tuple[str, ...]:
        """The names of the queues that received the messages sent: its receivers, or the queue that left last."""
        return tuple(self.subscriptions) or self._left or tuple(each.queue for each in self.opening)

    def leads_to(self, queue: str) -> bool:
        """Return whether it brings messages to a queue, or is being opened for it."""
        return queue in self.subscriptions or any(each.queue == queue for each in self.opening)

    @property
    def promised(self) -> int:
        """The number before which all messages arrive by this pipe, or are missing.

        With `Style.BALANCE`, waiting messages may still be given to another pipe.
        """
        return self.sent if self.exchange.style is Style.BALANCE else self.next

    def pump(self) -> None:
        """Send waiting messages, as far as the other end has room and the connection is writable."""
        connection = self.connection
        if connection is None or not self.up:
            return
        while connection.writable:
            chunk = self.take()
            if chunk is None:
                break
            connection.send_data(self, *chunk)
            if not self.waiting:
                break
        else:
            connection.wait_writable(self)
            return
        if self.tail:
            connection.send_data(self, self.mark())
        if self.ending and self.empty:
            self.end()
        elif self.exchange.drainers:
            self.exchange.drained()

    def carried_by(self, connection: Connection) -> None:
        """Attach a connection, in place of the one that carried it."""
        if self.connection is not None:
            self.connection.forget(self)
        self.connection = self.carrier = connection
        self.waits_writable = False

    def end(self) -> None:
        """Close it: all is sent, or taken back."""
        self.connection = None
        self.carrier.end(self)

    def credited(self, taken: int) -> None:
        """Process credit of the other end."""
        if self.credit(taken):
            self.pump()
            self.exchange.room_changed()

    def lost(self) -> None:
        """Detach the connection, which is lost; the caller tells the exchange that its pipes changed."""
        self.connection = None
        self.waits_writable = False
        self.up = False
        for subscription in self.bound:
            if subscription.up:
                subscription.up = False
                subscription.base = self.taken
        self.exchange.pipe_lost(self)


class Connection(ABC):
    """The base of all connections.

    Attributes:
        board: The exchanges and queues of this end.
        identity: The identity of the other end, 16 bytes.
        run: The random id of the other end's run.
        up: True while the other end is there.
        final: True if the other end closed for good.
        confirmed: True once the other end is known to have it: before that it may wait for the answer to its hello.
        pipes: Pipes to the other end, by number.
        incoming: The receivers of pipes from the other end, by number.
        subscriptions: Those of queues that the other end requested, by exchange and queue.
    """

    def __init__(self, board: _Owner, identity: bytes, run: bytes) -> None:
        self.board = board
        self.identity = identity
        self.run = run
        self.up = True
        self.final = False
        self.pipes: dict[int, Pipe] = {}
        self.incoming: dict[int, Receiver] = {}
        #: Pipes by the keys of their subscriptions.
        self.outgoing: dict[tuple[_Exchange, str], Pipe] = {}
        self.subscriptions: dict[tuple[str, str], Subscription] = {}
        #: Limits the bindings established over it at a time.
        self.turn = asyncio.Semaphore(AT_ONCE)
        self._waiting_writable: deque[Pipe] = deque()
        #: True if `pump` will be called.
        self._called = False
        self.enter()

    def enter(self) -> None:
        """Add it to the connections of its board, unless it is lost."""
        if self.up:
            self.board.connections.setdefault(self.identity, []).append(self)

    # Differences

    confirmed = True
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

    def leads_where(self, other: Connection, *, any_run: bool = False) -> bool:
        """Return True if another connection leads to the same wiring, as far as that can be known.

        Args:
            other: The other connection.
            any_run: Whether it may lead to another run of the wiring.
        """
        same = self.identity == other.identity and (any_run or self.run == other.run)
        return same and self.sees_process == other.sees_process

    @property
    def same(self) -> list[Connection]:
        """It, and the others that lead to the same wiring and are up: two here may be one there, or the reverse."""
        known = self.board.connections.get(self.identity, ())
        return [self, *(each for each in known if each is not self and self.leads_where(each))]

    def carrier_of(self, number: int) -> Connection:
        """Return the connection that has a pipe to the other end: another one if this has no such pipe."""
        return self if number in self.pipes else next((each for each in self.same if number in each.pipes), self)

    async def is_rival_of(self, holder: Connection) -> bool:  # noqa: ARG002  # between processes
        """Return True if it claims the identity of another live connection, and did not prove to lead to the same wiring."""
        return False

    async def check_pipe(self, number: int) -> None:  # noqa: B027  # between processes
        """Treat the connection as lost if its other end says that it no longer has a pipe from there."""

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

    def wait_writable(self, pipe: Pipe) -> None:
        """Queue a pipe that has more data than the connection takes now."""
        if not pipe.waits_writable:
            pipe.waits_writable = True
            self._waiting_writable.append(pipe)
            if not self._called:
                self._called = True
                self.call_writable()

    def pump(self) -> None:
        """Send data of waiting pipes, in turn."""
        waits_writable = self._waiting_writable
        # A pipe that is not done waits again below.
        self._called = True
        while waits_writable and self.writable:
            pipe = waits_writable.popleft()
            if pipe.connection is not self:
                continue
            pipe.waits_writable = False
            for _ in range(_TURN):
                chunk = pipe.take() if pipe.connection is self else None
                if chunk is None:
                    break
                self.send_data(pipe, *chunk)
            if pipe.connection is not self:
                continue
            if len(waits_writable) and not pipe.empty:
                pipe.waits_writable = True
                waits_writable.append(pipe)
            else:
                pipe.pump()
        self._called = bool(waits_writable)
        if waits_writable:
            self.call_writable()

    def end(self, pipe: Pipe) -> None:
        """Close a pipe; an other end that is lost, or may not have the connection yet, is told when it has one."""
        self.forget(pipe)
        up = next((each for each in self.same if each.up), None)
        if up is not None:
            up.tell({"word": "end", "pipe": pipe.number})
        if not self.final and (up is None or not up.confirmed):
            self.board.ended.append((self.identity, self.run, pipe.number))

    def tell_ended(self) -> None:
        """Tell the other end, which is back, of pipes that were closed while it was lost; forget those of its former runs."""
        ended, self.board.ended = self.board.ended, deque(maxlen=MAX_ENDED)
        for identity, run, number in ended:
            if identity != self.identity:
                self.board.ended.append((identity, run, number))
            elif run == self.run:
                self.tell({"word": "end", "pipe": number})

    def forget(self, pipe: Pipe) -> None:
        """Forget a pipe."""
        self.pipes.pop(pipe.number, None)
        if self.outgoing.get(pipe.key) is pipe:
            del self.outgoing[pipe.key]

    # From the other end

    def data(self, number: int, first: int, said: int, messages: list[bytes], size: int) -> None:
        """Process received messages."""
        pipe = self.incoming.get(number)
        if pipe is not None:
            pipe.arrived(first, said, messages, size)

    def credit(self, number: int, taken: int) -> None:
        """Process received credit."""
        pipe = self.pipes.get(number)
        if pipe is not None and taken > pipe.taken:
            pipe.credited(taken)

    def took(self, numbers: Iterable[Any]) -> None:
        """Process pairs of pipe number and taken messages, sent by the other end as it closes; not validated yet."""
        for each in numbers:
            match each:
                case (int(number), int(taken)) if (pipe := self.pipes.get(number)) is not None:
                    pipe.credit(taken)

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
        self.final = final
        self._waiting_writable.clear()
        same = self.board.connections.get(self.identity, [])
        if self in same:
            same.remove(self)
            if not same:
                del self.board.connections[self.identity]
        self.board.connection_lost(self, error, final=final)


class DirectConnection(Connection):
    """Base of connections within a process: messages are not packed, and room at the other end is the only limit.

    Attributes:
        twin: The connection of the other end.
    """

    sees_process = True
    writable = True
    twin: DirectConnection

    def call_writable(self) -> None:
        """Do nothing: it is always writable."""

    @abstractmethod
    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call a function of the other end, in order."""

    def send_data(self, pipe: Pipe, first: int, batch: Batch = NO_MESSAGES) -> None:
        """Hand the messages over."""
        self.post(self.twin.data, pipe.number, first, pipe.promised, batch.messages, batch.size)


class LocalConnection(DirectConnection):
    """Connection to the same wiring: nothing is ever lost."""

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
