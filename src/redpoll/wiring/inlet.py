"""The receiving half of a pipe: sees by the numbers what is missing, and says what was taken.

No I/O happens here. A pipe has one inlet, whose messages go to one or more sources, one for each bound queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from redpoll.wiring.gap import Gap
from redpoll.wiring.limits import Limits

__all__ = ["Inlet", "Source"]


class Source:
    """What one queue has of one pipe.

    Attributes:
        inlet: The pipe's.
        queue: The queue's name.
        pending: Messages that wait, oldest first: the number behind the last, and the messages. A gap stands alone.
        offset: How many of the first of these were taken already.
        done: All before this number were taken, or are missing.
        start: The number from which on messages are for this queue.
        stop: The number from which on they are not; None is no end.
        gaps: Whether gaps stand among the messages.
    """

    __slots__ = ("_tell", "busy", "done", "gaps", "inlet", "offset", "pending", "queue", "start", "stop")

    def __init__(
        self,
        inlet: Inlet,
        queue: str,
        start: int,
        gaps: bool,
        tell: Callable[[Source, Gap | None], None],
    ) -> None:
        self.inlet = inlet
        self.queue = queue
        self.start = self.done = start
        self.stop: int | None = None
        self.gaps = gaps
        self.pending: deque[tuple[int, list[Any]]] = deque()
        self.offset = 0
        #: Whether the queue hands out messages of it that were pending.
        self.busy = False
        #: Tells the queue that something came, or that something is missing.
        self._tell = tell

    @property
    def idle(self) -> bool:
        """Whether nothing of it waits."""
        return not self.pending and not self.busy

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return sum(len(messages) for _, messages in self.pending) - self.offset

    def left(self) -> Iterator[Any]:
        """Iterate over what waits, gaps included."""
        return islice(chain.from_iterable(messages for _, messages in self.pending), self.offset, None)

    def put(self, end: int, messages: list[Any]) -> None:
        """Messages came, of which the last has the number before `end`."""
        self.pending.append((end, messages))
        self._tell(self, None)

    def take(self, share: list[Any], most: int) -> int:
        """Add to a list what waits, up to so many in it; the number before which all is in it with that."""
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
        """So many are missing here."""
        gap = Gap(self.inlet.exchange, count, restarted)
        if self.gaps:
            self.pending.append((self.inlet.expected, [gap]))
        self._tell(self, gap)

    def finish(self, end: int) -> None:
        """The application has taken all before a number."""
        inlet = self.inlet
        if inlet.move(self, inlet.expected if self.idle else end):
            inlet.advance()


class Inlet:
    """The receiving half of one pipe.

    Attributes:
        exchange: The name of the exchange at the other end.
        key: What tells that exchange from all others, over restarts of its owner.
        expected: The number of the message that comes next.
        said: Up to where the other end has said that it accepted messages.
        taken: All before this number were taken by every queue, or are missing.
        told: What of `taken` the other end was told.
        sources: By the name of the queue.
        limits: What it has room for.
        overrun: Messages that came though there was no room, and were dropped.
        owner: The port that has it.
        shrunk: Whether a queue left since `limits` were reckoned.
    """

    __slots__ = (
        "_behind",
        "_freed_bytes",
        "_here",
        "_here_bytes",
        "_log",
        "_most",
        "_most_bytes",
        "_resume",
        "_resume_bytes",
        "exchange",
        "expected",
        "freed",
        "key",
        "limits",
        "overrun",
        "owner",
        "said",
        "shrunk",
        "sources",
        "taken",
        "told",
    )

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
        self.owner: Any = None
        self.shrunk = False
        #: How many queues hold `taken` where it is, as far as they were counted: not more than do.
        self._behind = 0
        #: What is here: of each piece the number behind its last message, how many they are, and bytes.
        self._log: deque[tuple[int, int, int]] = deque()
        self._here = self._here_bytes = 0
        self._freed_bytes = 0
        #: What it ever had room for: what comes now may have been sent while that was more.
        self._most = self._most_bytes = 0
        self.grant(limits)

    def grant(self, limits: Limits) -> None:
        """Have room for so much."""
        self.limits = limits
        self._most = max(self._most, limits.most_messages)
        self._most_bytes = max(self._most_bytes, limits.most_bytes)
        self._resume = limits.free_again(limits.most_messages)
        self._resume_bytes = limits.free_again(limits.most_bytes)

    def admits(self, count: int) -> bool:
        """Whether the other end may send so many messages more."""
        return not count or (self._here + count <= self._most and self._here_bytes < self._most_bytes)

    def refuse(self, count: int) -> None:
        """So many came though there was no room: they are missing once more comes."""
        self.overrun += count

    def arrived(self, first: int, said: int, messages: list[bytes], size: int) -> None:
        """Messages came, or none: then it is only said that nothing before `first` comes any more.

        Args:
            first: The number of the first.
            said: Up to where the other end has accepted messages.
            messages: The messages, which all queues share.
            size: Their bytes.
        """
        expected = self.expected
        if first < expected:
            # They were here before.
            skip = expected - first
            if skip >= len(messages):
                return
            size -= sum(map(len, messages[:skip]))
            messages = messages[skip:]
            first = expected
        self.said = max(self.said, said)
        count = len(messages)
        if not self.admits(count):
            self.refuse(count)
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
        """Give a queue those that are for it; the pipe does without it once none will be."""
        start = max(first, source.start)
        stop = end if source.stop is None else min(end, source.stop)
        if start < stop:
            source.put(stop, messages[start - first : stop - first])
        elif source.idle:
            self.move(source, max(source.done, end))
        if source.stop is not None and source.stop <= end:
            self._drop(source)

    def miss(self, first: int) -> None:
        """Nothing before a number comes any more."""
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
        """What comes is for one more queue."""
        self.sources[source.queue] = source
        if source.done <= self.taken:
            self._behind += 1

    def leave(self, source: Source) -> None:
        """A queue has all that is for it: what waits there holds this pipe no longer."""
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
        """A queue has taken all before a number: whether it may have been the one that held `taken`."""
        before, source.done = source.done, done
        if before > self.taken:
            return False
        if done > self.taken and self.sources.get(source.queue) is source:
            self._behind -= 1
        return True

    def advance(self) -> None:
        """Look at what all queues have taken, unless one is known that has not taken more."""
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
        """Whether so much is free again that the other end is to be told at once."""
        return self.taken - self.told >= self._resume or self._freed_bytes >= self._resume_bytes

    def tell(self) -> int:
        """What to tell the other end now: all before this number were taken."""
        self.told = self.taken
        self._freed_bytes = 0
        return self.taken
