"""The keys of a queue's tasks, for a while: a second task with one of them is a duplicate."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Dedup"]


class Dedup:
    """Keys and the tasks that had them, the oldest first.

    Args:
        seconds: How long a key counts.
        limit: Keys at most; the oldest leaves first.
    """

    __slots__ = ("_keys", "_limit", "_seconds")

    def __init__(self, seconds: float, limit: int) -> None:
        self._seconds = seconds
        self._limit = limit
        self._keys: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key: str, now: float) -> int:
        """The task that had a key; 0 if none had it in time."""
        found = self._keys.get(key)
        return 0 if found is None or now - found[1] >= self._seconds else found[0]

    def add(self, key: str, task: int, now: float) -> None:
        """Note the key of a task, and forget those whose time is over."""
        keys = self._keys
        keys.pop(key, None)
        keys[key] = (task, now)
        while len(keys) > self._limit or now - next(iter(keys.values()))[1] >= self._seconds:
            keys.popitem(last=False)
