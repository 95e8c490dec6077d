"""The last events of subjects, for those who subscribe later."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from redpoll.bus.broker import outputs
from redpoll.bus.broker.limits import CHARGE, Limits
from redpoll.bus.broker.outputs import Outbox
from redpoll.bus.broker.topics import Topics

__all__ = ["Kept"]


class Kept:
    """Events by subject, within the broker's limits: the subject that was published to least recently leaves first.

    Args:
        limits: How many subjects, how many bytes.
        out: Where what is to be stored is said.
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
        if self._out.writes is not None:
            self._out.writes.append(outputs.Kept(subject, limit, self._events.get(subject, ())))
        while len(self._events) > self._subjects or self.bytes > self._limit:
            oldest, events = self._events.popitem(last=False)
            self.bytes -= _size(events)
            if self._out.writes is not None:
                self._out.writes.append(outputs.Kept(oldest, 0, ()))

    def restore(self, subject: str, events: tuple[tuple[Any, int], ...]) -> None:
        """Set the events of a subject."""
        self.bytes -= _size(self._events.pop(subject, ()))
        if events:
            self._events[subject] = events
            self.bytes += _size(events)

    def matching(self, patterns: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """The subjects and events that some patterns want, the oldest of a subject first."""
        topics: Topics[None] = Topics()
        for pattern in patterns:
            topics.add(pattern, None)
        for subject, events in self._events.items():
            if topics.match(subject):
                for payload, _ in events:
                    yield subject, payload


def _size(events: tuple[tuple[Any, int], ...]) -> int:
    return sum(size + CHARGE for _, size in events)
