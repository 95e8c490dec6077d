"""What the tests of a bus for threads share."""

from __future__ import annotations

from typing import Any

from redpoll.bus import Task
from redpoll.bus.threads import BlockingBus

__all__ = ["double", "opens", "taken"]


def double(task: Task) -> Any:
    """A handler, which runs in a thread."""
    return task.data * 2


def opens(bus: BlockingBus) -> int:
    """How many calls run on the loop for threads."""
    return len(bus._home.handover._open)


def taken(bus: BlockingBus, queue: str = "tasks") -> tuple[int, int]:
    """How many tasks wait in a queue, and how many somebody has."""
    found = bus.queues.inspect(queue)
    return found.ready, found.taken
