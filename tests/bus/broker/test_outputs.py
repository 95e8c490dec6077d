"""Effects and writes are taken once, and collected only where somebody wants them."""

from __future__ import annotations

from redpoll.bus.broker import outputs
from redpoll.bus.broker.outputs import NOTE, WAITS, Forgotten, Outbox


def test_what_is_taken_is_gone() -> None:
    """Effects and writes are handed out once, in order."""
    out = Outbox(journal=True)
    out.effects.append((1,))
    assert out.writes == []
    out.writes.append(Forgotten(1))
    assert (out.take(), out.take_writes()) == ([(1,)], [Forgotten(1)])
    assert (out.take(), out.take_writes()) == ([], [])


def test_nothing_is_collected_for_nobody() -> None:
    """Without a store there are no writes, and without observers no notes."""
    out = Outbox(journal=False)
    out.note("submitted", "q", 1)
    assert (out.take(), out.writes) == ([], None)
    out.observed = True
    out.note("submitted", "q", 1)
    assert out.take() == [(NOTE, None, "submitted", "q", 1, "")]


def test_only_claims_wait_for_the_disk() -> None:
    """Tasks are handed out at once; what says that something is stored waits until it is."""
    assert {outputs.OUTCOME, outputs.ADMITTED} == WAITS
