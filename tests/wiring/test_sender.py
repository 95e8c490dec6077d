"""The sending half of a pipe, without a loop."""

from __future__ import annotations

import pytest

from redpoll.wiring.names import NO_LIMIT, AtLimit, Limits
from redpoll.wiring.protocol import BATCH_BYTES, Batch
from redpoll.wiring.sender import Chunk, Sender


def batch(*numbers: int, size: int = 1) -> Batch:
    """Messages that say their numbers."""
    return Batch([b"%d" % number * size for number in numbers])


def opened(limits: Limits = NO_LIMIT, window: Limits = NO_LIMIT, at_limit: AtLimit = AtLimit.WAIT) -> Sender:
    """An sender with another end."""
    sender = Sender(limits, at_limit)
    sender.open(window, None, None)
    return sender


def sent(sender: Sender) -> list[tuple[int, list[bytes]]]:
    """Take all that may be sent."""
    found = []
    while (chunk := sender.take()) is not None:
        found.append((chunk.first, chunk.batch.messages))
    return found


def test_room_is_the_sum() -> None:
    """Acceptance is bounded by the limits of both ends together, and by the exchange's alone while there is one end."""
    sender = Sender(Limits(messages=3), AtLimit.WAIT)
    assert sender.room()[0] == 3
    sender.open(Limits(messages=2), None, None)
    assert sender.room()[0] == 5
    sender.accept(batch(0, 1, 2))
    assert sent(sender) == [(0, [b"0"]), (1, [b"1"])]
    assert sender.room()[0] == 2
    sender.up = False
    assert sender.room()[0] == 2


def test_hysteresis() -> None:
    """One that was full has room again when the part of its limit that `resume` says is free."""
    sender = opened(Limits(messages=4, resume=0.5), Limits(messages=1))
    sender.accept(batch(0, 1, 2, 3, 4))
    assert sent(sender) == [(0, [b"0"])]
    assert sender.room() == (0, 0)
    sender.credit(1)
    assert sent(sender) == [(1, [b"1"])]
    assert sender.room() == (0, 0)
    sender.credit(2)
    assert len(sent(sender)) == 1
    assert sender.room()[0] == 2


def test_bytes() -> None:
    """In bytes one message goes past the limit, and none where that is reached."""
    sender = opened(Limits(bytes=10), Limits(bytes=10))
    sender.accept(batch(1, size=25))
    assert sender.room() == (0, 0)
    assert len(sent(sender)) == 1
    assert sender.room()[1] == 10
    sender.accept(batch(2, size=9))
    assert sent(sender) == []
    sender.credit(1)
    assert len(sent(sender)) == 1


@pytest.mark.parametrize(
    ("at_limit", "left"), [(AtLimit.DROP_NEW, [(0, [b"0", b"1"])]), (AtLimit.DROP_OLD, [(3, [b"3", b"4"])])]
)
def test_drop(at_limit: AtLimit, left: list[tuple[int, list[bytes]]]) -> None:
    """A dropped message takes a number, so that the other end sees how many are missing; the rest keeps its own."""
    sender = Sender(Limits(messages=2), at_limit)
    assert [sender.accept(batch(number)) for number in range(5)] == [0, 0, 1, 1, 1]
    sender.open(NO_LIMIT, None, None)
    assert sent(sender) == left
    assert (sender.next, sender.dropped) == (5, 3)
    assert sender.tail is (at_limit is AtLimit.DROP_NEW)
    assert not sender.tail or sender.mark() == 5
    assert not sender.tail


def test_drop_of_many() -> None:
    """Of messages that come together as many are dropped as have no room, in messages and in bytes."""
    sender = Sender(Limits(messages=3, bytes=100), AtLimit.DROP_NEW)
    assert sender.accept(batch(*range(10))) == 7
    sender = Sender(Limits(messages=100, bytes=5), AtLimit.DROP_OLD)
    assert sender.accept(batch(*range(10))) == 5
    sender.open(NO_LIMIT, None, None)
    assert sent(sender) == [(5, [b"5", b"6", b"7", b"8", b"9"])]


def test_dropped_numbers_take_no_room() -> None:
    """A gap in the numbers, however large, does not stand in the way of what comes behind it."""
    sender = opened(Limits(messages=1), Limits(messages=2), AtLimit.DROP_OLD)
    sender.accept(batch(0, 1))
    assert sent(sender) == [(0, [b"0"]), (1, [b"1"])]
    for number in range(2, 100):
        sender.accept(batch(number))
    sender.credit(2)
    assert sent(sender) == [(99, [b"99"])]


def test_joined_and_cut() -> None:
    """Small pieces travel together; large ones, and those that the other end has no room for, are cut."""
    sender = opened()
    for number in range(5):
        sender.accept(batch(number))
    assert sent(sender) == [(0, [b"0", b"1", b"2", b"3", b"4"])]
    sender.accept(Batch([bytes(BATCH_BYTES // 2)] * 5))
    assert [len(messages) for _, messages in sent(sender)] == [2, 2, 1]
    narrow = opened(window=Limits(messages=8))
    narrow.accept(batch(*range(20)))
    assert [len(messages) for _, messages in sent(narrow)] == [2, 2, 2, 2]


def test_credit_is_checked() -> None:
    """Unsent messages cannot have been taken; repeated numbers change nothing."""
    sender = opened()
    sender.accept(batch(0, 1))
    sent(sender)
    assert not sender.credit(3)
    assert sender.credit(2)
    assert sender.credit(1)
    assert sender.taken == 2


def test_cut_off() -> None:
    """After a lost link what was on the way takes no room, and what waits goes out; the same end says what it has."""
    sender = opened(window=Limits(messages=4))
    sender.accept(batch(*range(6)))
    assert len(sent(sender)) == 4
    sender.up = False
    assert sender.take() is None
    assert sender.open(Limits(messages=4), expected=2, taken=1) == 2
    assert sender.unconfirmed == 1
    assert [first for first, _ in sent(sender)] == [4, 5]
    assert sender.take() is None


def test_skipped() -> None:
    """Messages that the other end still expects, of those sent before a number, take no room; later ones may arrive."""
    sender = opened(Limits(messages=10), Limits(messages=4))
    for number in range(4):
        sender.accept(batch(number))
        sent(sender)
    assert sender.skip(1, 3) == 2
    assert sender.unconfirmed == 2
    assert sender.skip(1, 3) == 0
    for number in range(4, 8):
        sender.accept(batch(number))
    assert [number for number, _ in sent(sender)] == [4, 5]
    sender.credit(4)
    assert sender.unconfirmed == 2


def test_anew() -> None:
    """For another run at the other end all that was sent is over."""
    sender = opened(window=Limits(messages=2))
    sender.accept(batch(*range(3)))
    sent(sender)
    sender.up = False
    sender.open(Limits(messages=2), None, None)
    assert sender.taken == sender.sent == 2
    assert sent(sender) == [(2, [b"2"])]


def test_withdrawn() -> None:
    """Messages that are taken back were never accepted; those that are given up were dropped."""
    sender = opened(window=Limits(messages=1))
    sender.accept(batch(0, 1, 2))
    sent(sender)
    assert sender.withdraw() == [b"1", b"2"]
    assert (sender.next, sender.waiting, sender.empty) == (1, 0, True)
    sender.accept(batch(1))
    assert sender.discard() == 1
    assert (sender.next, sender.dropped, sender.take()) == (2, 1, None)


def test_chunk() -> None:
    """A chunk is a plain value."""
    assert Chunk(1, batch(1)).first == 1
