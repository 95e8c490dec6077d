"""Outcomes of tasks that ended: for a time, and within a number of bytes, the oldest leaving first."""

from __future__ import annotations

from typing import Any, NamedTuple

from redpoll.bus.broker.limits import CHARGE, Limits
from redpoll.bus.broker.outputs import Forgotten, Outbox
from redpoll.bus.envelope import OutcomeKind

__all__ = ["Result", "Results"]


class Result(NamedTuple):
    """An outcome, as it was recorded.

    Attributes:
        queue: Name of the task's queue.
        kind: How it ended.
        payload: The owner's, or None.
        size: Bytes of the payload.
        detail: Why, in words.
        token: The hand-out that it came from; 0 if from none.
        attempts: Attempts that failed before.
        history: What became of these, in words.
        when: When.
    """

    queue: str
    kind: OutcomeKind
    payload: Any
    size: int
    detail: str
    token: int
    attempts: int
    history: tuple[str, ...]
    when: float


class Results:
    """Outcomes by the number of their task.

    Args:
        limits: How long, and how much.
        out: Where what is to be forgotten is said.
    """

    def __init__(self, limits: Limits, out: Outbox) -> None:
        self._seconds = limits.results_time
        self._limit = limits.results_bytes
        self._out = out
        # Plain tuples, the fields of a `Result`, in the order of adding: there may be millions.
        self._found: dict[int, tuple[str, OutcomeKind, Any, int, str, int, int, tuple[str, ...], float]] = {}
        self._oldest = 0.0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._found)

    def find(self, task: int, now: float) -> Result | None:
        """The outcome of a task, if it is kept."""
        found = self._found.get(task)
        return None if found is None or now - found[-1] >= self._seconds else Result(*found)

    def add(
        self,
        task: int,
        queue: str,
        kind: OutcomeKind,
        payload: Any,
        size: int,
        detail: str,
        token: int,
        when: float,
        attempts: int = 0,
        history: tuple[str, ...] = (),
    ) -> None:
        """Keep an outcome, and forget the oldest ones."""
        self._found[task] = (queue, kind, payload, size, detail, token, attempts, history, when)
        self.bytes += size + CHARGE
        if self.bytes > self._limit or when - self._oldest >= self._seconds:
            self._forget(when)

    def _forget(self, now: float) -> None:
        # Some more than need be: finding the oldest in a dict takes as long as there are gaps before it.
        found = self._found
        room = self._limit - self._limit // 16 if self.bytes > self._limit else self._limit
        gone = []
        for task, result in found.items():
            if self.bytes <= room and now - result[-1] < self._seconds:
                self._oldest = result[-1]
                break
            self.bytes -= result[3] + CHARGE
            gone.append(task)
        else:
            self._oldest = now
        for task in gone:
            del found[task]
        if self._out.writes is not None:
            self._out.writes += map(Forgotten, gone)
