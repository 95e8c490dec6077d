"""The limits of a broker: one frozen record."""

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
    """Maximum number of queues."""

    subscriptions: int = 100_000
    """Maximum number of live subscriptions, and of topics of queues."""

    schedules: int = 10_000
    """Schedules."""

    parked: int = 10_000
    """Maximum number of publishes that wait for room, per queue; one more is refused."""

    dedup_time: float = 3_600.0
    """Time for which a dedup key counts; while its task is not ended it does anyway."""

    dedup_keys: int = 1_000_000
    """Maximum number of dedup keys per queue; the oldest leaves first."""

    results_time: float = 86_400.0
    """Time for which an outcome is kept."""

    results_bytes: int = 2**30
    """Maximum bytes of outcomes; the oldest leave first."""

    kept_subjects: int = 250_000
    """Maximum number of subjects whose last events are kept; the one that was published to least recently leaves first."""

    kept_bytes: int = 64 * 2**20
    """Maximum bytes of kept events."""

    history: int = 16
    """Maximum lines of a task's history; the oldest leaves first."""

    watchers: int = 1_000
    """Maximum number of watchers of one task."""

    grace: float = 0.5
    """Time for which a worker whose link ended without goodbye keeps its tasks."""

    reclaim: float = 15.0
    """Time for which a worker keeps its tasks after a restart of the broker."""

    inbox_time: float = 30.0
    """Time for which effects for the watchers of an absent peer wait."""

    inbox_events: int = 1_000
    """Maximum number of such effects; beyond that progress is dropped, then the oldest."""

    def __post_init__(self) -> None:
        """Check every field."""
        for field in fields(self):
            value = getattr(self, field.name)
            require(field.name, value, (_count if isinstance(field.default, int) else seconds))
