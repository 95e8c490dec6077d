"""What a node has counted: immutable records, one per peer and one for all."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["NodeStats", "PeerStats", "TurnedAway"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStats:
    """What was counted about one peer, over all its links, up to the moment it was asked for.

    Attributes:
        sent: Messages written to the peer; each resend counts.
        received: Messages that came from the peer.
        bytes_sent: All bytes written to its links, those of handshakes, acknowledgements and the like included.
        bytes_received: All bytes that its links brought, likewise.
        in_flight: Messages sent whose end is not known yet.
        queued: Messages that wait here to be sent.
        slots_used: Messages of the peer that are being handled here.
        refused: Messages of the peer that were refused here.
        refused_by_peer: Messages sent that the peer refused.
        late: Acknowledgements, refusals and answers that came after nobody waited for them any more.
        reconnects: Links made after the first.
        errors: Sends that failed otherwise than by a refusal, and links lost otherwise than by a goodbye (libchirp
            says none: with it, otherwise than by closing).
        conflicts: Times that a link claimed an identity that another one holds.
        resumed: Times that a link came back to a session that had lost its last one.
        resent: Messages written again because they were not confirmed over the link that they went over.
    """

    sent: int = 0
    received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    in_flight: int = 0
    queued: int = 0
    slots_used: int = 0
    refused: int = 0
    refused_by_peer: int = 0
    late: int = 0
    reconnects: int = 0
    errors: int = 0
    conflicts: int = 0
    resumed: int = 0
    resent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnedAway:
    """How often a node met each of its limits, and turned something away.

    Attributes:
        connections: Connections closed when accepted, because of `max_connections`.
        connections_of_host: Connections closed when accepted, because of `max_connections_per_host`.
        handshakes_late: Connections that came in and did not say who they are within `handshake_timeout`.
        handshakes_failed: Connections that came in and ended before that otherwise: closed there, or TLS failed.
        unauthorized: Links that `Config.authorize` did not let in.
        protocol_errors: Links closed because the other end sent what the wire format forbids; those of `too_large` too.
        too_large: Messages above `max_message_size` that were announced here.
        overruns: Times that reading from a peer stopped, because more of it waits than `window` and `lookahead` allow.
        slow_senders: Links closed because a message did not arrive any further, as `transfer_timeout` says.
        slow_readers: Links closed because the other end does not read what is written to it.
        queue_full: Sends and requests of this node that failed with `QueueFull`.
        memory_waits: Times that a link had to wait with a large message, because of `memory_limit`.
        memory_refused: Messages refused as `Busy` after such a wait.
        memory_closed: Links closed at `memory_limit`, because what they had begun did not move.
        sessions_refused: Session secrets that were malformed, shown again over the same link, or not the one shown first.
        sessions_ended: Sessions without a link that ended before their time, because too many waited.
    """

    connections: int = 0
    connections_of_host: int = 0
    handshakes_late: int = 0
    handshakes_failed: int = 0
    unauthorized: int = 0
    protocol_errors: int = 0
    too_large: int = 0
    overruns: int = 0
    slow_senders: int = 0
    slow_readers: int = 0
    queue_full: int = 0
    memory_waits: int = 0
    memory_refused: int = 0
    memory_closed: int = 0
    sessions_refused: int = 0
    sessions_ended: int = 0


_COUNTERS = tuple(each.name for each in fields(PeerStats))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats(PeerStats):
    """What a node has counted: the sums over its peers, those that are gone included.

    Attributes:
        connections: Links open now, those still in their handshake included.
        memory_held: Bytes held now, as `Config.memory_limit` counts them.
        turned_away: What was turned away at a limit.
        peers: The record of each peer that is known now, by the text of the peer; cannot be changed.
    """

    connections: int = 0
    memory_held: int = 0
    turned_away: TurnedAway = field(default_factory=TurnedAway)
    peers: Mapping[str, PeerStats] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        """Keep a copy of `peers` that nobody can change."""
        object.__setattr__(self, "peers", MappingProxyType(dict(self.peers)))

    @classmethod
    def of(
        cls,
        peers: Mapping[str, PeerStats],
        *,
        connections: int = 0,
        gone: Iterable[PeerStats] = (),
        memory_held: int = 0,
        turned_away: TurnedAway | None = None,
    ) -> NodeStats:
        """Sum the records up.

        Args:
            peers: The record of each peer that is known now.
            connections: Links open now.
            gone: Records that count in the sums and are no longer listed, such as those of peers that were forgotten.
            memory_held: Bytes held now.
            turned_away: What was turned away; None is nothing.

        Returns:
            The record of the node.
        """
        records = (*peers.values(), *gone)
        sums = {name: sum(getattr(record, name) for record in records) for name in _COUNTERS}
        away = TurnedAway() if turned_away is None else turned_away
        return cls(connections=connections, memory_held=memory_held, turned_away=away, peers=peers, **sums)

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the values: a read-only mapping cannot be pickled itself."""
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return _rebuild, (values | {"peers": dict(self.peers)},)


def _rebuild(values: dict[str, Any]) -> NodeStats:
    return NodeStats(**values)
