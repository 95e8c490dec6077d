"""A broker in the hands of a test: it collects what is to be done, and says it in few words."""

from __future__ import annotations

from itertools import count
from typing import Any

from redpoll.bus import OutcomeKind, QueueSpec
from redpoll.bus.broker import Broker, Limits
from redpoll.bus.broker.outputs import (
    ADMITTED,
    CANCELLED,
    DELIVER,
    EVENT,
    NOTE,
    OUTCOME,
    PROGRESS,
    STOPPED,
    TOLD,
    Effect,
)
from redpoll.bus.broker.queue import Consumer, Parked, Peer, Task

DEFAULTS = {
    "priority": 0,
    "delay": 0.0,
    "ttl": None,
    "deadline": None,
    "dedup": None,
    "keep": True,
    "mandatory": False,
    "timeout": None,
}


class Desk:
    """A broker with a queue "q" and a publisher.

    Args:
        limits: Of the broker.
        journal: Whether it writes.
        spec: What the queue is like, beside its name.
    """

    def __init__(self, limits: Limits | None = None, *, journal: bool = False, **spec: Any) -> None:
        self.broker = Broker("s", count(1), limits, journal=journal)
        self.now = 0.0
        self.boss = self.broker.peers.join("boss", 0.0)
        self.queue = self.declare("q", **spec)
        self.effects: list[Effect] = []

    def declare(self, name: str, *, update: bool = False, **spec: Any) -> Any:
        """Declare a queue."""
        return self.broker.queues.declare(QueueSpec(name, **spec), self.now, update=update)

    def submit(self, body: str = "", queue: str = "q", owner: Any = None, **options: Any) -> Any:
        """Submit a task whose watcher is called like its body."""
        how: Any = tuple({**DEFAULTS, **options}.values())
        return self.broker.intake.submit(self.boss, queue, body, len(body), self.now, body or None, how, owner)

    def number(self, body: str = "", queue: str = "q", **options: Any) -> int:
        """Submit a task, and return its number."""
        task = self.submit(body, queue, **options)
        assert isinstance(task, Task)
        return task.id

    def join(self, name: str) -> Peer:
        """Let a peer come."""
        return self.broker.peers.join(name, self.now)

    def consume(self, name: str | Peer, credit: int = 1, queue: str = "q", **options: Any) -> Consumer:
        """Let a peer take tasks."""
        peer = name if isinstance(name, Peer) else self.join(name)
        return self.broker.work.consume(peer, queue, self.now, credit, **options)

    def wait(self, seconds: float) -> None:
        """Let time go by."""
        end = self.now + seconds
        while (due := self.broker.deadline) is not None and due <= end:
            self.now = max(self.now, due)
            self.broker.advance(self.now)
        self.now = end

    def take(self) -> list[Effect]:
        """The effects since the last time."""
        return self.broker.out.take()

    def said(self) -> list[Any]:
        """The effects since the last time, in words."""
        return [_SHORT[effect[0]](effect) for effect in self.take()]

    def deliveries(self) -> list[tuple[str, str]]:
        """Who was given what since the last time."""
        return [(each[1].name, each[5]) for each in self.take() if each[0] == DELIVER]

    def settle(self, consumer: Consumer, payload: str = "", kind: OutcomeKind = OutcomeKind.RESULT) -> bool:
        """End the oldest task that a consumer holds."""
        return self.broker.work.settle(consumer, next(iter(consumer.held)), self.now, kind, payload, len(payload))

    def reject(self, consumer: Consumer, **how: Any) -> bool:
        """Give back the oldest task that a consumer holds."""
        return self.broker.work.reject(consumer, next(iter(consumer.held)), self.now, **how)


def _admitted(effect: Effect) -> Any:
    parked, number, error, _ = effect[2:]
    assert isinstance(parked, Parked)
    return ("admitted", parked.owner, number if error is None else type(error).__name__)


_SHORT: dict[int, Any] = {
    DELIVER: lambda effect: (effect[1].name, effect[5]),
    OUTCOME: lambda effect: (effect[2], effect[4].name, effect[5] or effect[6]),
    PROGRESS: lambda effect: (effect[2], "PROGRESS", effect[4]),
    ADMITTED: _admitted,
    CANCELLED: lambda effect: (effect[1].name, "cancelled", effect[4]),
    TOLD: lambda effect: (effect[1].name, "told", effect[4]),
    STOPPED: lambda effect: (effect[1].name, "stopped", effect[3]),
    EVENT: lambda effect: (tuple(each.owner for each in effect[1]), effect[2], effect[3], effect[4]),
    NOTE: lambda effect: (effect[2], effect[3], effect[5]),
}
