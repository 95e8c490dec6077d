"""Timers come due in order, and what was cancelled takes no room."""

from __future__ import annotations

from redpoll.bus.broker.timers import Timers


def test_entries_come_due_in_order() -> None:
    """What has come due is given out by time, and of one time in the order of adding; the rest stays."""
    timers = Timers()
    for when, name in ((3.0, "c"), (1.0, "a"), (1.0, "b"), (9.0, "d")):
        timers.add(when, name, 7)
    assert timers.deadline == 1.0
    assert list(timers.due(3.0)) == [("a", 7), ("b", 7), ("c", 7)]
    assert timers.deadline == 9.0
    assert list(timers.due(9.0)) == [("d", 7)]
    assert timers.deadline is None


def test_what_was_cancelled_is_sorted_out() -> None:
    """Cancelled entries leave once they are the majority, and do not happen before; cancelling again is nothing."""
    timers = Timers()
    entries = [timers.add(float(number), number) for number in range(1_000)]
    for number in range(990):
        timers.cancel(entries[number])
        timers.cancel(entries[number])
        assert len(timers) <= max(2 * (1_000 - number), 130)
    found = [number for number, _ in timers.due(994.0)]
    assert found == list(range(990, 995))
    timers.cancel(entries[990])
    assert len(list(timers.due(1_000.0))) == 5


def test_an_earlier_deadline_is_noted() -> None:
    """Only an entry before all others makes the deadline earlier."""
    timers = Timers()
    seen = []
    for when in (5.0, 6.0, 4.0):
        timers.add(when, "x")
        seen.append(timers.earlier)
        timers.earlier = False
    assert seen == [True, False, True]
