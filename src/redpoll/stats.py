"""Statistics of a node: immutable records, one per peer and one for all."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["NodeStats", "PeerStats", "TurnedAway"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStats:
    """The counters of one peer, over all its links, at the time of the call.

    Attributes:
        sent: Messages written to the peer; each resend counts.
        received: Messages received from the peer.
        bytes_sent: All bytes written to its links, including handshakes, acknowledgements and other frames.
        bytes_received: All bytes received over its links, likewise.
        in_flight: Messages sent whose outcome is not known yet.
        queued: Messages that wait here to be sent.
        slots_used: Messages of the peer that are being handled here.
        refused: Messages of the peer that were refused here.
        refused_by_peer: Messages sent that the peer refused.
        late: Acknowledgements, refusals and answers that arrived when nothing waited for them any more.
        reconnects: Links made after the first.
        errors: Sends that failed other than by a refusal, and links lost other than by a goodbye (libchirp sends none:
            with it, other than by closing).
        conflicts: Links that claimed an identity which another link holds.
        resumed: New links of a session that had lost its last one.
        resent: Messages written again because they were not confirmed over their link.
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
    """The number of times that a node rejected something at each of its limits.

    Attributes:
        connections: Connections closed on accept, because of `max_connections`.
        connections_of_host: Connections closed on accept, because of `max_connections_per_host`.
        handshakes_late: Accepted connections without a handshake within `handshake_timeout`.
        handshakes_failed: Accepted connections that ended before their handshake otherwise: closed by the peer, or TLS
            failed.
        unauthorized: Links that `Config.authorize` refused.
        protocol_errors: Links closed because the peer violated the wire format; those of `too_large` too.
        too_large: Messages above `max_message_size` that were announced here.
        overruns: Pauses of reading from a peer, because more of its messages wait than `window` and `lookahead` allow; at
            `memory_limit` also of one that keeps to its window, because more than `lookahead` waits.
        slow_senders: Links closed because a message made too little progress, by `transfer_timeout`.
        slow_readers: Links closed because the peer does not read what is written to it.
        queue_full: Sends and requests of this node that failed with `QueueFull`.
        memory_waits: Pauses of a link with a large message, because of `memory_limit`.
        memory_refused: Messages refused as `Busy` after such a pause.
        memory_closed: Links closed at `memory_limit`, because their transfers made no progress.
        sessions_refused: Session secrets that were malformed, shown again over the same link, or not the one shown
            first.
        sessions_ended: Sessions without a link that ended early, because too many waited.
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
    """The counters of a node: sums over its peers, including forgotten ones.

    Attributes:
        connections: Links open now, including those in their handshake.
        memory_held: Bytes held now, as counted by `Config.memory_limit`.
        turned_away: Rejections at limits.
        peers: The record of each known peer, by a text that names the peer; read-only.
    """

    connections: int = 0
    memory_held: int = 0
    turned_away: TurnedAway = field(default_factory=TurnedAway)
    peers: Mapping[str, PeerStats] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        """Make an immutable copy of `peers`."""
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
        """Sum records.

        Args:
            peers: The record of each known peer.
            connections: Links open now.
            gone: Records that count in the sums and are not listed, such as those of forgotten peers.
            memory_held: Bytes held now.
            turned_away: Rejections at limits; None for none.

        Returns:
            The record of the node.
        """
        records = (*peers.values(), *gone)
        sums = {name: sum(getattr(record, name) for record in records) for name in _COUNTERS}
        away = TurnedAway() if turned_away is None else turned_away
        return cls(connections=connections, memory_held=memory_held, turned_away=away, peers=peers, **sums)

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the values: a read-only mapping cannot be pickled."""
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return _rebuild, (values | {"peers": dict(self.peers)},)


def _rebuild(values: dict[str, Any]) -> NodeStats:
    return NodeStats(**values)
