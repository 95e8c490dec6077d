"""The pace of a worker: how many tasks it takes ahead, by how long its handlers take."""

from __future__ import annotations

from typing import Final

__all__ = ["HELD", "LEASE", "Pace"]

HELD: Final = 0.025
"""Seconds in which a worker begins one of the tasks that it has ahead; otherwise it gives all of them back."""
LEASE: Final = 0.25
"""Seconds in which a task that was sent ahead may be begun: a hub with a grace that is not longer sends none."""

#: Seconds of work that a worker has ahead: some round trips to a busy hub.
_WORK: Final = 0.005
#: Maximum number of tasks ahead.
_MOST: Final = 64
#: Work in which a handler is slow; one that takes longer counts as that: many pauses are the machine's.
_SLOW: Final = 4 * _WORK
#: Handlers of which the estimate is the mean, about.
_MEMORY: Final = 8


class Pace:
    """An estimate of the time that a handler takes: a slow one, until it is known and when a task was kept waiting.

    Args:
        slots: The number of handlers that run at a time.

    Attributes:
        ahead: The number of tasks to take ahead: a power of two, or 0.
    """

    __slots__ = ("_seconds", "ahead")

    def __init__(self, slots: int) -> None:
        self._seconds = 0.0
        self.slow(slots)

    def slow(self, slots: int) -> None:
        """Note that a task waited for a slot for too long."""
        self._seconds = slots * _SLOW
        self.ahead = 0

    def ended(self, seconds: float, slots: int) -> bool:
        """Count a handler that ended; return True if the number changed."""
        self._seconds += (min(seconds, slots * _SLOW) - self._seconds) / _MEMORY
        most = min(_MOST, int(slots * _WORK / max(self._seconds, 1e-6)))
        before, self.ahead = self.ahead, 1 << most.bit_length() >> 1
        return self.ahead != before
