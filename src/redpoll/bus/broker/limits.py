"""What a broker holds at most, and how long it waits: one frozen record."""

from __future__ import annotations

from dataclasses import dataclass, fields

from redpoll.checks import integer, require, seconds

__all__ = ["CHARGE", "Limits"]

CHARGE = 256
"""Bytes that count for a task, an outcome or a kept event beside its body."""

_count = integer(1, 2**53)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a broker. Times are seconds, sizes are bytes.

    Raises:
        ConfigError: A limit has a value that it cannot have.
    """

    queues: int = 100_000
    """Queues."""

    subscriptions: int = 100_000
    """Live subscriptions, and topics of queues."""

    parked: int = 10_000
    """Publishes that wait for room, per queue; one more is refused."""

    dedup_time: float = 3_600.0
    """How long a dedup key is remembered."""

    dedup_keys: int = 1_000_000
    """Dedup keys per queue; the oldest leaves first."""

    results_time: float = 86_400.0
    """How long an outcome is kept."""

    results_bytes: int = 2**30
    """Bytes of outcomes; the oldest leave first."""

    kept_subjects: int = 10_000
    """Subjects of which the last events are kept; the one that was published to least recently leaves first."""

    kept_bytes: int = 64 * 2**20
    """Bytes of kept events."""

    history: int = 16
    """Lines of a task's history; the oldest leaves first."""

    watchers: int = 1_000
    """Watchers of one task."""

    grace: float = 0.5
    """How long a worker whose link ended without goodbye keeps its tasks."""

    reclaim: float = 15.0
    """How long it does after a restart of the broker."""

    inbox_time: float = 30.0
    """How long what watchers are to be told waits for an absent peer."""

    inbox_events: int = 1_000
    """How much of it: beyond that progress is dropped, and then the oldest."""

    def __post_init__(self) -> None:
        """Check every field."""
        for field in fields(self):
            value = getattr(self, field.name)
            require(field.name, value, (_count if isinstance(field.default, int) else seconds))
