"""A pipe whose messages are dropped at its limit, cut off on the way, and whose ends are started anew: gaps stay exact."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from redpoll.wiring.inlet import Inlet, Source
from redpoll.wiring.names import AtLimit, Gap, Limits
from redpoll.wiring.outlet import Outlet
from redpoll.wiring.protocol import MIXED, Batch, unpack

SIZES = st.integers(0, 40)


def number_of(message: bytes) -> int:
    """The number that a message was made with."""
    return int(message.split(b".")[0])


class Pipe(RuleBasedStateMachine):
    """One outlet, one inlet with one queue, and a wire between them that may lose its end."""

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
        self.outlet = Outlet(self.limits, at_limit)
        self.start_inlet(0)
        self.outlet.open(self.window, None, None)

    def start_inlet(self, first: int, missed: int = 0) -> None:
        self.inlet = Inlet("E", ("", "E"), first, self.window, lambda: None)
        self.source = Source(self.inlet, "Q", first, True, lambda source, gap: None)
        self.inlet.sources["Q"] = self.source
        if missed:
            self.source.miss(missed)

    # At the exchange

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=6))
    def send(self, sizes: list[int]) -> None:
        """Send some messages: all of them are accepted, or dropped and counted."""
        for size in sizes:
            if self.at_limit in (AtLimit.WAIT, AtLimit.REFUSE) and self.outlet.room() == (0, 0):
                return
            text = b"%d." % self.number
            dropped = self.outlet.accept(Batch([text + b"x" * size]))
            assert dropped <= 1 or self.at_limit is AtLimit.DROP_OLD
            self.number += 1
        assert self.outlet.next == self.number

    @rule(sizes=st.lists(SIZES, min_size=2, max_size=8))
    @precondition(lambda self: self.at_limit in (AtLimit.DROP_NEW, AtLimit.DROP_OLD))
    def send_together(self, sizes: list[int]) -> None:
        """Send them in one piece."""
        batch = Batch([b"%d." % (self.number + at) + b"x" * size for at, size in enumerate(sizes)])
        self.outlet.accept(batch)
        self.number += len(sizes)

    @rule()
    def pump(self) -> None:
        """Put on the wire what may be."""
        outlet = self.outlet
        while (chunk := outlet.take()) is not None:
            shape, body = chunk.batch.packed()
            self.wire.append((chunk.first, outlet.next, len(chunk.batch), shape, body))
        if outlet.tail:
            self.wire.append((outlet.mark(), outlet.next, 0, 0, b""))

    @rule()
    def credit(self) -> None:
        """Hear what was taken."""
        while self.credits:
            assert self.outlet.credit(self.credits.popleft())

    # At the queue

    @rule(count=st.integers(1, 5))
    def arrive(self, count: int) -> None:
        """Some pieces arrive."""
        for _ in range(min(count, len(self.wire))):
            first, said, many, shape, body = self.wire.popleft()
            size = len(body) - 4 * many if shape == MIXED else len(body)
            self.inlet.arrived(first, said, unpack(shape, many, body) if many else [], size)
        assert not self.inlet.overrun

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
        if self.inlet.due:
            self.credits.append(self.inlet.tell())

    @rule()
    def tell(self) -> None:
        """Time goes by: what was taken is told, however little."""
        self.credits.append(self.inlet.tell())

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
        self.outlet.up = False
        self.outlet.open(self.window, self.inlet.expected, self.inlet.tell())
        self.wire.append((self.outlet.sent, self.outlet.next, 0, 0, b""))

    @rule()
    def restart_receiver(self) -> None:
        """The owner of the queue is killed and started again: what the former did not say that it took is missing."""
        self.wire.clear()
        self.credits.clear()
        self.outlet.up = False
        base = self.outlet.taken
        first = self.outlet.mark()
        self.outlet.open(self.window, None, None)
        self.start_inlet(first, first - base)
        # What the application of the former had taken and not told of is what the new one takes for missing.
        self.expected = base

    # What holds

    @invariant()
    def bounded(self) -> None:
        """Both ends hold no more than their limits, and one message that goes past a limit in bytes."""
        if not hasattr(self, "outlet"):
            return
        here = sum(len(messages) for _, messages in self.source.pending if not isinstance(messages[0], Gap))
        flying = sum(many for _, _, many, _, _ in self.wire)
        assert here + flying <= self.window.most_messages
        assert self.outlet.waiting <= self.limits.most_messages + self.window.most_messages
        largest = 45
        assert self.outlet.waiting_bytes < self.limits.most_bytes + self.window.most_bytes + 2 * largest

    @precondition(lambda self: hasattr(self, "outlet"))
    @rule()
    def settle(self) -> None:
        """Without faults everything comes through: each number was got, or is counted as missing."""
        for _ in range(200):
            self.pump()
            self.arrive(100)
            self.take(100)
            self.tell()
            self.credit()
            if not self.wire and not self.outlet.waiting and not self.outlet.tail and not self.source.pending:
                break
        assert self.expected == self.number
        assert self.outlet.room()[0] > 0
        assert self.outlet.taken == self.outlet.sent == self.number
        assert self.inlet.taken == self.number


TestPipe = Pipe.TestCase
TestPipe.settings = settings(max_examples=max(100, settings().max_examples), stateful_step_count=40, deadline=None)
