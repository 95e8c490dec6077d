"""A pipe whose messages are dropped at its limit, cut off on the way, and whose ends are started anew: gaps stay exact."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from redpoll.wiring.names import AtLimit, Gap, Limits
from redpoll.wiring.protocol import MIXED, Batch, unpack
from redpoll.wiring.receiver import Receiver, Source
from redpoll.wiring.sender import Sender

SIZES = st.integers(0, 40)


def number_of(message: bytes) -> int:
    """The number that a message was made with."""
    return int(message.split(b".")[0])


class Pipe(RuleBasedStateMachine):
    """One sender, one receiver with one queue, and a wire between them that may lose its end."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.wire: deque[tuple[int, int, int, int, Any]] = deque()
        self.credits: deque[int] = deque()
        #: What the application at the queue got, messages by their numbers and gaps by their counts.
        self.got: list[int] = []
        self.expected = 0
        self.missing = 0

    @initialize(
        messages=st.integers(1, 12),
        size=st.integers(1, 200),
        window=st.integers(1, 12),
        window_bytes=st.integers(1, 200),
        resume=st.floats(0.1, 1.0),
        at_limit=st.sampled_from(AtLimit),
    )
    def begin(self, messages: int, size: int, window: int, window_bytes: int, resume: float, at_limit: AtLimit) -> None:
        """Open the pipe."""
        self.window = Limits(window, window_bytes, resume)
        self.limits = Limits(messages, size, resume)
        self.at_limit = at_limit
        self.sender = Sender(self.limits, at_limit)
        self.start_receiver(0)
        self.sender.open(self.window, None, None)

    def start_receiver(self, first: int, missed: int = 0) -> None:
        self.receiver = Receiver("E", ("", "E"), first, self.window, lambda: None)
        self.source = Source(self.receiver, "Q", first, True, lambda source, gap: None)
        self.receiver.sources["Q"] = self.source
        if missed:
            self.source.miss(missed)

    # At the exchange

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=6))
    def send(self, sizes: list[int]) -> None:
        """Send some messages: all of them are accepted, or dropped and counted."""
        for size in sizes:
            if self.at_limit in (AtLimit.WAIT, AtLimit.REFUSE) and self.sender.room() == (0, 0):
                return
            text = b"%d." % self.number
            dropped = self.sender.accept(Batch([text + b"x" * size]))
            assert dropped <= 1 or self.at_limit is AtLimit.DROP_OLD
            self.number += 1
        assert self.sender.next == self.number

    @rule(sizes=st.lists(SIZES, min_size=2, max_size=8))
    @precondition(lambda self: self.at_limit in (AtLimit.DROP_NEW, AtLimit.DROP_OLD))
    def send_together(self, sizes: list[int]) -> None:
        """Send them in one piece."""
        batch = Batch([b"%d." % (self.number + at) + b"x" * size for at, size in enumerate(sizes)])
        self.sender.accept(batch)
        self.number += len(sizes)

    @rule()
    def pump(self) -> None:
        """Put on the wire what may be."""
        sender = self.sender
        while (chunk := sender.take()) is not None:
            shape, body = chunk.batch.packed()
            self.wire.append((chunk.first, sender.next, len(chunk.batch), shape, body))
        if sender.tail:
            self.wire.append((sender.mark(), sender.next, 0, 0, b""))

    @rule()
    def credit(self) -> None:
        """Hear what was taken."""
        while self.credits:
            assert self.sender.credit(self.credits.popleft())

    # At the queue

    @rule(count=st.integers(1, 5))
    def arrive(self, count: int) -> None:
        """Some pieces arrive."""
        for _ in range(min(count, len(self.wire))):
            first, said, many, shape, body = self.wire.popleft()
            size = len(body) - 4 * many if shape == MIXED else len(body)
            self.receiver.arrived(first, said, unpack(shape, many, body) if many else [], size)
        assert not self.receiver.overrun

    @rule(count=st.integers(1, 30))
    def take(self, count: int) -> None:
        """The application takes messages and gaps; what is free is told when enough is."""
        for _ in range(count):
            if not self.source.pending:
                break
            end, messages = self.source.pending.popleft()
            for message in messages:
                self.note(message)
            self.source.finish(end)
        if self.receiver.due:
            self.credits.append(self.receiver.tell())

    @rule()
    def tell(self) -> None:
        """Time goes by: what was taken is told, however little."""
        self.credits.append(self.receiver.tell())

    def note(self, message: Any) -> None:
        if isinstance(message, Gap):
            assert message.count > 0
            assert not message.restarted
            self.expected += message.count
            self.missing += message.count
        else:
            assert number_of(message) == self.expected, (
                "a message is missing or out of order without a gap that says so"
            )
            self.got.append(self.expected)
            self.expected += 1

    # Faults

    @rule(lost=st.integers(0, 4))
    def cut(self, lost: int) -> None:
        """The link is lost with some of what was on the way, and the same two ends meet again."""
        kept = max(0, len(self.wire) - lost)
        for _ in range(kept):
            self.arrive(1)
        self.wire.clear()
        self.credits.clear()
        self.sender.up = False
        self.sender.open(self.window, self.receiver.expected, self.receiver.tell())
        self.wire.append((self.sender.sent, self.sender.next, 0, 0, b""))

    @rule()
    def restart_receiver(self) -> None:
        """The owner of the queue is killed and started again: what the former did not say that it took is missing."""
        self.wire.clear()
        self.credits.clear()
        self.sender.up = False
        base = self.sender.taken
        first = self.sender.mark()
        self.sender.open(self.window, None, None)
        self.start_receiver(first, first - base)
        # What the application of the former had taken and not told of is what the new one takes for missing.
        self.expected = base

    # What holds

    @invariant()
    def bounded(self) -> None:
        """Both ends hold no more than their limits, and one message that goes past a limit in bytes."""
        if not hasattr(self, "sender"):
            return
        here = sum(len(messages) for _, messages in self.source.pending if not isinstance(messages[0], Gap))
        flying = sum(many for _, _, many, _, _ in self.wire)
        assert here + flying <= self.window.most_messages
        assert self.sender.waiting <= self.limits.most_messages + self.window.most_messages
        largest = 45
        assert self.sender.waiting_bytes < self.limits.most_bytes + self.window.most_bytes + 2 * largest

    @precondition(lambda self: hasattr(self, "sender"))
    @rule()
    def settle(self) -> None:
        """Without faults everything comes through: each number was got, or is counted as missing."""
        for _ in range(200):
            self.pump()
            self.arrive(100)
            self.take(100)
            self.tell()
            self.credit()
            if not self.wire and not self.sender.waiting and not self.sender.tail and not self.source.pending:
                break
        assert self.expected == self.number
        assert self.sender.room()[0] > 0
        assert self.sender.taken == self.sender.sent == self.number
        assert self.receiver.taken == self.number


TestPipe = Pipe.TestCase
TestPipe.settings = settings(max_examples=max(100, settings().max_examples), stateful_step_count=40, deadline=None)
