from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.wire.duplicates import RecentOutcomes


def test_outcomes() -> None:
    """What a message came to is remembered: released, or refused with code and text."""
    recent = RecentOutcomes(10)
    recent.note(7, None)
    recent.note(8, (1, "no"))
    assert (7 in recent, 8 in recent, 9 in recent) == (True, True, False)
    assert (recent[7], recent[8]) == (None, (1, "no"))
    with pytest.raises(KeyError):
        recent[9]


@given(st.integers(1, 20), st.integers(0, 100))
def test_bound(limit: int, count: int) -> None:
    """The last `limit` are remembered, and never more than twice as many."""
    recent = RecentOutcomes(limit)
    for serial in range(count):
        recent.note(serial, (1, str(serial)))
        assert len(recent) <= 2 * limit
    for serial in range(max(0, count - limit), count):
        assert recent[serial] == (1, str(serial))


def test_latest_counts() -> None:
    """A serial that was used again means the later message."""
    recent = RecentOutcomes(2)
    recent.note(5, (1, "first"))
    recent.note(6, None)
    recent.note(5, None)
    assert recent[5] is None
