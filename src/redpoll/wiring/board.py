"""The board: the exchanges and queues of one wiring, and the pipes between them and others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from itertools import count
from typing import Any

from redpoll.errors import NameTaken, PeerLost, ProtocolError, RedpollError, UnknownName
from redpoll.wiring.directory.entries import Kind
from redpoll.wiring.events import WiringEvents
from redpoll.wiring.exchange import Exchange
from redpoll.wiring.gap import Gap
from redpoll.wiring.joining import leave, window_of
from redpoll.wiring.limits import Limits
from redpoll.wiring.names import AtLimit, Scope, Style
from redpoll.wiring.ports import Ports
from redpoll.wiring.queue import Queue
from redpoll.wiring.trunk import Answer, LocalTrunk, Trunk
from redpoll.wiring.words import field

__all__ = ["KEPT", "Board"]

#: Seconds that a pipe is kept whose other end is gone and was to bind it again.
KEPT = 10.0

_ANOTHERS = "another owner has it"


class Board:
    """What one wiring has. All is called on its loop.

    Args:
        identity: The wiring's, 16 bytes.
        events: Its hooks.
        max_size: Bytes that a message may have.

    Attributes:
        run: What it is in one run and never in another.
        exchanges: By name.
        queues: By name.
        local: The trunk to itself.
        expected: Exchange and queue of bindings that this wiring asked others for: their pipes may lead to local names.
    """

    def __init__(self, identity: bytes, events: WiringEvents, max_size: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.identity = identity
        self.run = os.urandom(8)
        self.events = events
        self._max_size = max_size
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        #: Those that are up, by what their other ends say to be: identity and run.
        self.trunks: dict[tuple[bytes, bytes], list[Trunk]] = {}
        self.local = LocalTrunk(self, identity, self.run)
        self.expected: dict[tuple[str, str], int] = {}
        #: Queues that have messages, for who receives of all.
        self.ready: dict[Queue, None] = {}
        self.waiters: list[asyncio.Future[None]] = []
        self.next_number = count(1).__next__
        self.ports = Ports(self)
        self.closed = False
        #: What works for others.
        self.tasks: set[asyncio.Task[None]] = set()
        #: Where others can reach this wiring, as text; None: nobody can.
        self.address: str | None = None
        #: Called when the other end of a trunk is gone, and whether that is for good.
        self.lost: Callable[[Trunk, bool], object] = _nothing
        #: Called with "exchange" or "queue" when that end of a pipe was taken away, and the names of both.
        self.unwired: Callable[[Kind, str, str], object] = _nothing
        #: Whose name it is, as others see it, as an identity; None where that is not known.
        self.owner: Callable[[Kind, str], Awaitable[bytes | None]] = _unknown
        #: Words that others answer: by name, a function of trunk and word.
        self.more_words: dict[str, Callable[[Trunk, dict[str, Any]], Answer | Awaitable[Answer]]] = {}

    # Making

    def add_exchange(
        self,
        name: str,
        scope: Scope,
        style: Style,
        limits: Limits,
        at_limit: AtLimit,
        delete: Callable[[Exchange], Any],
    ) -> Exchange:
        """Make an exchange; the one that there is, if that is made alike.

        Raises:
            NameTaken: There is one that is made differently.
        """
        known = self.exchanges.get(name)
        if known is not None:
            if (known.scope, known.style, known.limits, known.at_limit) == (scope, style, limits, at_limit):
                return known
            raise NameTaken("exchange", name, "this wiring has it, made differently")
        made = self.exchanges[name] = Exchange(name, scope, style, limits, at_limit, self._max_size, delete)
        return made

    def add_queue(self, name: str, scope: Scope, limits: Limits, gaps: bool, delete: Callable[[Queue], Any]) -> Queue:
        """Make a queue; the one that there is, if that is made alike.

        Raises:
            NameTaken: There is one that is made differently.
        """
        known = self.queues.get(name)
        if known is not None:
            if (known.scope, known.limits, known.gaps) == (scope, limits, gaps):
                return known
            raise NameTaken("queue", name, "this wiring has it, made differently")
        made = self.queues[name] = Queue(name, scope, limits, gaps, self._arrived, self._missing, delete)
        return made

    def remove_exchange(self, exchange: Exchange) -> None:
        """Have it no more; its pipes end behind what was sent."""
        if self.exchanges.get(exchange.name) is exchange:
            del self.exchanges[exchange.name]
        exchange.stage_out()
        for pipe in list(exchange.pipes):
            for join in (*pipe.joins.values(), *pipe.also):
                leave(join)
                asker = join.asker
                if asker is not None and asker.joins.get((exchange.name, join.queue)) is join:
                    # Who asked for it may ask again, and takes nothing back: it is told that it has ended.
                    del asker.joins[exchange.name, join.queue]
                self.unwired("exchange", exchange.name, join.queue)
        exchange.close()

    def remove_queue(self, queue: Queue) -> None:
        """Have it no more; what waits in it is dropped."""
        if self.queues.get(queue.name) is queue:
            del self.queues[queue.name]
        self.ports.remove_queue(queue)
        queue.clear()
        queue.close()
        self.ready.pop(queue, None)

    def _arrived(self, queue: Queue) -> None:
        self.ready[queue] = None
        if self.waiters:
            self.wake()

    def wake(self) -> None:
        """Somebody who receives of all queues may look."""
        waiters = self.waiters
        while waiters:
            waiter = waiters.pop(0)
            if not waiter.done():
                waiter.set_result(None)
                return

    def _missing(self, queue: Queue, gap: Gap) -> None:
        if self.events.gap is not None:
            self.events.tell("gap", queue, gap)

    def _unconfirmed(self, exchange: Exchange, queues: tuple[str, ...], count: int) -> None:
        if count and not self.closed:
            self.events.tell("unconfirmed", exchange, queues, count)

    # At the queue's end

    def hear(self, trunk: Trunk, word: dict[str, Any]) -> Answer | Awaitable[Answer]:
        """Another wiring, or this one, said something: what to answer.

        Raises:
            WiringError: It cannot be done.
            ProtocolError: It is nothing that is known here.
        """
        name = field(word, "word", str)
        if name == "open":
            return self.ports.asked(trunk, word)
        if name == "close":
            return self.ports.close(trunk, word)
        if name == "end":
            return self.ports.end(trunk, word)
        if name == "gone":
            return self._gone(trunk, word)
        if name == "room":
            return self._room(trunk, word)
        more = self.more_words.get(name)
        if more is None:
            raise ProtocolError(f"nobody here knows the word {name!r}")
        return more(trunk, word)

    async def check_heir(self, trunk: Trunk, kind: Kind, name: str, *, live: bool) -> None:
        """Refuse to give the other end of a trunk what another owner of a name has or had, unless the name is its own.

        Args:
            trunk: Who wants it.
            kind: What the name stands for.
            name: The name.
            live: Whether the other owner is there; one that is gone is followed also where nobody knows whose the name is.

        Raises:
            NameTaken: It is another's.
            LinkError: The other end of the trunk went meanwhile.
        """
        try:
            owner = await self.owner(kind, name)
        except RedpollError:
            owner = None
        if owner != trunk.identity and (owner is not None or live):
            raise NameTaken(kind, name, _ANOTHERS)
        await self.check_identity(trunk, kind, name, self._earlier(trunk))
        if not trunk.up:
            raise PeerLost(trunk.place, "it is gone")

    async def check_identity(self, trunk: Trunk, kind: Kind, name: str, holders: Iterable[Trunk]) -> None:
        """Refuse a name to a trunk that only claims the identity of its owner, which has another trunk that is live.

        Raises:
            NameTaken: One of these is live, and leads to another wiring as far as can be known.
        """
        for holder in holders:
            if await trunk.is_rival_of(holder):
                raise NameTaken(kind, name, _ANOTHERS)

    def _earlier(self, trunk: Trunk) -> list[Trunk]:
        """The trunks that had the identity of another one before that."""
        same = [each for (identity, _), trunks in self.trunks.items() if identity == trunk.identity for each in trunks]
        return same[: same.index(trunk)] if trunk in same else []

    def visible_queue(self, trunk: Trunk, name: str, exchange: str) -> Queue:
        """A queue of this wiring that the other end of a trunk may bind.

        Raises:
            UnknownName: There is none, or it may not.
        """
        queue = self.queues.get(name)
        if queue is not None and (
            trunk.sees_all
            or queue.scope is Scope.GLOBAL
            or (trunk.sees_process and queue.scope is Scope.PROCESS)
            or (exchange, name) in self.expected
        ):
            return queue
        raise UnknownName("queue", name)

    def visible_exchange(self, trunk: Trunk, name: str) -> Exchange:
        """The same of an exchange.

        Raises:
            UnknownName: There is none, or it may not.
        """
        exchange = self.exchanges.get(name)
        if exchange is not None and (
            trunk.sees_all or exchange.scope is Scope.GLOBAL or (trunk.sees_process and exchange.scope is Scope.PROCESS)
        ):
            return exchange
        raise UnknownName("exchange", name)

    def _gone(self, trunk: Trunk, word: dict[str, Any]) -> Answer:
        """A queue at the other end is no more."""
        pipe = trunk.pipes.get(field(word, "pipe", int))
        queue = field(word, "queue", str)
        if pipe is None or not pipe.leads_to(queue):
            return {}
        pipe.opening = [join for join in pipe.opening if join.queue != queue]
        trunk.took([(pipe.number, word.get("taken"))])
        queues = pipe.queues
        while (join := pipe.joins.get(queue)) is not None:
            leave(join)
        if pipe.joins:
            pipe.pump()
            pipe.exchange.room_changed()
        else:
            unconfirmed = pipe.outlet.give_up()
            pipe.exchange.count_unconfirmed(unconfirmed)
            self._unconfirmed(pipe.exchange, queues, unconfirmed)
        if not pipe.joins and not pipe.outlet.empty:
            # Nobody would take it there.
            pipe.exchange.take_back(pipe)
            pipe.pump()
        self.unwired("queue", pipe.exchange.name, queue)
        return {}

    @staticmethod
    def _room(trunk: Trunk, word: dict[str, Any]) -> Answer:
        """The other end of a pipe has room for more than it said when that was opened."""
        pipe = trunk.pipes.get(field(word, "pipe", int))
        if pipe is not None and pipe.trunk is trunk:
            pipe.outlet.grant(window_of(word))
            pipe.pump()
            pipe.exchange.room_changed()
        return {}

    # Trunks

    def trunk_lost(self, trunk: Trunk, *, final: bool) -> None:
        """The other end of a trunk is gone."""
        for pipe in list(trunk.pipes.values()):
            queues, unconfirmed = pipe.queues, pipe.outlet.unconfirmed
            pipe.lost()
            self._unconfirmed(pipe.exchange, queues, unconfirmed)
        for exchange in dict.fromkeys(pipe.exchange for pipe in trunk.pipes.values()):
            exchange.pipe_changed()
        self.ports.lose(trunk, final=final)
        self.lost(trunk, final)
        trunk.pipes.clear()

    def describe(self, *, everything: bool = True) -> dict[str, Any]:
        """What there is, as plain data: everything, or without the names that are LOCAL, here or where a pipe leads."""
        shown = [Scope.GLOBAL, Scope.PROCESS, *([Scope.LOCAL] if everything else [])]
        return {
            "identity": self.identity,
            "address": self.address,
            "exchanges": [_exchange(each, everything) for each in self.exchanges.values() if each.scope in shown],
            "queues": [_queue(each) for each in self.queues.values() if each.scope in shown],
        }

    def settle(self) -> None:
        """Nothing more is received: what was handed out is taken."""
        self.closed = True
        self.ports.settle(self.queues.values())

    def close(self) -> None:
        """Have nothing any more."""
        self.closed = True
        for exchange in self.exchanges.values():
            exchange.close()
        for queue in self.queues.values():
            queue.close()
        self.ports.stop()
        while self.waiters:
            self.wake()


def _exchange(exchange: Exchange, everything: bool) -> dict[str, Any]:
    stats = exchange.stats
    pipes = [
        {
            "queue": queue if everything or join.everywhere else None,
            "peer": None if pipe.trunk is None else pipe.trunk.place,
            "identity": None if pipe.trunk is None else pipe.trunk.identity,
            "state": "up" if join.up else "lost",
            "sent": pipe.outlet.sent,
            "waiting": pipe.outlet.waiting,
            "dropped": pipe.outlet.dropped,
        }
        for pipe in exchange.pipes
        for queue, join in pipe.joins.items()
    ]
    return {
        "name": exchange.name,
        "scope": exchange.scope.value,
        "style": exchange.style.value,
        "sent": stats.sent,
        "dropped": stats.dropped,
        "unbound": stats.unbound,
        "waiting": stats.waiting,
        "unconfirmed": stats.unconfirmed,
        "pipes": pipes,
    }


def _queue(queue: Queue) -> dict[str, Any]:
    return {"name": queue.name, "scope": queue.scope.value, **queue.stats._asdict()}


def _nothing(*_: object) -> None:
    pass


async def _unknown(*_: object) -> None:
    pass
