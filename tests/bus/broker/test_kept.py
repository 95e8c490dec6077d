"""The last events of subjects are kept, within bounds."""

from __future__ import annotations

from redpoll.bus.broker import Limits, outputs
from redpoll.bus.broker.kept import Kept
from redpoll.bus.broker.limits import CHARGE
from redpoll.bus.broker.outputs import Outbox


def test_the_last_ones_are_kept() -> None:
    """Of each subject the newest events are kept, as many as were asked for, and found by pattern in their order."""
    kept = Kept(Limits(), Outbox(journal=False))
    for number in range(4):
        kept.add("a.x", 2, number, 10)
    kept.add("a.y", 1, "y", 10)
    kept.add("b", 1, "b", 10)
    assert list(kept.matching(["a.*", "#.x"])) == [("a.x", 2), ("a.x", 3), ("a.y", "y")]
    assert kept.bytes == 4 * (10 + CHARGE)


def test_the_subject_that_was_used_least_recently_leaves() -> None:
    """There are no more subjects and bytes than the limits, and what leaves is written down."""
    out = Outbox(journal=True)
    kept = Kept(Limits(kept_subjects=2, kept_bytes=3 * CHARGE), out)
    for subject in ("a", "b", "a", "c"):
        kept.add(subject, 1, subject, 0)
    assert [subject for subject, _ in kept.matching(["#"])] == ["a", "c"]
    assert out.take_writes()[-1] == outputs.Kept("b", 0, ())
    kept.add("d", 1, "d", 5 * CHARGE)
    assert (len(kept), kept.bytes) == (0, 0)
