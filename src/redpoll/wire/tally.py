"""Counters: of one peer, and of what one node rejected at its limits."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters", "Tally"]


@dataclass(slots=True)
class Counters:
    """Counters of one peer; `redpoll.PeerStats` documents them for users."""

    sent: int = 0
    received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    refused: int = 0
    refused_by_peer: int = 0
    late: int = 0
    reconnects: int = 0
    errors: int = 0
    conflicts: int = 0
    resumed: int = 0
    resent: int = 0

    def reset(self) -> None:
        """Set all counters to 0."""
        for name in self.__slots__:
            setattr(self, name, 0)


@dataclass(slots=True)
class Tally:
    """Number of times that each limit was reached; `redpoll.stats.TurnedAway` documents them for users."""

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
