"""Deadlines of many things at once with one timer: constant work for each, no timer and no heap where they come in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["Deadlines", "Timed"]


class Timed(Protocol):
    """A thing that may end by itself; `deadline` None says that it ended (or has none any more)."""

    deadline: float | None


#: Kept beyond twice the live ones, at most.
_SLACK = 128

#: Bytes that those may refer to that ended with something large.
_HEAVY = 1024 * 1024

#: The row of all that never had an item: an empty deque of one's own is 760 bytes, and most peers are only listened to.
_EMPTY: deque[Any] = deque(maxlen=0)

ItemT = TypeVar("ItemT", bound=Timed)


class Deadlines(Generic[ItemT]):
    """Which of the things added are past their deadline, and when the next one will be.

    With one timeout for all, deadlines come in the order of sending: those stand in a row, the few that do not in a
    heap. A thing that ends sets its own deadline to None and is dropped here when it comes to the front, or when the
    row has doubled since it was last gone through. So memory follows the live ones, and nothing is done at an end. Only
    what still refers to something large then is to be told of by `ended`.
    """

    __slots__ = ("_heap", "_heavy", "_limit", "_order", "_row")

    def __init__(self) -> None:
        self._row: deque[tuple[float, ItemT]] = _EMPTY
        self._heap: list[tuple[float, int, ItemT]] = []
        self._order = 0
        self._limit = _SLACK
        #: Bytes that ended items refer to since they were last dropped.
        self._heavy = 0

    def __len__(self) -> int:
        """How many are kept, those that ended and were not yet dropped among them."""
        return len(self._row) + len(self._heap)

    def add(self, deadline: float, item: ItemT) -> None:
        """Watch an item. `deadline` may be before the item's own: it is looked at again then."""
        row = self._row
        if row is _EMPTY:
            row = self._row = deque()
        while row and row[0][1].deadline is None:
            row.popleft()
        if not row or deadline >= row[-1][0]:
            row.append((deadline, item))
        else:
            self._order += 1
            heappush(self._heap, (deadline, self._order, item))
        if len(row) + len(self._heap) > self._limit:
            self._drop_ended()

    def _drop_ended(self) -> None:
        self._row = deque(entry for entry in self._row if entry[1].deadline is not None)
        self._heap = [entry for entry in self._heap if entry[2].deadline is not None]
        heapify(self._heap)
        self._limit = 2 * len(self) + _SLACK
        self._heavy = 0

    def ended(self, size: int) -> None:
        """An item of these ended that refers to `size` bytes: let go of what has ended before that adds up."""
        self._heavy += size
        if self._heavy > _HEAVY:
            self._drop_ended()
        else:
            self.next()

    def next(self) -> float | None:
        """When to look again, or None while nothing is watched."""
        row, heap = self._row, self._heap
        while row and row[0][1].deadline is None:
            row.popleft()
        while heap and heap[0][2].deadline is None:
            heappop(heap)
        if row:
            return min(row[0][0], heap[0][0]) if heap else row[0][0]
        return heap[0][0] if heap else None

    def expire(self, now: float) -> list[ItemT]:
        """Take out and return the live items whose deadline has come; one that was moved on is watched further."""
        due: list[ItemT] = []
        later: list[ItemT] = []
        row, heap = self._row, self._heap
        while row and row[0][0] <= now:
            item = row.popleft()[1]
            self._sort_out(item, now, due, later)
        while heap and heap[0][0] <= now:
            item = heappop(heap)[2]
            self._sort_out(item, now, due, later)
        for item in later:
            if item.deadline is not None:
                self.add(item.deadline, item)
        return due

    def remove(self, items: Iterable[ItemT]) -> None:
        """Watch these no longer, whatever their deadlines say."""
        gone = set(map(id, items))
        self._row = deque(entry for entry in self._row if id(entry[1]) not in gone)
        self._heap = [entry for entry in self._heap if id(entry[2]) not in gone]
        heapify(self._heap)

    @staticmethod
    def _sort_out(item: ItemT, now: float, due: list[ItemT], later: list[ItemT]) -> None:
        if item.deadline is None:
            return
        if item.deadline <= now:
            due.append(item)
        else:
            later.append(item)
