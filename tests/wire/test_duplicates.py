from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.wire.duplicates import MAX_TEXTS, OUTCOME_SIZE, RecentOutcomes


def test_outcomes() -> None:
    """The outcome of a message is remembered: released, or refused with code and text."""
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


def test_texts_are_bounded() -> None:
    """Of any number of refusals so many bytes of text are remembered as are allowed; the others keep their reason."""
    recent = RecentOutcomes(1000)
    for serial in range(1999):
        recent.note(serial, (1, "\N{SNOWMAN}" * 300))
    assert len(recent) == 1999
    assert recent[0] == (1, "\N{SNOWMAN}" * 300)
    assert recent[999] == (1, "")
    assert recent.size <= 1999 * OUTCOME_SIZE + 2 * MAX_TEXTS
    recent.shorten(1)
    assert recent.size == OUTCOME_SIZE
    recent.note(7, (1, "text"))
    assert recent[7] == (1, "text")


@given(st.integers(1, 20), st.integers(0, 60), st.integers(1, 20))
def test_shorter(limit: int, count: int, left: int) -> None:
    """The last so many are left, no more."""
    recent = RecentOutcomes(limit)
    for serial in range(count):
        recent.note(serial, None)
    before = len(recent)
    recent.shorten(left)
    assert len(recent) == min(left, before)
    assert all(serial in recent for serial in range(count - len(recent), count))


def test_renewed() -> None:
    """An outcome that is renewed is the latest; of what is known nothing is changed."""
    recent = RecentOutcomes(4)
    for serial in range(3):
        recent.note(serial, (serial, "why"))
    recent.renew(0)
    recent.renew(9)
    recent.shorten(2)
    assert (recent[0], recent[9], len(recent)) == ((0, "why"), None, 2)


def test_renewals_take_no_room_of_texts() -> None:
    """An outcome that is renewed again and again counts once: later texts are remembered."""
    recent = RecentOutcomes(1000)
    recent.note(1, (1, "\N{SNOWMAN}" * 300))
    recent.note(2, (1, ""))
    size = recent.size
    for _ in range(1000):
        recent.renew(1)
        recent.renew(2)
    assert (recent[1], recent[2], recent.size) == ((1, "\N{SNOWMAN}" * 300), (1, ""), size)
    recent.note(3, (1, "later"))
    assert recent[3] == (1, "later")
