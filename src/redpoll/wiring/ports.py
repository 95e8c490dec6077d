"""The pipes that end at the queues of one wiring: how they are opened, kept while they are lost, and ended."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

from redpoll.errors import ProtocolError, WiringError
from redpoll.wiring.inlet import Source
from redpoll.wiring.limits import Limits
from redpoll.wiring.names import check_name
from redpoll.wiring.port import Port
from redpoll.wiring.queue import Queue
from redpoll.wiring.words import field

if TYPE_CHECKING:
    from redpoll.wiring.board import Board
    from redpoll.wiring.trunk import Answer, Trunk

__all__ = ["KEPT_PORT", "MAX_PORTS", "Ports"]

#: Seconds that this end of a pipe is kept whose exchange is gone: longer than the other end keeps its own.
KEPT_PORT = 60.0

#: Pipes that one other wiring may have to here.
MAX_PORTS = 10_000


class Ports:
    """The pipes that end here, those that are lost and kept among them."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._handles = count(1)
        #: By run and number.
        self._ports: dict[tuple[bytes, int], Port] = {}
        self._timer: asyncio.TimerHandle | None = None

    def open(self, trunk: Trunk, word: dict[str, Any]) -> Answer:
        """An exchange's owner has a queue join a pipe, which is new, known, or known and was lost.

        Raises:
            UnknownName: There is no such queue, or the other end may not see it.
            WiringError: It has too many pipes.
            ProtocolError: The word is none.
        """
        number, first, at = field(word, "pipe", int), field(word, "first", int), field(word, "at", int)
        exchange = check_name("exchange", word.get("exchange"))
        queue = self._board.visible_queue(trunk, check_name("queue", word.get("queue")), exchange)
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
        limits = [self._board.queues[name].limits for name in port.inlet.sources if name in self._board.queues]
        if len(limits) == 1:
            return limits[0]
        return Limits(
            min((each.messages for each in limits if each.messages is not None), default=None),
            min((each.bytes for each in limits if each.bytes is not None), default=None),
            min(each.resume for each in limits),
        )

    def _take_over(self, port: Port, queue: Queue) -> int | None:
        """End what a former run of the same exchange brought to a queue: how many it had said it had; None if none was."""
        missing: int | None = None
        for other in list(self._ports.values()):
            inlet = other.inlet
            if other is port or inlet.key != port.inlet.key or other.run == port.run:
                continue
            source = inlet.sources.get(queue.name)
            if source is not None:
                missing = (missing or 0) + inlet.said - inlet.expected
                inlet.leave(source)
                self.drop_if_empty(other)
        return missing

    def close(self, trunk: Trunk, word: dict[str, Any]) -> Answer:
        """A queue leaves a pipe behind a number."""
        port = self._ports.get((trunk.run, field(word, "pipe", int)))
        source = None if port is None else port.inlet.sources.get(field(word, "queue", str))
        if port is not None and source is not None:
            at = field(word, "at", int)
            if at <= port.inlet.expected:
                port.inlet.leave(source)
            else:
                source.stop = at
            self._board.unwired(port.inlet.exchange, source.queue)
        return {}

    def end(self, trunk: Trunk, word: dict[str, Any]) -> Answer:
        """Nothing more comes by a pipe."""
        port = self._ports.pop((trunk.run, field(word, "pipe", int)), None)
        if port is not None:
            trunk.ports.pop(port.handle, None)
            queues = list(port.inlet.sources)
            self._forget(port)
            for queue in queues:
                self._board.unwired(port.inlet.exchange, queue)
        return {}

    def _forget(self, port: Port) -> None:
        """Nothing comes by a pipe any more: what was promised is missing."""
        port.stop()
        inlet = port.inlet
        inlet.miss(inlet.said)
        for source in list(inlet.sources.values()):
            inlet.leave(source)

    def drop_if_empty(self, port: Port) -> None:
        """Keep no pipe that is lost and has no queues."""
        if not port.inlet.sources and port.trunk is None:
            self._ports.pop((port.run, port.number), None)
            port.stop()

    def remove_queue(self, queue: Queue) -> None:
        """A queue is taken away: tell whoever sends to it."""
        for port in list(self._ports.values()):
            source = port.inlet.sources.get(queue.name)
            if source is not None:
                if port.trunk is not None:
                    # Before there is room again, for what would find no queue.
                    port.trunk.tell({"word": "gone", "pipe": port.number, "queue": queue.name})
                port.inlet.leave(source)
                self.drop_if_empty(port)

    def lose(self, trunk: Trunk, *, final: bool) -> None:
        """The other end of a trunk is gone, and maybe will not be back."""
        for port in list(trunk.ports.values()):
            if final:
                self._ports.pop((port.run, port.number), None)
                self._forget(port)
            else:
                port.lose()
        trunk.ports.clear()
        if self._timer is None and self._ports:
            self._timer = self._board.loop.call_later(KEPT_PORT, self._forget_old)

    def _forget_old(self) -> None:
        """Give up pipes whose exchange has been gone for long."""
        self._timer = None
        now = self._board.loop.time()
        for key, port in list(self._ports.items()):
            if port.trunk is None and now - port.lost_at >= KEPT_PORT:
                del self._ports[key]
                self._forget(port)
        if any(port.trunk is None for port in self._ports.values()):
            self._timer = self._board.loop.call_later(KEPT_PORT, self._forget_old)

    def stop(self) -> None:
        """Have none any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for port in self._ports.values():
            port.stop()
        self._ports.clear()
