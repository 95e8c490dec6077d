"""The board: the exchanges and queues of one wiring, and its pipes."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import count
from typing import Any, TypeVar

from redpoll.errors import NameTaken, PeerLost, ProtocolError, RedpollError, UnknownName
from redpoll.wiring.connection import MAX_ENDED, Answer, Connection, LocalConnection
from redpoll.wiring.directory.entries import Kind
from redpoll.wiring.events import WiringEvents
from redpoll.wiring.exchange import Exchange
from redpoll.wiring.incoming import IncomingPipes
from redpoll.wiring.names import Gap, Scope
from redpoll.wiring.protocol import field
from redpoll.wiring.queue import Queue
from redpoll.wiring.subscribing import leave, window_of
from redpoll.wiring.waiting import Waiters

__all__ = ["KEPT", "Board", "MadeT"]

#: Seconds for which a pipe is kept whose other end is gone and was to bind it again.
KEPT = 10.0

_ANOTHERS = "another owner has it"

MadeT = TypeVar("MadeT", Exchange, Queue)


class Board:
    """The exchanges and queues of one wiring; all methods are called on its loop.

    Args:
        identity: The identity of the wiring, 16 bytes.
        events: Its hooks.

    Attributes:
        run: Random id of this run of the wiring.
        exchanges: The exchanges by name.
        queues: The queues by name.
        local: The connection to itself.
        expected: Exchange and queue of bindings that this wiring requests from others: their pipes may lead to LOCAL names.
    """

    def __init__(self, identity: bytes, events: WiringEvents) -> None:
        self.loop = asyncio.get_running_loop()
        self.identity = identity
        self.run = os.urandom(8)
        self.events = events
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self._made: dict[Kind, dict[str, Any]] = {"exchange": self.exchanges, "queue": self.queues}
        #: Connections that are up, by the claimed identity of their other ends.
        self.connections: dict[bytes, list[Connection]] = {}
        #: Pipes that were closed while their connections were lost: identity and run of the other end, and number.
        self.ended: deque[tuple[bytes, bytes, int]] = deque(maxlen=MAX_ENDED)
        self.local = LocalConnection(self, identity, self.run)
        self.expected: Counter[tuple[str, str]] = Counter()
        #: Queues with messages, for calls that receive from all queues.
        self.ready: dict[Queue, None] = {}
        self.waiters = Waiters()
        self.next_number = count(1).__next__
        self.incoming = IncomingPipes(self)
        self.closed = False
        #: Tasks that answer requests of other wirings, or ask them whether they have lost a connection.
        self.tasks: set[asyncio.Task[None]] = set()
        #: Address at which others reach this wiring, as text; None if it cannot be reached.
        self.address: str | None = None
        #: Called with a lost connection, the reason, and True if its other end closed for good.
        self.lost: Callable[[Connection, RedpollError, bool], object]
        #: Called with "exchange" or "queue" when that end of a pipe was deleted, and the names of both.
        self.unwired: Callable[[Kind, str, str], object]
        #: Called with the names of an exchange and a queue of this wiring when a pipe is opened between them.
        self.opened: Callable[[str, str], object]
        #: Returns the identity of a name's owner as others see it; None if it is not known.
        self.owner: Callable[[Kind, str], Awaitable[bytes | None]]
        #: Handlers of words, by name: functions of connection and word.
        self.words: dict[str, Callable[[Connection, dict[str, Any]], Answer | Awaitable[Answer]]] = {
            "open": self.incoming.asked,
            "close": self.incoming.close,
            "end": self.incoming.end,
            "gone": self._gone,
            "room": self._room,
            "carries": self._carries,
        }

    # Creation

    def add(self, made: MadeT) -> MadeT:
        """Add an exchange or a queue; return the existing one of its name if it has the same settings.

        Raises:
            NameTaken: There is one that is made differently.
        """
        former: MadeT = self._made[made.kind].setdefault(made.name, made)
        if former.settings != made.settings:
            raise NameTaken(made.kind, made.name, "this wiring has it, made differently")
        return former

    def owns(self, made: Exchange | Queue) -> bool:
        """Return True if an exchange or a queue is of this wiring, and was not deleted."""
        return self._made[made.kind].get(made.name) is made

    def remove(self, made: Exchange | Queue) -> None:
        """Remove an exchange, whose pipes end after the messages sent so far, or a queue with its waiting messages."""
        if self.owns(made):
            del self._made[made.kind][made.name]
        if isinstance(made, Exchange):
            self._remove_exchange(made)
        else:
            self._remove_queue(made)

    def _remove_exchange(self, exchange: Exchange) -> None:
        exchange.stage_out()
        for pipe in list(exchange.pipes):
            for subscription in pipe.bound:
                leave(subscription)
                asker = subscription.asker
                if asker is not None and asker.subscriptions.get((exchange.name, subscription.queue)) is subscription:
                    # The requester may ask again, and ends nothing by itself.
                    del asker.subscriptions[exchange.name, subscription.queue]
                subscription.tell_asker(None, UnknownName("exchange", exchange.name))
                self.unwired("exchange", exchange.name, subscription.queue)
        exchange.close()

    def _remove_queue(self, queue: Queue) -> None:
        self.incoming.remove_queue(queue)
        queue.clear()
        queue.close()
        self.ready.pop(queue, None)

    def arrived(self, queue: Queue) -> None:
        """Note that a queue has messages."""
        self.ready[queue] = None
        if self.waiters:
            self.waiters.wake()

    def missing(self, queue: Queue, gap: Gap) -> None:
        """Tell the hook of missing messages."""
        if self.events.gap is not None:
            self.events.tell("gap", queue, gap)

    def _unconfirmed(self, exchange: object, queues: tuple[str, ...], count: int) -> None:
        if count and not self.closed:
            self.events.tell("unconfirmed", exchange, queues, count)

    # At the queue's end

    def hear(self, connection: Connection, word: dict[str, Any]) -> Answer | Awaitable[Answer]:
        """Handle a word of another wiring, or of this one; return the answer.

        Raises:
            WiringError: It cannot be done.
            ProtocolError: It is nothing that is known here.
        """
        name = field(word, "word", str)
        if name not in self.words:
            raise ProtocolError(f"unknown word {name!r}")
        return self.words[name](connection, word)

    async def check_heir(self, connection: Connection, kind: Kind, name: str, *, live: bool) -> None:
        """Refuse a name that another owner has or had, unless the directory says that it is the other end's of a connection.

        Args:
            connection: The connection whose other end wants the name.
            kind: The kind of the name.
            name: The name.
            live: True if the other owner is there; the name of one that is gone is also given if its owner is unknown.

        Raises:
            NameTaken: It is another's.
            LinkError: The other end of the connection went meanwhile.
        """
        try:
            owner = await self.owner(kind, name)
        except RedpollError:
            owner = None
        if owner != connection.identity and (owner is not None or live):
            raise NameTaken(kind, name, _ANOTHERS)
        await self.check_identity(connection, kind, name, self._earlier(connection))
        if not connection.up:
            raise PeerLost(connection.place, "it is gone")

    async def check_identity(
        self, connection: Connection, kind: Kind, name: str, holders: Iterable[Connection]
    ) -> None:
        """Refuse a name to a connection that only claims the identity of its owner, while another one of that is live.

        Raises:
            NameTaken: One of these is live, and leads to another wiring as far as can be known.
        """
        for holder in holders:
            if await connection.is_rival_of(holder):
                raise NameTaken(kind, name, _ANOTHERS)

    def _earlier(self, connection: Connection) -> list[Connection]:
        """Return the connections that had the identity of a connection before it."""
        same = self.connections.get(connection.identity, [])
        return same[: same.index(connection)] if connection in same else []

    def visible_queue(self, connection: Connection, name: str, exchange: str) -> Queue:
        """Return a queue of this wiring that the other end of a connection may bind.

        Raises:
            UnknownName: There is none, or it may not.
        """
        queue = self.queues.get(name)
        if queue is not None and (connection.sees(queue.scope) or (exchange, name) in self.expected):
            return queue
        raise UnknownName("queue", name)

    def visible_exchange(self, connection: Connection, name: str) -> Exchange:
        """Return an exchange of this wiring that the other end of a connection may bind.

        Raises:
            UnknownName: There is none, or it may not.
        """
        exchange = self.exchanges.get(name)
        if exchange is not None and connection.sees(exchange.scope):
            return exchange
        raise UnknownName("exchange", name)

    def _gone(self, connection: Connection, word: dict[str, Any]) -> Answer:
        """Handle the end of a queue at the other end."""
        number, queue = field(word, "pipe", int), field(word, "queue", str)
        connection = connection.carrier_of(number)
        pipe = connection.pipes.get(number)
        if pipe is None or not pipe.leads_to(queue):
            return {}
        pipe.opening = [subscription for subscription in pipe.opening if subscription.queue != queue]
        connection.took([(number, word.get("taken"))])
        queues = pipe.queues
        for subscription in list(pipe.subscriptions.get(queue, ())):
            leave(subscription)
            subscription.tell_asker(connection, UnknownName("queue", queue))
        if pipe.subscriptions:
            pipe.pump()
            pipe.exchange.room_changed()
        else:
            unconfirmed = pipe.give_up()
            pipe.exchange.count_unconfirmed(unconfirmed)
            self._unconfirmed(pipe.exchange, queues, unconfirmed)
        if not pipe.subscriptions and not pipe.empty:
            # The other end would drop it.
            pipe.exchange.take_back(pipe)
            pipe.pump()
        self.unwired("queue", pipe.exchange.name, queue)
        return {}

    def _room(self, connection: Connection, word: dict[str, Any]) -> Answer:
        """Handle more credit from the other end of a pipe than it granted on opening."""
        number = field(word, "pipe", int)
        connection = connection.carrier_of(number)
        pipe = connection.pipes.get(number)
        if pipe is not None and pipe.connection is connection:
            pipe.grant(window_of(word))
            pipe.pump()
            pipe.exchange.room_changed()
        return {}

    def _carries(self, connection: Connection, word: dict[str, Any]) -> Answer:
        """Tell the end of a queue whether a connection to it carries a pipe: it may see one of two connections."""
        if word.get("pipe") is None:
            return {"carried": True}
        number = field(word, "pipe", int)
        known = self.connections.get(connection.identity, ())
        return {"carried": any(number in each.pipes and each.pipes[number].connection is each for each in known)}

    # Connections

    def connection_lost(self, connection: Connection, error: RedpollError, *, final: bool) -> None:
        """Handle the loss of a connection: its pipes wait, or end."""
        for pipe in list(connection.pipes.values()):
            if pipe.connection not in (None, connection):
                # Another connection carries it: it was only to be opened over this one.
                connection.forget(pipe)
                continue
            queues, unconfirmed = pipe.queues, pipe.unconfirmed
            pipe.lost()
            self._unconfirmed(pipe.exchange, queues, unconfirmed)
        for exchange in dict.fromkeys(pipe.exchange for pipe in connection.pipes.values()):
            exchange.pipe_changed()
        self.incoming.lose(connection, final=final)
        self.lost(connection, error, final)
        connection.pipes.clear()
        connection.outgoing.clear()

    def describe(self, *, everything: bool = True) -> dict[str, Any]:
        """Describe exchanges and queues as plain data; LOCAL names, here and at other ends, only with `everything`."""
        shown = [Scope.GLOBAL, Scope.PROCESS, *([Scope.LOCAL] if everything else [])]
        return {
            "identity": self.identity,
            "address": self.address,
            "exchanges": [_exchange(each, everything) for each in self.exchanges.values() if each.scope in shown],
            "queues": [_queue(each) for each in self.queues.values() if each.scope in shown],
        }

    def settle(self) -> None:
        """Count delivered messages as taken: no more are received."""
        self.closed = True
        self.incoming.settle(self.queues.values())

    def close(self) -> None:
        """Close all exchanges and queues."""
        self.closed = True
        for exchange in self.exchanges.values():
            exchange.close()
        for queue in self.queues.values():
            queue.close()
        self.incoming.stop()
        self.waiters.wake_all()


def _exchange(exchange: Exchange, everything: bool) -> dict[str, Any]:
    pipes = [
        {
            "queue": queue if everything or subscription.is_global else None,
            "peer": None if pipe.connection is None else pipe.connection.place,
            "identity": None if pipe.connection is None else pipe.connection.identity,
            "state": "up" if subscription.up else "lost",
            "sent": pipe.sent,
            "waiting": pipe.waiting,
            "dropped": pipe.dropped,
        }
        for pipe in exchange.pipes
        for queue, (subscription, *_) in pipe.subscriptions.items()
    ]
    return {
        "name": exchange.name,
        "scope": exchange.scope.value,
        "style": exchange.style.value,
        **exchange.stats._asdict(),
        "pipes": pipes,
    }


def _queue(queue: Queue) -> dict[str, Any]:
    return {"name": queue.name, "scope": queue.scope.value, **queue.stats._asdict()}
