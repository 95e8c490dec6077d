"""The tasks of a broker: each is in exactly one place from `put` until `end`, which gives it its one outcome.

A task is put in, delayed, put back and ended here. Handing out is in `Queue`; other changes by workers and operators
(accepted, asked to stop, reclaimed, moved) are in `Work` and `Admin`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any, Final

from redpoll.bus.broker.kept import Results
from redpoll.bus.broker.limits import CHARGE, Limits
from redpoll.bus.broker.outputs import (
    CANCELLED,
    OUTCOME,
    PROGRESS,
    Back,
    Buried,
    Dead,
    Effect,
    Ended,
    Keyed,
    Outbox,
    Put,
)
from redpoll.bus.broker.queue import (
    ACCEPTED,
    CANCEL,
    COLLECT,
    DEAD,
    DEADLINE,
    DELAYED,
    DURABLE,
    GONE,
    KEEP,
    PLAIN,
    TAKEN,
    Extra,
    Options,
    Parked,
    Peer,
    Queue,
    Task,
)
from redpoll.bus.broker.timers import Timers
from redpoll.bus.envelope import OutcomeKind
from redpoll.bus.records import task_id

__all__ = ["DUE", "EXPIRES", "Tasks", "as_before"]

#: Stamps of a task's timers.
DUE, EXPIRES = 0, 1

_DIGITS: Final = 64
_SIZES: Final = 4_096
_NO_EXTRA: Final = Extra()
_RESULT: Final = OutcomeKind.RESULT
_CANCELLED: Final = OutcomeKind.CANCELLED
_EXPIRED: Final = OutcomeKind.EXPIRED
_AFTER: Final = "it came after task"
_ENDS: Final[Mapping[OutcomeKind, str]] = MappingProxyType(
    {
        OutcomeKind.ERROR: "failed",
        OutcomeKind.CANCELLED: "was cancelled",
        OutcomeKind.DEAD: "became a dead letter",
        OutcomeKind.EXPIRED: "expired",
        OutcomeKind.TIME_LIMIT: "exceeded its time limit",
        OutcomeKind.LOST: "was lost",
    }
)
#: Characters of the reason of a task that is cancelled with the one before it.
_LONGEST: Final = 400
_new: Final = tuple.__new__


def as_before(task: Task) -> Options:
    """Return the options with which a task is put into a queue again, as another one."""
    priority = 0 if task.extra is None else task.extra.priority
    return priority, 0.0, None, None, None, bool(task.flags & KEEP), False, None


class Tasks:
    """The tasks that have no outcome yet, by number, and the outcomes that are kept.

    Args:
        limits: The broker's.
        out: The outbox.
        timers: The timers.
        store: Name of the store, for ids.
        bits: 64 random bits for each id.
        serial: The last serial that was used.

    Attributes:
        limits: The limits of the broker; for its other parts, as what follows.
        out: The outbox.
        timers: The timers.
        found: The tasks.
        results: The outcomes.
        queues: The queues by name; `Queues` keeps it.
        peers: The peers by name; `Peers` keeps it.
        last: The last number that was used.
    """

    def __init__(
        self, limits: Limits, out: Outbox, timers: Timers, store: str, bits: Iterator[int], serial: int
    ) -> None:
        self.store = store
        self.limits = self._limits = limits
        self.out = self._out = out
        self.timers = self._timers = timers
        self._bits = bits
        self._numbers = count((serial + 1) << _DIGITS, 1 << _DIGITS)
        self._sizes: dict[int, int] = {}
        self.found: dict[int, Task] = {}
        self.results = Results(limits, out)
        # The tasks that come after one, by the number of that; and the ends that have not been carried on to these.
        self._followers: dict[int, list[Task]] = {}
        self._ends: deque[tuple[int, OutcomeKind, float, int, str]] = deque()
        self.queues: dict[str, Queue] = {}
        self.peers: dict[str, Peer] = {}
        self.last = serial << _DIGITS

    def text(self, number: int) -> str:
        """Return the id of a task as text."""
        return task_id(self.store, number)

    def taken(self, queue: Queue) -> list[Task]:
        """Return the tasks of a queue that workers have, in their order; those of other queues are not looked at."""
        if not queue.taken:
            return []
        held = (
            each.held.values()
            for peer in self.peers.values()
            for each in peer.consumers.values()
            if each.queue is queue
        )
        return sorted((task for part in held for task in part if task.state != GONE), key=lambda task: task.id)

    def knows(self, number: int) -> bool:
        """Return True if a number may be that of an earlier task."""
        return 0 < number >> _DIGITS <= self.last >> _DIGITS

    # -- in

    def put(
        self,
        queue: Queue,
        payload: Any,
        size: int,
        now: float,
        peer: Peer,
        watch: Any = None,
        options: Options = PLAIN,
        origin: Task | None = None,
        after: tuple[int, ...] = (),
        collect: bool = False,
    ) -> Task:
        """Put a new task into a queue, also into a full one.

        Args:
            queue: The queue.
            payload: The owner's.
            size: Bytes of its body.
            now: The time.
            peer: The publisher.
            watch: The owner's watcher, or None.
            options: The options of the publish.
            origin: The dead letter that it was, or None.
            after: Numbers of tasks without an outcome, of which it waits for all.
            collect: True if it begins however these end; else it is cancelled if one does not end with a result.
        """
        priority, delay, ttl, deadline, dedup, keep, _, _ = options
        size = self._sizes.get(size) or self.charged(size)
        self.last = number = next(self._numbers) + next(self._bits)
        task = Task(number, queue, payload, size, queue.flags | KEEP if keep else queue.flags, peer, watch)
        self.found[number] = task
        queue.count += 1
        queue.bytes += size
        queue.submitted += 1
        if priority > 0 and queue.spec.priorities > 1:
            task.more.priority = priority
        if origin is not None:
            task.more.origin = origin.id
            task.more.history = origin.more.history
            after = origin.more.after
        if collect:
            task.flags |= COLLECT
        if after:
            self.follow(task, after)
            self.bring(task)
        if deadline is not None:
            task.flags |= DEADLINE
            task.timer = self._timers.add(now + deadline, task, EXPIRES)
        elif ttl is not None or queue.ttl is not None:
            task.timer = self._timers.add(now + (ttl if ttl is not None else queue.ttl or 0.0), task, EXPIRES)
        if dedup is not None:
            queue.dedup.add(dedup, number, now, self.found)
        out = self._out
        if out.writes is not None and task.flags & DURABLE:
            out.writes.append(self._written(task, now + delay if delay > 0 else None))
            if dedup is not None:
                out.writes.append(Keyed(queue.name, dedup, number, now))
        if out.observed:
            out.note("submitted", queue.name, number)
        if after and task.more.waits:
            self.delay(task, None)
        elif delay > 0:
            self.delay(task, now + delay)
        else:
            queue.add(task)
        return task

    def charged(self, size: int) -> int:
        """Return the size of a task with a body. Bodies have few sizes: there is one int for each, not for each task."""
        found = self._sizes.get(size)
        if found is None:
            if len(self._sizes) >= _SIZES:
                self._sizes.clear()
            found = self._sizes[size] = size + CHARGE
        return found

    def _written(self, task: Task, due: float | None) -> Put:
        it = task.extra or _NO_EXTRA
        where = (task.id, task.queue.name, task.payload, task.body, task.flags)
        expires = None if task.timer is None else task.timer[0]
        return _new(Put, (*where, it.priority, due, expires, it.attempts, it.history, it.origin, it.lost, it.after))

    def delay(self, task: Task, due: float | None) -> None:
        """Make a task ready later that has no place: at a time, or when all have ended that it comes after."""
        task.state = DELAYED
        task.queue.delayed[task] = None
        task.more.ripens = None if due is None else self._timers.add(due, task, DUE)

    # -- tasks that come after others

    def follow(self, task: Task, after: tuple[int, ...]) -> None:
        """Let a task come after others, some of which may have ended; their outcomes are held until it ends."""
        extra = task.more
        extra.after = after
        self.results.hold(after)
        if task.state == DEAD:
            return
        for number in after:
            if number in self.found:
                extra.waits += 1
                self._followers.setdefault(number, []).append(task)

    def bring(self, task: Task) -> None:
        """Count the outcomes that a task is given as part of it: those that are there."""
        self._grow(task, sum(map(self.results.held_size, task.more.after)))

    @staticmethod
    def _grow(task: Task, size: int) -> None:
        task.size += size
        task.more.brought += size
        if task.state == DEAD:
            task.queue.dead_bytes += size
        else:
            task.queue.bytes += size

    def _lead(self) -> None:
        """Carry ends on to the tasks that come after: the last one makes such a task ready, a failure cancels it.

        In a loop: a chain may have any length.
        """
        ends = self._ends
        while ends:
            number, kind, now, size, detail = ends[0]
            for task in self._followers.pop(number, ()):
                if task.state != DELAYED:
                    # It ended before.
                    continue
                if kind is not _RESULT and not task.flags & COLLECT:
                    if kind is not _CANCELLED or not detail.startswith(_AFTER):
                        said = f": {detail}" if detail else ""
                        reason = f"{_AFTER} {self.text(number)}, which {_ENDS[kind]}{said}"[:_LONGEST]
                    else:
                        reason = detail
                    self.end(task, _CANCELLED, now, detail=reason)
                    continue
                self._grow(task, size + CHARGE)
                task.more.waits -= 1
                if not task.more.waits:
                    self.ripen(task)
            ends.popleft()

    def restore(self, task: Task, expires: float | None) -> None:
        """Count a task that was there before a restart; it has no place yet."""
        queue = task.queue
        self.found[task.id] = task
        queue.count += 1
        queue.bytes += task.size
        if expires is not None:
            task.timer = self._timers.add(expires, task, EXPIRES)

    def leave(self, task: Task, *, ends: bool = False) -> None:
        """Take a task out of its place in its queue."""
        task.queue.remove(task, ends=ends)
        if task.state == DELAYED and task.extra is not None and task.extra.ripens is not None:
            self._timers.cancel(task.extra.ripens)

    # -- out

    def end(
        self,
        task: Task,
        kind: OutcomeKind,
        now: float,
        payload: Any = None,
        size: int = 0,
        detail: str = "",
    ) -> None:
        """Give a task its outcome: it leaves its queue, and its watchers are told.

        Its worker is not told here; its token is refused from now on.
        """
        queue = task.queue
        state = task.state
        if TAKEN <= state <= ACCEPTED:
            queue.taken -= 1
        else:
            self.leave(task, ends=True)
        task.state = GONE
        del self.found[task.id]
        queue.count -= 1
        queue.bytes -= task.size
        if task.timer is not None:
            self._timers.cancel(task.timer)
        extra = task.extra
        out = self._out
        keep = bool(task.flags & KEEP)
        stored = out.writes is not None and task.flags & DURABLE
        if keep or stored:
            attempts, history = (0, ()) if extra is None else (extra.attempts, extra.history)
            fields = (task.id, keep, kind, payload, size, detail, task.token, now, attempts, history, queue.name)
            ended = _new(Ended, fields)
            if keep:
                self.results.add(ended)
            if out.writes is not None and stored:
                out.writes.append(ended)
        if task.watch is not None:
            if task.peer.present:
                out.effects.append((OUTCOME, task.peer, task.watch, task.id, kind, payload, detail))
            else:
                self.tell(task.peer, (OUTCOME, task.peer, task.watch, task.id, kind, payload, detail))
            task.watch = None
        if extra is not None:
            for peer, watch in extra.watchers:
                self.tell(peer, (OUTCOME, peer, watch, task.id, kind, payload, detail))
            # A dead letter keeps its fields.
            extra.watchers = ()
        task.payload = None
        if extra is not None and extra.after:
            self.results.release(extra.after)
        if self._followers and task.id in self._followers:
            self._ends.append((task.id, kind, now, size, detail))
            if len(self._ends) == 1:
                self._lead()
        queue.ended[kind] += 1
        if out.observed:
            out.note(kind.name.lower() if kind > 1 else "done", queue.name, task.id, detail)
        if queue.parked:
            self.admit(queue, now)

    def revoke(self, task: Task, kind: OutcomeKind, now: float, reason: str) -> None:
        """Give a task its outcome, wherever it is, and tell its worker, if it has one, that the task is cancelled."""
        consumer = task.consumer if task.state in (TAKEN, ACCEPTED) else None
        self.end(task, kind, now, detail=reason)
        if consumer is not None and consumer.peer.present:
            self._out.effects.append((CANCELLED, consumer.peer, consumer, task.token, reason))

    def progress(self, task: Task, payload: Any) -> bool:
        """Send progress to the watchers of a task; return True if there are any."""
        if task.watch is not None:
            self.tell(task.peer, (PROGRESS, task.peer, task.watch, task.id, payload))
        if task.extra is not None:
            for peer, watch in task.extra.watchers:
                self.tell(peer, (PROGRESS, peer, watch, task.id, payload))
        return self.is_watched(task)

    @staticmethod
    def is_watched(task: Task) -> bool:
        """Return True if a task has watchers of peers that are not gone for good."""
        if task.watch is not None and not task.peer.gone:
            return True
        return task.extra is not None and not all(peer.gone for peer, _ in task.extra.watchers)

    def tell(self, peer: Peer, effect: Effect) -> None:
        """Send an effect to a peer's watcher, now or when the peer is back."""
        if peer.present:
            self._out.effects.append(effect)
        elif not peer.gone:
            backlog = peer.backlog
            if len(backlog) >= self._limits.inbox_events:
                if effect[0] == PROGRESS:
                    return
                backlog.popleft()
            backlog.append(effect)

    # -- back

    def back(
        self,
        task: Task,
        now: float,
        delay: float = 0.0,
        *,
        blame: bool = False,
        reason: str = "",
        front: bool = True,
        again: bool = False,
    ) -> None:
        """Put a task back that was handed out; or end it, where it is not to be handed out again.

        Args:
            task: In state TAKEN or ACCEPTED, and in nobody's hands any more.
            now: The time.
            delay: Seconds until it is ready.
            blame: True if this was an attempt that failed.
            reason: For its history.
            front: True if it is the next one then.
            again: True if it was handed out ahead and not begun: it has its place again.
        """
        queue = task.queue
        if task.flags & CANCEL:
            self.end(task, OutcomeKind.CANCELLED, now, detail="cancelled while it was worked on")
            return
        if task.state == ACCEPTED:
            self.end(task, OutcomeKind.LOST, now, detail=reason)
            return
        if task.timer is not None and task.timer[0] <= now:
            self.end(task, _EXPIRED, now, detail="its time ended before it was done")
            return
        if blame or reason:
            extra = task.more
            extra.attempts += blame
            extra.history = (*extra.history, reason)[-self._limits.history :]
            limit = queue.spec.max_attempts
            if blame and limit is not None and extra.attempts >= limit:
                self.bury(task, now, f"{extra.attempts} attempts failed, the last one: {reason}")
                return
        queue.taken -= 1
        queue.requeued += 1
        out = self._out
        if out.writes is not None and task.flags & DURABLE:
            due = now + delay if delay > 0 else None
            out.writes.append(self.went_back(task, due))
        if out.observed:
            out.note("requeued", queue.name, task.id, reason)
        if delay > 0:
            self.delay(task, now + delay)
        elif again and (task.extra is None or not (task.extra.lost or task.extra.excluded)):
            queue.add_again(task)
        else:
            queue.add(task, front=front)

    @staticmethod
    def went_back(task: Task, due: float | None) -> Back:
        """Return the write of a task that is in its queue again."""
        extra = task.extra or _NO_EXTRA
        return Back(task.id, due, extra.attempts, extra.history, extra.lost)

    def bury(self, task: Task, now: float, reason: str) -> None:
        """End a task as a dead letter, and keep it beside its queue or in the queue for such."""
        queue = task.queue
        payload = task.payload
        history = task.more.history = (*task.more.history, reason)[-self._limits.history :]
        after = task.more.after
        # Also when it has ended: it may be redriven.
        self.results.hold(after)
        self.end(task, OutcomeKind.DEAD, now, detail=reason)
        other = self.queues.get(queue.spec.dead_letter or "")
        if other is not None and other is not queue and self._takes(other, task, now):
            self.put(other, payload, task.body, now, task.peer, None, as_before(task), task)
            self.results.release(after)
            return
        task.state = DEAD
        task.payload = payload
        task.consumer = None
        queue.dead[task.id] = task
        queue.dead_bytes += task.size
        if self._out.writes is not None and task.flags & DURABLE:
            it = task.more
            where = (task.id, queue.name, payload, task.body, history, task.flags)
            self._out.writes.append(Dead(*where, it.priority, it.attempts, it.origin, after))
        spec = queue.spec
        while len(queue.dead) > 1 and (
            queue.dead_bytes > spec.max_bytes or (spec.max_length is not None and len(queue.dead) > spec.max_length)
        ):
            self.unbury(next(iter(queue.dead.values())))
            queue.dropped += 1

    def _takes(self, queue: Queue, task: Task, now: float) -> bool:
        """Return True if a queue takes a dead letter: it has room, or drops its oldest tasks for it.

        One on disk stays there: a queue that is not stored does not take it.
        """
        if self._out.writes is not None and task.flags & ~queue.flags & DURABLE:
            return False
        if queue.spec.at_limit == "drop-old":
            return self.make_room(queue, task.size, now)
        return queue.has_room(task.size)

    def unbury(self, task: Task) -> None:
        """Remove a dead letter."""
        queue = task.queue
        del queue.dead[task.id]
        queue.dead_bytes -= task.size
        task.state = GONE
        task.payload = None
        self.results.release(task.more.after)
        self._out.write(task.flags & DURABLE, Buried(task.id))

    # -- time, and room

    def expire(self, task: Task, now: float) -> None:
        """Expire a task, if it is not being worked on or the time is a deadline."""
        if task.state in (TAKEN, ACCEPTED) and not task.flags & DEADLINE:
            return
        self.revoke(task, _EXPIRED, now, "its deadline passed" if task.flags & DEADLINE else "it was not begun in time")
        task.queue.close_up()

    def ripen(self, task: Task) -> None:
        """Make a delayed task ready."""
        del task.queue.delayed[task]
        task.queue.add(task)

    def admit(self, queue: Queue, now: float) -> None:
        """Admit publishes that wait for room, as far as there is."""
        while queue.parked:
            parked: Parked = queue.parked[0]
            if not parked.done and not parked.retry(parked, now):
                return
            # It may have been admitted in the middle of being admitted.
            if queue.parked and queue.parked[0] is parked:
                queue.parked.popleft()

    def make_room(self, queue: Queue, size: int, now: float, number: int = 1) -> bool:
        """Drop the oldest ready tasks until one more fits, or more of that size together; return True if they do."""
        while not queue.has_room(size, number):
            oldest = queue.oldest()
            if oldest is None:
                return False
            queue.dropped += 1
            self.end(oldest, OutcomeKind.DEAD, now, detail="dropped for a newer one: the queue is full")
        return True
