"""Statistics: immutable, complete, and summed up."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.stats import NodeStats, PeerStats, TurnedAway

NAMES = [each.name for each in fields(PeerStats)]
RECORDS = st.builds(PeerStats, **{name: st.integers(0, 2**40) for name in NAMES})


def test_the_counters_are_the_ones_that_were_promised() -> None:
    """A peer's record has every counter that the documentation lists, and starts at nothing."""
    assert asdict(PeerStats()) == dict.fromkeys(
        [
            "sent",
            "received",
            "bytes_sent",
            "bytes_received",
            "in_flight",
            "queued",
            "slots_used",
            "refused",
            "refused_by_peer",
            "late",
            "reconnects",
            "errors",
            "conflicts",
            "resumed",
            "resent",
        ],
        0,
    )


@given(st.dictionaries(st.text(max_size=5), RECORDS, max_size=4), st.lists(RECORDS, max_size=2), st.integers(0, 99))
def test_a_node_sums_its_peers(peers: dict[str, PeerStats], gone: list[PeerStats], connections: int) -> None:
    """Each counter of a node is the sum over the peers that are known and those that are gone."""
    stats = NodeStats.of(peers, connections=connections, gone=gone)
    for name in NAMES:
        assert getattr(stats, name) == sum(getattr(each, name) for each in [*peers.values(), *gone])
    assert stats.peers == peers
    assert stats.connections == connections


def test_records_cannot_be_changed() -> None:
    """Neither a counter nor the mapping of peers can be changed, not even through the caller's own dict."""
    peers = {"a": PeerStats(sent=1)}
    stats = NodeStats.of(peers)
    peers["b"] = PeerStats()
    assert list(stats.peers) == ["a"]
    with pytest.raises(FrozenInstanceError):
        stats.sent = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        stats.peers["c"] = PeerStats()  # type: ignore[index]
    assert not hasattr(stats, "__dict__")


def test_records_pickle() -> None:
    """A record can be sent to another process."""
    stats = NodeStats.of(
        {"a": PeerStats(sent=3, late=1)},
        connections=2,
        gone=[PeerStats(sent=1)],
        memory_held=9,
        turned_away=TurnedAway(too_large=4),
    )
    assert (stats.memory_held, stats.turned_away.too_large) == (9, 4)
    assert pickle.loads(pickle.dumps(stats)) == stats
    assert pickle.loads(pickle.dumps(stats.peers["a"])) == stats.peers["a"]
