"""Timers: a heap of times, from which cancelled entries are sorted out in bulk."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, TypeAlias

__all__ = ["Entry", "Timers"]

Entry: TypeAlias = list[Any]
"""Time, a number that makes entries of one time differ, subject (None: it was cancelled, or is over), and stamp."""


class Timers:
    """Entries, the earliest first.

    A cancelled entry stays until the majority is cancelled; then all such are sorted out: memory is bounded by twice what is
    alive.

    Attributes:
        earlier: Set when the deadline became earlier; the owner resets it.
    """

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._numbers = count()
        self._cancelled = 0
        self.earlier = False

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def deadline(self) -> float | None:
        """The time at which `due` is to be called next; its entry may be cancelled."""
        return self._heap[0][0] if self._heap else None

    def add(self, when: float, subject: Any, what: int = 0) -> Entry:
        """Add an entry."""
        entry = [when, next(self._numbers), subject, what]
        heappush(self._heap, entry)
        if self._heap[0] is entry:
            self.earlier = True
        return entry

    def cancel(self, entry: Entry) -> None:
        """Cancel an entry; nothing happens if it is over."""
        if entry[2] is None:
            return
        entry[2] = None
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            self._heap = [each for each in self._heap if each[2] is not None]
            heapify(self._heap)
            self._cancelled = 0

    def due(self, now: float) -> Iterator[tuple[Any, int]]:
        """Take out the entries that are due, one by one: subject and stamp."""
        while self._heap and self._heap[0][0] <= now:
            entry = heappop(self._heap)
            _, _, subject, what = entry
            if subject is None:
                self._cancelled -= 1
            else:
                entry[2] = None
                yield subject, what
