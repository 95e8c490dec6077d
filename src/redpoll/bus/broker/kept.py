"""Records that outlive their task or event, within limits: outcomes, dedup keys, the last events of subjects."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Iterator
from typing import Any

from redpoll.bus.broker import outputs
from redpoll.bus.broker.limits import CHARGE, Limits
from redpoll.bus.broker.outputs import Brief, Ended, Forgotten, Outbox
from redpoll.bus.broker.topics import Topics

__all__ = ["Dedup", "Kept", "Results"]


class Results:
    """Outcomes by the number of their task: for a time, and within a number of bytes, the oldest leaving first.

    Those that a later task is to be given are held beside these, and count as part of that.

    Args:
        limits: The limits of the broker.
        out: The outbox, for the writes that forget outcomes.
    """

    def __init__(self, limits: Limits, out: Outbox) -> None:
        self._seconds = limits.results_time
        self._limit = limits.results_bytes
        self._out = out
        # In the order of adding.
        self._found: dict[int, Ended | Brief] = {}
        # Those that are held, and how often each number is.
        self._held: dict[int, Ended | Brief] = {}
        self._holds: dict[int, int] = {}
        self._oldest = 0.0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._found) + len(self._held)

    def find(self, task: int, now: float) -> Ended | Brief | None:
        """Return the outcome of a task, in brief where it is in the store alone; None if it is not kept."""
        found = self._found.get(task)
        if found is None:
            return self._held.get(task)
        return None if now - found.when >= self._seconds else found

    def hold(self, tasks: Iterable[int]) -> None:
        """Hold the outcomes of tasks, also those that come later, until they are released as often."""
        for task in tasks:
            self._holds[task] = self._holds.get(task, 0) + 1
            found = self._found.pop(task, None)
            if found is not None:
                self.bytes -= found.size + CHARGE
                self._held[task] = found

    def held_size(self, task: int) -> int:
        """Return the bytes of an outcome that is held; 0 if there is none yet."""
        found = self._held.get(task)
        return 0 if found is None else found.size + CHARGE

    def release(self, tasks: Iterable[int]) -> None:
        """Hold the outcomes of tasks no more: they are the newest of those that are kept, but not for longer."""
        for task in tasks:
            left = self._holds.pop(task) - 1
            if left:
                self._holds[task] = left
                continue
            found = self._held.pop(task, None)
            if found is not None:
                self.add(found)

    def drop(self, task: int) -> None:
        """Leave the outcome of a task to the store, and keep it in brief."""
        place = self._held if task in self._held else self._found
        found = place.get(task)
        if isinstance(found, Ended):
            place[task] = Brief(task, found.queue, found.size, found.token, found.when)

    def add(self, ended: Ended | Brief) -> None:
        """Keep an outcome, and forget the oldest ones."""
        if ended.id in self._holds:
            self._held[ended.id] = ended
            return
        self._found[ended.id] = ended
        self.bytes += ended.size + CHARGE
        if self.bytes > self._limit or ended.when - self._oldest >= self._seconds:
            self._forget(ended.when)

    def _forget(self, now: float) -> None:
        # Some more than need be: finding the oldest in a dict takes as long as there are gaps before it.
        found = self._found
        room = self._limit - self._limit // 16 if self.bytes > self._limit else self._limit
        gone = []
        for task, result in found.items():
            if self.bytes <= room and now - result.when < self._seconds:
                self._oldest = result.when
                break
            self.bytes -= result.size + CHARGE
            gone.append(task)
        else:
            self._oldest = now
        for task in gone:
            del found[task]
        if self._out.writes is not None:
            self._out.writes += map(Forgotten, gone)


class Dedup:
    """Dedup keys of a queue and the tasks that had them, the oldest first.

    Args:
        seconds: Time for which a key counts, also beyond the end of its task.
        limit: Maximum number of keys; the oldest leaves first.
    """

    __slots__ = ("_keys", "_limit", "_seconds")

    def __init__(self, seconds: float, limit: int) -> None:
        self._seconds = seconds
        self._limit = limit
        self._keys: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key: str, now: float, living: Container[int] = ()) -> int:
        """Return the number of the task that had a key; 0 if none had it in time, or is among the living."""
        found = self._keys.get(key)
        return 0 if found is None or (now - found[1] >= self._seconds and found[0] not in living) else found[0]

    def add(self, key: str, task: int, now: float, living: Container[int] = ()) -> None:
        """Note the key of a task, and forget expired keys, but for those of the living."""
        keys = self._keys
        keys.pop(key, None)
        keys[key] = (task, now)
        while len(keys) > self._limit or now - next(iter(keys.values()))[1] >= self._seconds:
            oldest, (number, _) = keys.popitem(last=False)
            if number in living and len(keys) < self._limit:
                keys[oldest] = (number, now)


class Kept:
    """The last events of subjects, for later subscribers; the subject that was published to least recently leaves first.

    Args:
        limits: The limits of the broker.
        out: The outbox, for the writes.
    """

    def __init__(self, limits: Limits, out: Outbox) -> None:
        self._subjects = limits.kept_subjects
        self._limit = limits.kept_bytes
        self._out = out
        self._events: OrderedDict[str, tuple[tuple[Any, int], ...]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def add(self, subject: str, limit: int, payload: Any, size: int) -> None:
        """Keep an event as the newest of its subject, and no more of them than `limit`."""
        self.restore(subject, (*self._events.get(subject, ()), (payload, size))[-limit:])
        self._out.write(True, outputs.Kept(subject, limit, self._events.get(subject, ())))
        while len(self._events) > self._subjects or self.bytes > self._limit:
            oldest, events = self._events.popitem(last=False)
            self.bytes -= _size(events)
            self._out.write(True, outputs.Kept(oldest, 0, ()))

    def restore(self, subject: str, events: tuple[tuple[Any, int], ...]) -> None:
        """Set the events of a subject."""
        self.bytes -= _size(self._events.pop(subject, ()))
        if events:
            self._events[subject] = events
            self.bytes += _size(events)

    def matching(self, patterns: Collection[str]) -> Iterator[tuple[str, Any]]:
        """Iterate over the subjects and events that match some patterns, the oldest of a subject first."""
        # A subject has no wildcards: a pattern that is one needs no search.
        found = {each: None for each in patterns if each in self._events}
        wild: Topics[None] = Topics()
        for pattern in patterns:
            if pattern not in found:
                wild.add(pattern, None)
        if any(not {"*", "#"}.isdisjoint(pattern.split(".")) for pattern in patterns):
            found |= {subject: None for subject in self._events if wild.match(subject)}
        for subject in found:
            for payload, _ in self._events[subject]:
                yield subject, payload


def _size(events: tuple[tuple[Any, int], ...]) -> int:
    return sum(size + CHARGE for _, size in events)
