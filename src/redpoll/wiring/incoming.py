"""The pipes that end at the queues of one wiring: opened, kept while they are lost, and closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import reduce
from typing import Any, Final, Protocol, TypeAlias

from redpoll.errors import Closed, NameTaken, ProtocolError, WiringError
from redpoll.wiring.connection import Answer, Connection
from redpoll.wiring.directory.entries import Kind
from redpoll.wiring.names import Limits, check_name
from redpoll.wiring.protocol import field
from redpoll.wiring.queue import Queue
from redpoll.wiring.receiver import Receiver, Source

__all__ = ["KEPT_INCOMING", "MAX_INCOMING", "TELL_AFTER", "IncomingPipe", "IncomingPipes"]

#: Seconds for which a lost pipe is kept at this end: longer than the other end keeps its own.
KEPT_INCOMING = 60.0

#: Seconds after which the other end is sent a small credit.
TELL_AFTER = 0.05

#: Maximum pipes of one other wiring to this one.
MAX_INCOMING = 10_000

#: Maximum number of a message that may be announced, and maximum number of a pipe.
_MESSAGES: Final = 2**53
_PIPES: Final = 2**32 - 1


class IncomingPipe(Receiver):
    """A pipe, at the queues' end.

    Attributes:
        number: Its number at both ends, in one run of its owner.
        run: That run.
        identity: The identity of the wiring that opened it.
        connection: The connection that carries it; None while that is lost.
        quiet: True while credit is held back, as a word with more information is about to be sent.
    """

    def __init__(
        self,
        exchange: str,
        key: tuple[str, ...],
        first: int,
        limits: Limits,
        connection: Connection,
        number: int,
        widen: Callable[[IncomingPipe], None],
    ) -> None:
        super().__init__(exchange, key, first, limits, self._freed)
        self.number = number
        self.run = connection.run
        self.identity = connection.identity
        self.connection: Connection | None = connection
        self.quiet = False
        #: Called when the other end may have to be granted more, as a queue has left.
        self._widen = widen
        self._loop = asyncio.get_running_loop()
        #: Sends credit that is not much; while the connection is lost, closes the pipe.
        self._timer: asyncio.TimerHandle | None = None

    def _freed(self) -> None:
        """Send credit to the other end: now if it is much, else soon."""
        if self.connection is None or self.quiet:
            return
        if self.due:
            self.send_credit()
        elif self._timer is None:
            self._timer = self._loop.call_later(TELL_AFTER, self._tell_late)

    def _tell_late(self) -> None:
        self._timer = None
        if self.taken > self.told:
            self.send_credit()

    def send_credit(self) -> None:
        """Send credit to the other end."""
        if self.connection is not None:
            self.connection.send_credit(self.number, self.tell())
            if self.shrunk and self.sources:
                self._widen(self)

    def lose(self, forget: Callable[[IncomingPipe], object]) -> None:
        """Detach the connection, which is lost; close the pipe if its exchange is gone for too long."""
        self.connection = None
        self.stop()
        self._timer = self._loop.call_later(KEPT_INCOMING, forget, self)

    def stop(self) -> None:
        """Cancel what is to be done later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_Claims: TypeAlias = frozenset[tuple[IncomingPipe, Connection | None]]
"""Pipes of others, with their connections."""


class _Board(Protocol):
    """The wiring, as its incoming pipes see it."""

    loop: asyncio.AbstractEventLoop
    queues: dict[str, Queue]
    unwired: Callable[[Kind, str, str], object]
    opened: Callable[[str, str], object]

    def visible_queue(self, connection: Connection, name: str, exchange: str) -> Queue: ...
    async def check_heir(self, connection: Connection, kind: Kind, name: str, *, live: bool) -> None: ...
    async def check_identity(
        self, connection: Connection, kind: Kind, name: str, holders: Iterable[Connection]
    ) -> None: ...


class IncomingPipes:
    """The pipes that end here, including lost ones that are kept."""

    def __init__(self, board: _Board) -> None:
        self._board = board
        #: The pipes by run and number.
        self._pipes: dict[tuple[bytes, int], IncomingPipe] = {}
        #: Pipes to be opened once the owner of the exchange is known: run, number and queue.
        self._opening: set[tuple[bytes, int, str]] = set()

    def asked(self, connection: Connection, word: dict[str, Any]) -> Answer | Awaitable[Answer]:
        """Open a pipe as `open`, after checking that its owner may replace the pipes of another owner of the exchange.

        An identity is only a claim: while its owner has a connection with pipes, another one must prove that it leads to the
        same wiring.

        Raises:
            NameTaken: The directory names another owner, or the identity is another's; also the errors of `open`.
        """
        claims = self._claims(connection, word)
        return self._open_later(connection, word, claims) if claims else self.open(connection, word)

    def _claims(self, connection: Connection, word: dict[str, Any]) -> _Claims:
        """Return the pipes that opening one would end, as far as the right to that has to be checked."""
        number, is_global = field(word, "pipe", int), field(word, "is_global", bool)
        exchange = check_name("exchange", word.get("exchange"))
        queue = self._board.visible_queue(connection, check_name("queue", word.get("queue")), exchange)
        key = _key(connection, exchange, is_global)
        known = self._pipes.get((connection.run, number))
        claimed = [*self._owners(key, queue), *(() if known is None else (known,))]
        strange = [pipe for pipe in claimed if pipe.identity != connection.identity]
        if strange or self._elsewhere(connection, number, key, queue) is None:
            strange += [pipe for pipe in claimed if pipe.connection not in (None, connection)]
        return frozenset((pipe, pipe.connection) for pipe in strange)

    def open(self, connection: Connection, word: dict[str, Any]) -> Answer:
        """Add a queue to a pipe, which is new, known, or restored, at the request of the exchange's owner.

        Raises:
            UnknownName: There is no such queue, or the other end may not see it.
            WiringError: The other wiring has too many pipes.
            ProtocolError: The word is malformed.
        """
        number, first, at = field(word, "pipe", int), field(word, "first", int), field(word, "at", int)
        exchange = check_name("exchange", word.get("exchange"))
        queue = self._board.visible_queue(connection, check_name("queue", word.get("queue")), exchange)
        missed = field(word, "missed", int)
        if min(number, first, at, missed) < 0 or number > _PIPES or max(first, at, missed) > _MESSAGES:
            raise ProtocolError(f"numbers of messages are 0 to {_MESSAGES}, those of pipes 0 to {_PIPES}")
        is_global = field(word, "is_global", bool)
        key = _key(connection, exchange, is_global)
        elsewhere = self._elsewhere(connection, number, key, queue)
        if elsewhere is not None:
            # The connection may be lost at this end alone: the other end is to reopen the pipe over this one.
            return {"elsewhere": elsewhere.number, "lost": elsewhere.connection is None}
        known = self._pipes.get((connection.run, number))
        pipe = known
        if pipe is None:
            if len(connection.incoming) >= MAX_INCOMING:
                raise WiringError(f"too many pipes of this wiring: the limit is {MAX_INCOMING:,}")
            pipe = IncomingPipe(exchange, key, first, queue.limits, connection, number, self._widen)
            self._pipes[connection.run, number] = pipe
        # Over the same connection it was perhaps lost at the other end alone.
        again = known is not None and (known.connection is not connection or queue.name in known.sources)
        expected = pipe.expected
        former = pipe.sources.get(queue.name)
        if former is not None and former.stop is not None and former.stop <= first:
            # It was to leave behind messages that are lost.
            pipe.miss(former.stop)
        if pipe.connection is None:
            pipe.stop()
        pipe.connection = connection
        connection.incoming[number] = pipe
        if queue.name not in pipe.sources:
            restarted = self._take_over(connection, key, queue)
            source = Source(pipe, queue.name, max(at, pipe.expected), queue.gaps, queue.put)
            if pipe.sources and not pipe.shrunk:
                pipe.grant(_smaller(pipe.limits, queue.limits))
                pipe.join(source)
            else:
                pipe.join(source)
                pipe.grant(self._limits_of(pipe))
                pipe.shrunk = False
            queue.add(source)
            if restarted is not None or missed:
                source.miss(missed + (restarted or 0), restarted=restarted is not None)
            pipe.advance()
        self._board.opened(exchange, queue.name)
        limits = pipe.limits
        answer: Answer = {"messages": limits.messages, "bytes": limits.bytes}
        if again:
            answer["expected"], answer["taken"] = expected, min(pipe.tell(), expected)
        return answer

    def _elsewhere(
        self, connection: Connection, number: int, key: tuple[str, ...], queue: Queue
    ) -> IncomingPipe | None:
        """Return another pipe of the same run by which a queue has an exchange."""
        for pipe in self._owners(key, queue):
            same = (pipe.run, pipe.identity) == (connection.run, connection.identity) and pipe.number != number
            if same and pipe.sources[queue.name].stop is None:
                return pipe
        return None

    def _limits_of(self, pipe: IncomingPipe) -> Limits:
        """Return the smallest limits of the queues of a pipe."""
        queues = self._board.queues
        limits = [queues[name].limits for name in pipe.sources if name in queues]
        return reduce(_smaller, limits) if limits else pipe.limits

    def _widen(self, pipe: IncomingPipe) -> None:
        """Grant the other end of a pipe more room, since a queue with lower limits left."""
        pipe.shrunk = False
        limits = self._limits_of(pipe)
        if pipe.connection is not None and limits != pipe.limits:
            pipe.grant(limits)
            word = {"word": "room", "pipe": pipe.number, "messages": limits.messages, "bytes": limits.bytes}
            pipe.connection.tell(word)

    async def _open_later(self, connection: Connection, word: dict[str, Any], claims: _Claims) -> Answer:
        """Open a pipe, if the checks of its owner allow it: they are made again where the claims have changed meanwhile."""
        exchange = word["exchange"]
        mark = (connection.run, word["pipe"], word["queue"])
        self._opening.add(mark)
        try:
            checked = None
            while claims and claims != checked:
                checked = claims
                own = [held for pipe, held in claims if held is not None and pipe.identity == connection.identity]
                try:
                    await self._board.check_identity(connection, "exchange", exchange, own)
                except NameTaken:
                    for pipe, held in claims:
                        if held in own:
                            await held.check_pipe(pipe.number)
                    raise
                strange = [held for pipe, held in claims if pipe.identity != connection.identity]
                if strange:
                    live = any(held is not None for held in strange)
                    await self._board.check_heir(connection, "exchange", exchange, live=live)
                if mark not in self._opening or not connection.up:
                    raise Closed("pipe")
                claims = self._claims(connection, word)
        finally:
            self._opening.discard(mark)
        return self.open(connection, word)

    @staticmethod
    def _owners(key: tuple[str, ...], queue: Queue) -> list[IncomingPipe]:
        """Return the pipes by which a queue receives an exchange."""
        found = ((each, each.receiver) for each in queue.sources_of(key))
        return [pipe for each, pipe in found if isinstance(pipe, IncomingPipe) and pipe.sources.get(queue.name) is each]

    def _take_over(self, connection: Connection, key: tuple[str, ...], queue: Queue) -> int | None:
        """Detach a queue from the pipes of other runs of an exchange, or other owners of its name.

        Returns:
            The number of messages that they had announced and that did not arrive; None if there are no such pipes.
        """
        missing: int | None = None
        for other in [each for each in self._owners(key, queue) if each.run != connection.run]:
            source = other.sources[queue.name]
            missing = (missing or 0) + other.said - other.expected
            other.quiet = True
            other.leave(source)
            other.quiet = False
            self._tell_gone(other, queue)
            self.drop_if_empty(other)
        return missing

    def close(self, connection: Connection, word: dict[str, Any]) -> Answer:
        """Remove a queue from a pipe, behind a number."""
        number, queue = field(word, "pipe", int), field(word, "queue", str)
        pipe = self._pipe_of(connection, number)
        self._opening.discard((connection.run, number, queue))
        source = None if pipe is None else pipe.sources.get(queue)
        if pipe is not None and source is not None:
            at = field(word, "at", int)
            if at <= pipe.expected:
                pipe.leave(source)
            else:
                source.stop = at
            self._board.unwired("exchange", pipe.exchange, source.queue)
        return {}

    def end(self, connection: Connection, word: dict[str, Any]) -> Answer:
        """Close a pipe at the request of its owner."""
        number = field(word, "pipe", int)
        pipe = self._pipe_of(connection, number)
        self._opening = {each for each in self._opening if each[:2] != (connection.run, number)}
        if pipe is not None:
            connection.incoming.pop(number, None)
            # A queue that is leaving was told of before.
            queues = [name for name, source in pipe.sources.items() if source.stop is None]
            self._forget(pipe)
            for queue in queues:
                self._board.unwired("exchange", pipe.exchange, queue)
        return {}

    def _pipe_of(self, connection: Connection, number: int) -> IncomingPipe | None:
        """Return the other end's pipe of that number, unless this only claims to lead to the wiring that opened it."""
        pipe = self._pipes.get((connection.run, number))
        if pipe is None or pipe.connection in (None, connection) or connection.leads_where(pipe.connection):
            return pipe
        return None

    def _forget(self, pipe: IncomingPipe) -> None:
        """Close a pipe: announced messages that did not arrive are missing."""
        self._pipes.pop((pipe.run, pipe.number), None)
        pipe.stop()
        pipe.miss(pipe.said)
        for source in list(pipe.sources.values()):
            pipe.leave(source)

    def drop_if_empty(self, pipe: IncomingPipe) -> None:
        """Drop a lost pipe without queues."""
        if not pipe.sources and pipe.connection is None:
            self._forget(pipe)

    def remove_queue(self, queue: Queue) -> None:
        """Remove a queue from its pipes, and tell their owners."""
        for source in queue.sources:
            pipe = source.receiver
            if isinstance(pipe, IncomingPipe) and pipe.sources.get(queue.name) is source:
                self._tell_gone(pipe, queue)
                pipe.leave(source)
                self.drop_if_empty(pipe)
                self._board.unwired("queue", pipe.exchange, queue.name)

    @staticmethod
    def _tell_gone(pipe: IncomingPipe, queue: Queue) -> None:
        """Tell the owner of a pipe that a queue has left, before it grants room that the queue would have freed."""
        if pipe.connection is not None:
            pipe.quiet = True
            queue.settle()
            pipe.quiet = False
            taken = pipe.tell()
            pipe.connection.tell({"word": "gone", "pipe": pipe.number, "queue": queue.name, "taken": taken})

    def settle(self, queues: Iterable[Queue]) -> None:
        """Count delivered messages as taken; the words that close the connections report it."""
        for pipe in self._pipes.values():
            pipe.quiet = True
        for queue in queues:
            queue.settle()

    @staticmethod
    def taken(connection: Connection) -> list[tuple[int, int]]:
        """Return the pairs of number and taken messages of each pipe of a connection."""
        return [(number, receiver.tell()) for number, receiver in connection.incoming.items()]

    def lose(self, connection: Connection, *, final: bool) -> None:
        """Detach the pipes of a lost connection, or close them if its other end closed for good."""
        for number in connection.incoming:
            pipe = self._pipes.get((connection.run, number))
            if pipe is None or pipe.connection is not connection:
                # Another connection carries it now.
                continue
            if final:
                self._forget(pipe)
            else:
                pipe.lose(self._forget)
        connection.incoming.clear()

    def stop(self) -> None:
        """Drop all pipes."""
        for pipe in self._pipes.values():
            pipe.stop()
        self._pipes.clear()


def _smaller(one: Limits, two: Limits) -> Limits:
    """Return the lower limits of two."""
    if one == two:
        return one
    return Limits(
        min((each.messages for each in (one, two) if each.messages is not None), default=None),
        min((each.bytes for each in (one, two) if each.bytes is not None), default=None),
        min(one.resume, two.resume),
    )


def _key(connection: Connection, exchange: str, is_global: bool) -> tuple[str, ...]:
    """Return the key that identifies an exchange over restarts of its owner."""
    return ("", exchange) if is_global else (connection.identity.hex(), exchange)
