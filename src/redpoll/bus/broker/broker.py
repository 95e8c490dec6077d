"""A broker: its parts put together. It knows neither loop nor clock nor disk nor network.

Calls take the time as `now`; what is to be done is in `out`, see `redpoll.bus.broker.outputs`; `deadline` says when
`advance` is to be called next. It is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from redpoll.bus.broker.admin import Admin
from redpoll.bus.broker.intake import Intake
from redpoll.bus.broker.limits import Limits
from redpoll.bus.broker.outputs import Outbox, Write
from redpoll.bus.broker.peers import Peers
from redpoll.bus.broker.queue import Consumer, Parked, Peer, Queue, Subscription, Task
from redpoll.bus.broker.queues import Queues
from redpoll.bus.broker.restore import Restored, bury, hold, task_of
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
        bits: Gives 64 random bits at a time.
        limits: What it holds at most, and how long it waits.
        journal: Whether its owner stores the writes.
        epoch: Rises each time that a broker is made from the same store: a token of an earlier one is lower.
        serial: The highest serial that was ever used in the store; writes that are restored may show a higher one.

    Attributes:
        out: What is to be done.
        peers: Who is there.
        queues: Which queues there are.
        intake: What publishers do.
        work: What workers do.
        admin: What operators do.
        tasks: The tasks; to look at.
        timers: What is to happen later; to look at.
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
        self.queues = Queues(self.tasks, self.work, bound, tokens)
        self.intake = Intake(self.tasks, bound, live)
        self.admin = Admin(self.tasks)

    @property
    def deadline(self) -> float | None:
        """When `advance` is to be called next; None: not before something happens."""
        return self.timers.deadline

    def advance(self, now: float) -> None:
        """Do what has come due."""
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
        serial: int = 0,
    ) -> Broker:
        """Make a broker as it was.

        What workers had stays theirs for `Limits.reclaim`: they `Peers.join`, consume, `Work.reclaim` and `Peers.settle`.

        Args:
            writes: Those that the earlier ones made and that were stored, in order; or a shorter list of what is left.
            now: The time; writes have their times on the same clock.
            store: As for the broker.
            bits: As for the broker.
            limits: As for the broker.
            epoch: Higher than that of any earlier one.
            serial: As for the broker.
        """
        found = Restored(writes)
        broker = cls(store, bits, limits, journal=True, epoch=epoch, serial=max(serial, found.serial))
        broker._fill(found, now)
        return broker

    def _fill(self, found: Restored, now: float) -> None:
        nobody = Peer("", None, present=False, open=False, gone=True)
        for declared in found.queues.values():
            queue = self.queues.declare(declared.spec, now)
            if declared.paused:
                self.queues.pause(queue, True)
        queues = self.queues.found
        for used in found.keys:
            if used.queue in queues:
                queues[used.queue].dedup.add(used.key, used.id, used.when)
        for ended in found.results.values():
            self.tasks.results.add(ended)
        for dead in found.dead.values():
            if dead.queue in queues:
                bury(queues[dead.queue], dead, nobody)
        for subject, kept in found.kept.items():
            self.intake.kept.restore(subject, kept.events)
        holders: dict[tuple[str, str], Consumer] = {}
        for slot in found.tasks.values():
            if slot.put.queue not in queues:
                continue
            task = task_of(slot, queues[slot.put.queue], nobody)
            self.tasks.restore(task, slot.put.expires)
            if slot.taken is not None:
                key = (slot.taken.peer, slot.put.queue)
                if key not in holders:
                    peer = self.peers.found.get(key[0]) or self.peers.absent(key[0])
                    holders[key] = self.work.absent(peer, task.queue)
                hold(task, slot.taken, holders[key], accepted=slot.accepted)
            elif slot.due is not None and slot.due > now:
                self.tasks.delay(task, slot.due)
            else:
                task.queue.add(task)
        for peer in self.peers.found.values():
            self.peers.expect(peer, now, self.limits.reclaim, blame=False)
