"""The state of a broker, restored from the writes in its store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from redpoll.bus.broker import outputs
from redpoll.bus.broker.limits import CHARGE
from redpoll.bus.broker.outputs import Brief, Dead, Declared, Ended, Kept, Keyed, Put, Taken, Write
from redpoll.bus.broker.queue import ACCEPTED, CANCEL, DEAD, DURABLE, GONE, POISON, TAKEN, Consumer, Peer, Queue, Task

__all__ = ["Restored", "Stored", "bury", "hold", "task_of"]

Stored: TypeAlias = tuple[Put, Taken | None, bool]
"""A task as of the writes so far: as it was put, or put back; its hand-out; True if it was accepted."""


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
        self.tasks: dict[int, Stored] = {}
        self.results: dict[int, Ended | Brief] = {}
        self.dead: dict[int, Dead] = {}
        self.keys: list[Keyed] = []
        self.kept: dict[str, Kept] = {}
        self.schedules: dict[str, outputs.Scheduled] = {}
        self.serial = 0
        for write in writes:
            self._add(write)

    def _change(self, task: int, **fields: Any) -> None:
        put, taken, accepted = self.tasks[task]
        self.tasks[task] = put._replace(**fields), taken, accepted

    def _add(self, write: Write) -> None:
        tasks = self.tasks
        match write:
            case outputs.Put():  # most of them are: first
                tasks[write.id] = write, None, False
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
                put, _, accepted = tasks[write.id]
                tasks[write.id] = put, write, accepted
            case outputs.Accepted():
                tasks[write.id] = *tasks[write.id][:2], True
            case outputs.Asked():
                self._change(write.id, flags=tasks[write.id][0].flags | CANCEL)
            case outputs.Back():
                tasks[write.id] = tasks[write.id][0], None, False
                self._change(write.id, due=write.due, attempts=write.attempts, history=write.history, lost=write.lost)
            case outputs.Changed():
                self._change(write.id, payload=write.payload)
            case outputs.Moved():
                self._change(write.id, queue=write.queue)
            case outputs.Ended():
                tasks.pop(write.id, None)
                if write.keep:
                    self.results[write.id] = write
                self.serial = max(self.serial, write.id >> 64)
            case outputs.Brief():
                self.results[write.id] = write
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


def task_of(put: Put, queue: Queue, size: int, peer: Peer) -> Task:
    """Make a task that has no place yet."""
    task = Task(put.id, queue, put.payload, size, put.flags, peer, None, GONE)
    if put.priority or put.attempts or put.history or put.origin or put.after:
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
    if task.extra is not None and task.extra.lost >= POISON:
        task.queue.set_apart(consumer.peer)


def bury(queue: Queue, dead: Dead, peer: Peer) -> Task:
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
    return task
