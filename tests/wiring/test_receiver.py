"""The receiving half of a pipe, without a loop."""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from redpoll.wiring.names import NO_LIMIT, Gap, Limits
from redpoll.wiring.receiver import Receiver, Source


class Pipe:
    """An receiver with some queues."""

    def __init__(self, *queues: str, limits: Limits = Limits(), gaps: bool = True) -> None:  # noqa: B008  # frozen
        self.freed = 0
        self.told: list[tuple[str, Gap | None]] = []
        self.receiver = Receiver("E", ("", "E"), 0, limits, self._freed)
        for queue in queues:
            self.join(queue, gaps=gaps)

    def _freed(self) -> None:
        self.freed += 1

    def join(self, queue: str, start: int = 0, *, gaps: bool = True) -> Source:
        """Have a queue join."""
        source = Source(self.receiver, queue, start, gaps, lambda source, gap: self.told.append((source.queue, gap)))
        self.receiver.sources[queue] = source
        return source

    def arrive(self, first: int, count: int, said: int | None = None) -> None:
        """Messages arrive that say their numbers."""
        messages = [b"%d" % number for number in range(first, first + count)]
        self.receiver.arrived(first, first + count if said is None else said, messages, sum(map(len, messages)))

    def take(self, queue: str) -> list[Any]:
        """Take all of a queue."""
        source = self.receiver.sources[queue]
        found: list[Any] = []
        while source.pending:
            end, messages = source.pending.popleft()
            found += messages
            source.finish(end)
        return found


def test_gap() -> None:
    """Numbers that do not come are a gap of that many, in its place; the hook is told whether the queue wants it or not."""
    pipe = Pipe("Q")
    pipe.arrive(0, 2)
    pipe.arrive(5, 1)
    assert pipe.take("Q") == [b"0", b"1", Gap("E", 3), b"5"]
    quiet = Pipe("Q", gaps=False)
    quiet.arrive(5, 1)
    assert quiet.take("Q") == [b"5"]
    assert quiet.told == [("Q", Gap("E", 5)), ("Q", None)]


def test_mark() -> None:
    """That nothing before a number comes any more is said without a message, too."""
    pipe = Pipe("Q")
    pipe.arrive(7, 0)
    assert pipe.take("Q") == [Gap("E", 7)]
    assert pipe.receiver.taken == pipe.receiver.expected == 7


def test_again() -> None:
    """What was here before is passed over, whole or in part."""
    pipe = Pipe("Q")
    pipe.arrive(0, 3)
    pipe.arrive(0, 2)
    pipe.arrive(1, 4)
    assert pipe.take("Q") == [b"0", b"1", b"2", b"3", b"4"]


def test_slowest_counts() -> None:
    """A place is free again when every queue has taken the message."""
    pipe = Pipe("1", "2", limits=Limits(messages=4))
    pipe.arrive(0, 4)
    assert not pipe.receiver.admits(1)
    pipe.take("1")
    assert (pipe.receiver.taken, pipe.freed) == (0, 0)
    pipe.take("2")
    assert (pipe.receiver.taken, pipe.freed) == (4, 1)
    assert pipe.receiver.admits(4)


def test_due() -> None:
    """The other end is told at once when `resume` of the limit is free, in messages or in bytes; else it may wait."""
    pipe = Pipe("Q", limits=Limits(messages=10, resume=0.5))
    pipe.arrive(0, 4)
    pipe.take("Q")
    before = pipe.receiver.due
    pipe.arrive(4, 1)
    pipe.take("Q")
    assert (before, pipe.receiver.due) == (False, True)
    assert pipe.receiver.tell() == 5
    assert pipe.receiver.told == 5
    heavy = Pipe("Q", limits=Limits(bytes=4, resume=0.5))
    heavy.arrive(0, 2)
    heavy.take("Q")
    assert heavy.receiver.due


def test_overrun_in_bytes() -> None:
    """What is held is more than the bound in bytes by one message at most, whatever the other end sends."""
    pipe = Pipe("Q", limits=Limits(bytes=4))
    pipe.arrive(0, 3)
    assert pipe.receiver.admits(1)
    pipe.arrive(3, 2)
    assert not pipe.receiver.admits(1)
    pipe.arrive(5, 1)
    assert pipe.receiver.overrun == 1
    assert pipe.take("Q") == [b"0", b"1", b"2", b"3", b"4"]
    assert pipe.receiver.admits(1)


def test_less_room_takes_what_is_on_the_way() -> None:
    """When a queue joins that has less room, what was sent before the other end knew that is not lost."""
    pipe = Pipe("1", limits=Limits(messages=100, bytes=1000))
    pipe.arrive(0, 50)
    pipe.join("2", 50)
    pipe.receiver.grant(Limits(messages=10, bytes=10))
    pipe.arrive(50, 50)
    assert pipe.receiver.overrun == 0
    assert len(pipe.take("1")) == 100
    assert len(pipe.take("2")) == 50


def test_overrun() -> None:
    """What comes without room is dropped, and is a gap once more comes: a sender that does not keep to it gains nothing."""
    pipe = Pipe("Q", limits=Limits(messages=2))
    pipe.arrive(0, 2)
    pipe.arrive(2, 2)
    assert pipe.receiver.overrun == 2
    assert pipe.take("Q") == [b"0", b"1"]
    pipe.arrive(4, 1)
    assert pipe.take("Q") == [Gap("E", 2), b"4"]


def test_joins_and_leaves() -> None:
    """A queue gets what is numbered from where it joins to where it leaves, also out of the middle of a piece."""
    pipe = Pipe("1")
    late = pipe.join("2", 3)
    pipe.arrive(0, 2)
    assert pipe.receiver.taken == 0
    late.stop = 6
    pipe.arrive(2, 6)
    assert [messages for _, messages in late.pending] == [[b"3", b"4", b"5"]]
    assert list(pipe.receiver.sources) == ["1"]
    assert len(pipe.take("1")) == 8
    assert pipe.receiver.taken == 8


def test_misses_its_own() -> None:
    """Of a gap a queue is told the part that was for it."""
    pipe = Pipe("1")
    late = pipe.join("2", 4)
    late.stop = 8
    pipe.arrive(10, 1)
    assert [gap for queue, gap in pipe.told if queue == "2" and gap] == [Gap("E", 4)]
    assert late.waiting == 1
    assert "2" not in pipe.receiver.sources


def test_restarted() -> None:
    """A gap may say that the sender was started anew, also if nothing is known to be missing."""
    pipe = Pipe("Q")
    pipe.receiver.sources["Q"].miss(0, restarted=True)
    assert pipe.take("Q") == [Gap("E", 0, restarted=True)]


def test_without_queues() -> None:
    """With no queue everything counts as taken."""
    pipe = Pipe()
    pipe.arrive(0, 3)
    assert pipe.receiver.taken == 3


@given(st.data())
def test_what_all_queues_have_taken(data: st.DataObject) -> None:
    """Whatever queues join, leave, take and miss, what was taken is what the slowest of them has taken."""
    receiver = Receiver("E", ("", "E"), 0, NO_LIMIT, lambda: None)
    names = count()
    for _ in range(data.draw(st.integers(1, 30))):
        sources = list(receiver.sources.values())
        match data.draw(st.sampled_from(["join", "arrive", "miss", "take", "leave", "stop"])):
            case "join":
                start = receiver.expected + data.draw(st.integers(0, 2))
                receiver.join(Source(receiver, f"{next(names)}", start, False, lambda source, gap: None))
            case "arrive":
                messages = [b""] * data.draw(st.integers(1, 3))
                receiver.arrived(receiver.expected, receiver.expected, messages, 0)
            case "miss":
                receiver.miss(receiver.expected + data.draw(st.integers(1, 3)))
            case "take" if sources:
                source = data.draw(st.sampled_from(sources))
                share: list[object] = []
                source.finish(source.take(share, data.draw(st.integers(1, 5))))
            case "leave" if sources:
                receiver.leave(data.draw(st.sampled_from(sources)))
            case "stop" if sources:
                source = data.draw(st.sampled_from(sources))
                if source.stop is None:
                    source.stop = receiver.expected + data.draw(st.integers(1, 3))
        left = receiver.sources.values()
        assert receiver.taken == min(
            (min(source.done, receiver.expected) for source in left), default=receiver.expected
        )
