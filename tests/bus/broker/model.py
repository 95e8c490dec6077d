"""A model of a broker with a store and with workers, which come, go, freeze and return: what the broker promises holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from redpoll.bus import OutcomeKind, Publication, QueueSpec, Step
from redpoll.bus.broker import Broker, Limits
from redpoll.bus.broker.limits import CHARGE
from redpoll.bus.broker.outputs import ADMITTED, DELIVER, OUTCOME, STOPPED, WAITS, Effect, Ended, Write
from redpoll.bus.broker.queue import (
    ACCEPTED,
    ASIDE,
    COLLECT,
    DEADLINE,
    DELAYED,
    GONE,
    READY,
    TAKEN,
    Consumer,
    Parked,
    Peer,
    Queue,
    Task,
)
from redpoll.errors import Expired, QueueFull, UsageError

GRACE, RECLAIM = 1.0, 5.0
LIMITS = Limits(grace=GRACE, reclaim=RECLAIM, inbox_time=20.0, parked=3, dedup_time=10.0, dedup_keys=3)
SPECS = (
    QueueSpec("plain"),
    QueueSpec("levels", priorities=3, max_attempts=3),
    QueueSpec("short", max_length=3, max_bytes=1_600, ttl=6.0, dead_letter="graves"),
    QueueSpec("graves", at_limit="refuse"),
    QueueSpec("ring", at_limit="drop-old", max_length=2, topics=("news.#",)),
    QueueSpec("memory", durable=False),
)
NAMES = tuple(spec.name for spec in SPECS)
WORKERS = ("ann", "bob", "cid")

# Most of what happens, happens in few queues, so that it meets.
QUEUE = st.sampled_from(("plain",) * 4 + ("levels",) * 5 + ("short",) * 3 + ("ring", "memory", "graves"))


@dataclass
class Held:
    """A task that a worker believes it has."""

    id: int
    token: int
    consumer: Consumer
    stored: bool = False
    accepted: bool = False
    begun: bool = False

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Print it in a failing example, without the whole broker that it refers to."""
        printer.text(str(self.id))


@dataclass
class Worker:
    """A worker: where its link is, and what it believes it has."""

    name: str
    peer: Peer | None = None
    left: float = 0.0
    consumers: dict[str, Consumer] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Print it in a failing example, without the whole broker that it refers to."""
        printer.text(self.name)


def _picture(broker: Broker, payload: Callable[[Task], Any]) -> dict[str, Any]:
    """What of a broker survives a restart of it, where all was written."""
    found: dict[str, Any] = {}
    for queue in broker.tasks.queues.values():
        if not queue.spec.durable:
            continue
        mine = [each for each in broker.tasks.found.values() if each.queue is queue]
        held = {each.id: each.token if TAKEN <= each.state <= ACCEPTED else 0 for each in mine}
        tasks = {each.id: (payload(each), *_history(each), held[each.id]) for each in mine}
        # One that is redriven begins anew: how many workers it took with it is not kept.
        dead = {each.id: (payload(each), *_history(each, dead=True)) for each in queue.dead.values()}
        found[queue.name] = (queue.spec, queue.paused, tasks, dead, queue.bytes, queue.dead_bytes)
    return found


def _history(task: Task, *, dead: bool = False) -> tuple[Any, ...]:
    extra = task.more
    lost = None if dead else extra.lost
    return task.flags, extra.priority, extra.attempts, lost, extra.history, extra.origin, extra.after, extra.brought


class BrokerModel(RuleBasedStateMachine):
    """Rules are what publishers, workers, the clock and the store do."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.epoch = 1
        self.disk: list[Write] = []
        self.bits: Iterator[int] = count(7)
        self.broker = Broker("s", self.bits, LIMITS, journal=True, epoch=1)
        self.boss = self.broker.peers.join("boss", 0.0)
        self.workers = {name: Worker(name) for name in WORKERS}
        # What is to be done once the writes so far are on disk.
        self.claims: list[tuple[Any, ...]] = []
        self.confirmed: dict[int, str] = {}
        self.outcomes: dict[int, OutcomeKind] = {}
        self.recorded: set[int] = set()
        self.accepted: set[int] = set()
        self.excused: set[int] = set()
        self.parked: list[Parked] = []
        # What each task comes after.
        self.after: dict[int, tuple[int, ...]] = {}
        # How often each task was begun.
        self.begins: Counter[int] = Counter()

    @initialize()
    def declare(self) -> None:
        """Make the queues."""
        for spec in SPECS:
            self.broker.queues.declare(spec, self.now)
        for name in WORKERS[:2]:
            self.join(name)
            for queue in NAMES[:2]:
                self.consume(name, queue, 2)
            self.broker.work.set_ahead(self.workers[name].consumers["plain"], 4)
        self.turn()
        self.flush()

    # -- the owner's part

    def turn(self) -> None:
        """Carry out what does not wait for the disk; nobody waits for room that is there."""
        for queue in self.broker.tasks.queues.values():
            first = next((each for each in queue.parked if not each.done), None)
            assert first is None or not self.fits(queue, first), "it waits for nothing"
        for effect in self.broker.out.take():
            if effect[0] in WAITS:
                self.claims.append(("effect", effect))
            else:
                self.carry_out(effect)

    def fits(self, queue: Queue, parked: Parked) -> bool:
        """Return True if a queue has room for a publish that waits in it."""
        if len(parked.arguments) > 1:
            return queue.has_room(parked.arguments[2] + CHARGE)
        sizes = [size + CHARGE for step, size, _ in parked.arguments[0] if step.publication.queue == queue.name]
        return queue.has_room(sum(sizes), len(sizes))

    def written(self, writes: list[Write]) -> None:
        """Note what is on disk; for a model with another one."""

    def restored(self) -> Broker:
        """Start the broker again."""
        return Broker.restored(self.disk, self.now, "s", self.bits, LIMITS, epoch=self.epoch)

    def payload(self, task: Task) -> Any:
        """Return the payload of a task."""
        return task.payload

    def carry_out(self, effect: Effect) -> None:
        """Do what an effect says."""
        kind = effect[0]
        if kind == DELIVER:
            _, peer, consumer, token, task, _ = effect
            self.delivered(peer, consumer, token, task)
        elif kind == STOPPED:
            raise AssertionError(effect)
        elif kind == OUTCOME:
            _, _, watch, number, outcome, _, _ = effect
            assert watch == "watch"
            assert self.outcomes.setdefault(number, outcome) == outcome, "two outcomes"
        elif kind == ADMITTED:
            _, _, parked, number, error, known = effect
            self.parked.remove(parked)
            assert parked.done
            if error is None and isinstance(number, list):
                if not known:
                    self.note_steps(number, *parked.owner)
                    self.confirmed |= zip(number, parked.owner[0], strict=True)
            elif error is None and number and not known:
                self.confirmed[number] = parked.owner

    def delivered(self, peer: Peer, consumer: Consumer, token: int, task: Task) -> None:
        """Check that nobody else works on a task that is handed out, and that its outcome was not promised."""
        assert peer.present
        assert not consumer.closed
        number = task.id
        assert number not in self.recorded, "begun again after its outcome was confirmed"
        assert number not in self.accepted, "begun again after it was accepted"
        if number not in self.excused:
            for worker in self.workers.values():
                if not any(each.id == number for each in worker.held.values()):
                    continue
                assert worker.peer is None, "begun by two"
                assert self.now - worker.left > GRACE - 1e-6, "begun by another before the grace was over"
        self.comes_after(task)
        worker = self.workers[peer.name]
        worker.held[token] = held = Held(number, token, consumer, accepted=consumer.accepts)
        assert consumer.credit >= -consumer.ahead or not consumer.lent
        self.begin(worker, consumer)
        if not held.begun:
            assert consumer.lent
            assert not task.extra or not task.extra.history, "a task with a history was sent ahead"
        if held.accepted:
            self.claims.append(("accepted", held))

    def comes_after(self, task: Task) -> None:
        """Check that all that a task comes after have outcomes, with which it may begin, and that these are there for it."""
        after = task.more.after
        assert after == self.after.get(task.id, after)
        for number in after:
            assert number not in self.broker.tasks.found, "begun before one that it comes after has ended"
            ended = self.broker.tasks.results.find(number, self.now)
            assert ended is not None, "the outcome of one that it comes after is gone"
            if isinstance(ended, Ended):
                assert ended.kind is OutcomeKind.RESULT or task.flags & COLLECT, "begun though one before it failed"

    def begin(self, worker: Worker, consumer: Consumer) -> None:
        """Begin what the worker has slots for, in order; what the hub hands out ahead waits."""
        mine = [each for each in worker.held.values() if each.consumer is consumer]
        used = sum(each.begun for each in mine)
        for held in mine:
            if not held.begun and (used < consumer.slots or not consumer.lent):
                used += 1
                held.begun = True
                self.begins[held.id] += 1

    def drop_ahead(self, worker: Worker) -> None:
        """Forget what was not begun, as a worker does whose link is lost."""
        worker.held = {token: held for token, held in worker.held.items() if held.begun}

    @rule()
    def flush(self) -> None:
        """Write to the disk, and do what waited for it."""
        writes = self.broker.out.take_writes()
        self.disk += writes
        self.written(writes)
        for worker in self.workers.values():
            for held in worker.held.values():
                held.stored = True
        claims, self.claims = self.claims, []
        for claim in claims:
            if claim[0] == "effect":
                self.carry_out(claim[1])
            elif claim[0] == "confirmed":
                self.confirmed[claim[1]] = claim[2]
            elif claim[0] == "recorded":
                self.recorded.add(claim[1])
            elif claim[1].accepted:
                self.accepted.add(claim[1].id)
        self.turn()

    @rule()
    def crash(self) -> None:
        """Lose the broker and all that was not written; start it again, as it was where nothing was lost."""
        self.epoch += 1
        before = None if self.broker.out.writes else _picture(self.broker, self.payload)
        self.claims.clear()
        self.parked.clear()
        for worker in self.workers.values():
            if worker.peer is not None:
                worker.peer = None
                worker.left = self.now
            worker.consumers.clear()
            self.drop_ahead(worker)
            for held in worker.held.values():
                if not held.stored or self.confirmed.get(held.id) == "memory":
                    self.excused.add(held.id)
        # What was never confirmed, or never to be stored, may be gone.
        self.confirmed = {number: queue for number, queue in self.confirmed.items() if queue != "memory"}
        self.broker = self.restored()
        assert before is None or before == _picture(self.broker, self.payload)
        self.boss = self.broker.peers.join("boss", self.now)
        self.broker.queues.declare(SPECS[-1], self.now)
        for number in self.confirmed:
            if number in self.broker.tasks.found:
                self.broker.intake.watch(self.boss, number, "watch", self.now)
        self.turn()

    @rule(seconds=st.sampled_from((0.3, 1.5, 7.0, 30.0)))
    def wait(self, seconds: float) -> None:
        """Let time go by, and everything be done when it is due."""
        end = self.now + seconds
        for _ in range(10_000):
            due = self.broker.deadline
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.broker.advance(self.now)
            self.turn()
        else:
            raise AssertionError("it never comes to rest")
        self.now = end

    # -- publishers

    @rule(
        queue=QUEUE,
        priority=st.integers(0, 3),
        delay=st.sampled_from((0.0, 0.0, 0.0, 2.0)),
        end=st.sampled_from(({}, {}, {}, {"ttl": 4.0}, {"deadline": 4.0})),
        dedup=st.sampled_from((None, None, None, "a", "b", "c", "d")),
        timeout=st.sampled_from((None, 2.0, 0.0)),
        number=st.integers(1, 3),
        size=st.sampled_from((5, 5, 700)),
    )
    def submit(
        self,
        queue: str,
        priority: int,
        delay: float,
        end: dict[str, float],
        dedup: str | None,
        timeout: float | None,
        number: int,
        size: int,
    ) -> None:
        """Submit some tasks."""
        for _ in range(number):
            self.submit_one(queue, priority, delay, end, dedup, timeout, size)

    @rule()
    def crowd(self) -> None:
        """Submit small tasks behind a large one that has no room, and does not wait for long."""
        for size, timeout in ((700, None), (5, None), (700, 2.0), (5, None)):
            self.submit_one("short", 0, 0.0, {}, None, timeout, size)

    def submit_one(
        self,
        name: str,
        priority: int,
        delay: float,
        end: dict[str, float],
        dedup: str | None,
        timeout: float | None,
        size: int,
    ) -> None:
        """Submit a task, and note what becomes of it."""
        queue = self.broker.queues.get(name)
        try:
            options = (priority, delay, end.get("ttl"), end.get("deadline"), dedup, True, False, timeout)
            got = self.broker.intake.submit(
                self.boss, name, b"%d" % next(self.bits), size, self.now, "watch", options, name
            )
        except (QueueFull, Expired):
            assert not queue.has_room(size + CHARGE) or queue.parked
        else:
            if isinstance(got, Task):
                self.claims.append(("confirmed", got.id, name))
            elif isinstance(got, Parked):
                self.parked.append(got)
            else:
                assert dedup is not None
        self.turn()

    @rule(
        plan=st.lists(
            st.tuples(QUEUE, st.sets(st.integers(0, 3), max_size=3), st.booleans(), st.sampled_from((5, 5, 700))),
            min_size=2,
            max_size=5,
        ),
        dedup=st.sampled_from((None, None, "a", "b")),
        timeout=st.sampled_from((None, 2.0, 0.0)),
    )
    def submit_steps(
        self, plan: list[tuple[str, set[int], bool, int]], dedup: str | None, timeout: float | None
    ) -> None:
        """Submit tasks together, of which some come after others: all of them are there, or none."""
        steps = []
        for place, (queue, before, collect, size) in enumerate(plan):
            key = dedup if place == len(plan) - 1 else None
            publication = Publication(queue, b"%d" % next(self.bits), dedup=key)  # type: ignore[arg-type]
            steps.append(
                (Step(publication, tuple(sorted(each for each in before if each < place)), collect), size, "watch")
            )
        queues = [queue for queue, *_ in plan]
        afters = [step.after for step, *_ in steps]
        before_all = self.broker.tasks.last
        try:
            got = self.broker.intake.submit_steps(self.boss, steps, self.now, timeout, (queues, afters))
        except UsageError:
            assert self.too_many(plan) or (any(queue != "memory" for queue in queues) and "memory" in queues)
            assert self.broker.tasks.last == before_all
        except (QueueFull, Expired):
            assert self.broker.tasks.last == before_all
        else:
            assert not self.too_many(plan)
            if isinstance(got, Parked):
                self.parked.append(got)
            elif isinstance(got, int):
                assert dedup is not None
                assert self.broker.tasks.last == before_all
            else:
                self.note_steps(got, queues, afters)
                self.claims += [("confirmed", *each) for each in zip(got, queues, strict=True)]
        self.turn()

    def too_many(self, plan: list[tuple[str, set[int], bool, int]]) -> bool:
        """Whether the tasks of a queue are more than it ever holds."""
        for name in {queue for queue, *_ in plan}:
            sizes = [size + CHARGE for queue, _, _, size in plan if queue == name]
            limits = self.broker.queues.found[name]
            if len(sizes) > limits.max_length or (sum(sizes) > limits.max_bytes and len(sizes) > 1):
                return True
        return False

    def note_steps(self, numbers: list[int], _: list[str], afters: list[tuple[int, ...]]) -> None:
        """Note what tasks come after."""
        for number, after in zip(numbers, afters, strict=True):
            self.after[number] = tuple(numbers[place] for place in after)

    @rule(number=st.integers(0, 2))
    def publish(self, number: int) -> None:
        """Withdraw a publish that waits for room; send an event that a queue wants."""
        waiting = [each for each in self.parked if not each.done]
        if number < len(waiting):
            self.broker.intake.unpark([waiting[number]], self.now)
            self.parked.remove(waiting[number])
        try:
            assert self.broker.intake.publish(self.boss, "news.today", b"", 0, self.now, last=2) is None
        except QueueFull:
            # Workers have all that is there: nothing can be dropped.
            assert not self.broker.queues.get("ring").ready
        self.turn()

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Cancel a task; what is withdrawn is never begun."""
        if not self.confirmed:
            return
        number = data.draw(st.sampled_from(sorted(self.confirmed)))
        over = number not in self.broker.tasks.found
        answer = self.broker.work.cancel(number, self.now)
        assert (answer == "too late") == over
        if answer == "withdrawn":
            self.claims.append(("recorded", number))
        self.turn()

    @rule(what=st.sampled_from(("pause", "resume", "purge", "bury", "redrive", "move")), name=QUEUE)
    def operate(self, what: str, name: str) -> None:
        """Do what an operator does."""
        broker, queue = self.broker, self.broker.queues.get(name)
        if what in ("pause", "resume"):
            broker.queues.pause(queue, what == "pause")
        elif what == "purge":
            broker.admin.purge(queue, "ready", self.now)
        elif what == "bury":
            broker.admin.purge(queue, "dead", self.now)
        elif what == "redrive":
            for task in broker.admin.redrive(self.boss, queue, None, self.now):
                self.claims.append(("confirmed", task.id, name))
        elif name not in {"memory", "plain"}:
            broker.admin.move(queue, broker.queues.get("plain"), 2, self.now)
        self.turn()

    # -- workers

    @rule(name=st.sampled_from(WORKERS))
    def join(self, name: str) -> None:
        """Connect, or return and say what is still worked on."""
        worker = self.workers[name]
        if worker.peer is not None:
            return
        worker.peer = self.broker.peers.join(name, self.now)
        for held in tuple(worker.held.values()):
            task = self.broker.tasks.found.get(held.id)
            queue = NAMES[0] if task is None else task.queue.name
            consumer = self.consume(name, queue)
            answer = self.broker.work.reclaim(consumer, held.id, held.token, self.now)
            if answer == "held":
                # Asked for twice, it has it once.
                assert self.broker.work.reclaim(consumer, held.id, held.token, self.now) == "held"
                held.consumer = consumer
                # Its hand-out is on disk, or nobody else was given it.
                held.stored = held.stored or True
            else:
                del worker.held[held.token]
            if answer == "done":
                assert held.id not in self.broker.tasks.found
        self.broker.peers.settle(worker.peer, self.now)
        self.turn()

    @rule(name=st.sampled_from(WORKERS), queue=QUEUE, credit=st.integers(0, 3))
    def work(self, name: str, queue: str, credit: int) -> None:
        """Take tasks from a queue, being there; with no credit take nothing more, and keep what is held."""
        worker = self.workers[name]
        if worker.peer is None:
            self.join(name)
        if credit:
            self.consume(name, queue, credit)
        elif queue in worker.consumers:
            self.give_back(worker, worker.consumers[queue])
            self.broker.work.close(worker.consumers.pop(queue), self.now)
        self.turn()

    @rule(
        name=st.sampled_from(WORKERS[:2]),
        queue=st.sampled_from(("plain", "plain", "ring", "memory", "levels")),
        ahead=st.sampled_from((1, 3, 8, 0, None, None)),
    )
    def prefetch(self, name: str, queue: str, ahead: int | None) -> None:
        """Take tasks ahead, or give back what was not begun."""
        worker = self.workers[name]
        consumer = worker.consumers.get(queue)
        if consumer is None:
            return
        if ahead is None:
            self.give_back(worker, consumer)
        else:
            self.broker.work.set_ahead(consumer, ahead)
        self.turn()

    @rule(
        name=st.sampled_from(WORKERS[:2]),
        number=st.integers(4, 9),
        how=st.sampled_from(("back", "goodbye", "link", "killed")),
        seconds=st.sampled_from((0.3, 1.5)),
    )
    def crowd_a_worker(self, name: str, number: int, how: str, seconds: float) -> None:
        """Submit more than the workers have slots for, and take from one of them what it has not begun, or all."""
        worker = self.workers[name]
        if worker.peer is None:
            self.join(name)
        consumer = self.consume(name, "plain", 1)
        self.broker.work.set_ahead(consumer, 4)
        self.turn()
        for _ in range(number):
            self.submit_one("plain", 0, 0.0, {}, None, None, 5)
        if how == "back":
            self.give_back(worker, consumer)
            self.turn()
        else:
            self.leave(name, how)
        self.wait(seconds)

    def give_back(self, worker: Worker, consumer: Consumer) -> None:
        """Give back what was not begun; it stands where it stood."""
        tokens = [token for token, held in worker.held.items() if held.consumer is consumer and not held.begun]
        ids = [worker.held.pop(token).id for token in tokens]
        self.broker.work.give_back(consumer, tokens, self.now)
        line = [each.id for each in consumer.queue.in_line() if each.extra is None]
        back = [each for each in line if each in ids]
        assert back == sorted(back)

    def consume(self, name: str, queue: str, credit: int = 1) -> Consumer:
        """Return the worker's consumer of a queue."""
        worker = self.workers[name]
        assert worker.peer is not None
        if queue not in worker.consumers:
            accepts = name == "cid"
            worker.consumers[queue] = self.broker.work.consume(
                worker.peer, queue, self.now, credit, owner=credit, accepts=accepts
            )
        return worker.consumers[queue]

    def pick(self, data: st.DataObject) -> tuple[Worker, Held] | None:
        """Draw something that a connected worker believes it has."""
        present = [worker for worker in self.workers.values() if worker.peer]
        found = [(worker, held) for worker in present for held in worker.held.values() if held.begun]
        return data.draw(st.sampled_from(found)) if found else None

    def is_over(self, held: Held) -> bool:
        """Whether the task has an outcome already (its deadline passed, its queue was purged)."""
        return held.id not in self.broker.tasks.found

    @rule(data=st.data(), kind=st.sampled_from((OutcomeKind.RESULT, OutcomeKind.ERROR)))
    def settle(self, data: st.DataObject, kind: OutcomeKind) -> None:
        """Finish a task; its outcome is recorded unless it had one."""
        if (found := self.pick(data)) is not None:
            self.settle_one(*found, kind)

    @rule()
    def finish(self) -> None:
        """Finish what workers have, and what they are given then, so that tasks come to those that come after them."""
        for _ in range(12):
            present = [worker for worker in self.workers.values() if worker.peer]
            found = [(worker, held) for worker in present for held in worker.held.values() if held.begun]
            if not found:
                return
            self.settle_one(*found[0], OutcomeKind.RESULT)

    def settle_one(self, worker: Worker, held: Held, kind: OutcomeKind) -> None:
        """Finish a task that a worker has begun."""
        over = self.is_over(held)
        done = self.broker.work.settle(held.consumer, held.token, self.now, kind, b"r", 1)
        assert done is not over
        assert not self.broker.work.settle(held.consumer, held.token, self.now)
        del worker.held[held.token]
        self.begin(worker, held.consumer)
        if done:
            self.claims.append(("recorded", held.id))
        self.turn()

    @rule(
        data=st.data(),
        requeue=st.sampled_from((True, True, False)),
        delay=st.sampled_from((0.0, 0.0, 2.0)),
        blame=st.booleans(),
        exclude=st.booleans(),
    )
    def reject(self, data: st.DataObject, requeue: bool, delay: float, blame: bool, exclude: bool) -> None:
        """Give a task back, or up."""
        if (found := self.pick(data)) is None:
            return
        worker, held = found
        over = self.is_over(held)
        del worker.held[held.token]
        held.accepted = False
        self.accepted.discard(held.id)
        done = self.broker.work.reject(
            held.consumer,
            held.token,
            self.now,
            requeue=requeue,
            delay=delay,
            blame=blame,
            exclude=exclude,
            reason="no",
        )
        assert done is not over
        assert not self.broker.work.reject(held.consumer, held.token, self.now)
        self.begin(worker, held.consumer)
        self.turn()

    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        """Promise that nobody else begins a task."""
        if (found := self.pick(data)) is None:
            return
        _, held = found
        held.accepted = self.broker.work.accept(held.consumer, held.token)
        self.broker.work.progress(held.consumer, held.token, b"p")
        if held.accepted:
            self.claims.append(("accepted", held))
        self.turn()

    @rule(name=st.sampled_from(WORKERS), how=st.sampled_from(("goodbye", "link", "link", "killed")))
    def leave(self, name: str, how: str) -> None:
        """Go with goodbye; lose the link; be killed, and what was in memory is gone."""
        worker = self.workers[name]
        if how == "goodbye" and worker.peer is not None:
            # It gives back what it had not begun, and ends the rest.
            self.accepted -= {each.id for each in worker.held.values()}
        self.drop_ahead(worker)
        if how != "link":
            worker.held.clear()
        if worker.peer is not None:
            peer, worker.peer = worker.peer, None
            worker.left = self.now
            worker.consumers.clear()
            self.broker.peers.leave(peer, self.now, goodbye=how == "goodbye")
            self.turn()

    # -- what always holds

    @invariant()
    def each_task_is_in_one_place(self) -> None:
        """A confirmed task is in its queue or has its outcome, not both, and its queue counts it where it is."""
        tasks = self.broker.tasks
        for number in self.confirmed:
            assert (number in tasks.found) != (tasks.results.find(number, self.now) is not None), number
        for queue in tasks.queues.values():
            mine = [each for each in tasks.found.values() if each.queue is queue]
            count_of = {state: sum(each.state == state for each in mine) for state in range(GONE + 1)}
            assert queue.ready == count_of[READY]
            assert queue.aside == count_of[ASIDE]
            assert len(queue.delayed) == count_of[DELAYED]
            taken = [each for each in mine if TAKEN <= each.state <= ACCEPTED]
            assert self.broker.tasks.taken(queue) == sorted(taken, key=lambda task: task.id)
            assert queue.taken == count_of[TAKEN] + count_of[ACCEPTED]
            assert queue.count == len(mine) == queue.ready + queue.aside + len(queue.delayed) + queue.taken
            assert queue.bytes == sum(each.size for each in mine)
            in_line = list(queue.in_line())
            assert len(in_line) == len(set(in_line)) == queue.ready + queue.aside
            assert set(in_line) == {each for each in mine if each.state in (READY, ASIDE)}
            assert queue.dead_bytes == sum(each.size for each in queue.dead.values())
            for each in mine:
                if each.state in (TAKEN, ACCEPTED):
                    assert each.consumer is not None
                    assert each.consumer.held[each.token] is each

    @invariant()
    def what_comes_after_waits_for_a_reason(self) -> None:
        """A task waits for those before it as long as one of them has no outcome; what it is to be given is held."""
        tasks = self.broker.tasks
        holds: Counter[int] = Counter()
        for task in (*tasks.found.values(), *(each for queue in tasks.queues.values() for each in queue.dead.values())):
            extra = task.extra
            if extra is None:
                continue
            waiting = task.state == DELAYED and extra.ripens is None
            assert waiting == bool(extra.waits)
            assert extra.waits == sum(number in tasks.found for number in extra.after)
            assert extra.brought == sum(tasks.results.held_size(number) for number in extra.after)
            assert all(number in tasks.found or number in tasks.results._held for number in extra.after)
            holds.update(extra.after)
        assert tasks.results._holds == holds
        assert tasks.results._held.keys() <= holds.keys()
        assert not tasks._ends

    @invariant()
    def credits_are_right(self) -> None:
        """What a consumer may be given and what it holds add up, and nothing that could be handed out waits."""
        for peer in (*self.broker.peers.found.values(),):
            assert peer.held == sum(len(each.held) for each in peer.consumers.values())
            assert peer.solo is None or peer.held
            for consumer in peer.consumers.values():
                if consumer.auto and isinstance(consumer.owner, int):
                    assert consumer.credit + len(consumer.held) == consumer.owner
                assert all(each.token == token or each.state == GONE for token, each in consumer.held.items())
        for queue in self.broker.tasks.queues.values():
            if queue.ready and not queue.paused:
                assert not [each for each in queue.consumers.values() if each.credit > 0 and each.peer.open]
                first = next((each for each in queue.in_line() if each.state == READY), None)
                if (
                    queue.spec.priorities == 1
                    and first
                    and not first.extra
                    and (not first.timer or first.flags & DEADLINE)
                ):
                    assert not [
                        each for each in queue.consumers.values() if each.credit > -each.ahead and each.peer.open
                    ]
            if not queue.paused:
                for key in queue.excluded:
                    assert not queue.consumers.keys() <= key
                    free = [each for each in queue.consumers.values() if each.credit > 0 and each.peer.open]
                    assert all(each.number in key for each in free)
                self.poison_waits_for_a_reason(queue)

    def poison_waits_for_a_reason(self, queue: Queue) -> None:
        """A task that takes its worker along waits only where nobody idle is left, and somebody is being kept for it."""
        for task in queue.poison:
            able = [
                each
                for each in queue.consumers.values()
                if each.credit > 0 and each.peer.open and each.number not in task.more.excluded
            ]
            assert not [each for each in able if not each.peer.held]
            assert not able or queue.reserved is not None

    @invariant()
    def only_what_was_begun_is_blamed(self) -> None:
        """A task counts as lost with no more workers than have begun it."""
        for task in self.broker.tasks.found.values():
            assert task.extra is None or task.extra.lost <= self.begins[task.id]

    @invariant()
    def what_is_ahead_is_not_begun(self) -> None:
        """A worker that is there holds what the broker says; it has begun what it has slots for."""
        for worker in self.workers.values():
            if worker.peer is None:
                continue
            for consumer in worker.consumers.values():
                mine = [held for held in worker.held.values() if held.consumer is consumer]
                assert {held.token for held in mine} == consumer.held.keys()
                if consumer.lent:
                    assert sum(not held.begun for held in mine) <= max(0, len(mine) - consumer.slots)

    @invariant()
    def nothing_grows(self) -> None:
        """What is kept beside the tasks is bounded by them."""
        broker = self.broker
        alive = sum(entry[2] is not None for entry in broker.timers._heap)
        assert len(broker.timers) <= 2 * alive + 130
        for queue in broker.tasks.queues.values():
            assert sum(map(len, queue._levels)) <= 2 * queue.ready + 64 + 64 * len(queue._levels)
            assert len(queue.dedup) <= 3
            assert len(queue.waiting) <= sum(each.waiting for each in queue.consumers.values()) + 50
