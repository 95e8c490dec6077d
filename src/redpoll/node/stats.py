"""Statistics of a node: the records of its peers, and the sums over lost ones."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from redpoll.node.hooks import PeerInfo
from redpoll.stats import NodeStats, PeerStats, TurnedAway

if TYPE_CHECKING:
    from collections.abc import Sized

    from redpoll.wire.identity import Routes
    from redpoll.wire.memory import Memory
    from redpoll.wire.peer import Peer

__all__ = ["Statistics", "info"]


class Statistics:
    """Builds the statistics of one node; forgotten peers stay in the sums.

    Args:
        routes: The peers of the node.
        connections: Its open connections.
        memory: Its memory, with the tally of rejections.
    """

    def __init__(self, routes: Routes, connections: Sized, memory: Memory) -> None:
        self._routes = routes
        self._connections = connections
        self._memory = memory
        self._gone = PeerStats()

    def forget(self, peer: Peer) -> None:
        """Add the counters of a peer that is forgotten to the sums."""
        self._gone = NodeStats.of({}, gone=(self._gone, _record(peer)))
        peer.counters.reset()

    def collect(self) -> NodeStats:
        """Return the counters of all peers."""
        records: dict[str, PeerStats] = {}
        for peer in self._routes:
            peer.slots.recount()
            label = name = _label(peer)
            number = 1
            while label in records:
                # A peer of its own that claims the same identity and address.
                number += 1
                label = f"{name} ({number})"
            records[label] = _record(peer)
        memory = self._memory
        return NodeStats.of(
            records,
            connections=len(self._connections),
            gone=(self._gone,),
            memory_held=memory.total,
            turned_away=TurnedAway(**asdict(memory.tally)),
        )


def info(peer: Peer) -> PeerInfo:
    """Return the `PeerInfo` of a peer, for hooks and `Node.peers`."""
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
