"""The queues of a broker: declared, changed, deleted, or expired because nobody used them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from redpoll.bus.broker.outputs import STOPPED, Declared, Deleted
from redpoll.bus.broker.queue import GONE, Queue
from redpoll.bus.broker.schedules import Schedules
from redpoll.bus.broker.tasks import Tasks
from redpoll.bus.broker.topics import Topics
from redpoll.bus.broker.work import Work
from redpoll.bus.envelope import OutcomeKind
from redpoll.bus.records import QueueSpec, check_subject
from redpoll.errors import ConfigError, NoRoute, QueueFull, SpecConflict

__all__ = ["Queues"]

_LOOK: Final = 0.1
"""Minimum seconds between two looks whether a queue is used. A shorter one could be over at the time at which it began."""

_CHANGEABLE: Final = ("max_length", "max_bytes", "at_limit", "expires", "ttl", "max_attempts", "dead_letter", "topics")


class Queues:
    """The queues of a broker.

    Args:
        tasks: The tasks, which know the queues by name.
        work: The operations of workers.
        schedules: The schedules.
        topics: The queues by their topics.
        tokens: The numbers of hand-outs.
    """

    def __init__(
        self, tasks: Tasks, work: Work, schedules: Schedules, topics: Topics[Queue], tokens: Iterator[int]
    ) -> None:
        self._limits, self._out, self._timers = tasks.limits, tasks.out, tasks.timers
        self._tasks = tasks
        self._work = work
        self._schedules = schedules
        self._topics = topics
        self._tokens = tokens
        self.found = tasks.queues

    def get(self, name: str) -> Queue:
        """Return the queue of that name.

        Raises:
            NoRoute: There is none.
            ConfigError: It is no name of a queue.
        """
        found = self.found.get(name)
        if found is None:
            check_subject("queue", name)
            raise NoRoute(name, "declare it first")
        return found

    def declare(self, spec: QueueSpec, now: float, *, update: bool = False) -> Queue:
        """Make sure that a queue is there. See `redpoll.bus.engine.Engine.declare`."""
        queue = self.found.get(spec.name)
        if queue is None:
            self._check_dead_letter(spec)
            return self._make(spec, now)
        if spec != queue.spec:
            changed = spec if not update else replace(spec, **{name: getattr(queue.spec, name) for name in _CHANGEABLE})
            field = queue.spec.difference(changed)
            if field is not None:
                hint = (
                    "declare(update=True) changes it"
                    if field in _CHANGEABLE
                    else "it never changes: use another queue, or delete this one first"
                )
                raise SpecConflict(spec.name, field, getattr(queue.spec, field), getattr(spec, field), hint)
            self._check_dead_letter(spec)
            self._bind(queue, queue.spec.topics, spec.topics)
            expires = queue.spec.expires
            queue.change(spec)
            if spec.expires != expires:
                self._look(queue, now, spec.expires)
            self._out.write(spec.durable, Declared(spec, queue.paused))
            if queue.parked:
                self._tasks.admit(queue, now)
        queue.used = now
        return queue

    def _check_dead_letter(self, spec: QueueSpec) -> None:
        """Refuse a queue whose dead letters return to it: its workers would fail on them without end."""
        path, name = [spec.name], spec.dead_letter
        while name is not None and name not in path[1:]:
            path.append(name)
            if name == spec.name:
                problem = f"dead letters would return to their queue: {' -> '.join(path)}"
                raise ConfigError("dead_letter", spec.dead_letter, problem, "leave it out for one of these queues")
            found = self.found.get(name)
            name = None if found is None else found.spec.dead_letter

    def _make(self, spec: QueueSpec, now: float) -> Queue:
        if len(self.found) >= self._limits.queues:
            raise QueueFull(None, self._limits.queues, "queues", queue=spec.name)
        queue = Queue(spec, self._limits, self._out, self._tokens)
        # It may be refused.
        self._bind(queue, (), spec.topics)
        self.found[spec.name] = queue
        self._out.write(spec.durable, Declared(spec, False))
        self._out.note("declared", spec.name)
        queue.used = now
        self._look(queue, now, spec.expires)
        return queue

    def _bind(self, queue: Queue, old: tuple[str, ...], new: tuple[str, ...]) -> None:
        if self._topics.count - len(old) + len(new) > self._limits.subscriptions:
            raise QueueFull(None, self._limits.subscriptions, "topics", queue=queue.name)
        for pattern in new:
            self._topics.add(pattern, queue)
        for pattern in old:
            self._topics.remove(pattern, queue)

    def delete(self, queue: Queue, now: float, reason: str = "its queue was deleted") -> None:
        """Delete a queue: its tasks end as cancelled, its consumers, its dead letters and its schedules go."""
        self._bind(queue, queue.spec.topics, ())
        self._schedules.remove_all(queue.name)
        del self.found[queue.name]
        self._look(queue, now, None)
        for parked in tuple(queue.parked):
            # Made again, it finds that the queue is gone.
            if not parked.done:
                parked.retry(parked, now)
        queue.parked.clear()
        for task in [*queue.in_line(), *queue.delayed, *self._tasks.taken(queue)]:
            if task.state != GONE:
                self._tasks.revoke(task, OutcomeKind.CANCELLED, now, reason)
        for task in tuple(queue.dead.values()):
            self._tasks.unbury(task)
        for consumer in tuple(queue.consumers.values()):
            self._work.close(consumer, now)
            if consumer.peer.present:
                self._out.effects.append((STOPPED, consumer.peer, consumer, reason))
        self._out.write(queue.spec.durable, Deleted(queue.name))
        self._out.note("deleted", queue.name)

    def pause(self, queue: Queue, paused: bool) -> None:
        """Hand nothing out, or do so again."""
        queue.paused = paused
        self._out.write(queue.spec.durable, Declared(queue.spec, paused))
        queue.dispatch()

    # -- unused queues

    def _look(self, queue: Queue, now: float, seconds: float | None) -> None:
        """Check after some seconds that a queue was used, instead of at an earlier time that was set."""
        if queue.timer is not None:
            self._timers.cancel(queue.timer)
        queue.timer = None if seconds is None else self._timers.add(now + max(seconds, _LOOK), queue)

    def expire(self, queue: Queue, now: float) -> None:
        """Delete a queue that nobody used for its time, or look again later."""
        seconds = queue.spec.expires or 0.0
        # Tasks wait for a consumer. Events only come as long as the queue is there: it goes with them.
        in_use = queue.consumers or (queue.count and queue.spec.kind != "events")
        unused = 0.0 if in_use else now - queue.used
        if unused >= seconds:
            self.delete(queue, now, "its queue was not used")
        else:
            self._look(queue, now, seconds - unused)
