"""How many tasks a worker takes ahead."""

from __future__ import annotations

import pytest

from redpoll.bus.engines.hub.pace import Pace


def ended(pace: Pace, *seconds: float, slots: int = 1) -> list[int]:
    """End handlers; return the numbers that were told."""
    return [pace.ahead for each in seconds if pace.ended(each, slots)]


def test_short_handlers_have_tasks_ahead() -> None:
    """After some short handlers the number grows in powers of two, up to its limit."""
    pace = Pace(1)
    assert pace.ahead == 0
    assert ended(pace, *[0.00001] * 100) == [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize(("seconds", "slots", "ahead"), [(0.002, 1, 2), (0.006, 1, 0), (0.006, 8, 4), (0.1, 64, 2)])
def test_a_few_milliseconds_are_ahead(seconds: float, slots: int, ahead: int) -> None:
    """The number is the work of some milliseconds in all slots; of longer handlers there is none."""
    pace = Pace(slots)
    ended(pace, *[seconds] * 100, slots=slots)
    assert pace.ahead == ahead


def test_one_pause_is_not_the_end() -> None:
    """One handler that takes long lowers the number; a task that was kept waiting makes it 0."""
    pace = Pace(1)
    ended(pace, *[0.00001] * 100)
    ended(pace, 60.0)
    assert pace.ahead == 1
    pace.slow(1)
    assert pace.ahead == 0
    assert ended(pace, *[0.00001] * 9) == []


def test_without_slots() -> None:
    """A worker whose slots are all used by threads that do not return takes nothing ahead."""
    pace = Pace(1)
    ended(pace, *[0.0] * 100)
    ended(pace, 0.0, slots=0)
    assert pace.ahead == 0
