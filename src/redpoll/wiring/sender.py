"""The sending half of a pipe, without I/O: numbers messages, keeps waiting ones, and follows the other end's credit.

Messages are numbered from 0 as they are accepted, dropped ones too, so that the numbers show the other end how many are
missing.

    taken ............ sent ............ next
      |  at the other end |  waits here   |
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from redpoll.wiring.names import AtLimit, Limits
from redpoll.wiring.protocol import BATCH_BYTES, BATCH_MESSAGES, Batch

__all__ = ["Chunk", "Sender"]


class Chunk(NamedTuple):
    """Messages to be sent as one piece.

    Attributes:
        first: Number of the first message.
        batch: The messages.
    """

    first: int
    batch: Batch


class Sender:
    """The sending half of one pipe.

    Attributes:
        next: Number of the next message to accept.
        sent: Number of the next message to send; earlier ones were sent, or dropped.
        taken: All messages before this number were taken by the application at the other end, or are missing there.
        dropped: Number of messages dropped for want of room.
        held: True from reaching a limit until the fraction `resume` of it is free again.
        up: True while there is another end.
        window: Messages that the other end has room for, in all.
        window_bytes: Bytes that it has room for.
    """

    def __init__(self, limits: Limits, at_limit: AtLimit) -> None:
        self.limits = limits
        self._at_limit = at_limit
        self._most = limits.most_messages
        self._most_bytes = limits.most_bytes
        # The exact excess is dropped: hysteresis is for senders that wait.
        drops = at_limit is AtLimit.DROP_NEW or at_limit is AtLimit.DROP_OLD
        self._resume = 1 if drops else limits.free_again(self._most)
        self._resume_bytes = 1 if drops else limits.free_again(self._most_bytes)
        self.next = self.sent = self.taken = 0
        self.dropped = 0
        self.held = False
        self.up = False
        self.window = self.window_bytes = 0
        self._waiting: deque[Chunk] = deque()
        self.waiting = 0
        self.waiting_bytes = 0
        #: Messages sent and not taken: for each piece the number behind its last message, its messages and bytes. Its
        #: room is returned when all of it is taken.
        self._flying: deque[tuple[int, int, int]] = deque()
        self._flying_messages = self._flying_bytes = 0

    # Accepting

    def room(self) -> tuple[int, int]:
        """Return (messages, bytes) that fit now; (0, 0) when full. The bytes count before the last message."""
        messages, size = self._free()
        if messages <= 0 or size <= 0:
            self.held = True
            return 0, 0
        if self.held:
            if messages < self._resume or size < self._resume_bytes:
                return 0, 0
            self.held = False
        return messages, size

    @property
    def lacks_messages(self) -> bool:
        """True if fewer messages must be held before there is room, so that the bytes are not the only limit."""
        return self.held and self._free()[0] < self._resume

    def _free(self) -> tuple[int, int]:
        """Return the messages and bytes that are free at both ends; below 0 where more wait."""
        messages = self._most - self.waiting
        size = self._most_bytes - self.waiting_bytes
        if self.up:
            messages += max(0, self.window - self._flying_messages)
            size += max(0, self.window_bytes - self._flying_bytes)
        return messages, size

    def accept(self, batch: Batch) -> int:
        """Accept messages; without room for all, `at_limit` decides which are dropped. `WAIT` and `REFUSE` drop none.

        Returns:
            The number of dropped messages.
        """
        count = len(batch)
        before = self.dropped
        at_limit = self._at_limit
        if at_limit is AtLimit.DROP_NEW or at_limit is AtLimit.DROP_OLD:
            messages, size = self.room()
            if count > messages or batch.size >= size:
                self._accept_some(batch, messages, size)
                return self.dropped - before
        self._append(batch)
        return 0

    def _append(self, batch: Batch) -> None:
        self._waiting.append(Chunk(self.next, batch))
        self.next += len(batch)
        self.waiting += len(batch)
        self.waiting_bytes += batch.size

    def _accept_some(self, batch: Batch, messages: int, size: int) -> None:
        if self._at_limit is AtLimit.DROP_NEW:
            fits = 0
            for message in batch.messages[:messages]:
                if size <= 0:
                    break
                size -= len(message)
                fits += 1
            if fits:
                self._append(batch.cut(0, fits))
            self.next += len(batch) - fits
            self.dropped += len(batch) - fits
            return
        self._append(batch)
        while self._waiting:
            messages, size = self._free()
            # The bytes count before the last message.
            size += len(self._waiting[-1].batch.messages[-1])
            if messages >= 0 and (self.waiting == 1 or size > 0):
                return
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        first, batch = self._waiting.popleft()
        size = len(batch.messages[0])
        self.waiting -= 1
        self.waiting_bytes -= size
        self.dropped += 1
        if len(batch) > 1:
            self._waiting.appendleft(Chunk(first + 1, Batch(batch.messages[1:], batch.size - size)))

    # Sending

    def take(self) -> Chunk | None:
        """Take the next piece to send; return None if no message waits, or the other end has no room.

        A small piece is joined with those that follow it; a large one is cut to the room of the other end.
        """
        waiting = self._waiting
        if not waiting or not self.up:
            return None
        first, batch = waiting[0]
        room = self.window - self._flying_messages
        if room <= 0 or self._flying_bytes >= self.window_bytes:
            return None
        waiting.popleft()
        count = len(batch)
        if waiting and count < BATCH_MESSAGES and batch.size < BATCH_BYTES:
            batch = self._joined(first, batch)
            count = len(batch)
        most = min(room, max(1, self.window // 4), BATCH_MESSAGES)
        if count > most or (batch.size > BATCH_BYTES and count > 1):
            fits = _fitting(batch, most)
            if fits < count:
                waiting.appendleft(Chunk(first + fits, batch.cut(fits)))
                batch = batch.cut(0, fits)
                count = fits
        self.waiting -= count
        self.waiting_bytes -= batch.size
        self.sent = first + count
        self._flying.append((self.sent, count, batch.size))
        self._flying_messages += count
        self._flying_bytes += batch.size
        return Chunk(first, batch)

    def _joined(self, first: int, batch: Batch) -> Batch:
        """Join a piece with those that follow it, up to the maximum size."""
        waiting = self._waiting
        count, size = len(batch), batch.size
        messages: list[bytes] | None = None
        while waiting:
            start, other = waiting[0]
            count += len(other)
            size += other.size
            gap = start != first + count - len(other)
            if gap or count > BATCH_MESSAGES or size > BATCH_BYTES:
                break
            waiting.popleft()
            if messages is None:
                messages = list(batch.messages)
            messages += other.messages
        return batch if messages is None else Batch(messages)

    @property
    def empty(self) -> bool:
        """True if no message waits to be sent."""
        return not self._waiting

    @property
    def tail(self) -> bool:
        """True if the last messages accepted were dropped, and the other end was not told."""
        return self.up and not self._waiting and self.sent < self.next

    def mark(self) -> int:
        """Skip dropped messages; return the number to tell the other end, before which no message follows."""
        if not self._waiting:
            self.sent = self.next
        elif self._waiting[0].first > self.sent:
            self.sent = self._waiting[0].first
        return self.sent

    def credit(self, taken: int) -> bool:
        """Note that all messages before a number were taken at the other end; return False if that is impossible."""
        if taken > self.sent:
            return False
        if taken > self.taken:
            self.taken = taken
            flying = self._flying
            while flying and flying[0][0] <= taken:
                _, count, size = flying.popleft()
                self._flying_messages -= count
                self._flying_bytes -= size
        return True

    @property
    def unconfirmed(self) -> int:
        """Number of messages that were sent and not confirmed as taken."""
        return sum(min(count, last - self.taken) for last, count, _ in self._flying)

    # The other end

    def open(self, window: Limits, expected: int | None, taken: int | None) -> int:
        """Attach another end.

        Args:
            window: Its limits.
            expected: The number that it waits for, if it is the same end as before: messages sent from there on are lost.
            taken: The number before which it has taken all messages, in that case.

        Returns:
            The number of messages that were sent and are lost.
        """
        self.grant(window)
        self.up = True
        self.mark()
        if expected is None or taken is None:
            return self.give_up()
        self.credit(min(taken, self.sent))
        return self.skip(expected, self.sent)

    def skip(self, expected: int, end: int) -> int:
        """Forget messages sent before a number that the other end still expects: they are lost; return their number."""
        kept: deque[tuple[int, int, int]] = deque()
        lost = 0
        for last, count, size in self._flying:
            if expected < last <= end:
                self._flying_messages -= count
                self._flying_bytes -= size
                lost += count
            else:
                kept.append((last, count, size))
        self._flying = kept
        return lost

    def grant(self, window: Limits) -> None:
        """Set what the other end has room for."""
        self.window = window.most_messages
        self.window_bytes = window.most_bytes

    def withdraw(self) -> list[bytes]:
        """Withdraw waiting messages, as if they had not been accepted."""
        messages = [message for _, batch in self._waiting for message in batch.messages]
        first = self._waiting[0].first if self._waiting else self.next
        self._waiting.clear()
        self.waiting = self.waiting_bytes = 0
        self.next = first
        return messages

    def give_up(self) -> int:
        """Forget sent messages that will not be confirmed; return their number."""
        count = self.unconfirmed
        self.taken = self.sent
        self._flying.clear()
        self._flying_messages = self._flying_bytes = 0
        return count

    def discard(self) -> int:
        """Drop waiting messages; return their number."""
        count = self.waiting
        self._waiting.clear()
        self.waiting = self.waiting_bytes = 0
        self.sent = self.next
        self.dropped += count
        return count


def _fitting(batch: Batch, most: int) -> int:
    """Return the number of messages that fit in one piece."""
    size = 0
    for number, message in enumerate(batch.messages[:most]):
        size += len(message)
        if size > BATCH_BYTES and number:
            return number
    return min(most, len(batch))
