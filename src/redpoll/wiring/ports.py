"""The pipes that end at the queues of one wiring: opened, kept while they are lost, and closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import reduce
from itertools import count
from typing import Any, Final, NamedTuple, Protocol

from redpoll.errors import Closed, ProtocolError, WiringError
from redpoll.wiring.connection import Answer, Port, Trunk
from redpoll.wiring.directory.entries import Kind
from redpoll.wiring.inlet import Source
from redpoll.wiring.names import Limits, check_name
from redpoll.wiring.protocol import field
from redpoll.wiring.queue import Queue

__all__ = ["KEPT_PORT", "MAX_PORTS", "Ports"]

#: Seconds for which a lost pipe is kept at this end: longer than the other end keeps its own.
KEPT_PORT = 60.0

#: Maximum pipes of one other wiring to this one.
MAX_PORTS = 10_000

#: Maximum number of a message that may be announced, and maximum number of a pipe.
_MESSAGES: Final = 2**53
_PIPES: Final = 2**32 - 1


class _Claims(NamedTuple):
    """The pipes and trunks of others that a new pipe would replace.

    Attributes:
        holders: Trunks of the same identity that carry pipes.
        strange: Pipes of other identities.
        live: Whether any of these has a trunk.
    """

    holders: frozenset[Trunk]
    strange: frozenset[Port]
    live: bool


class _Board(Protocol):
    """What the pipes need of their wiring."""

    loop: asyncio.AbstractEventLoop
    queues: dict[str, Queue]
    unwired: Callable[[Kind, str, str], object]

    def visible_queue(self, trunk: Trunk, name: str, exchange: str) -> Queue: ...
    async def check_heir(self, trunk: Trunk, kind: Kind, name: str, *, live: bool) -> None: ...
    async def check_identity(self, trunk: Trunk, kind: Kind, name: str, holders: Iterable[Trunk]) -> None: ...


class Ports:
    """The pipes that end here, including lost ones that are kept."""

    def __init__(self, board: _Board) -> None:
        self._board = board
        self._handles = count(1)
        #: The pipes by run and number.
        self._ports: dict[tuple[bytes, int], Port] = {}
        #: Pipes to be opened once the owner of the exchange is known: run, number and queue.
        self._opening: set[tuple[bytes, int, str]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def asked(self, trunk: Trunk, word: dict[str, Any]) -> Answer | Awaitable[Answer]:
        """Open a pipe as `open`, after checking that its owner may replace the pipes of another owner of the exchange.

        An identity is only a claim: while its owner has a trunk with pipes, another trunk must prove that it leads to the
        same wiring.

        Raises:
            NameTaken: The directory names another owner, or the identity is another's; also the errors of `open`.
        """
        claims = self._claims(trunk, word)
        return self.open(trunk, word) if claims is None else self._open_later(trunk, word, claims)

    def _claims(self, trunk: Trunk, word: dict[str, Any]) -> _Claims | None:
        """Return the claims of others that opening a pipe would end, if the right to that has to be checked."""
        number, everywhere = field(word, "pipe", int), field(word, "everywhere", bool)
        exchange = check_name("exchange", word.get("exchange"))
        queue = self._board.visible_queue(trunk, check_name("queue", word.get("queue")), exchange)
        key = _key(trunk, exchange, everywhere)
        others = self._others(trunk, key, queue)
        strange = frozenset(each for each in others if each.identity != trunk.identity)
        claimed = [
            each for each in (*self._owners(key, queue), self._ports.get((trunk.run, number))) if each is not None
        ]
        trunks = (each.trunk for each in claimed if each not in strange)
        holders = frozenset(each for each in trunks if each not in (None, trunk))
        if not strange and (not holders or self._elsewhere(trunk, word, exchange) is not None):
            return None
        return _Claims(holders, strange, any(each.trunk is not None for each in strange))

    def open(self, trunk: Trunk, word: dict[str, Any]) -> Answer:
        """Add a queue to a pipe, which is new, known, or restored, at the request of the exchange's owner.

        Raises:
            UnknownName: There is no such queue, or the other end may not see it.
            WiringError: The other wiring has too many pipes.
            ProtocolError: The word is malformed.
        """
        number, first, at = field(word, "pipe", int), field(word, "first", int), field(word, "at", int)
        exchange = check_name("exchange", word.get("exchange"))
        queue = self._board.visible_queue(trunk, check_name("queue", word.get("queue")), exchange)
        missed = field(word, "missed", int)
        if min(number, first, at, missed) < 0 or number > _PIPES or max(first, at, missed) > _MESSAGES:
            raise ProtocolError(f"numbers of messages are 0 to {_MESSAGES}, those of pipes 0 to {_PIPES}")
        everywhere = field(word, "everywhere", bool)
        key = _key(trunk, exchange, everywhere)
        elsewhere = self._elsewhere(trunk, word, exchange)
        if elsewhere is not None:
            # The trunk may be lost at this end alone: the other end is to reopen the pipe over this one.
            lost = self._ports[trunk.run, elsewhere].trunk is None
            return {"elsewhere": elsewhere, "lost": True} if lost else {"elsewhere": elsewhere}
        known = self._ports.get((trunk.run, number))
        port = known
        if port is None:
            if len(trunk.ports) >= MAX_PORTS:
                raise WiringError(f"too many pipes of this wiring: the limit is {MAX_PORTS:,}")
            port = Port(exchange, key, first, queue.limits, trunk, number, next(self._handles), self._widen)
            self._ports[trunk.run, number] = port
        inlet = port.inlet
        again = known is not None and known.trunk is not trunk
        port.trunk = trunk
        trunk.ports[port.handle] = port
        if queue.name not in inlet.sources:
            restarted = self._take_over(self._others(trunk, key, queue), queue)
            source = Source(inlet, queue.name, max(at, inlet.expected), queue.gaps, queue.put)
            if inlet.sources and not inlet.shrunk:
                inlet.grant(_smaller(inlet.limits, queue.limits))
                inlet.join(source)
            else:
                inlet.join(source)
                inlet.grant(self._limits_of(port))
                inlet.shrunk = False
            queue.add(source)
            if restarted is not None or missed:
                source.miss(missed + (restarted or 0), restarted=restarted is not None)
            inlet.advance()
        limits = inlet.limits
        answer: Answer = {"handle": port.handle, "messages": limits.messages, "bytes": limits.bytes}
        if again:
            answer["expected"], answer["taken"] = inlet.expected, inlet.tell()
        return answer

    def _elsewhere(self, trunk: Trunk, word: dict[str, Any], exchange: str) -> int | None:
        """Return the number of the other end's pipe over another trunk that leads here; None if there is none."""
        numbers = word.get("elsewhere")
        for number in numbers if isinstance(numbers, list | tuple) else ():
            port = self._ports.get((trunk.run, number)) if type(number) is int else None
            if port is None or port.identity != trunk.identity:
                continue
            if port.inlet.exchange == exchange:
                return port.number
        return None

    def _limits_of(self, port: Port) -> Limits:
        """Return the smallest limits of the queues of a pipe."""
        queues = self._board.queues
        limits = [queues[name].limits for name in port.inlet.sources if name in queues]
        return reduce(_smaller, limits) if limits else port.inlet.limits

    def _widen(self, port: Port) -> None:
        """Grant the other end of a pipe more room, since a queue with lower limits left."""
        inlet = port.inlet
        inlet.shrunk = False
        limits = self._limits_of(port)
        if port.trunk is not None and limits != inlet.limits:
            inlet.grant(limits)
            word = {"word": "room", "pipe": port.number, "messages": limits.messages, "bytes": limits.bytes}
            port.trunk.tell(word)

    async def _open_later(self, trunk: Trunk, word: dict[str, Any], claims: _Claims | None) -> Answer:
        """Open a pipe, if the checks of its owner allow it: they are made again where the claims have changed meanwhile."""
        exchange = word["exchange"]
        mark = (trunk.run, word["pipe"], word["queue"])
        self._opening.add(mark)
        try:
            checked = None
            while claims is not None and claims != checked:
                checked = claims
                await self._board.check_identity(trunk, "exchange", exchange, claims.holders)
                if claims.strange:
                    await self._board.check_heir(trunk, "exchange", exchange, live=claims.live)
                if mark not in self._opening or not trunk.up:
                    raise Closed("pipe")
                claims = self._claims(trunk, word)
        finally:
            self._opening.discard(mark)
        return self.open(trunk, word)

    def _others(self, trunk: Trunk, key: tuple[str, ...], queue: Queue) -> list[Port]:
        """Return the pipes of a queue that come from other runs of an exchange, or from other owners of its name."""
        return [each for each in self._owners(key, queue) if each.run != trunk.run]

    @staticmethod
    def _owners(key: tuple[str, ...], queue: Queue) -> list[Port]:
        """Return the pipes by which a queue receives an exchange."""
        inlets = [each.inlet for each in queue.sources_of(key) if each.inlet.sources.get(queue.name) is each]
        return [each.owner for each in inlets]

    def _take_over(self, others: Iterable[Port], queue: Queue) -> int | None:
        """Detach a queue from the pipes of others; return the number of messages that they had announced, or None."""
        missing: int | None = None
        for other in others:
            inlet = other.inlet
            source = inlet.sources[queue.name]
            missing = (missing or 0) + inlet.said - inlet.expected
            other.quiet = True
            inlet.leave(source)
            other.quiet = False
            self._tell_gone(other, queue)
            self.drop_if_empty(other)
        return missing

    def close(self, trunk: Trunk, word: dict[str, Any]) -> Answer:
        """Remove a queue from a pipe, behind a number."""
        number, queue = field(word, "pipe", int), field(word, "queue", str)
        port = self._port(trunk, number)
        self._opening.discard((trunk.run, number, queue))
        source = None if port is None else port.inlet.sources.get(queue)
        if port is not None and source is not None:
            at = field(word, "at", int)
            if at <= port.inlet.expected:
                port.inlet.leave(source)
            else:
                source.stop = at
            self._board.unwired("exchange", port.inlet.exchange, source.queue)
        return {}

    def end(self, trunk: Trunk, word: dict[str, Any]) -> Answer:
        """Close a pipe at the request of its owner."""
        number = field(word, "pipe", int)
        port = self._port(trunk, number)
        self._opening = {each for each in self._opening if each[:2] != (trunk.run, number)}
        if port is not None:
            del self._ports[trunk.run, number]
            trunk.ports.pop(port.handle, None)
            queues = list(port.inlet.sources)
            self._forget(port)
            for queue in queues:
                self._board.unwired("exchange", port.inlet.exchange, queue)
        return {}

    def _port(self, trunk: Trunk, number: int) -> Port | None:
        """Return the other end's pipe of that number, unless the trunk only claims to lead to the wiring that opened it."""
        port = self._ports.get((trunk.run, number))
        if port is None or port.trunk in (None, trunk) or trunk.leads_where(port.trunk):
            return port
        return None

    def _forget(self, port: Port) -> None:
        """Close a pipe: announced messages that did not arrive are missing."""
        port.stop()
        inlet = port.inlet
        inlet.miss(inlet.said)
        for source in list(inlet.sources.values()):
            inlet.leave(source)

    def drop_if_empty(self, port: Port) -> None:
        """Drop a lost pipe without queues."""
        if not port.inlet.sources and port.trunk is None:
            self._ports.pop((port.run, port.number), None)
            port.stop()

    def remove_queue(self, queue: Queue) -> None:
        """Remove a queue from its pipes, and tell their owners."""
        for source in queue.sources:
            if source.inlet.sources.get(queue.name) is source:
                port = source.inlet.owner
                self._tell_gone(port, queue)
                port.inlet.leave(source)
                self.drop_if_empty(port)
                self._board.unwired("queue", port.inlet.exchange, queue.name)

    @staticmethod
    def _tell_gone(port: Port, queue: Queue) -> None:
        """Tell the owner of a pipe that a queue has left, before it grants room that the queue would have freed."""
        if port.trunk is not None:
            port.quiet = True
            queue.settle()
            port.quiet = False
            taken = port.inlet.tell()
            port.trunk.tell({"word": "gone", "pipe": port.number, "queue": queue.name, "taken": taken})

    def settle(self, queues: Iterable[Queue]) -> None:
        """Count delivered messages as taken; the words that close the trunks report it."""
        for port in self._ports.values():
            port.quiet = True
        for queue in queues:
            queue.settle()

    @staticmethod
    def taken(trunk: Trunk) -> list[tuple[int, int]]:
        """Return the pairs of number and taken messages of each pipe of a trunk."""
        return [(port.number, port.inlet.tell()) for port in trunk.ports.values()]

    def lose(self, trunk: Trunk, *, final: bool) -> None:
        """Detach the pipes of a lost trunk, or close them if its other end closed for good."""
        for port in list(trunk.ports.values()):
            if port.trunk is not trunk:
                # Another trunk carries it now.
                continue
            if final:
                self._ports.pop((port.run, port.number), None)
                self._forget(port)
            else:
                port.lose()
        trunk.ports.clear()
        if self._timer is None and self._ports:
            self._timer = self._board.loop.call_later(KEPT_PORT, self._forget_old)

    def _forget_old(self) -> None:
        """Close pipes whose exchange has been gone for too long."""
        self._timer = None
        now = self._board.loop.time()
        for key, port in list(self._ports.items()):
            if port.trunk is None and now - port.lost_at >= KEPT_PORT:
                del self._ports[key]
                self._forget(port)
        if any(port.trunk is None for port in self._ports.values()):
            self._timer = self._board.loop.call_later(KEPT_PORT, self._forget_old)

    def stop(self) -> None:
        """Drop all pipes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for port in self._ports.values():
            port.stop()
        self._ports.clear()


def _smaller(one: Limits, two: Limits) -> Limits:
    """Return the lower limits of two."""
    if one == two:
        return one
    return Limits(
        min((each.messages for each in (one, two) if each.messages is not None), default=None),
        min((each.bytes for each in (one, two) if each.bytes is not None), default=None),
        min(one.resume, two.resume),
    )


def _key(trunk: Trunk, exchange: str, everywhere: bool) -> tuple[str, ...]:
    """Return the key that identifies an exchange over restarts of its owner."""
    return ("", exchange) if everywhere else (trunk.identity.hex(), exchange)
