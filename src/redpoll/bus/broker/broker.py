"""A broker: its parts put together, without loop, clock, disk and network.

Calls take the time as `now`, and leave effects in `out` (`redpoll.bus.broker.outputs`); `advance` is to be called at the
`deadline`. It is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count

from redpoll.bus.broker.admin import Admin
from redpoll.bus.broker.intake import Intake
from redpoll.bus.broker.limits import Limits
from redpoll.bus.broker.outputs import Outbox, Write
from redpoll.bus.broker.peers import Peers
from redpoll.bus.broker.queue import Consumer, Parked, Peer, Queue, Subscription, Task
from redpoll.bus.broker.queues import Queues
from redpoll.bus.broker.restore import Restored, Stored, bury, hold, task_of
from redpoll.bus.broker.schedules import Schedule, Schedules
from redpoll.bus.broker.tasks import DUE, Tasks
from redpoll.bus.broker.timers import Timers
from redpoll.bus.broker.topics import Topics
from redpoll.bus.broker.work import Work

__all__ = ["Broker"]

_EPOCH = 40


class Broker:
    """Queues and subjects, and the tasks, events and peers in them.

    Args:
        store: Name of the store: the first part of each id.
        bits: 64 random bits at a time.
        limits: The limits of what it holds and how long it waits.
        journal: True if its owner stores the writes.
        epoch: Number of the run of the store, which rises: a token of an earlier run is lower.
        serial: The highest serial that was ever used in the store; writes that are restored may show a higher one.

    Attributes:
        out: The outbox, with effects and writes.
        peers: The peers.
        queues: The queues.
        intake: The operations of publishers.
        work: The operations of workers.
        admin: The operations of operators.
        schedules: Tasks at set times.
        tasks: The tasks; to be read only.
        timers: The timers; to be read only.
    """

    def __init__(
        self,
        store: str,
        bits: Iterator[int],
        limits: Limits | None = None,
        *,
        journal: bool = False,
        epoch: int = 0,
        serial: int = 0,
        wall: Callable[[float], float] = float,
    ) -> None:
        self.limits = limits = Limits() if limits is None else limits
        self.out = out = Outbox(journal)
        self.timers = timers = Timers()
        tokens = count((epoch << _EPOCH) + 1)
        bound: Topics[Queue] = Topics()
        live: Topics[Subscription] = Topics()
        self.tasks = Tasks(limits, out, timers, store, bits, serial)
        self.work = Work(self.tasks)
        self.peers = Peers(self.tasks, self.work, live)
        self.schedules = Schedules(self.tasks, wall)
        self.queues = Queues(self.tasks, self.work, self.schedules, bound, tokens)
        self.intake = Intake(self.tasks, bound, live)
        self.admin = Admin(self.tasks)

    @property
    def deadline(self) -> float | None:
        """The time at which `advance` is to be called next; None: not before another call."""
        return self.timers.deadline

    def advance(self, now: float) -> None:
        """Carry out the timers that are due."""
        for subject, what in self.timers.due(now):
            if type(subject) is Task:
                if what == DUE:
                    self.tasks.ripen(subject)
                else:
                    self.tasks.expire(subject, now)
            elif type(subject) is Parked:
                self.intake.expire(subject, now)
            elif type(subject) is Peer:
                self.peers.act(subject, what, now)
            elif type(subject) is Queue:
                self.queues.expire(subject, now)
            elif type(subject) is Schedule:
                self.schedules.fire(subject, now)

    @classmethod
    def restored(
        cls,
        writes: Iterable[Write],
        now: float,
        store: str,
        bits: Iterator[int],
        limits: Limits | None = None,
        *,
        epoch: int,
        tasks: Iterable[Stored] = (),
        serial: int = 0,
        wall: Callable[[float], float] = float,
    ) -> Broker:
        """Restore a broker.

        The tasks of workers stay theirs for `Limits.reclaim`: they `Peers.join`, consume, `Work.reclaim` and `Peers.settle`.

        Args:
            writes: The stored writes of the earlier brokers, in order; or a shorter list with the same effect.
            now: The time; writes have their times on the same clock.
            store: As for the broker.
            bits: As for the broker.
            limits: As for the broker.
            epoch: Higher than that of any earlier one.
            tasks: Tasks beside those of the writes; each is looked at once, as a million of them are normal.
            serial: As for the broker.
            wall: As for the broker.
        """
        found = Restored(writes)
        broker = cls(store, bits, limits, journal=True, epoch=epoch, serial=max(serial, found.serial), wall=wall)
        broker._fill(found, chain(found.tasks.values(), tasks), now)
        return broker

    def _fill(self, found: Restored, tasks: Iterable[Stored], now: float) -> None:
        nobody = Peer("", None, present=False, open=False, gone=True)
        for declared in found.queues.values():
            queue = self.queues.declare(declared.spec, now)
            if declared.paused:
                self.queues.pause(queue, True)
        queues = self.queues.found
        followers: list[Task] = []
        for dead in found.dead.values():
            if dead.queue in queues:
                buried = bury(queues[dead.queue], dead, nobody)
                if dead.after:
                    self.tasks.follow(buried, dead.after)
                    followers.append(buried)
        for subject, kept in found.kept.items():
            self.intake.kept.restore(subject, kept.events)
        holders: dict[tuple[str, str], Consumer] = {}
        for put, taken, accepted in tasks:
            if put.queue not in queues:
                continue
            queue = queues[put.queue]
            task = task_of(put, queue, self.tasks.charged(put.size), nobody)
            self.tasks.restore(task, put.expires)
            if put.after:
                # Those before it have lower numbers, and are there, unless they have ended.
                self.tasks.follow(task, put.after)
                followers.append(task)
            if taken is not None:
                key = (taken.peer, put.queue)
                if key not in holders:
                    peer = self.peers.found.get(key[0]) or self.peers.absent(key[0])
                    holders[key] = self.work.absent(peer, queue)
                hold(task, taken, holders[key], accepted=accepted)
            elif put.after and task.more.waits:
                self.tasks.delay(task, None)
            elif put.due is not None and put.due > now:
                self.tasks.delay(task, put.due)
            else:
                queue.add(task)
        # Not before: some are held.
        for ended in found.results.values():
            self.tasks.results.add(ended)
        for task in followers:
            self.tasks.bring(task)
        for used in found.keys:
            if used.queue in queues:
                queues[used.queue].dedup.add(used.key, used.id, used.when, self.tasks.found)
        for each in found.schedules.values():
            if each.values is not None:
                # Their zone, and the fate of missed ones, which older hubs had not.
                target, payload, size, options, *times = each.values
                if target not in queues:
                    self.schedules.forget(each.name)
                    continue
                made = Schedule(each.name, target, payload, size, tuple(options), *times)
                made.due = each.due
                self.schedules.restore(made, now)
        for peer in self.peers.found.values():
            self.peers.expect(peer, now, self.limits.reclaim, blame=False)
