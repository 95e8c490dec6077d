"""A queue: it chooses the next task, and the consumer that is given it.

Ready tasks stand in one FIFO per priority. Tasks with a history are apart, and rare: tasks that some consumers
excluded, by the set of these; and tasks that lost two workers, each of which is to have a worker for itself.

A task that ends in the middle of a FIFO keeps its entry there, which is skipped, and sorted out once such entries are the
majority.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from heapq import heappop, heappush, heapreplace
from typing import Any, Final, TypeAlias

from redpoll.bus.broker.kept import Dedup
from redpoll.bus.broker.limits import CHARGE, Limits
from redpoll.bus.broker.outputs import DELIVER, Accepted, Effect, Outbox, Taken
from redpoll.bus.broker.permissions import title_of
from redpoll.bus.broker.timers import Entry
from redpoll.bus.envelope import OutcomeKind
from redpoll.bus.records import QueueSpec

__all__ = [
    "ACCEPTED",
    "ASIDE",
    "CANCEL",
    "COLLECT",
    "DEAD",
    "DEADLINE",
    "DELAYED",
    "DURABLE",
    "GONE",
    "KEEP",
    "PLAIN",
    "POISON",
    "READY",
    "TAKEN",
    "Consumer",
    "Extra",
    "Options",
    "Parked",
    "Peer",
    "Queue",
    "Subscription",
    "Task",
]

#: The places of a task. GONE is none: it has its outcome, or never was in the queue; a worker may hold it still.
READY, DELAYED, ASIDE, TAKEN, ACCEPTED, DEAD, GONE = range(7)

#: Flags of a task: its outcome is stored; its time to expire is a deadline; its worker was asked to stop; it is stored; it
#: begins however the tasks end that it comes after.
KEEP, DEADLINE, CANCEL, DURABLE, COLLECT = 1, 2, 4, 8, 16

_new: Final = tuple.__new__

POISON: Final = 2
"""A task that lost so many workers gets a worker for itself."""


Options: TypeAlias = tuple[int, float, float | None, float | None, str | None, bool, bool, float | None]
"""The options of a publish: priority, delay, ttl, deadline, dedup, keep, mandatory, timeout, as
`redpoll.bus.engine.Engine.publish` has them."""

PLAIN: Final[Options] = (0, 0.0, None, None, None, True, False, None)


@dataclass(slots=True, eq=False, repr=False)
class Peer:
    """A peer of the broker: a bus in this process, or a client."""

    name: str
    """Its name; a peer that returns has the same."""
    owner: Any
    """The owner's own."""
    present: bool = True
    """True if it is connected. An absent one keeps its tasks for a while."""
    gone: bool = False
    """True if it is not expected back."""
    open: bool = True
    """True if tasks may be handed to it: it is present, reads, has not stalled, and is not kept for a poison task."""
    unread: int = 0
    """Bytes of tasks on the way to it, as far as its owner counts them."""
    limit: float = math.inf
    """Maximum of these, beyond which it is given no further task."""
    stalled: bool = False
    """True if it begins nothing until it resumes."""
    solo: Queue | None = None
    """The queue whose poison task it has, or is kept for."""
    held: int = 0
    """Tasks in its hands."""
    consumers: dict[int, Consumer] = field(default_factory=dict)
    """Its consumers by number."""
    subscriptions: dict[Subscription, None] = field(default_factory=dict)
    """Its live subscriptions."""
    backlog: deque[Effect] = field(default_factory=deque)
    """The effects for its watchers that wait for its return."""
    timers: list[Entry] = field(default_factory=list)
    """The timers that end its absence."""
    blame: bool = True
    """True if its tasks count as lost with it, should it not return."""

    def look_open(self) -> None:
        """Set `open`."""
        self.open = self.present and not self.stalled and self.solo is None and self.unread < self.limit


@dataclass(slots=True, eq=False, repr=False)
class Consumer:
    """A consumer of one queue."""

    number: int
    """Unique in the broker, and below all tokens."""
    peer: Peer
    """Its peer."""
    queue: Queue
    """The queue."""
    credit: int
    """The number of hand-outs that it takes now."""
    owner: Any
    """The owner's own."""
    auto: bool = True
    """True if a task that ends gives a credit back."""
    exclusive: bool = False
    """True if no other consumer is allowed."""
    accepts: bool = False
    """True if each task is accepted as it is handed out."""
    slots: int = 0
    """The number of tasks that it begins at a time; it begins them in the order of their tokens."""
    ahead: int = 0
    """The number of hand-outs that it takes beyond its credit, before it has a slot for them."""
    lent: bool = False
    """True if it was ever given a task ahead."""
    in_turn: bool = False
    """True if it stands among those that take tasks ahead."""
    closed: bool = False
    """True if it takes no more; its tasks stay."""
    waiting: bool = False
    """True if it stands in line."""
    served: int = 0
    """The token that it was given last; its number before, so that consumers that never were served come first, in order."""
    held: dict[int, Task] = field(default_factory=dict)
    """Its tasks by token."""

    def __post_init__(self) -> None:
        """Stand behind earlier consumers."""
        self.served = self.number
        self.slots = self.credit


@dataclass(slots=True, eq=False, repr=False)
class Subscription:
    """A live subscription."""

    peer: Peer
    """Its peer."""
    patterns: tuple[str, ...]
    """Its patterns."""
    owner: Any
    """The owner's own."""


@dataclass(slots=True, eq=False, repr=False)
class Extra:
    """Fields that few tasks have."""

    priority: int = 0
    """Its level."""
    ripens: Entry | None = None
    """The timer that makes it ready, while delayed."""
    attempts: int = 0
    """Attempts that failed: workers that died, and others that count."""
    lost: int = 0
    """Workers that died with it."""
    blamed: int = 0
    """The hand-out that was counted last."""
    history: tuple[str, ...] = ()
    """The ends of its attempts, in words."""
    excluded: frozenset[int] = frozenset()
    """Numbers of the consumers that excluded it."""
    rounds: int = 0
    """The number of times that all consumers had excluded it."""
    watchers: tuple[tuple[Peer, Any], ...] = ()
    """More watchers, each with its peer."""
    origin: int = 0
    """Number of the dead letter that it was."""
    after: tuple[int, ...] = ()
    """Numbers of the tasks that it comes after, whose outcomes it is given."""
    waits: int = 0
    """The number of these that have no outcome yet; it is delayed, without a timer, until there is none."""
    brought: int = 0
    """Bytes of the outcomes of these, which count as its own."""


@dataclass(slots=True, eq=False, repr=False)
class Task:
    """A message in a queue. A million of them are normal: fields that few have are in `extra`."""

    id: int
    """The serial, times 2**64, and 64 random bits."""
    queue: Queue
    """Its queue."""
    payload: Any
    """The owner's message; None once it is gone, or where the owner's store has it."""
    size: int
    """Bytes that count against the limit."""
    flags: int
    """KEEP, DEADLINE, CANCEL, DURABLE."""
    peer: Peer
    """Its submitter."""
    watch: Any
    """The submitter's watcher, or None."""
    state: int = READY
    """READY to GONE."""
    consumer: Consumer | None = None
    """The consumer that has it, or had it last."""
    token: int = 0
    """The hand-out; kept when the worker was lost, since it may return; 0 before, and when it was given back."""
    timer: Entry | None = None
    """The timer by which it expires, or expired, or None."""
    extra: Extra | None = None
    """Fields that few tasks have, or None."""

    @property
    def expires(self) -> float | None:
        """The time at which it expires."""
        return None if self.timer is None else float(self.timer[0])

    @property
    def body(self) -> int:
        """Bytes of its body."""
        return self.size - CHARGE - (0 if self.extra is None else self.extra.brought)

    @property
    def attempts(self) -> int:
        """Attempts that failed."""
        return 0 if self.extra is None else self.extra.attempts

    @property
    def more(self) -> Extra:
        """Its extra, made if it has none."""
        if self.extra is None:
            self.extra = Extra()
        return self.extra


@dataclass(slots=True, eq=False, repr=False)
class Parked:
    """A publish that waits for room."""

    peer: Peer
    """Its peer."""
    owner: Any
    """The owner's own."""
    arguments: tuple[Any, ...]
    """The arguments of the call that is to be made again."""
    retry: Callable[[Parked, float], bool]
    """Makes the call again, given this and the time; returns True if this no longer waits in its queue."""
    timeout: float | None
    """Seconds that it waits, or None."""
    timer: Entry | None = None
    """The timer that ends that."""
    queue: Queue | None = None
    """The queue in which it waits."""
    done: bool = False
    """True if it waits no more."""
    since: float = 0.0
    """The time at which it began to wait."""


@dataclass(slots=True, eq=False, repr=False)
class Queue:
    """The tasks and the consumers of one queue."""

    spec: QueueSpec
    """Its settings."""
    limits: InitVar[Limits]
    _out: Outbox
    _tokens: Iterator[int]
    max_bytes: int = 0
    """As in the spec, like what follows."""
    max_length: float = math.inf
    ttl: float | None = None
    name: str = ""
    title: str = ""
    """The name without the prefix of a pattern."""
    flags: int = 0
    """The flags that its tasks begin with."""
    dedup: Dedup = field(init=False)
    """Keys of its tasks."""
    ready: int = 0
    """Tasks in state READY; those that follow likewise."""
    delayed: dict[Task, None] = field(default_factory=dict)
    """The tasks in state DELAYED."""
    aside: int = 0
    taken: int = 0
    count: int = 0
    """Tasks in any of these."""
    bytes: int = 0
    """Bytes of these tasks."""
    excluded: dict[frozenset[int], dict[Task, None]] = field(default_factory=dict)
    """Tasks that some consumers excluded, by the numbers of these."""
    poison: dict[Task, None] = field(default_factory=dict)
    """Tasks that are to have a worker for themselves."""
    reserved: Peer | None = None
    """The peer that is kept for a poison task, until it holds nothing."""
    dead: dict[int, Task] = field(default_factory=dict)
    """Dead letters, the oldest first."""
    dead_bytes: int = 0
    parked: deque[Parked] = field(default_factory=deque)
    """Publishes that wait for room."""
    consumers: dict[int, Consumer] = field(default_factory=dict)
    """Its consumers by number."""
    waiting: list[tuple[int, Consumer]] = field(default_factory=list)
    """Consumers with credit, by when they were served; some that lost theirs, which are skipped."""
    ahead: deque[Consumer] = field(default_factory=deque)
    """Consumers that take tasks ahead, in turn; some that cannot now, which are skipped."""
    paused: bool = False
    """True if nothing is handed out."""
    used: float = 0.0
    """The time at which it was declared, or a consumer joined or left."""
    timer: Entry | None = None
    """The timer of the next look at `used`, where the queue expires."""
    submitted: int = 0
    delivered: int = 0
    requeued: int = 0
    dropped: int = 0
    ended: list[int] = field(default_factory=lambda: [0] * len(OutcomeKind))
    """Tasks that ended, by the kind of their outcome."""
    _levels: tuple[deque[Task], ...] = ()
    _from_above: tuple[deque[Task], ...] = ()

    def __post_init__(self, limits: Limits) -> None:
        """Derive the fields that depend on the spec."""
        self.change(self.spec)
        self.name = self.spec.name
        # Users choose the names of tasks' queues as a whole.
        self.title = title_of(self.spec)
        self.flags = DURABLE if self.spec.durable else 0
        self.dedup = Dedup(limits.dedup_time, limits.dedup_keys)
        self._levels = tuple(deque() for _ in range(self.spec.priorities))
        self._from_above = self._levels[::-1]

    # -- room

    def change(self, spec: QueueSpec) -> None:
        """Take over another spec, of the same name, kind and durability."""
        self.spec = spec
        self.max_bytes = spec.max_bytes
        self.ttl = spec.ttl
        self.max_length = math.inf if spec.max_length is None else spec.max_length

    def has_room(self, size: int, number: int = 1) -> bool:
        """Return True if more tasks of that size together fit; the first ones always do."""
        return (self.bytes + size <= self.max_bytes and self.count + number <= self.max_length) or not self.count

    def full(self, number: int | None = None) -> tuple[float, str]:
        """Return the limit that was reached, or is by a number of tasks, and its unit."""
        reached = self.count >= self.max_length if number is None else number > self.max_length
        return (self.max_length, "tasks") if reached else (self.max_bytes, "bytes")

    # -- tasks come and go

    def add(self, task: Task, *, front: bool = False) -> None:
        """Make a task ready that has no place, and dispatch."""
        level = self._levels[0]
        extra = task.extra
        if extra is not None:
            if self.consumers.keys() <= extra.excluded:
                extra.excluded = frozenset()
            if extra.lost >= POISON or extra.excluded:
                self._put_aside(task, extra)
                return
            level = self._level(task)
        elif not self.ready and len(self.waiting) == 1 and not self.paused:
            # One consumer stands in line and nothing before this: the way of most tasks.
            consumer = self.waiting[0][1]
            if consumer.credit > 0 and consumer.peer.open and not consumer.closed:
                self._give(task, consumer)
                return
        if front:
            level.appendleft(task)
        else:
            level.append(task)
        self._stand(task)

    def add_again(self, task: Task) -> None:
        """Make a task ready that was handed out ahead: its place is where it was, behind earlier ones that are back."""
        level = self._level(task)
        earlier = []
        while level and level[0].id < task.id:
            earlier.append(level.popleft())
        level.appendleft(task)
        level.extendleft(reversed(earlier))
        self._stand(task)

    def _stand(self, task: Task) -> None:
        task.state = READY
        self.ready += 1
        if self.waiting or self.ahead:
            self.dispatch()

    def _put_aside(self, task: Task, extra: Extra) -> None:
        task.state = ASIDE
        self.aside += 1
        if extra.lost >= POISON:
            self.poison[task] = None
        else:
            self.excluded.setdefault(extra.excluded, {})[task] = None
        self.dispatch()

    def _leave_aside(self, task: Task) -> None:
        self.aside -= 1
        if task in self.poison:
            del self.poison[task]
        else:
            key = task.more.excluded
            del self.excluded[key][task]
            if not self.excluded[key]:
                del self.excluded[key]

    def _level(self, task: Task) -> deque[Task]:
        return self._levels[0 if task.extra is None else min(task.extra.priority, len(self._levels) - 1)]

    def remove(self, task: Task, *, ends: bool) -> None:
        """Take a task out of READY, ASIDE or DELAYED.

        Args:
            task: Its state is the caller's to change.
            ends: True if it is gone for good. Its entry in a FIFO is skipped then; otherwise it is searched for.
        """
        if task.state == READY:
            self.ready -= 1
            level = self._level(task)
            if not ends:
                level.remove(task)
            elif len(level) > 64 and len(level) > 2 * self.ready:
                task.state = GONE
                _sort_out(level)
        elif task.state == ASIDE:
            self._leave_aside(task)
            self._release()
        elif task.state == DELAYED:
            del self.delayed[task]

    def sort_out(self) -> None:
        """Sort the entries of ended tasks out, so that those behind them are found at once."""
        for level in self._levels:
            _sort_out(level)

    def oldest(self) -> Task | None:
        """Return the next ready task of the lowest priority that has one."""
        for level in self._levels:
            while level:
                if level[0].state == READY:
                    return level[0]
                level.popleft()
        return None

    def in_line(self) -> Iterator[Task]:
        """Iterate over the ready tasks in the order of handing out, those with a history first."""
        for tasks in (self.poison, *self.excluded.values()):
            yield from tasks
        for level in self._from_above:
            yield from (task for task in level if task.state == READY)

    # -- handing out

    def offer(self, consumer: Consumer) -> None:
        """Let a consumer stand in line if it has credit, and dispatch."""
        if consumer.peer.open and not consumer.closed:
            if consumer.credit > 0 and not consumer.waiting:
                heappush(self.waiting, (consumer.served, consumer))
                consumer.waiting = True
            if consumer.credit + consumer.ahead > 0 and consumer.ahead and not consumer.in_turn:
                self.ahead.append(consumer)
                consumer.in_turn = True
        if self.ready or self.aside:
            self.dispatch()

    def dispatch(self) -> None:
        """Hand out ready tasks to the consumers in line, the least recently served first."""
        if self.paused:
            return
        if self.aside:
            self._dispatch_aside()
        waiting = self.waiting
        while self.ready and waiting:
            served, consumer = waiting[0]
            if consumer.credit <= 0 or not consumer.peer.open or consumer.closed:
                heappop(waiting)
                consumer.waiting = False
            elif served != consumer.served:
                heapreplace(waiting, (consumer.served, consumer))
            else:
                task = next(filter(None, self._from_above)).popleft()
                if task.state == READY:
                    self.ready -= 1
                    self._give(task, consumer)
        if self.ready and self.ahead and len(self._levels) == 1:
            self._send_ahead(self._levels[0])

    def close_up(self) -> None:
        """Hand tasks out ahead that stood behind one that left: it may have been the first, and had to wait for a slot."""
        if self.ahead:
            self.dispatch()

    def _send_ahead(self, level: deque[Task]) -> None:
        """Hand out ready tasks to consumers without a free slot, in turn; nobody has a free slot.

        A task with a history, and one that expires unless it is begun, waits for a slot, and so do those behind it.
        """
        line = self.ahead
        while self.ready and line:
            consumer = line[0]
            if consumer.credit + consumer.ahead <= 0 or not consumer.peer.open or consumer.closed:
                line.popleft().in_turn = False
                continue
            task = level[0]
            if task.state == READY:
                if task.extra is not None or (task.timer is not None and not task.flags & DEADLINE):
                    return
                self.ready -= 1
                consumer.lent = True
                self._give(task, consumer)
                line.rotate(-1)
            level.popleft()

    def claim(self, task: Task, consumer: Consumer) -> None:
        """Hand a ready task to a consumer that asked for it by its number, and is told by the answer."""
        self.remove(task, ends=False)
        self._give(task, consumer, told=True)
        self.close_up()

    def _give(self, task: Task, consumer: Consumer, told: bool = False) -> None:
        token = next(self._tokens)
        task.state = ACCEPTED if consumer.accepts else TAKEN
        task.consumer = consumer
        task.token = token
        self.taken += 1
        self.delivered += 1
        consumer.held[token] = task
        consumer.credit -= 1
        consumer.served = token
        peer = consumer.peer
        peer.held += 1
        peer.unread += task.size
        if peer.unread >= peer.limit:
            peer.look_open()
        out = self._out
        if not told:
            out.effects.append((DELIVER, peer, consumer, token, task, task.payload))
        if out.writes is not None and task.flags & DURABLE:
            out.writes.append(_new(Taken, (task.id, token, peer.name)))
            if consumer.accepts:
                out.writes.append(Accepted(task.id))
        if out.observed:
            out.note("delivered", self.name, task.id, peer.name)

    def _in_line(self) -> list[Consumer]:
        """Return the consumers that can be given a task now, the least recently served first."""
        able = {each for _, each in self.waiting if each.credit > 0 and each.peer.open and not each.closed}
        return sorted(able, key=lambda each: each.served)

    def _dispatch_aside(self) -> None:
        for key in tuple(self.excluded):
            for consumer in self._in_line():
                while (
                    key in self.excluded and consumer.number not in key and consumer.credit > 0 and consumer.peer.open
                ):
                    task = next(iter(self.excluded[key]))
                    self._leave_aside(task)
                    self._give(task, consumer)
        for task in tuple(self.poison):
            if task not in self.poison:
                continue
            able = [each for each in self._in_line() if each.number not in task.more.excluded]
            idle = next((each for each in able if not each.peer.held), None)
            if idle is not None:
                self._leave_aside(task)
                self._give(task, idle)
                self.set_apart(idle.peer)
                self._release()
            elif able and self.reserved is None:
                # One peer at a time: its free slots stay empty until it holds nothing.
                self.reserved = min(able, key=lambda each: each.peer.held).peer
                self.set_apart(self.reserved)

    def set_apart(self, peer: Peer) -> None:
        """Keep a peer for a poison task, which it has or is to have: it is given nothing else."""
        peer.solo = self
        peer.look_open()

    def _release(self) -> None:
        """Keep no peer for poison tasks when none waits any more."""
        if self.reserved is not None and not self.poison:
            self.set_free(self.reserved)

    @staticmethod
    def set_free(peer: Peer) -> None:
        """Let a peer take tasks again that was kept for a poison task; that queue is first."""
        first = peer.solo
        peer.solo = None
        peer.look_open()
        if first is not None:
            if first.reserved is peer:
                first.reserved = None
            if not peer.open:
                first.dispatch()
        for consumer in sorted(peer.consumers.values(), key=lambda each: each.queue is not first):
            consumer.queue.offer(consumer)

    def left_over(self) -> list[Task]:
        """Take out the tasks that every consumer has excluded; without consumers, the tasks that any has."""
        everyone = self.consumers.keys()
        found = [task for key, tasks in self.excluded.items() if everyone <= key for task in tasks]
        found += [task for task in self.poison if task.more.excluded and everyone <= task.more.excluded]
        for task in found:
            self._leave_aside(task)
        self._release()
        return found


def _sort_out(level: deque[Task]) -> None:
    alive = [each for each in level if each.state == READY]
    level.clear()
    level.extend(alive)
