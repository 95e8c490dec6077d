"""The receiving half of a pipe, without I/O: detects missing messages by their numbers, and reports taken ones.

A pipe has one receiver, whose messages go to one or more sources, one for each bound queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, zip_longest
from typing import Any, Final

from redpoll.wiring.names import Gap, Limits

__all__ = ["Receiver", "Source", "alternate"]

_NONE: Final = object()


class Source:
    """One queue's share of one pipe.

    Attributes:
        receiver: The receiver of the pipe.
        queue: The name of the queue.
        pending: Batches of waiting messages, oldest first: the number behind the last, and the messages. A gap is a batch.
        offset: Number of messages of the first batch that were taken already.
        done: All messages before this number were taken, or are missing.
        start: Number of the first message for this queue.
        stop: Number behind the last message for it; None is no end.
        gaps: Insert gaps among the messages.
    """

    __slots__ = ("_tell", "busy", "done", "gaps", "offset", "pending", "queue", "receiver", "start", "stop")

    def __init__(
        self,
        receiver: Receiver,
        queue: str,
        start: int,
        gaps: bool,
        tell: Callable[[Source, Gap | None], None],
    ) -> None:
        self.receiver = receiver
        self.queue = queue
        self.start = self.done = start
        self.stop: int | None = None
        self.gaps = gaps
        self.pending: deque[tuple[int, list[Any]]] = deque()
        self.offset = 0
        #: True while the queue hands out messages that were pending here.
        self.busy = False
        #: Tells the queue of new messages, or of a gap.
        self._tell = tell

    @property
    def idle(self) -> bool:
        """True if no message of it waits or is being handed out."""
        return not self.pending and not self.busy

    @property
    def waiting(self) -> int:
        """Number of waiting messages, gaps included."""
        return sum(len(messages) for _, messages in self.pending) - self.offset

    def left(self) -> Iterator[Any]:
        """Iterate over waiting messages, gaps included."""
        return islice(chain.from_iterable(messages for _, messages in self.pending), self.offset, None)

    def put(self, end: int, messages: list[Any]) -> None:
        """Append messages; the last one has the number before `end`."""
        self.pending.append((end, messages))
        self._tell(self, None)

    def take(self, share: list[Any], most: int) -> int:
        """Move up to `most` waiting messages to a list in all; return the number behind the last message moved so far."""
        pending = self.pending
        end = self.done
        while pending and len(share) < most:
            last, messages = pending[0]
            some = messages[self.offset : self.offset + most - len(share)]
            share += some
            self.offset += len(some)
            left = len(messages) - self.offset
            end = last - left
            if not left:
                pending.popleft()
                self.offset = 0
        return end

    def miss(self, count: int, *, restarted: bool = False) -> None:
        """Count missing messages, and insert a gap if the queue wants gaps."""
        gap = Gap(self.receiver.exchange, count, restarted)
        if self.gaps:
            self.pending.append((self.receiver.expected, [gap]))
        self._tell(self, gap)

    def finish(self, end: int) -> None:
        """Note that the application has taken all messages before a number."""
        receiver = self.receiver
        if receiver.move(self, receiver.expected if self.idle else end):
            receiver.advance()


class Receiver:
    """The receiving half of one pipe.

    Attributes:
        exchange: The name of the exchange at the other end.
        key: Identifies the exchange over restarts of its owner.
        expected: Number of the next message.
        said: Number behind the last message that the other end has announced as accepted.
        taken: All messages before this number were taken by every queue, or are missing.
        told: The value of `taken` that the other end was told last.
        sources: The sources by the name of the queue.
        limits: The limits granted to the other end.
        overrun: Number of messages beyond the limits, which were dropped.
        shrunk: True if a queue left since `limits` were computed.
    """

    def __init__(
        self, exchange: str, key: tuple[str, ...], first: int, limits: Limits, freed: Callable[[], None]
    ) -> None:
        self.exchange = exchange
        self.key = key
        self.expected = self.said = self.taken = self.told = first
        self.sources: dict[str, Source] = {}
        self.limits = limits
        #: Called when `taken` grows: see `due`.
        self.freed = freed
        self.overrun = 0
        self.shrunk = False
        #: Number of queues that hold `taken` back; a lower bound.
        self._behind = 0
        #: Messages held here: for each batch the number behind its last message, its messages and bytes.
        self._log: deque[tuple[int, int, int]] = deque()
        self._here = self._here_bytes = 0
        self._freed_bytes = 0
        #: Highest limits ever granted: messages in transit may have been sent under them.
        self._most = self._most_bytes = 0
        self.grant(limits)

    def grant(self, limits: Limits) -> None:
        """Set the limits that the other end is granted."""
        self.limits = limits
        self._most = max(self._most, limits.most_messages)
        self._most_bytes = max(self._most_bytes, limits.most_bytes)
        self._resume = limits.free_again(limits.most_messages)
        self._resume_bytes = limits.free_again(limits.most_bytes)

    def admits(self, count: int) -> bool:
        """Return True if the other end may send this many more messages."""
        return not count or (self._here + count <= self._most and self._here_bytes < self._most_bytes)

    def arrived(self, first: int, said: int, messages: list[bytes], size: int) -> None:
        """Process received messages; with none, the other end only says that nothing before `first` follows.

        Args:
            first: Number of the first message.
            said: Number behind the last message that the other end has accepted.
            messages: The messages, which all queues share.
            size: Their size in bytes.
        """
        expected = self.expected
        if first < expected:
            # These were received before.
            skip = expected - first
            if skip >= len(messages):
                return
            size -= sum(map(len, messages[:skip]))
            messages = messages[skip:]
            first = expected
        self.said = max(self.said, said)
        count = len(messages)
        if not self.admits(count):
            # They are missing, as the next message will show.
            self.overrun += count
            return
        if first > expected:
            self.miss(first)
        if not count:
            return
        end = self.expected = first + count
        self.said = max(self.said, end)
        self._log.append((end, count, size))
        self._here += count
        self._here_bytes += size
        for source in tuple(self.sources.values()):
            if source.start <= first and source.stop is None:
                source.put(end, messages)
            else:
                self._put_some(source, first, end, messages)
        if self._behind <= 0:
            self.advance()

    def _put_some(self, source: Source, first: int, end: int, messages: list[bytes]) -> None:
        """Give a queue its share of the messages; remove it from the pipe after its last one."""
        start = max(first, source.start)
        stop = end if source.stop is None else min(end, source.stop)
        if start < stop:
            source.put(stop, messages[start - first : stop - first])
        elif source.idle:
            self.move(source, max(source.done, end))
        if source.stop is not None and source.stop <= end:
            self._drop(source)

    def miss(self, first: int) -> None:
        """Note that no message before a number follows."""
        expected = self.expected
        if first <= expected:
            return
        self.expected = first
        self.said = max(self.said, first)
        for source in list(self.sources.values()):
            stop = first if source.stop is None else min(first, source.stop)
            missing = stop - max(expected, source.start)
            if missing > 0:
                source.miss(missing)
            if source.idle:
                self.move(source, max(source.done, first))
            if source.stop is not None and source.stop <= first:
                self._drop(source)
        self.advance()

    def join(self, source: Source) -> None:
        """Add a queue: messages from now on are for it as well."""
        self.sources[source.queue] = source
        if source.done <= self.taken:
            self._behind += 1

    def leave(self, source: Source) -> None:
        """Remove a queue that has all its messages; those that wait in it no longer hold this pipe back."""
        if self.sources.get(source.queue) is source:
            self._drop(source)
            self.advance()

    def _drop(self, source: Source) -> None:
        del self.sources[source.queue]
        self.shrunk = True
        if source.done <= self.taken:
            self._behind -= 1
        source.done = self.expected

    def move(self, source: Source, done: int) -> bool:
        """Note what a queue has taken; return True if it may have been the one that held `taken` back."""
        before, source.done = source.done, done
        if before > self.taken:
            return False
        if done > self.taken and self.sources.get(source.queue) is source:
            self._behind -= 1
        return True

    def advance(self) -> None:
        """Recompute `taken`, unless a queue is known that holds it back."""
        if self._behind > 0:
            return
        sources = self.sources
        if len(sources) == 1:
            (only,) = sources.values()
            taken = min(only.done, self.expected)
            self._behind = only.done <= taken
        else:
            taken = min((source.done for source in sources.values()), default=self.expected)
            taken = min(taken, self.expected)
            self._behind = sum(source.done <= taken for source in sources.values())
        if taken <= self.taken:
            return
        self.taken = taken
        log = self._log
        while log and log[0][0] <= taken:
            _, count, size = log.popleft()
            self._here -= count
            self._here_bytes -= size
            self._freed_bytes += size
        self.freed()

    @property
    def due(self) -> bool:
        """True if enough is free again that the other end must be told at once."""
        return self.taken - self.told >= self._resume or self._freed_bytes >= self._resume_bytes

    def tell(self) -> int:
        """Return the number to tell the other end: all messages before it were taken."""
        self.told = self.taken
        self._freed_bytes = 0
        return self.taken


def alternate(shares: Iterable[Iterable[Any]]) -> list[Any]:
    """Return messages of several sources in one list: the first one of each, then the second ones."""
    return [each for each in chain.from_iterable(zip_longest(*shares, fillvalue=_NONE)) if each is not _NONE]
