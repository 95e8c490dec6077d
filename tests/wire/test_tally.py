from __future__ import annotations

from dataclasses import fields

from redpoll.stats import PeerStats, TurnedAway
from redpoll.wire.tally import Counters, Tally


def test_all_that_is_counted_is_documented() -> None:
    """Each count of a node is one that its statistics show, by the same name and from nothing."""
    assert [each.name for each in fields(Tally)] == [each.name for each in fields(TurnedAway)]
    assert not any(getattr(Tally(), each.name) or getattr(TurnedAway(), each.name) for each in fields(Tally))


def test_what_happened_with_a_peer_is_documented() -> None:
    """Each counter of a peer is one of its statistics, and is reset with all others."""
    counters = Counters()
    for each in fields(counters):
        assert hasattr(PeerStats(), each.name)
        setattr(counters, each.name, 7)
    counters.reset()
    assert counters == Counters()
