"""Outcomes are kept for a time, and within a number of bytes."""

from __future__ import annotations

from redpoll.bus import OutcomeKind
from redpoll.bus.broker.limits import CHARGE, Limits
from redpoll.bus.broker.outputs import Forgotten, Outbox
from redpoll.bus.broker.results import Results


def add(results: Results, task: int, size: int, when: float) -> None:
    """Keep an outcome."""
    results.add(task, "q", OutcomeKind.RESULT, b"x" * size, size, "", 3, when)


def test_an_outcome_is_kept_for_its_time() -> None:
    """An outcome is found with all its fields until its time is over, and leaves when another one comes."""
    out = Outbox(journal=True)
    results = Results(Limits(results_time=10.0), out)
    add(results, 1, 5, 0.0)
    found = results.find(1, 9.9)
    assert found is not None
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
