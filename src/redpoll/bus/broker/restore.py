"""The state of a broker, restored from the writes in its store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redpoll.bus.broker import outputs
from redpoll.bus.broker.limits import CHARGE
from redpoll.bus.broker.outputs import Dead, Declared, Ended, Kept, Keyed, Put, Taken, Write
from redpoll.bus.broker.queue import ACCEPTED, CANCEL, DEAD, DURABLE, GONE, TAKEN, Consumer, Peer, Queue, Task

__all__ = ["Restored", "bury", "hold", "task_of"]


class _Slot:
    """A task as of the writes so far."""

    __slots__ = ("accepted", "due", "put", "taken")

    def __init__(self, put: Put) -> None:
        self.put = put
        self.due = put.due
        self.taken: Taken | None = None
        self.accepted = False

    def change(self, **fields: Any) -> None:
        """Change fields."""
        self.put = self.put._replace(**fields)


class Restored:
    """The state that writes add up to: all that were ever made, in order, or a store's shorter list with the same effect.

    Args:
        writes: The writes.

    Attributes:
        queues: Queues, and whether they are paused.
        tasks: Tasks that have no outcome.
        results: Outcomes.
        dead: Dead letters.
        keys: Dedup keys.
        kept: The last events of subjects.
        schedules: Schedules.
        serial: The highest serial among them.
    """

    def __init__(self, writes: Iterable[Write]) -> None:
        self.queues: dict[str, Declared] = {}
        self.tasks: dict[int, _Slot] = {}
        self.results: dict[int, Ended] = {}
        self.dead: dict[int, Dead] = {}
        self.keys: list[Keyed] = []
        self.kept: dict[str, Kept] = {}
        self.schedules: dict[str, outputs.Scheduled] = {}
        self.serial = 0
        for write in writes:
            self._add(write)

    def _add(self, write: Write) -> None:
        tasks = self.tasks
        match write:
            case outputs.Put():  # most of them are: first
                tasks[write.id] = _Slot(write)
                self.serial = max(self.serial, write.id >> 64)
            case outputs.Declared():
                self.queues[write.spec.name] = write
            case outputs.Deleted():
                self.queues.pop(write.queue, None)
                self.keys = [each for each in self.keys if each.queue != write.queue]
            case outputs.Keyed():
                self.keys.append(write)
                self.serial = max(self.serial, write.id >> 64)
            case outputs.Taken():
                tasks[write.id].taken = write
            case outputs.Accepted():
                tasks[write.id].accepted = True
            case outputs.Asked():
                tasks[write.id].change(flags=tasks[write.id].put.flags | CANCEL)
            case outputs.Back():
                slot = tasks[write.id]
                slot.taken, slot.accepted, slot.due = None, False, write.due
                slot.change(attempts=write.attempts, history=write.history, lost=write.lost)
            case outputs.Changed():
                tasks[write.id].change(payload=write.payload)
            case outputs.Moved():
                tasks[write.id].change(queue=write.queue)
            case outputs.Ended():
                tasks.pop(write.id, None)
                if write.keep:
                    self.results[write.id] = write
                self.serial = max(self.serial, write.id >> 64)
            case outputs.Dead():
                self.dead[write.id] = write
            case outputs.Buried():
                self.dead.pop(write.id, None)
            case outputs.Forgotten():
                self.results.pop(write.id, None)
            case outputs.Kept():
                self.kept[write.subject] = write
            case outputs.Scheduled(values=None):
                self.schedules.pop(write.name, None)
            case outputs.Scheduled():
                self.schedules[write.name] = write


def task_of(slot: _Slot, queue: Queue, peer: Peer) -> Task:
    """Make a task that has no place yet."""
    put = slot.put
    task = Task(put.id, queue, put.payload, put.size + CHARGE, put.flags, peer, None)
    task.state = GONE
    if put.priority or put.attempts or put.history or put.origin:
        extra = task.more
        extra.priority, extra.attempts, extra.lost = put.priority, put.attempts, put.lost
        extra.history, extra.origin = put.history, put.origin
    return task


def hold(task: Task, taken: Taken, consumer: Consumer, *, accepted: bool) -> None:
    """Hand a task to the consumer of a worker that is absent."""
    task.state = ACCEPTED if accepted else TAKEN
    task.token = taken.token
    task.consumer = consumer
    task.queue.taken += 1
    consumer.held[taken.token] = task
    consumer.peer.held += 1


def bury(queue: Queue, dead: Dead, peer: Peer) -> None:
    """Put a dead letter beside its queue."""
    task = Task(dead.id, queue, dead.payload, dead.size + CHARGE, dead.flags | DURABLE, peer, None)
    task.state = DEAD
    extra = task.more
    extra.history, extra.priority, extra.attempts, extra.origin = (
        dead.history,
        dead.priority,
        dead.attempts,
        dead.origin,
    )
    queue.dead[dead.id] = task
    queue.dead_bytes += task.size
