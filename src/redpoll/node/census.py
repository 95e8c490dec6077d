"""What a node knows of its peers and has counted, for its user: records, and the sums of those that are gone."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from redpoll.node.hooks import PeerInfo
from redpoll.stats import NodeStats, PeerStats, TurnedAway

if TYPE_CHECKING:
    from redpoll.node.peers import Peers
    from redpoll.wire.peer import Peer

__all__ = ["Census", "info"]


class Census:
    """Counts the peers of one node, those that are gone in the sums."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._gone = PeerStats()

    def forget(self, peer: Peer) -> None:
        """A peer is known no longer: what it counted stays in the sums."""
        self._gone = NodeStats.of({}, gone=(self._gone, _record(peer)))
        peer.counters.reset()

    def stats(self) -> NodeStats:
        """The counters of all peers."""
        records: dict[str, PeerStats] = {}
        for peer in self._peers.routes:
            peer.slots.count()
            label = name = _label(peer)
            number = 1
            while label in records:
                # A stranger that claims its identity and address.
                number += 1
                label = f"{name} ({number})"
            records[label] = _record(peer)
        memory = self._peers.memory
        return NodeStats.of(
            records,
            connections=len(self._peers.connections),
            gone=(self._gone,),
            memory_held=memory.held,
            turned_away=TurnedAway(**asdict(memory.tally)),
        )


def info(peer: Peer) -> PeerInfo:
    """Who a peer is, for hooks and `Node.peers`."""
    redpoll = peer.epoch is not None
    return PeerInfo(peer.address, peer.identity, bool(peer.links), redpoll, peer.certificate, peer.resuming)


def _label(peer: Peer) -> str:
    identity = peer.identity.hex() if peer.identity else "unknown"
    return f"{peer.address or 'not listening'} {identity}"


def _record(peer: Peer) -> PeerStats:
    counters = peer.counters
    return PeerStats(
        sent=counters.sent,
        received=counters.received,
        bytes_sent=counters.bytes_sent + sum(link.bytes_sent for link in peer.links),
        bytes_received=counters.bytes_received + sum(link.bytes_received for link in peer.links),
        in_flight=sum(len(link.in_flight) for link in peer.links),
        queued=peer.queued,
        slots_used=peer.slots.running,
        refused=counters.refused,
        refused_by_peer=counters.refused_by_peer,
        late=counters.late,
        reconnects=counters.reconnects,
        errors=counters.errors,
        conflicts=counters.conflicts,
        resumed=counters.resumed,
        resent=counters.resent,
    )
