"""The sending half of a pipe, without a loop."""

from __future__ import annotations

import pytest

from redpoll.wiring.names import NO_LIMIT, AtLimit, Limits
from redpoll.wiring.outlet import Chunk, Outlet
from redpoll.wiring.protocol import BATCH_BYTES, Batch


def batch(*numbers: int, size: int = 1) -> Batch:
    """Messages that say their numbers."""
    return Batch([b"%d" % number * size for number in numbers])


def opened(limits: Limits = NO_LIMIT, window: Limits = NO_LIMIT, at_limit: AtLimit = AtLimit.WAIT) -> Outlet:
    """An outlet with another end."""
    outlet = Outlet(limits, at_limit)
    outlet.open(window, None, None)
    return outlet


def sent(outlet: Outlet) -> list[tuple[int, list[bytes]]]:
    """Take all that may be sent."""
    found = []
    while (chunk := outlet.take()) is not None:
        found.append((chunk.first, chunk.batch.messages))
    return found


def test_room_is_the_sum() -> None:
    """What is accepted is bounded by the limits of both ends together, and by the exchange's alone while there is one end."""
    outlet = Outlet(Limits(messages=3), AtLimit.WAIT)
    assert outlet.room()[0] == 3
    outlet.open(Limits(messages=2), None, None)
    assert outlet.room()[0] == 5
    outlet.accept(batch(0, 1, 2))
    assert sent(outlet) == [(0, [b"0"]), (1, [b"1"])]
    assert outlet.room()[0] == 2
    outlet.up = False
    assert outlet.room()[0] == 2


def test_hysteresis() -> None:
    """One that was full has room again when the part of its limit that `resume` says is free."""
    outlet = opened(Limits(messages=4, resume=0.5), Limits(messages=1))
    outlet.accept(batch(0, 1, 2, 3, 4))
    assert sent(outlet) == [(0, [b"0"])]
    assert outlet.room() == (0, 0)
    outlet.credit(1)
    assert sent(outlet) == [(1, [b"1"])]
    assert outlet.room() == (0, 0)
    outlet.credit(2)
    assert len(sent(outlet)) == 1
    assert outlet.room()[0] == 2


def test_bytes() -> None:
    """In bytes one message goes past the limit, and none where that is reached."""
    outlet = opened(Limits(bytes=10), Limits(bytes=10))
    outlet.accept(batch(1, size=25))
    assert outlet.room() == (0, 0)
    assert len(sent(outlet)) == 1
    assert outlet.room()[1] == 10
    outlet.accept(batch(2, size=9))
    assert sent(outlet) == []
    outlet.credit(1)
    assert len(sent(outlet)) == 1


@pytest.mark.parametrize(
    ("at_limit", "left"), [(AtLimit.DROP_NEW, [(0, [b"0", b"1"])]), (AtLimit.DROP_OLD, [(3, [b"3", b"4"])])]
)
def test_drop(at_limit: AtLimit, left: list[tuple[int, list[bytes]]]) -> None:
    """What is dropped takes a number, so that the other end sees how many are missing; the rest keeps its own."""
    outlet = Outlet(Limits(messages=2), at_limit)
    assert [outlet.accept(batch(number)) for number in range(5)] == [0, 0, 1, 1, 1]
    outlet.open(NO_LIMIT, None, None)
    assert sent(outlet) == left
    assert (outlet.next, outlet.dropped) == (5, 3)
    assert outlet.tail is (at_limit is AtLimit.DROP_NEW)
    assert not outlet.tail or outlet.mark() == 5
    assert not outlet.tail


def test_drop_of_many() -> None:
    """Of messages that come together as many are dropped as have no room, in messages and in bytes."""
    outlet = Outlet(Limits(messages=3, bytes=100), AtLimit.DROP_NEW)
    assert outlet.accept(batch(*range(10))) == 7
    outlet = Outlet(Limits(messages=100, bytes=5), AtLimit.DROP_OLD)
    assert outlet.accept(batch(*range(10))) == 5
    outlet.open(NO_LIMIT, None, None)
    assert sent(outlet) == [(5, [b"5", b"6", b"7", b"8", b"9"])]


def test_dropped_numbers_take_no_room() -> None:
    """A gap in the numbers, however large, does not stand in the way of what comes behind it."""
    outlet = opened(Limits(messages=1), Limits(messages=2), AtLimit.DROP_OLD)
    outlet.accept(batch(0, 1))
    assert sent(outlet) == [(0, [b"0"]), (1, [b"1"])]
    for number in range(2, 100):
        outlet.accept(batch(number))
    outlet.credit(2)
    assert sent(outlet) == [(99, [b"99"])]


def test_joined_and_cut() -> None:
    """Small pieces travel together; large ones, and those that the other end has no room for, are cut."""
    outlet = opened()
    for number in range(5):
        outlet.accept(batch(number))
    assert sent(outlet) == [(0, [b"0", b"1", b"2", b"3", b"4"])]
    outlet.accept(Batch([bytes(BATCH_BYTES // 2)] * 5))
    assert [len(messages) for _, messages in sent(outlet)] == [2, 2, 1]
    narrow = opened(window=Limits(messages=8))
    narrow.accept(batch(*range(20)))
    assert [len(messages) for _, messages in sent(narrow)] == [2, 2, 2, 2]


def test_credit_is_checked() -> None:
    """What was not sent cannot have been taken; what was told before changes nothing."""
    outlet = opened()
    outlet.accept(batch(0, 1))
    sent(outlet)
    assert not outlet.credit(3)
    assert outlet.credit(2)
    assert outlet.credit(1)
    assert outlet.taken == 2


def test_cut_off() -> None:
    """After a lost link what was on the way takes no room, and what waits goes out; the same end says what it has."""
    outlet = opened(window=Limits(messages=4))
    outlet.accept(batch(*range(6)))
    assert len(sent(outlet)) == 4
    outlet.up = False
    assert outlet.take() is None
    assert outlet.open(Limits(messages=4), expected=2, taken=1) == 2
    assert outlet.unconfirmed == 1
    assert [first for first, _ in sent(outlet)] == [4, 5]
    assert outlet.take() is None


def test_anew() -> None:
    """For another run at the other end all that was sent is over."""
    outlet = opened(window=Limits(messages=2))
    outlet.accept(batch(*range(3)))
    sent(outlet)
    outlet.up = False
    outlet.open(Limits(messages=2), None, None)
    assert outlet.taken == outlet.sent == 2
    assert sent(outlet) == [(2, [b"2"])]


def test_withdrawn() -> None:
    """What is taken back was never accepted; what is given up was dropped."""
    outlet = opened(window=Limits(messages=1))
    outlet.accept(batch(0, 1, 2))
    sent(outlet)
    assert outlet.withdraw() == [b"1", b"2"]
    assert (outlet.next, outlet.waiting, outlet.empty) == (1, 0, True)
    outlet.accept(batch(1))
    assert outlet.discard() == 1
    assert (outlet.next, outlet.dropped, outlet.take()) == (2, 1, None)


def test_chunk() -> None:
    """A chunk is a plain value."""
    assert Chunk(1, batch(1)).first == 1
