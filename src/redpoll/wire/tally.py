"""What one node turned away at its limits, counted over all its links and peers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """How often each limit was met; `redpoll.stats.TurnedAway` documents them for users."""

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
