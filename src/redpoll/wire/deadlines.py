"""Deadlines of many items with one timer: constant work per item, and no heap while deadlines come in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["Deadlines", "Timed"]


class Timed(Protocol):
    """An item that may end by itself; its `deadline` is then None."""

    deadline: float | None


#: Maximum ended items kept, beyond as many as there are live ones.
_SLACK = 128

#: Maximum memory that ended items refer to before they are dropped, in bytes.
_HEAVY = 1024 * 1024

#: Queue of an object without items: an empty deque takes 760 bytes, and most peers are only received from.
_EMPTY: deque[Any] = deque(maxlen=0)

ItemT = TypeVar("ItemT", bound=Timed)


class Deadlines(Generic[ItemT]):
    """Watches the deadlines of items.

    With one timeout for all, deadlines come in the order of sending and are kept in a queue; the few that do not are
    kept in a heap. An item that ends sets its own deadline to None. It is dropped when it reaches the front, or when
    the queue has doubled since it was last compacted. So memory follows the live items, and ending costs nothing. Only
    an item that ends while it refers to much memory is reported by `ended`.
    """

    __slots__ = ("_heap", "_heavy", "_limit", "_order", "_row")

    def __init__(self) -> None:
        self._row: deque[tuple[float, ItemT]] = _EMPTY
        self._heap: list[tuple[float, int, ItemT]] = []
        self._order = 0
        self._limit = _SLACK
        #: Bytes that ended items refer to, since items were last dropped.
        self._heavy = 0

    def __len__(self) -> int:
        """Number of items kept, including those that ended and were not dropped yet."""
        return len(self._row) + len(self._heap)

    def add(self, deadline: float, item: ItemT) -> None:
        """Watch an item. `deadline` may be before the item's own, which is then looked up again."""
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
        """Note that an item which refers to `size` bytes ended; drop ended items if they refer to too much together."""
        self._heavy += size
        if self._heavy > _HEAVY:
            self._drop_ended()
        else:
            self.next()

    def next(self) -> float | None:
        """Return when to call `expire` next; None if nothing is watched."""
        row, heap = self._row, self._heap
        while row and row[0][1].deadline is None:
            row.popleft()
        while heap and heap[0][2].deadline is None:
            heappop(heap)
        if row:
            return min(row[0][0], heap[0][0]) if heap else row[0][0]
        return heap[0][0] if heap else None

    def expire(self, now: float) -> list[ItemT]:
        """Remove and return the items that are due; an item whose deadline was extended stays."""
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
        """Stop watching items, whatever their deadlines are."""
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
