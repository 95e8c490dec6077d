"""The board: the exchanges and queues of one wiring, and the pipes between them and others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from redpoll.errors import NameTaken, ProtocolError, RedpollError, UnknownName, WiringError
from redpoll.wiring.events import WiringEvents
from redpoll.wiring.exchange import Exchange
from redpoll.wiring.gap import Gap
from redpoll.wiring.inlet import Source
from redpoll.wiring.limits import Limits
from redpoll.wiring.names import AtLimit, Scope, Style, check_name
from redpoll.wiring.outlet import Outlet
from redpoll.wiring.pipe import Join, Pipe
from redpoll.wiring.port import Port
from redpoll.wiring.queue import Queue
from redpoll.wiring.trunk import Answer, LocalTrunk, Trunk
from redpoll.wiring.words import field

__all__ = ["KEPT", "MAX_PORTS", "Board"]

#: Seconds that a pipe is kept whose other end is gone and was to bind it again.
KEPT = 10.0

#: Seconds that this end of a pipe is kept whose exchange is gone: longer than the other end keeps its own.
KEPT_PORT = 60.0

#: Pipes that one other wiring may have to here.
MAX_PORTS = 10_000


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
        self.local = LocalTrunk(self, identity, self.run)
        self.expected: dict[tuple[str, str], int] = {}
        #: Queues that have messages, for who receives of all.
        self.ready: dict[Queue, None] = {}
        self.waiters: list[asyncio.Future[None]] = []
        self._numbers = count(1)
        self._handles = count(1)
        #: Pipes that end here, by run and number; those that are lost and kept among them.
        self._ports: dict[tuple[bytes, int], Port] = {}
        self.closed = False
        #: What works for others.
        self.tasks: set[asyncio.Task[None]] = set()
        #: Where others can reach this wiring, as text; None: nobody can.
        self.address: str | None = None
        #: Called when the other end of a trunk is gone, and whether that is for good.
        self.lost: Callable[[Trunk, RedpollError, bool], object] = _nothing
        #: Called when the other end of a pipe took an exchange, or a queue, away.
        self.unwired: Callable[[str, str], object] = _nothing
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
            for join in list(pipe.joins.values()):
                self.leave(join)
        exchange.close()

    def remove_queue(self, queue: Queue) -> None:
        """Have it no more; what waits in it is dropped."""
        if self.queues.get(queue.name) is queue:
            del self.queues[queue.name]
        for port in list(self._ports.values()):
            source = port.inlet.sources.get(queue.name)
            if source is not None:
                port.inlet.leave(source)
                if port.trunk is not None:
                    port.trunk.tell({"word": "gone", "pipe": port.number, "queue": queue.name})
                self._drop_if_empty(port)
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

    # Joining, at the exchange's end

    async def attach(self, join: Join, trunk: Trunk, timeout: float | None) -> None:
        """Bind a queue that is at the other end of a trunk to an exchange of this wiring, for the first time or again.

        Raises:
            UnknownName: It is not there.
            WiringError: The other end says no.
            LinkError: It is gone; also `SendError`.
        """
        exchange = join.exchange
        exchange.stage_out()
        pipe = self._pipe_to(join, trunk)
        outlet = pipe.outlet
        # What waits in a pipe that leads nowhere as yet is for whoever opens it.
        at = outlet.next if pipe.trunk is trunk else outlet.sent
        word = {
            "word": "open",
            "pipe": pipe.number,
            "exchange": exchange.name,
            "everywhere": exchange.scope is Scope.GLOBAL,
            "queue": join.queue,
            "first": outlet.sent,
            "at": at,
            "missed": self._missed(join, pipe, at),
        }
        # What the other end sends as soon as it has the pipe is to find it.
        trunk.pipes[pipe.number] = pipe
        pipe.opening += 1
        try:
            answer = await trunk.request(word, timeout)
            handle, window = field(answer, "handle", int), _window(answer)
            if exchange.closed or not trunk.up:
                raise WiringError(f"the exchange {exchange.name!r} is gone")
        except BaseException:
            if pipe.opening == 1 and pipe.trunk is not trunk:
                trunk.pipes.pop(pipe.number, None)
            raise
        finally:
            pipe.opening -= 1
        self._joined(join, pipe, trunk)
        if pipe.trunk is trunk:
            outlet.grant(window)
        else:
            expected, taken = answer.get("expected"), answer.get("taken")
            known = type(expected) is int and type(taken) is int
            pipe.trunk, pipe.run, pipe.handle = trunk, trunk.run, handle
            outlet.open(window, expected if known else None, taken if known else None)
            if outlet.sent > word["first"] or known:
                trunk.send_mark(pipe, outlet.sent)
        if pipe not in exchange.pipes:
            exchange.pipes.append(pipe)
        pipe.pump()
        exchange.pipe_changed()

    def _pipe_to(self, join: Join, trunk: Trunk) -> Pipe:
        """The pipe that is to bring messages to a queue: the one that is there, the one that did before, or a new one."""
        exchange = join.exchange
        if exchange.style is Style.DISTRIBUTE:
            for pipe in trunk.pipes.values():
                if pipe.exchange is exchange and not pipe.ending:
                    return pipe
        former = join.pipe
        if former is not None and not former.ending and former in exchange.pipes and former.trunk in (None, trunk):
            return former
        return Pipe(exchange, next(self._numbers), Outlet(exchange.limits, exchange.at_limit))

    @staticmethod
    def _missed(join: Join, pipe: Pipe, at: int) -> int:
        """How many messages the owner of a queue, if it was started anew, is to be told are missing."""
        former = join.pipe
        if former is None:
            return 0
        # In another pipe there are other numbers.
        return max(0, (at if former is pipe else former.outlet.next) - join.base)

    def _joined(self, join: Join, pipe: Pipe, trunk: Trunk) -> None:
        former = join.pipe
        if former is not None and former is not pipe:
            former.joins.pop(join.queue, None)
            if not former.joins:
                join.exchange.remove(former)
        join.pipe = pipe
        join.up = True
        join.base = pipe.outlet.taken
        pipe.joins[join.queue] = join
        trunk.pipes[pipe.number] = pipe

    def leave(self, join: Join) -> dict[str, Any] | None:
        """Unbind a queue: what was sent before still goes there. What to tell its owner; None if nobody is to be told."""
        pipe = join.pipe
        join.pipe = None
        if pipe is None:
            return None
        pipe.exchange.stage_out()
        at = pipe.outlet.next
        pipe.joins.pop(join.queue, None)
        trunk = pipe.trunk if join.up else None
        join.up = False
        word = {"word": "close", "pipe": pipe.number, "queue": join.queue, "at": at}
        if trunk is not None and trunk.up:
            trunk.tell(word)
        if not pipe.joins:
            pipe.exchange.remove(pipe)
        return word

    # At the queue's end

    def hear(self, trunk: Trunk, word: dict[str, Any]) -> Answer | Awaitable[Answer]:
        """Another wiring, or this one, said something: what to answer.

        Raises:
            WiringError: It cannot be done.
            ProtocolError: It is nothing that is known here.
        """
        name = field(word, "word", str)
        if name == "open":
            return self._open(trunk, word)
        if name == "close":
            return self._close(trunk, word)
        if name == "end":
            return self._end(trunk, word)
        if name == "gone":
            return self._gone(trunk, word)
        more = self.more_words.get(name)
        if more is None:
            raise ProtocolError(f"nobody here knows the word {name!r}")
        return more(trunk, word)

    def _open(self, trunk: Trunk, word: dict[str, Any]) -> Answer:
        number, first, at = field(word, "pipe", int), field(word, "first", int), field(word, "at", int)
        exchange = check_name("exchange", word.get("exchange"))
        queue = self.visible_queue(trunk, check_name("queue", word.get("queue")), exchange)
        missed = field(word, "missed", int)
        if min(number, first, at, missed) < 0:
            raise ProtocolError("numbers are not below 0")
        everywhere = field(word, "everywhere", bool)
        key = ("", exchange) if everywhere else (trunk.identity.hex(), exchange)
        known = self._ports.get((trunk.run, number))
        port = known
        if port is None:
            if len(trunk.ports) >= MAX_PORTS:
                raise WiringError(f"there are {MAX_PORTS} pipes already")
            port = Port(exchange, key, first, queue.limits, trunk, number, next(self._handles))
            self._ports[trunk.run, number] = port
        inlet = port.inlet
        again = known is not None and known.trunk is None
        port.trunk = trunk
        trunk.ports[port.handle] = port
        if queue.name not in inlet.sources:
            restarted = self._take_over(port, queue)
            source = Source(inlet, queue.name, max(at, inlet.expected), queue.gaps, queue.put)
            inlet.sources[queue.name] = source
            queue.sources.add(source)
            if restarted is not None or missed:
                source.miss(missed + (restarted or 0), restarted=restarted is not None)
            inlet.grant(self._limits_of(port))
            inlet.advance()
        limits = inlet.limits
        answer: Answer = {"handle": port.handle, "messages": limits.messages, "bytes": limits.bytes}
        if again:
            answer["expected"], answer["taken"] = inlet.expected, inlet.tell()
        return answer

    def _limits_of(self, port: Port) -> Limits:
        """What all queues of a pipe have room for."""
        limits = [self.queues[name].limits for name in port.inlet.sources if name in self.queues]
        if len(limits) == 1:
            return limits[0]
        return Limits(
            min((each.messages for each in limits if each.messages is not None), default=None),
            min((each.bytes for each in limits if each.bytes is not None), default=None),
            min(each.resume for each in limits),
        )

    def _take_over(self, port: Port, queue: Queue) -> int | None:
        """End what a former run of the same exchange brought to a queue: how many it had said it had; None if none was."""
        missing = None
        for other in list(self._ports.values()):
            inlet = other.inlet
            if other is port or inlet.key != port.inlet.key or other.run == port.run:
                continue
            source = inlet.sources.get(queue.name)
            if source is not None:
                missing = (missing or 0) + inlet.said - inlet.expected
                inlet.leave(source)
                self._drop_if_empty(other)
        return missing

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

    def _close(self, trunk: Trunk, word: dict[str, Any]) -> Answer:
        port = self._ports.get((trunk.run, field(word, "pipe", int)))
        source = None if port is None else port.inlet.sources.get(field(word, "queue", str))
        if port is not None and source is not None:
            at = field(word, "at", int)
            if at <= port.inlet.expected:
                port.inlet.leave(source)
            else:
                source.stop = at
            self.unwired(port.inlet.exchange, source.queue)
        return {}

    def _end(self, trunk: Trunk, word: dict[str, Any]) -> Answer:
        port = self._ports.pop((trunk.run, field(word, "pipe", int)), None)
        if port is not None:
            trunk.ports.pop(port.handle, None)
            queues = list(port.inlet.sources)
            self._forget(port)
            for queue in queues:
                self.unwired(port.inlet.exchange, queue)
        return {}

    def _forget(self, port: Port) -> None:
        """Nothing comes by a pipe any more: what was promised is missing."""
        port.stop()
        inlet = port.inlet
        inlet.miss(inlet.said)
        for source in list(inlet.sources.values()):
            inlet.leave(source)

    def _drop_if_empty(self, port: Port) -> None:
        if not port.inlet.sources and port.trunk is None:
            self._ports.pop((port.run, port.number), None)
            port.stop()

    def _gone(self, trunk: Trunk, word: dict[str, Any]) -> Answer:
        """A queue at the other end is no more."""
        pipe = trunk.pipes.get(field(word, "pipe", int))
        join = None if pipe is None else pipe.joins.get(field(word, "queue", str))
        if join is not None:
            self.leave(join)
            self.unwired(join.exchange.name, join.queue)
        return {}

    # Trunks

    def trunk_lost(self, trunk: Trunk, error: RedpollError, *, final: bool) -> None:
        """The other end of a trunk is gone."""
        for pipe in list(trunk.pipes.values()):
            pipe.lost()
        for port in list(trunk.ports.values()):
            if final:
                self._ports.pop((port.run, port.number), None)
                self._forget(port)
            else:
                port.lose()
        trunk.ports.clear()
        trunk.pipes.clear()
        self.lost(trunk, error, final)

    def forget_old_ports(self) -> None:
        """Give up pipes whose exchange has been gone for long."""
        now = self.loop.time()
        for key, port in list(self._ports.items()):
            if port.trunk is None and now - port.lost_at > KEPT_PORT:
                del self._ports[key]
                self._forget(port)

    def describe(self) -> dict[str, Any]:
        """What there is, as plain data."""
        return {
            "identity": self.identity,
            "address": self.address,
            "exchanges": [_exchange(each) for each in self.exchanges.values()],
            "queues": [_queue(each) for each in self.queues.values()],
        }

    def close(self) -> None:
        """Have nothing any more."""
        self.closed = True
        for exchange in self.exchanges.values():
            exchange.close()
        for port in self._ports.values():
            port.stop()
        for queue in self.queues.values():
            queue.close()
        self._ports.clear()
        while self.waiters:
            self.wake()


def _window(answer: Answer) -> Limits:
    """What the other end of a pipe says it has room for."""
    found = []
    for name in ("messages", "bytes"):
        value = answer.get(name)
        if value is not None and (type(value) is not int or not 1 <= value < 2**62):
            raise ProtocolError(f"no room for {value!r} {name}")
        found.append(value)
    return Limits(*found)


def _exchange(exchange: Exchange) -> dict[str, Any]:
    stats = exchange.stats
    pipes = [
        {
            "queue": queue,
            "peer": None if pipe.trunk is None else pipe.trunk.identity,
            "place": None if pipe.trunk is None else pipe.trunk.place,
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
        "pipes": pipes,
    }


def _queue(queue: Queue) -> dict[str, Any]:
    return {"name": queue.name, "scope": queue.scope.value, **queue.stats._asdict()}


def _nothing(*_: object) -> None:
    pass
