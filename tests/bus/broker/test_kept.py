"""Outcomes, dedup keys and the last events of subjects are kept for a time, and within bounds."""

from __future__ import annotations

from redpoll.bus import OutcomeKind
from redpoll.bus.broker import Limits, outputs
from redpoll.bus.broker.kept import Dedup, Kept, Results
from redpoll.bus.broker.limits import CHARGE
from redpoll.bus.broker.outputs import Ended, Forgotten, Outbox


def add(results: Results, task: int, size: int, when: float) -> None:
    """Keep an outcome."""
    results.add(Ended(task, True, OutcomeKind.RESULT, b"x" * size, size, "", 3, when, queue="q"))


def test_an_outcome_is_kept_for_its_time() -> None:
    """An outcome is found with all its fields until its time is over, and leaves when another one comes."""
    out = Outbox(journal=True)
    results = Results(Limits(results_time=10.0), out)
    add(results, 1, 5, 0.0)
    found = results.find(1, 9.9)
    assert isinstance(found, Ended)
    assert (found.queue, found.payload, found.token, found.when) == ("q", b"xxxxx", 3, 0.0)
    assert results.find(1, 10.0) is None
    add(results, 2, 5, 20.0)
    assert len(results) == 1
    assert out.take_writes() == [Forgotten(1)]


def test_the_oldest_outcomes_leave_at_the_bound() -> None:
    """Bytes are counted with a charge for each outcome, and the oldest leave first."""
    results = Results(Limits(results_bytes=2 * (CHARGE + 100)), Outbox(journal=False))
    for task in range(1, 5):
        add(results, task, 100, 0.0)
    assert [results.find(task, 0.0) is not None for task in range(1, 5)] == [False, False, True, True]
    assert results.bytes == 2 * (CHARGE + 100)
    add(results, 5, 1_000_000, 0.0)
    assert (len(results), results.bytes) == (0, 0)


def test_a_key_counts_for_its_time() -> None:
    """A key is found until its time is over, which a second use begins anew."""
    keys = Dedup(10.0, 100)
    keys.add("a", 1, 0.0)
    assert keys.find("a", 9.9) == 1
    assert keys.find("a", 10.0) == 0
    keys.add("a", 2, 10.0)
    assert keys.find("a", 19.0) == 2


def test_the_oldest_key_leaves_first() -> None:
    """There are no more keys than the limit, and none whose time was over when one was added."""
    keys = Dedup(10.0, 2)
    for number, key in enumerate("abc"):
        keys.add(key, number + 1, float(number))
    assert [keys.find(key, 3.0) for key in "abc"] == [0, 2, 3]
    keys.add("d", 4, 100.0)
    assert len(keys) == 1


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
