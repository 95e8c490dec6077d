from __future__ import annotations

import weakref
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from redpoll.wire.deadlines import Deadlines


@dataclass(eq=False)
class Item:
    deadline: float | None


def test_empty() -> None:
    """Nothing watched: nothing to look for."""
    watched: Deadlines[Item] = Deadlines()
    assert (watched.next(), watched.expire(1e9), len(watched)) == (None, [], 0)


def test_in_order() -> None:
    """Items added in the order of their deadlines expire in that order, each once."""
    watched: Deadlines[Item] = Deadlines()
    items = [Item(float(number)) for number in range(5)]
    for item in items:
        watched.add(item.deadline or 0.0, item)
    assert watched.next() == 0.0
    assert watched.expire(2.0) == items[:3]
    assert watched.next() == 3.0
    assert watched.expire(9.0) == items[3:]
    assert len(watched) == 0


def test_out_of_order() -> None:
    """An earlier deadline that is added later expires in time."""
    watched: Deadlines[Item] = Deadlines()
    late, early = Item(9.0), Item(1.0)
    watched.add(9.0, late)
    watched.add(1.0, early)
    assert watched.next() == 1.0
    assert watched.expire(1.0) == [early]
    assert watched.expire(9.0) == [late]


def test_ended_is_not_due() -> None:
    """An item that ended is neither waited for nor given out."""
    watched: Deadlines[Item] = Deadlines()
    ended, live = Item(1.0), Item(2.0)
    watched.add(1.0, ended)
    watched.add(2.0, live)
    ended.deadline = None
    assert watched.next() == 2.0
    assert watched.expire(5.0) == [live]


def test_moved_on() -> None:
    """An item whose deadline moved on is looked at again then."""
    watched: Deadlines[Item] = Deadlines()
    item = Item(1.0)
    watched.add(1.0, item)
    item.deadline = 4.0
    assert watched.expire(1.0) == []
    assert watched.next() == 4.0
    assert watched.expire(4.0) == [item]


def test_removed() -> None:
    """A removed item is never given out, though it has not ended."""
    watched: Deadlines[Item] = Deadlines()
    items = [Item(3.0), Item(1.0), Item(2.0)]
    for item in items:
        watched.add(item.deadline or 0.0, item)
    watched.remove(items[:2])
    assert watched.expire(9.0) == items[2:]


def test_what_is_large_goes_soon() -> None:
    """Of items that ended and refer to much, no more than a megabyte is kept behind one that lives."""
    watched: Deadlines[Item] = Deadlines()
    stays = Item(1.0)
    watched.add(1.0, stays)
    seen = []
    for _ in range(100):
        item = Item(2.0)
        watched.add(2.0, item)
        seen.append(weakref.ref(item))
        item.deadline = None
        watched.ended(300_000)
        del item
        assert sum(each() is not None for each in seen) <= 3
    assert watched.expire(1.0) == [stays]


def test_what_ended_in_front_goes_at_once() -> None:
    """Nothing that ended is kept once it is reported and no live item is before it."""
    watched: Deadlines[Item] = Deadlines()
    item = Item(2.0)
    watched.add(2.0, item)
    item.deadline = None
    watched.ended(1)
    assert len(watched) == 0


def test_memory_follows_the_live_ones() -> None:
    """Items that end before their time are dropped: of a million a few hundred are kept."""
    watched: Deadlines[Item] = Deadlines()
    stays = Item(1e9)
    watched.add(1e9, stays)
    most = 0
    for number in range(100_000):
        item = Item(1e9 + number)
        watched.add(1e9 + number, item)
        item.deadline = None
        most = max(most, len(watched))
    assert most < 1000
    assert watched.next() == 1e9


class Watching(RuleBasedStateMachine):
    """Deadlines beside the plainest thing that does the same: a list."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: Deadlines[Item] = Deadlines()
        self.plain: list[Item] = []
        self.now = 0.0

    @rule(delay=st.integers(0, 20))
    def add(self, delay: int) -> None:
        item = Item(self.now + delay)
        self.watched.add(self.now + delay, item)
        self.plain.append(item)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.plain:
            self.plain.pop(data.draw(st.integers(0, len(self.plain) - 1))).deadline = None

    @rule(data=st.data(), delay=st.integers(0, 9))
    def move_on(self, data: st.DataObject, delay: int) -> None:
        if self.plain:
            item = self.plain[data.draw(st.integers(0, len(self.plain) - 1))]
            assert item.deadline is not None
            item.deadline += delay

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.plain:
            item = self.plain.pop(data.draw(st.integers(0, len(self.plain) - 1)))
            self.watched.remove([item])

    @rule(passing=st.integers(0, 15))
    def expire(self, passing: int) -> None:
        self.now += passing
        due = self.watched.expire(self.now)
        expected = [item for item in self.plain if item.deadline is not None and item.deadline <= self.now]
        assert sorted(map(id, due)) == sorted(map(id, expected))
        for item in due:
            self.plain.remove(item)
            item.deadline = None

    @invariant()
    def is_asked_in_time(self) -> None:
        """The next look is never after the first deadline, and there is none where nothing lives."""
        live = [item.deadline for item in self.plain if item.deadline is not None]
        following = self.watched.next()
        if live:
            assert following is not None
            assert following <= min(live)
        else:
            assert following is None


WatchingTest = Watching.TestCase
WatchingTest.settings = settings(stateful_step_count=40)
