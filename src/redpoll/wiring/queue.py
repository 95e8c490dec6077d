"""Queue: receives the messages of the exchanges that are bound to it, fairly over its pipes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import chain, islice, takewhile
from operator import attrgetter, length_hint
from typing import Any, Final, NamedTuple

from redpoll.errors import Closed, UsageError
from redpoll.node.sending import check_seconds
from redpoll.wiring.names import Gap, Limits, Scope
from redpoll.wiring.receiver import Source, alternate
from redpoll.wiring.waiting import Waiters

__all__ = ["Queue", "QueueStats"]

#: Maximum messages taken from one pipe at a time while others have messages too; these alternate one by one.
_SHARE = 32

_EMPTY: tuple[Any, ...] = ()
_IDLE = attrgetter("idle")
_PENDING = attrgetter("pending")

#: Maximum missing messages counted: another wiring may claim any number, and descriptions have 64 bits.
_MOST: Final = 2**63 - 1


class QueueStats(NamedTuple):
    """The counters of a queue.

    Attributes:
        received: Messages taken from it.
        waiting: Messages that wait in it.
        gaps: Gaps seen.
        missing: Missing messages in all gaps.
        pipes: Exchanges that are bound to it, once per process.
    """

    received: int
    waiting: int
    gaps: int
    missing: int
    pipes: int


class Queue:
    """Receives messages of bound exchanges. Created by `Wiring.create_queue`; call its methods on that event loop.

    Messages of one exchange arrive in the order in which they were sent, unless this queue is unbound and bound again while
    earlier ones still wait at the exchange, or they waited for another queue that a balancing exchange has lost. Exchanges
    take turns. Several tasks may receive at the same time: each message goes to one of them.

    It is an asynchronous iterator of messages, which ends when the queue is deleted or the wiring closed.

    Attributes:
        kind: "queue".
        name: The name.
        scope: The visibility of the name.
        limits: The limits of each pipe at this end.
        gaps: Whether a `Gap` marks the place of missing messages.
        settings: All of these, by which another creation of the name is compared.
        closed: True if it was deleted, or its wiring closed.
    """

    kind: Final = "queue"

    def __init__(
        self,
        name: str,
        scope: Scope,
        limits: Limits,
        gaps: bool,
        arrived: Callable[[Queue], None],
        told: Callable[[Queue, Gap], None],
        delete: Callable[[Queue], Any],
    ) -> None:
        self.name = name
        self.scope = scope
        self.limits = limits
        self.gaps = gaps
        self.settings = scope, limits, gaps
        #: Messages being handed out.
        self._batch: Iterator[Any] = iter(_EMPTY)
        #: Their sources, each with the number before which all its messages are taken with them.
        self._open: list[tuple[Source, int]] = []
        #: The oldest source with messages of each exchange that has one, in turn: each binding has another source.
        self._ready: deque[Source] = deque()
        #: Sources that were not taken to the end, oldest first, by the key of their exchange.
        self._sources: dict[tuple[str, ...], dict[Source, None]] = {}
        self._waiters = Waiters()
        self.closed = False
        self._arrived = arrived
        self._told = told
        self._delete = delete
        self._watcher: Callable[[], object] | None = None
        self._received = 0
        self._gap_count = 0
        self._missing = 0

    @property
    def stats(self) -> QueueStats:
        """The counters."""
        gaps = self._waiting_gaps()
        left = length_hint(self._batch) - gaps
        waiting = left + sum(source.waiting for source in self.sources)
        pipes = len({source.receiver for source in self.sources if source.queue in source.receiver.sources})
        return QueueStats(self._received - left, waiting, self._gap_count, self._missing, pipes)

    def _waiting_gaps(self) -> int:
        """Return the number of gaps among waiting messages."""
        sources = [source.left() for source in self.sources if source.gaps] if self._gap_count else ()
        return sum(isinstance(each, Gap) for each in chain(copy(self._batch), *sources)) if sources else 0

    # Receiving

    async def receive(self, timeout: float | None = None) -> Any:
        """Return the next message: bytes, or a `Gap` if the queue was created with ``gaps=True``.

        Args:
            timeout: Seconds to wait; None (default) is no limit, 0 does not wait.

        Raises:
            TimeoutError: No message arrived in time.
            Closed: The queue was deleted or its wiring closed, and it is empty.
            UsageError: The timeout is invalid.

        Cancelling it loses no message. It does not suspend while there are messages. A message counts as taken when the next
        one is requested: until then it occupies its place, and a restarted owner reports it as missing.
        """
        for message in self._batch:
            return message
        return await self._next(timeout)

    def receive_nowait(self) -> Any:
        """Return the next message, or None if there is none.

        Raises:
            Closed: As for `receive`.
        """
        for message in self._batch:
            return message
        if self._refill():
            return next(self._batch)
        self._check_open()
        return None

    async def receive_many(self, max: int = 1024, timeout: float | None = None) -> list[Any]:  # noqa: A002  # as Node.batches
        """Return all available messages; wait for one if there is none.

        Args:
            max: Maximum number of messages, from 1.
            timeout: Seconds to wait for the first, as for `receive`.

        Raises:
            TimeoutError: As for `receive`; also `Closed` and `UsageError`.
        """
        if type(max) is not int or max < 1:
            raise UsageError(f"max must be an int from 1, not {max!r}")
        found = self._available(max)
        if not found:
            found = [await self._next(timeout)]
            found += self._available(max - 1)
        return found

    def receive_many_nowait(self, max: int = 1024) -> list[Any]:  # noqa: A002  # as above
        """Return all available messages, perhaps none.

        Args:
            max: Maximum number of messages, from 1.

        Raises:
            Closed: As for `receive`.
        """
        found = self._available(max)
        if not found:
            self._check_open()
        return found

    def _available(self, most: int) -> list[Any]:
        found = list(islice(self._batch, most))
        while len(found) < most and self._refill():
            found += islice(self._batch, most - len(found))
        return found

    def watch(self, arrived: Callable[[], object]) -> None:
        """Set a function that is called on the loop when messages arrive or the queue closes; it must return soon."""
        self._watcher = arrived

    def __aiter__(self) -> Queue:
        """Iterate over messages until the queue is deleted or its wiring closed. Cancelling a step loses none."""
        return self

    async def __anext__(self) -> Any:
        """Return the next message."""
        for message in self._batch:
            return message
        try:
            return await self._next(None)
        except Closed:
            raise StopAsyncIteration from None

    async def delete(self) -> None:
        """Delete the queue: its pipes end, its name is free, and its waiting messages are dropped."""
        await self._delete(self)

    async def _next(self, timeout: float | None) -> Any:
        check_seconds(timeout)
        if timeout is None:
            await self._wait()
        else:
            try:
                async with asyncio.timeout(timeout):
                    await self._wait()
            except TimeoutError:
                if not self._refill():
                    raise TimeoutError(f"no message arrived in queue {self.name!r} within {timeout:g} s") from None
        message = next(self._batch)
        if self._waiters:
            self._wake()
        return message

    async def _wait(self) -> None:
        """Wait until there is something in `_batch`."""
        while not self._refill():
            self._check_open()
            await self._waiters.wait(self._wake)

    def _check_open(self) -> None:
        if self.closed:
            raise Closed(f"queue {self.name!r}")

    def _wake(self) -> None:
        if length_hint(self._batch) or self._ready or self.closed:
            self._waiters.wake()

    # Filling

    def _refill(self) -> bool:
        """Hand out the next messages; return False if none waits. Earlier ones count as taken."""
        if length_hint(self._batch):
            return True
        if self._open:
            self._finish()
        ready = self._ready
        if not ready:
            return False
        if len(ready) == 1:
            source = ready[0]
            end, messages = source.pending.popleft()
            if source.offset:
                messages = messages[source.offset :]
                source.offset = 0
            if not source.pending:
                ready.popleft()
                self._next_of(source)
            source.busy = True
            self._open.append((source, end))
        else:
            messages = self._alternate()
        self._received += len(messages)
        self._batch = iter(messages)
        return True

    def _finish(self) -> None:
        finished, self._open = self._open, []
        for source, _ in finished:
            source.busy = False
        for source, end in finished:
            source.finish(end)
            if source.idle and source.receiver.sources.get(source.queue) is not source:
                self._discard(source)

    @property
    def sources(self) -> list[Source]:
        """The sources that were not taken to the end."""
        return list(chain.from_iterable(self._sources.values()))

    def sources_of(self, key: tuple[str, ...]) -> Iterable[Source]:
        """Return the sources of one exchange."""
        return self._sources.get(key, ())

    def add(self, source: Source) -> None:
        """Add a source; drop former ones of its exchange that have nothing and get nothing any more."""
        known = self._sources.setdefault(source.receiver.key, {})
        for each in {*takewhile(_IDLE, known), *islice(reversed(known), 1)}:
            if each.idle and each.receiver.sources.get(each.queue) is not each:
                del known[each]
        known[source] = None

    def _discard(self, source: Source) -> None:
        key = source.receiver.key
        known = self._sources.get(key, {})
        known.pop(source, None)
        if not known:
            self._sources.pop(key, None)

    def settle(self) -> None:
        """Count messages handed out as taken, unless threads receive them in bursts."""
        if self._watcher is not None:
            return
        if length_hint(self._batch) and len(self._open) == 1:
            self._put_back()
        if not length_hint(self._batch):
            self._finish()

    def _alternate(self) -> list[Any]:
        """Take some messages of each exchange that has any, alternating one by one."""
        ready = self._ready
        shares = []
        for _ in range(len(ready)):
            source = ready.popleft()
            share: list[Any] = []
            end = source.take(share, _SHARE)
            if source.pending:
                ready.append(source)
            else:
                self._next_of(source)
            source.busy = True
            self._open.append((source, end))
            shares.append(share)
        return alternate(shares)

    def _next_of(self, source: Source) -> None:
        """Give a turn to the next source of the same exchange, as all messages of this one are taken."""
        self._ready.extend(islice(filter(_PENDING, self.sources_of(source.receiver.key)), 1))

    def _enter(self, source: Source) -> None:
        """Give a turn to a source that has messages now, unless an older one of the same exchange has one."""
        oldest, *others = islice(filter(_PENDING, self.sources_of(source.receiver.key)), 2)
        if oldest is source:
            for other in others:
                self._ready.remove(other)
            self._ready.append(source)

    def _put_back(self) -> None:
        """Return messages of a single source to it, as another source has messages too."""
        left = list(self._batch)
        source, end = self._open[0]
        self._received -= len(left)
        self._open = [(source, end - len(left))]
        if source.offset:
            # Messages must not be taken out of the middle of a batch while a whole one is handed out.
            _, messages = source.pending[0]
            source.pending[0] = (source.pending[0][0], messages[source.offset :])
            source.offset = 0
        waited = bool(source.pending)
        source.pending.appendleft((end, left))
        if not waited:
            self._enter(source)
        self._batch = iter(_EMPTY)

    def put(self, source: Source, gap: Gap | None) -> None:
        """Note that a source has new messages, or a gap."""
        if gap is not None:
            self._gap_count += 1
            self._missing = min(self._missing + gap.count, _MOST)
            self._told(self, gap)
            if not source.gaps:
                return
            self._received -= 1
        if len(source.pending) == 1 and not source.offset:
            opened = self._open
            key = source.receiver.key
            if len(opened) == 1 and opened[0][0].receiver.key != key and length_hint(self._batch) > _SHARE:
                self._put_back()
            self._enter(source)
        if self._waiters:
            self._wake()
        self._arrived(self)
        if self._watcher is not None:
            self._watcher()

    def inherit(self) -> None:
        """Hand out nothing in a forked child: the parent receives what waits."""
        self.closed = True
        self._batch = iter(_EMPTY)
        self._ready.clear()

    def close(self) -> None:
        """Close the queue: waiting calls are woken, and messages in it can still be taken."""
        self.closed = True
        self._waiters.wake_all()
        self._arrived(self)
        if self._watcher is not None:
            self._watcher()

    def clear(self) -> None:
        """Drop waiting messages."""
        self._batch = iter(_EMPTY)
        self._open.clear()
        self._ready.clear()
        self._sources.clear()

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} {self.scope.value}>"
