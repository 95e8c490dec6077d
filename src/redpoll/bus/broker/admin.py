"""Operations on queues: inspect, browse, purge, move, redrive."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final, Literal

from redpoll.bus.broker.outputs import Brief, Ended, Moved
from redpoll.bus.broker.queue import CANCEL, DURABLE, GONE, READY, Peer, Queue, Task
from redpoll.bus.broker.tasks import Tasks, as_before
from redpoll.bus.envelope import Outcome, OutcomeKind
from redpoll.bus.records import QueueInfo, TaskInfo, TaskState
from redpoll.checks import integer, one_of, optional, require
from redpoll.errors import ConfigError, ResultExpired, SpecConflict, UnknownTask

__all__ = ["Admin"]

_BROWSED: Final = one_of("ready", "delayed", "taken", "dead")
_PURGED: Final = one_of("ready", "dead")
#: The state of a task in a queue, by its number; one in nobody's hands that is not there any more is a dead letter.
_STATES: Final[tuple[TaskState, ...]] = ("ready", "delayed", "ready", "taken", "taken", "dead", "dead")
_LIMIT: Final = integer(0, 2**53)


def _due(task: Task) -> float:
    ripens = task.more.ripens
    return 0.0 if ripens is None else float(ripens[0])


class Admin:
    """Operations for an operator: they inspect queues, and repair them.

    Args:
        tasks: The tasks.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._out = tasks.out

    def inspect(self, queue: Queue) -> QueueInfo:
        """Return the contents and the counters of a queue."""
        return QueueInfo(
            spec=queue.spec,
            ready=queue.ready + queue.aside,
            delayed=len(queue.delayed),
            taken=queue.taken,
            dead=len(queue.dead),
            bytes=queue.bytes,
            consumers=len(queue.consumers),
            paused=queue.paused,
            waiting=sum(not each.done for each in queue.parked),
            submitted=queue.submitted,
            delivered=queue.delivered,
            done=queue.ended[OutcomeKind.RESULT] + queue.ended[OutcomeKind.ERROR],
            requeued=queue.requeued,
            expired=queue.ended[OutcomeKind.EXPIRED],
            cancelled=queue.ended[OutcomeKind.CANCELLED],
            dropped=queue.dropped,
        )

    def find(self, number: int, now: float) -> Task | Ended | Brief:
        """Return a task that has no outcome yet, or the outcome that is kept.

        Raises:
            UnknownTask: There was none of that number.
            ResultExpired: It ended, and its outcome is not kept.
        """
        task = self._tasks.found.get(number)
        if task is not None:
            return task
        result = self._tasks.results.find(number, now)
        if result is None:
            raise (ResultExpired if self._tasks.knows(number) else UnknownTask)(self._tasks.text(number))
        return result

    def describe(self, task: Task | Ended) -> TaskInfo:
        """Describe a task; the owner's payload stands for its envelope, here and in its outcome."""
        text = self._tasks.text
        if isinstance(task, Ended):
            return TaskInfo(
                id=text(task.id),
                queue=task.queue,
                state="dead" if task.kind is OutcomeKind.DEAD else "done",
                attempt=task.attempts + 1,
                outcome=Outcome(task.kind, task.payload, task.detail),
                history=task.history,
            )
        extra = task.extra
        return TaskInfo(
            id=text(task.id),
            queue=task.queue.name,
            state=_STATES[task.state],
            attempt=task.attempts + 1,
            cancelling=bool(task.flags & CANCEL),
            envelope=task.payload,
            history=() if extra is None else extra.history,
            origin=text(extra.origin) if extra is not None and extra.origin else None,
            watched=self._tasks.is_watched(task),
            after=() if extra is None else tuple(map(text, extra.after)),
        )

    def browse(self, queue: Queue, state: Literal["ready", "delayed", "taken", "dead"], limit: int) -> list[Task]:
        """Return some tasks of a queue, the next ones first.

        Raises:
            ConfigError: There is no such state, or the limit cannot be.
        """
        require("state", state, _BROWSED)
        require("limit", limit, _LIMIT)
        found: Iterable[Task]
        if state == "ready":
            found = queue.in_line()
        elif state == "dead":
            found = queue.dead.values()
        elif state == "delayed":
            found = sorted(queue.delayed, key=_due)
        else:
            found = self._tasks.taken(queue)
        return list(islice(found, limit))

    def purge(self, queue: Queue, state: Literal["ready", "dead"], now: float) -> int:
        """Remove the tasks that wait, delayed ones too, or the dead letters; return how many there were.

        Raises:
            ConfigError: There is no such state.
        """
        require("state", state, _PURGED)
        if state == "dead":
            dead = tuple(queue.dead.values())
            for task in dead:
                self._tasks.unbury(task)
            return len(dead)
        waiting = [*queue.in_line(), *queue.delayed]
        for task in waiting:
            # The end of one is that of those that come after it.
            if task.state != GONE:
                self._tasks.end(task, OutcomeKind.CANCELLED, now, detail="purged")
        return len(waiting)

    def move(self, source: Queue, target: Queue, limit: int | None, now: float) -> int:
        """Move ready tasks to another queue; return how many.

        Raises:
            SpecConflict: One of the queues is durable and the other is not.
            ConfigError: The limit cannot be, or the queues are the same.
        """
        require("limit", limit, optional(_LIMIT))
        if source is target:
            # Moved one by one, some would be handed out that are still to be moved.
            raise ConfigError("target", target.name, "must be another queue")
        if source.spec.durable != target.spec.durable:
            raise SpecConflict(target.spec.name, "durable", target.spec.durable, source.spec.durable)
        source.sort_out()
        moved = list(islice((each for each in source.in_line() if each.state == READY), limit))
        for task in moved:
            self._tasks.leave(task)
            source.count -= 1
            source.bytes -= task.size
            task.queue = target
            target.count += 1
            target.bytes += task.size
            self._out.write(task.flags & DURABLE, Moved(task.id, target.spec.name))
            target.add(task)
        if source.parked:
            self._tasks.admit(source, now)
        source.close_up()
        return len(moved)

    def redrive(self, peer: Peer, queue: Queue, numbers: Iterable[int] | None, now: float) -> list[Task]:
        """Put dead letters back into their queue, as new tasks."""
        found = list(queue.dead) if numbers is None else [each for each in dict.fromkeys(numbers) if each in queue.dead]
        new = []
        for number in found:
            task = queue.dead[number]
            payload, size, after = task.payload, task.body, task.more.after
            self._tasks.results.hold(after)
            self._tasks.unbury(task)
            new.append(self._tasks.put(queue, payload, size, now, peer, None, as_before(task), task))
            self._tasks.results.release(after)
        return new
