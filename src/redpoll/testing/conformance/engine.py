"""Engines, by their protocol alone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from functools import partial
from typing import Any

from redpoll.bus import (
    EngineState,
    Envelope,
    Outcome,
    OutcomeKind,
    Payloads,
    Publication,
    QueueSpec,
    Receipt,
    Step,
    Times,
)
from redpoll.bus.engine import Delivery, Engine
from redpoll.errors import (
    BatchError,
    Closed,
    Expired,
    NoRoute,
    PayloadTooLarge,
    QueueEmpty,
    QueueFull,
    ResultExpired,
    ResultTooLarge,
    SpecConflict,
    UnknownTask,
    UsageError,
)
from redpoll.testing.conformance.frame import Place, Recorder, attempt, behaviour

__all__: list[str] = []

_TIMES = ("delay", "ttl", "deadline", "timeout")

_payloads = Payloads()
pack = _payloads.pack
unpack = _payloads.unpack


def _result(value: Any = None) -> Outcome:
    return Outcome(OutcomeKind.RESULT, pack(value))


async def _fails(awaitable: Awaitable[object], error: type[Exception]) -> Any:
    try:
        await awaitable
    except error as raised:
        return raised
    raise AssertionError(f"it did not raise {error.__name__}")


async def _send(engine: Engine, queue: str, value: Any = None, **options: Any) -> tuple[Receipt, Recorder]:
    recorder = Recorder()
    return await engine.publish(pack(value), queue=queue, watcher=recorder, **options), recorder


def _bodies(deliveries: list[Delivery]) -> list[Any]:
    return [unpack(each.envelope) for each in deliveries]


@behaviour("E-01")
async def one_worker_has_it(place: Place) -> None:
    """A task reaches one worker, with its envelope as it was, and its outcome reaches the watcher."""
    sender, worker = await place.engine(), await place.engine()
    queue = await place.queue(sender)
    envelope = Envelope("raw", b"\x00body", {"tries": 1}, {"trace": "x"})
    recorder, taken = Recorder(), await place.consume(worker, queue)
    receipt = await sender.publish(envelope, queue=queue, watcher=recorder)
    await place.until(lambda: taken.deliveries)
    (delivery,) = taken.deliveries
    assert delivery.envelope == envelope
    assert (delivery.id, delivery.queue, delivery.attempt, delivery.left) == (receipt.id, queue, 1, None)
    assert not receipt.duplicate
    assert await delivery.ack(_result("done"))
    await place.until(lambda: recorder.outcomes)
    assert (recorder.kind, recorder.result) == (OutcomeKind.RESULT, "done")


@behaviour("E-02")
async def in_order(place: Place) -> None:
    """Tasks of one sender come in the order of publishing, also when their awaits are left open."""
    engine = await place.engine()
    queue = await place.queue(engine)
    for receipt in [engine.publish(pack(number), queue=queue) for number in range(50)]:
        await receipt
    taken = await place.consume(engine, queue, 50)
    await place.until(lambda: len(taken.deliveries) == 50)
    assert taken.bodies == list(range(50))


@behaviour("E-03")
async def no_route(place: Place) -> None:
    """A queue that does not exist is no route; with mandatory a queue needs a consumer, and a subject a receiver."""
    engine = await place.engine()
    queue = await place.queue(engine)
    await _fails(engine.publish(pack(1), queue=place.name("nowhere")), NoRoute)
    await _fails(engine.publish(pack(1), queue=queue, mandatory=True), NoRoute)
    await _fails(engine.publish(pack(1), subject=place.name("news"), mandatory=True), NoRoute)
    await _fails(engine.consume(place.name("nowhere")), NoRoute)
    await _fails(engine.take(place.name("nowhere")), NoRoute)
    await _fails(engine.inspect(place.name("nowhere")), NoRoute)
    await engine.publish(pack(1), subject=place.name("news"))
    await place.consume(engine, queue)
    await engine.publish(pack(1), queue=queue, mandatory=True)


@behaviour("E-04")
async def credit(place: Place) -> None:
    """A consumer has no more open deliveries than its credit; one that ends makes room, and credit can change."""
    engine = await place.engine()
    queue = await place.queue(engine)
    recorder = Recorder()
    consumer = await engine.consume(queue, credit=2, sink=recorder.deliver)
    for number in range(6):
        await _send(engine, queue, number)
    await place.until(lambda: len(recorder.deliveries) == 2)
    await place.calm()
    assert recorder.bodies == [0, 1]
    await recorder.deliveries[0].ack()
    await place.until(lambda: len(recorder.deliveries) == 3)
    consumer.set_credit(0)
    await recorder.deliveries[1].ack()
    await place.calm()
    assert recorder.bodies == [0, 1, 2]
    consumer.set_credit(3)
    await place.until(lambda: len(recorder.deliveries) == 5)


@behaviour("E-05")
async def the_least_recently_served(place: Place) -> None:
    """Consumers share a queue: each task is given to one of them, to the one that was served least recently."""
    engine, other = await place.engine(), await place.engine()
    queue = await place.queue(engine)
    workers = [await place.consume(each, queue, 10) for each in (engine, other, other)]
    for number in range(9):
        await _send(engine, queue, number)
    await place.until(lambda: sum(len(each.deliveries) for each in workers) == 9)
    assert [len(each.deliveries) for each in workers] == [3, 3, 3]
    assert sorted(number for each in workers for number in each.bodies) == list(range(9))


@behaviour("E-06")
async def given_back(place: Place) -> None:
    """A task that is given back comes again, before others, and that is no attempt."""
    engine = await place.engine()
    queue = await place.queue(engine)
    taken = await place.consume(engine, queue)
    await _send(engine, queue, "a")
    await _send(engine, queue, "b")
    await place.until(lambda: taken.deliveries)
    assert await taken.deliveries[0].reject()
    await place.until(lambda: len(taken.deliveries) == 2)
    assert (taken.bodies, taken.deliveries[1].attempt) == (["a", "a"], attempt(engine, 2))


@behaviour("E-07", "delay")
async def given_back_for_later(place: Place) -> None:
    """A task that is given back with a delay comes after it; others come meanwhile. The engine keeps it."""
    engine = await place.engine()
    queue = await place.queue(engine)
    taken = await place.consume(engine, queue)
    await _send(engine, queue, "a")
    await _send(engine, queue, "b")
    await place.until(lambda: taken.deliveries)
    await taken.deliveries[0].reject(delay=1.0)
    await place.until(lambda: len(taken.deliveries) == 2)
    await taken.deliveries[1].ack()
    assert (await engine.inspect(queue)).delayed == 1
    await place.wait(1.1)
    await place.until(lambda: len(taken.deliveries) == 3)
    assert taken.bodies == ["a", "b", "a"]


@behaviour("E-08")
async def excluded(place: Place) -> None:
    """A task that a worker excludes goes to another one; when all have excluded it, it waits a second."""
    engine = await place.engine()
    queue = await place.queue(engine)
    workers = [await place.consume(engine, queue) for _ in range(2)]
    await _send(engine, queue, "a")
    await place.until(lambda: workers[0].deliveries)
    await workers[0].deliveries[0].reject(exclude=True)
    await place.until(lambda: workers[1].deliveries)
    await workers[1].deliveries[0].reject(exclude=True)
    await place.calm()
    assert [len(each.deliveries) for each in workers] == [1, 1]
    await place.wait(1.1)
    await place.until(lambda: sum(len(each.deliveries) for each in workers) == 3)


@behaviour("E-09", "browse")
async def dead_letters(place: Place) -> None:
    """A task that is given up is a dead letter with its history, and comes back as a new one when it is redriven."""
    engine = await place.engine()
    queue = await place.queue(engine)
    taken = await place.consume(engine, queue)
    receipt, recorder = await _send(engine, queue, "a")
    await place.until(lambda: taken.deliveries)
    await taken.deliveries[0].reject(requeue=False, reason="no such file")
    await place.until(lambda: recorder.outcomes)
    assert (recorder.kind, recorder.outcomes[0].detail) == (OutcomeKind.DEAD, "no such file")
    (info,) = await engine.browse(queue, "dead")
    assert (info.id, info.state, info.history) == (receipt.id, "dead", ("no such file",))
    (again,) = await engine.redrive(queue)
    await place.until(lambda: len(taken.deliveries) == 2)
    assert taken.deliveries[1].id == again != receipt.id
    assert taken.bodies == ["a", "a"]
    (info,) = await engine.browse(queue, "taken")
    assert info.origin == receipt.id
    assert (await engine.inspect(queue)).dead == 0


@behaviour("E-10")
async def it_ends_once(place: Place) -> None:
    """A second ack, a late give-back, progress after the end: each says False and changes nothing."""
    engine = await place.engine()
    queue = await place.queue(engine)
    taken = await place.consume(engine, queue)
    _, recorder = await _send(engine, queue)
    await place.until(lambda: taken.deliveries)
    (delivery,) = taken.deliveries
    assert await delivery.ack(_result(1))
    assert not await delivery.ack(_result(2))
    assert not await delivery.reject()
    assert not await delivery.accept()
    assert not delivery.progress(pack("late"))
    await place.until(lambda: recorder.outcomes)
    await place.calm()
    assert (len(recorder.outcomes), recorder.result, recorder.parts) == (1, 1, [])


@behaviour("E-11", "fencing")
async def a_killed_worker(place: Place) -> None:
    """The task of a worker that is killed is given to another one, as its second attempt."""
    sender, victim = await place.engine(), await place.engine()
    queue = await place.queue(sender)
    first = await place.consume(victim, queue)
    _, recorder = await _send(sender, queue, "a")
    await place.until(lambda: first.deliveries)
    second = await place.consume(sender, queue)
    await place.kill(victim)
    await place.wait(1.0)
    await place.until(lambda: second.deliveries)
    assert (second.bodies, second.deliveries[0].attempt) == (["a"], 2)
    await second.deliveries[0].ack(_result("done"))
    await place.until(lambda: recorder.outcomes)


@behaviour("E-12")
async def at_most_once(place: Place) -> None:
    """A task that was accepted is not given to another worker: when its own is killed, it ends as lost."""
    sender, victim = await place.engine(), await place.engine()
    queue = await place.queue(sender)
    first = await place.consume(victim, queue)
    _, recorder = await _send(sender, queue, keep=False)
    await place.until(lambda: first.deliveries)
    second = await place.consume(sender, queue)
    assert await first.deliveries[0].accept()
    await place.kill(victim)
    await place.wait(1.0)
    await place.until(lambda: recorder.outcomes)
    assert recorder.kind is OutcomeKind.LOST
    await place.calm()
    assert not second.deliveries
    calls = await place.queue(sender, "calls")
    third, fourth = await place.engine(), await place.engine()
    served = [await place.consume(each, calls, accept=True) for each in (third, fourth)]
    _, recorder = await _send(sender, calls, keep=False)
    await place.until(lambda: served[0].deliveries)
    assert await served[0].deliveries[0].accept()
    await served[0].deliveries[0].reject(exclude=True)
    await place.until(lambda: served[1].deliveries)
    await place.kill(fourth)
    await place.wait(1.0)
    await place.until(lambda: recorder.outcomes)
    assert recorder.kind is OutcomeKind.LOST


@behaviour("E-13", "progress")
async def progress(place: Place) -> None:
    """Progress comes in order, and before the outcome."""
    sender, worker = await place.engine(), await place.engine()
    queue = await place.queue(sender)
    taken = await place.consume(worker, queue)
    _, recorder = await _send(sender, queue)
    await place.until(lambda: taken.deliveries)
    for number in range(20):
        assert taken.deliveries[0].progress(pack(number))
    await taken.deliveries[0].ack()
    await place.until(lambda: recorder.outcomes)
    assert recorder.parts == list(range(20))


@behaviour("E-14", "cancel")
async def cancelling(place: Place) -> None:
    """A pending task is withdrawn; a worker is asked, and its result counts if it comes first; then it is too late."""
    engine = await place.engine()
    queue = await place.queue(engine)
    receipt, recorder = await _send(engine, queue)
    assert await engine.cancel(receipt.id) == "withdrawn"
    await place.until(lambda: recorder.outcomes)
    assert recorder.kind is OutcomeKind.CANCELLED
    taken = await place.consume(engine, queue)
    receipt, recorder = await _send(engine, queue)
    await place.until(lambda: taken.deliveries)
    listener = Recorder()
    taken.deliveries[0].listen(listener)
    assert await engine.cancel(receipt.id) == "asked"
    await place.until(lambda: listener.heard)
    assert taken.deliveries[0].cancelled
    assert not await taken.deliveries[0].accept()
    await taken.deliveries[0].reject()
    await place.until(lambda: recorder.outcomes)
    assert recorder.kind is OutcomeKind.CANCELLED
    receipt, recorder = await _send(engine, queue)
    await place.until(lambda: len(taken.deliveries) == 2)
    await engine.cancel(receipt.id)
    assert await taken.deliveries[1].ack(_result(1))
    assert await engine.cancel(receipt.id) == "too late"
    await _fails(engine.cancel("s-1-0"), UnknownTask)
    await place.until(lambda: recorder.outcomes)
    assert recorder.kind is OutcomeKind.RESULT


@behaviour("E-15", "progress")
async def telling(place: Place) -> None:
    """Messages of a publisher to a task reach its worker, in order, and wait for it to listen."""
    sender, worker = await place.engine(), await place.engine()
    queue = await place.queue(sender)
    receipt, _ = await _send(sender, queue)
    assert not await sender.tell(receipt.id, pack("nobody"))
    taken = await place.consume(worker, queue)
    await place.until(lambda: taken.deliveries)
    listener = Recorder()
    for number in range(2):
        assert await sender.tell(receipt.id, pack(number))
    await place.calm()
    taken.deliveries[0].listen(listener)
    await sender.tell(receipt.id, pack(2))
    await place.until(lambda: len(listener.heard) == 3)
    assert listener.heard == [0, 1, 2]


@behaviour("E-16")
async def times_to_live(place: Place) -> None:
    """A task that was not begun in its time expires: its own, or else the queue's; one that was begun goes on."""
    engine = await place.engine()
    queue = await place.queue(engine, ttl=1.0)
    taken = await place.consume(engine, queue)
    recorders = [(await _send(engine, queue, each, ttl=ttl))[1] for each, ttl in (("a", None), ("b", None), ("c", 60))]
    await place.wait(1.2)
    await place.until(lambda: recorders[1].outcomes)
    assert recorders[1].kind is OutcomeKind.EXPIRED
    assert await taken.deliveries[0].ack(_result())
    await place.until(lambda: len(taken.deliveries) == 2)
    assert taken.bodies == ["a", "c"]


@behaviour("E-17")
async def deadlines(place: Place) -> None:
    """A task ends at its deadline, though it was begun: its worker is told, and a later outcome is refused."""
    engine = await place.engine()
    queue = await place.queue(engine)
    taken = await place.consume(engine, queue)
    _, recorder = await _send(engine, queue, deadline=1.0)
    await place.until(lambda: taken.deliveries)
    left = taken.deliveries[0].left
    assert left is not None
    assert 0 < left <= 1.0
    listener = Recorder()
    taken.deliveries[0].listen(listener)
    await place.wait(1.2)
    await place.until(lambda: recorder.outcomes and listener.heard)
    assert (recorder.kind, listener.heard) == (OutcomeKind.EXPIRED, ["cancelled"])
    assert not await taken.deliveries[0].ack(_result("late"))
    assert len(recorder.outcomes) == 1
    await _send(engine, queue, "next")
    await place.until(lambda: len(taken.deliveries) == 2)


@behaviour("E-18", "delay")
async def delays(place: Place) -> None:
    """A task with a delay is given out after it, and not before."""
    engine = await place.engine()
    queue = await place.queue(engine)
    taken = await place.consume(engine, queue, 5)
    await _send(engine, queue, "late", delay=1.0)
    await _send(engine, queue, "now")
    await place.until(lambda: taken.deliveries)
    await place.calm()
    assert taken.bodies == ["now"]
    await place.wait(1.1)
    await place.until(lambda: len(taken.deliveries) == 2)


@behaviour("E-19", "priorities")
async def priorities(place: Place) -> None:
    """Tasks of higher priority are given out first; those of one priority in order."""
    engine = await place.engine()
    queue = await place.queue(engine, priorities=3)
    for body, priority in (("a", 0), ("b", 2), ("c", 1), ("d", 2), ("e", 9)):
        await _send(engine, queue, body, priority=priority)
    taken = await place.consume(engine, queue, 9)
    await place.until(lambda: len(taken.deliveries) == 5)
    assert taken.bodies == ["b", "d", "e", "c", "a"]


@behaviour("E-20", "dedup")
async def duplicates(place: Place) -> None:
    """A second task with a key is the first one: same id, one delivery, both watchers hear, also after the end."""
    engine = await place.engine()
    queue = await place.queue(engine)
    first, one = await _send(engine, queue, "a", dedup="k")
    second, two = await _send(engine, queue, "b", dedup="k")
    assert (second.id, second.duplicate, first.duplicate) == (first.id, True, False)
    taken = await place.consume(engine, queue, 5)
    await place.until(lambda: taken.deliveries)
    await taken.deliveries[0].ack(_result("r"))
    third, three = await _send(engine, queue, "c", dedup="k")
    await place.until(lambda: one.outcomes and two.outcomes and three.outcomes)
    assert third.id == first.id
    await place.calm()
    assert taken.bodies == ["a"]
    short = await place.queue(engine, "short", max_length=2)
    for number in range(2):
        await _send(engine, short, number)
    waiting = [asyncio.ensure_future(_send(engine, short, "late", dedup="k")) for _ in range(2)]
    await place.calm()
    for _ in range(3):
        await (await engine.take(short, 1.0)).ack(_result("done"))
    (fourth, four), (fifth, five) = await asyncio.gather(*waiting)
    assert (fourth.duplicate, fifth.duplicate, fourth.id == fifth.id) == (False, True, True)
    await place.until(lambda: four.outcomes and five.outcomes)
    await _fails(engine.take(short), QueueEmpty)


@behaviour("E-21")
async def full_queues(place: Place) -> None:
    """A full queue lets a publish wait until there is room or its time ends, refuses it, or drops its oldest task."""
    engine = await place.engine()
    queue = await place.queue(engine, max_length=1)
    await _send(engine, queue, "a")
    late = asyncio.ensure_future(engine.publish(pack("b"), queue=queue, timeout=0.5))
    await place.calm()
    await place.wait(0.6)
    assert not (await _fails(late, Expired)).sent
    withdrawn = asyncio.ensure_future(engine.publish(pack("withdrawn"), queue=queue))
    await place.calm()
    withdrawn.cancel()
    waiting = asyncio.ensure_future(engine.publish(pack("c"), queue=queue))
    await place.calm()
    assert not waiting.done()
    taken = await place.consume(engine, queue)
    await place.until(lambda: taken.deliveries)
    await taken.deliveries[0].ack()
    await waiting
    await place.until(lambda: len(taken.deliveries) == 2)
    assert taken.bodies == ["a", "c"]
    refusing = await place.queue(engine, "refusing", max_length=1, at_limit="refuse")
    await _send(engine, refusing)
    assert not (await _fails(engine.publish(pack(1), queue=refusing), QueueFull)).sent
    ring = await place.queue(engine, "ring", max_length=1, at_limit="drop-old")
    _, dropped = await _send(engine, ring, "old")
    await _send(engine, ring, "new")
    await place.until(lambda: dropped.outcomes)
    assert dropped.kind is OutcomeKind.DEAD
    assert _bodies([await engine.take(ring)]) == ["new"]


@behaviour("E-41", "waits_in_order")
async def waiting_in_order(place: Place) -> None:
    """Publishes wait for room in their order; one that is cancelled, and one whose bus closes, let those behind continue."""
    engine = await place.engine()
    narrow, other = await place.queue(engine, "narrow", max_bytes=2_000), await place.engine()
    large = pack(b"x" * 1_000)
    await engine.publish(large, queue=narrow)
    first = asyncio.ensure_future(engine.publish(large, queue=narrow))
    await place.calm()
    second = asyncio.ensure_future(other.publish(large, queue=narrow))
    await place.calm()
    last = asyncio.ensure_future(engine.publish(pack(b""), queue=narrow))
    await place.calm()
    first.cancel()
    await place.calm()
    assert not last.done()
    await other.close()
    await _fails(second, Closed)
    await last


@behaviour("E-22", "results")
async def stored_results(place: Place) -> None:
    """A task and its outcome are found by its id, by others too; an outcome not kept, or an unknown task, is an error."""
    sender, other = await place.engine(), await place.engine()
    queue = await place.queue(sender)
    receipt, _ = await _send(sender, queue, "a")
    info = await other.lookup(receipt.id)
    assert (info.id, info.queue, info.state, info.attempt) == (receipt.id, queue, "ready", 1)
    watcher = Recorder()
    await other.watch(receipt.id, watcher)
    taken = await place.consume(other, queue, 5)
    await place.until(lambda: taken.deliveries)
    assert (await sender.lookup(receipt.id)).state == "taken"
    await taken.deliveries[0].ack(_result("r"))
    late = Recorder()
    await other.watch(receipt.id, late)
    await place.until(lambda: watcher.outcomes and late.outcomes)
    assert watcher.result == late.result == "r"
    info = await other.lookup(receipt.id)
    assert info.state == "done"
    assert info.outcome is not None
    unkept, _ = await _send(sender, queue, "b", keep=False)
    await place.until(lambda: len(taken.deliveries) == 2)
    await taken.deliveries[1].ack()
    await _fails(sender.lookup(unkept.id), ResultExpired)
    await _fails(sender.watch(unkept.id, Recorder()), ResultExpired)
    store = receipt.id.partition("-")[0]
    for unknown in ("", "x", "a-b-c", f"{receipt.id}0", f"{store}-{2**70}-{0:016x}"):
        await _fails(sender.lookup(unknown), UnknownTask)


@behaviour("E-23")
async def taking_one(place: Place) -> None:
    """One task can be taken, at once or when it comes; none in time, or a deleted queue, fails; cancelling loses nothing."""
    engine = await place.engine()
    queue = await place.queue(engine)
    await _fails(engine.take(queue), QueueEmpty)
    await _send(engine, queue, "a")
    assert _bodies([await engine.take(queue)]) == ["a"]
    waiting = asyncio.ensure_future(engine.take(queue, None))
    await place.calm()
    await _send(engine, queue, "b")
    delivery = await waiting
    assert unpack(delivery.envelope) == "b"
    await delivery.reject()
    assert _bodies([await engine.take(queue, 5.0)]) == ["b"]
    cancelled = asyncio.ensure_future(engine.take(queue, None))
    await place.calm()
    _, recorder = await _send(engine, queue, "c")
    cancelled.cancel()
    await asyncio.wait([cancelled])
    if not cancelled.cancelled():
        await cancelled.result().reject()
    late = asyncio.ensure_future(engine.take(queue, 1.0))
    await place.until(late.done)
    assert unpack((await late).envelope) == "c"
    empty = asyncio.ensure_future(engine.take(queue, 1.0))
    await place.calm()
    await place.wait(1.1)
    await _fails(empty, QueueEmpty)
    assert not recorder.outcomes
    for timeout in (None, 60.0):
        gone = asyncio.ensure_future(engine.take(queue, timeout))
        await place.calm()
        await engine.delete(queue)
        await place.until(gone.done)
        await _fails(gone, NoRoute)
        await engine.declare(QueueSpec(queue))


@behaviour("E-24")
async def subscriptions(place: Place) -> None:
    """An event reaches each subscription with a pattern that matches, once, while it is open, in order."""
    sender, receiver = await place.engine(), await place.engine()
    narrow, wide, closed = Recorder(), Recorder(), Recorder()
    await receiver.subscribe([place.name("a.*"), place.name("#.b")], sink=narrow.event)
    subscription = await receiver.subscribe([place.name("#")], sink=wide.event)
    over = await receiver.subscribe([place.name("#")], sink=closed.event)
    await over.close()
    for word in ("a", "a.b", "c", "c.b"):
        await sender.publish(pack(word), subject=place.name(word))
    await place.until(lambda: len(wide.events) == 4)
    await place.calm()
    assert [body for _, body in wide.events] == ["a", "a.b", "c", "c.b"]
    assert narrow.events == [(place.name("a.b"), "a.b"), (place.name("c.b"), "c.b")]
    assert not closed.events
    assert (subscription.delivered, subscription.dropped) == (4, 0)
    iterated = await receiver.subscribe([place.name("#")], buffer=2)
    for number in range(4):
        await sender.publish(pack(number), subject=place.name("n"))
    await place.until(lambda: iterated.delivered == 4)
    assert [unpack((await anext(iterated)).envelope) for _ in range(2)] == [2, 3]
    assert iterated.dropped == 2


@behaviour("E-25")
async def bound_queues(place: Place) -> None:
    """An event is put into each queue with a topic that matches, and waits there while there is no consumer.

    Where one of them is full, those in which several messages can be stored in one step have none of it.
    """
    engine = await place.engine()
    queues = [await place.queue(engine, text, kind="events", topics=(place.name("t.#"),)) for text in ("one", "two")]
    await engine.publish(pack("x"), subject=place.name("t.1"), mandatory=True)
    for queue in queues:
        assert _bodies([await engine.take(queue)]) == ["x"]
    await place.queue(engine, "full", topics=(place.name("t.#"),), max_length=1, at_limit="refuse")
    await engine.publish(pack("y"), subject=place.name("t.2"))
    await _fails(engine.publish(pack("z"), subject=place.name("t.3")), QueueFull)
    if engine.capabilities.successors:
        assert (await engine.inspect(queues[0])).ready == 1


@behaviour("E-26", "last")
async def last_events(place: Place) -> None:
    """The last events of a subject are kept if the sender says so, and come first to subscribers that ask for them."""
    engine = await place.engine()
    for number in range(3):
        await engine.publish(pack(number), subject=place.name("s"), last=2)
    asking, plain = Recorder(), Recorder()
    await engine.subscribe([place.name("*")], sink=asking.event, last=True)
    await engine.subscribe([place.name("*")], sink=plain.event)
    await engine.publish(pack("new"), subject=place.name("s"))
    await place.until(lambda: plain.events)
    await place.until(lambda: len(asking.events) == 3)
    assert [body for _, body in asking.events] == [1, 2, "new"]
    assert len(plain.events) == 1


@behaviour("E-27")
async def declaring(place: Place) -> None:
    """Declaring again is harmless; another setting is a conflict that names it, unless it may change and is to."""
    engine = await place.engine()
    queue = await place.queue(engine)
    await engine.declare(QueueSpec(queue))
    assert (await _fails(engine.declare(QueueSpec(queue, ttl=5)), SpecConflict)).field == "ttl"
    await engine.declare(QueueSpec(queue, ttl=5), update=True)
    assert (await engine.inspect(queue)).spec.ttl == 5
    assert (await _fails(engine.declare(QueueSpec(queue, durable=False), update=True), SpecConflict)).field == "durable"
    assert queue in await engine.queues()


@behaviour("E-28")
async def deleting(place: Place) -> None:
    """With its queue a task ends as cancelled, its worker is told, and a consumer ends with an error."""
    engine = await place.engine()
    queue = await place.queue(engine)
    consumer = await engine.consume(queue)
    _, recorder = await _send(engine, queue)
    delivery = await anext(consumer)
    await engine.delete(queue, if_unused=True)
    assert queue in await engine.queues()
    await engine.delete(queue)
    await _fails(anext(consumer), NoRoute)
    await place.until(lambda: recorder.outcomes and delivery.cancelled)
    assert recorder.kind is OutcomeKind.CANCELLED
    assert not consumer.active
    assert not await delivery.ack()
    await _fails(engine.delete(queue), NoRoute)


@behaviour("E-29", "browse")
async def operating(place: Place) -> None:
    """A queue can be paused, looked at, moved from, purged."""
    engine = await place.engine()
    queue, other = await place.queue(engine), await place.queue(engine, "other")
    await engine.pause(queue)
    taken = await place.consume(engine, queue, 9)
    recorders = [(await _send(engine, queue, number))[1] for number in range(4)]
    await place.calm()
    assert not taken.deliveries
    assert [unpack(each.envelope) for each in await engine.browse(queue) if each.envelope] == [0, 1, 2, 3]
    assert await engine.move(queue, other, 1) == 1
    assert await engine.purge(queue) == 3
    await place.until(lambda: recorders[3].outcomes)
    assert (recorders[3].kind, recorders[0].kind) == (OutcomeKind.CANCELLED, None)
    info = await engine.inspect(queue)
    assert (info.paused, info.ready, info.consumers, info.cancelled) == (True, 0, 1, 3)
    await engine.pause(queue, False)
    await _send(engine, queue, "go")
    await place.until(lambda: taken.deliveries)
    assert _bodies([await engine.take(other)]) == [0]


@behaviour("E-30", "successors")
async def successors(place: Place) -> None:
    """Successors are published with the outcome, or not at all."""
    engine = await place.engine()
    queue, other = await place.queue(engine), await place.queue(engine, "other")
    await _send(engine, queue)
    delivery = await engine.take(queue)
    try:
        await delivery.ack(then=[Publication(place.name("nowhere"), pack(1))])
    except NoRoute:
        pass
    else:
        raise AssertionError("a successor without a queue was taken")
    large = Envelope("raw", bytes(engine.capabilities.max_body + 1))
    try:
        await delivery.ack(then=[Publication(other, pack("small")), Publication(other, large)])
    except PayloadTooLarge:
        pass
    else:
        raise AssertionError("a successor that is too large was taken")
    assert await delivery.ack(then=[Publication(other, pack("next"), priority=1)])
    assert not await delivery.ack(then=[Publication(other, pack("twice"))])
    assert _bodies([await engine.take(other)]) == ["next"]
    await _fails(engine.take(other), QueueEmpty)


@behaviour("E-31")
async def sizes(place: Place) -> None:
    """A body above the limit is refused before it is sent, a result before the task ends."""
    engine = await place.engine()
    queue = await place.queue(engine)
    body = Envelope("raw", bytes(engine.capabilities.max_body + 1))
    for publish in (
        lambda: engine.publish(body, queue=queue),
        lambda: engine.publish_many([pack(1), body], queue=queue),
    ):
        try:
            await publish()
        except PayloadTooLarge as error:
            assert error.size == len(body.body)
        else:
            raise AssertionError("it was taken")
    await _send(engine, queue)
    delivery = await engine.take(queue)
    try:
        await delivery.ack(Outcome(OutcomeKind.RESULT, body))
    except ResultTooLarge:
        pass
    else:
        raise AssertionError("it was taken")
    assert await delivery.ack()


@behaviour("E-32")
async def closing(place: Place) -> None:
    """Closing waits for open deliveries as told, gives the rest back unblamed, and settles everything that is open."""
    engine, other = await place.engine(), await place.engine()
    queue = await place.queue(other)
    empty = await place.queue(other, "empty", max_length=1)
    taken = await place.consume(engine, queue, 2)
    recorders = [(await _send(engine, queue, number))[1] for number in range(2)]
    await place.until(lambda: len(taken.deliveries) == 2)
    listener = Recorder()
    taken.deliveries[1].listen(listener)
    await _send(engine, empty)
    calls = await place.queue(other, "calls")
    accepted = Recorder()
    await engine.consume(calls, credit=2, sink=accepted.deliver, accept=True)
    asked, call = await _send(engine, calls), (await _send(engine, calls))[1]
    await place.until(lambda: len(accepted.deliveries) == 2)
    if engine.capabilities.cancel:
        assert await engine.cancel(asked[0].id) == "asked"
    iterated, events = await engine.consume(empty, credit=0), await engine.subscribe([place.name("x")])
    waiting = asyncio.ensure_future(engine.publish(pack(1), queue=empty))
    taking = asyncio.ensure_future(engine.take(place.name("q"), None))
    await place.calm()
    closing = asyncio.ensure_future(engine.close(drain=2.0))
    await place.calm()
    assert await taken.deliveries[0].ack(_result("in time"))
    await place.calm()
    assert not closing.done()
    await place.wait(2.1)
    await closing
    await engine.close()
    assert engine.status.state is EngineState.CLOSED
    assert (recorders[0].result, type(recorders[1].error)) == ("in time", Closed)
    assert {type(each.error) for each in (asked[1], call)} == {Closed}
    assert taken.deliveries[1].lost
    assert listener.heard == ["lost"]
    assert not await taken.deliveries[1].ack()
    for awaitable in (waiting, taking, engine.publish(pack(1), queue=queue), engine.inspect(queue)):
        await _fails(awaitable, Closed)
    for iterator in (iterated, events):
        await _fails(anext(iterator), StopAsyncIteration)
    delivery = await other.take(queue)
    assert (unpack(delivery.envelope), delivery.attempt) == (1, attempt(other, 2))


@behaviour("E-33")
async def many_at_once(place: Place) -> None:
    """Many tasks go in at once, in order, each with its receipt, key and watcher; the first that fails is named."""
    engine = await place.engine()
    queue = await place.queue(engine, max_length=4)
    recorders = [Recorder() for _ in range(6)]
    publishing = asyncio.ensure_future(
        engine.publish_many([pack(number) for number in range(6)], queue=queue, watchers=recorders)
    )
    taken = await place.consume(engine, queue)
    for number in range(6):
        await place.until(partial(taken.has, number + 1))
        await taken.deliveries[number].ack(_result(number))
    receipts = await publishing
    await place.until(lambda: all(each.outcomes for each in recorders))
    assert [each.id for each in receipts] == [each.id for each in taken.deliveries]
    assert [each.result for each in recorders] == list(range(6))
    refusing = await place.queue(engine, "refusing", max_length=2, at_limit="refuse")
    error = await _fails(engine.publish_many([pack(number) for number in range(4)], queue=refusing), BatchError)
    assert (error.index, error.completed, type(error.error)) == (2, 2, QueueFull)
    assert (await engine.inspect(refusing)).ready == 2
    assert await engine.publish_many([], queue=queue) == []
    if engine.capabilities.dedup:
        first, second = await engine.publish_many([pack(1), pack(2)], queue=queue, dedup=["k", "k"])
        assert (first.id, second.duplicate) == (second.id, True)


@behaviour("E-34")
async def observing(place: Place) -> None:
    """An observer is called with the changes of queues, consumers and tasks until it ends that."""
    engine = await place.engine()
    heard: list[str] = []
    end = engine.observe(lambda *what: heard.append(what[0]))
    queue = await place.queue(engine)
    await place.consume(engine, queue)
    _, recorder = await _send(engine, queue)
    await engine.delete(queue)
    await place.until(lambda: recorder.outcomes and "deleted" in heard)
    # What the queue has given out may be here before its confirmation.
    assert sorted(heard[2:4]) == ["delivered", "submitted"]
    assert heard[:2] + heard[4:] == ["declared", "consumer", "cancelled", "consumer gone", "deleted"]
    end()
    await place.queue(engine, "more")
    await place.calm()
    assert heard[-1] == "deleted"


@behaviour("E-35")
async def exclusive_consumers(place: Place) -> None:
    """A queue with an exclusive consumer lets no other join, from no bus, until that is closed."""
    engine, other = await place.engine(), await place.engine()
    queue = await place.queue(engine)
    alone = await engine.consume(queue, exclusive=True)
    await _fails(other.consume(queue), SpecConflict)
    for each in (engine, other):
        await _fails(each.take(queue), SpecConflict)
        await _fails(each.take(queue, 1.0), SpecConflict)
    await alone.close()
    await other.consume(queue)
    await _fails(engine.consume(queue, exclusive=True), SpecConflict)


@behaviour("E-36")
async def iterating(place: Place) -> None:
    """A consumer can be iterated; a cancelled wait loses nothing, and deliveries not taken go back at its end."""
    engine = await place.engine()
    queue = await place.queue(engine)
    consumer = await engine.consume(queue, credit=3)
    waiting = asyncio.ensure_future(anext(consumer))
    await place.calm()
    waiting.cancel()
    for number in range(3):
        await _send(engine, queue, number)
    await asyncio.wait([waiting])
    found = [await anext(consumer)]
    assert _bodies(found) == [0]
    await place.calm()
    await consumer.close()
    assert not consumer.active
    await _fails(anext(consumer), StopAsyncIteration)
    assert await found[0].ack()
    assert _bodies([await engine.take(queue), await engine.take(queue)]) == [1, 2]


@behaviour("E-37")
async def wrong_arguments(place: Place) -> None:
    """Invalid arguments are refused where the call is made."""
    engine = await place.engine()
    queue = await place.queue(engine)
    wrong_options: list[dict[str, Any]] = [
        {},
        {"queue": queue, "subject": "s"},
        {"queue": queue, "ttl": 1, "deadline": 1},
        {"subject": "a.*"},
        {"queue": queue, "priority": 1.5},
        {"queue": queue, "priority": -1},
        {"queue": queue, "delay": -1},
        {"queue": queue, "dedup": ["k"]},
        {"subject": "a", "last": "1"},
        {"subject": "a", "timeout": "1"},
        *({"queue": queue, name: value} for name in _TIMES for value in ("60", math.nan, math.inf, True)),
    ]
    for options in wrong_options:
        try:
            await engine.publish(pack(1), **options)
        except UsageError:
            continue
        raise AssertionError(f"it was taken: {options}")
    try:
        await engine.publish_many([pack(1)] * 2, queue=queue, dedup=["a", 1])  # type: ignore[list-item]
    except UsageError:
        pass
    else:
        raise AssertionError("it was taken")
    info = await engine.inspect(queue)
    assert (info.ready, info.bytes, info.submitted) == (0, 0, 0)
    for wrong in (
        engine.consume(queue, credit=-1),
        engine.consume(queue, credit=2**70),
        engine.subscribe([]),
        engine.subscribe([""]),
        engine.take(queue, math.nan),
    ):
        await _fails(wrong, UsageError)
    for field, value in (("delay", "5"), ("delay", math.nan), ("priority", "1"), ("ttl", "5"), ("deadline", -math.inf)):
        try:
            Publication(queue, pack(1), **{field: value})  # type: ignore[arg-type]
        except UsageError:
            continue
        raise AssertionError(f"it was taken: {field}")
    await _send(engine, queue)
    delivery = await engine.take(queue)
    for delay in ("5", math.nan, -1):
        try:
            await delivery.reject(delay=delay)  # type: ignore[arg-type]
        except UsageError:
            continue
        raise AssertionError("it was taken")
    try:
        await delivery.ack(Outcome(OutcomeKind.DEAD))
    except UsageError:
        assert await delivery.ack()
        return
    raise AssertionError("a worker made its own task a dead letter")


@behaviour("E-38", "attempts")
async def attempts(place: Place) -> None:
    """A task that was begun as often as it may is a dead letter; blame counts, give-backs only where all hand-outs do."""
    engine = await place.engine()
    number = max(2, attempt(engine, 4))
    queue = await place.queue(engine, max_attempts=number)
    _, recorder = await _send(engine, queue)
    for blame in (False, True, False):
        delivery = await engine.take(queue, 1.0)
        await delivery.reject(blame=blame, reason="too slow" if blame else "")
    delivery = await engine.take(queue, 1.0)
    assert delivery.attempt == number
    await delivery.reject(blame=True, reason="too slow again")
    await place.until(lambda: recorder.outcomes)
    assert recorder.kind is OutcomeKind.DEAD
    assert "too slow again" in recorder.outcomes[0].detail
    # However often a task fails, the other consumers of its worker go on.
    failing, calm = await place.queue(engine, "failing"), await place.queue(engine, "calm")
    taken, other = await place.consume(engine, failing), await place.consume(engine, calm, 2)
    await _send(engine, calm, "a")
    await _send(engine, failing)
    for number in range(1, 4):
        await place.until(partial(_came, taken, number))
        await taken.deliveries[-1].reject(blame=True, reason="it failed")
    await _send(engine, calm, "b")
    await place.until(lambda: other.bodies == ["a", "b"])


def _came(recorder: Recorder, number: int) -> bool:
    return len(recorder.deliveries) == number


@behaviour("E-39")
async def states(place: Place) -> None:
    """An engine is ready when it is entered, closed when it is left, and is not entered again."""
    bus = await place.open()
    seen = [(bus.state, await bus.healthy())]
    await bus.close()
    seen.append((bus.state, await bus.healthy()))
    assert seen == [(EngineState.READY, True), (EngineState.CLOSED, False)]
    await _fails(bus.__aenter__(), UsageError)


@behaviour("E-40", "schedule")
async def schedules(place: Place) -> None:
    """A schedule puts a task into its queue again, until it or its queue is removed; another of its name replaces it."""
    engine = await place.engine()
    queue = await place.queue(engine)
    name = place.name("s")
    task = Publication(queue, pack(1), priority=0, keep=False)
    for every in (3_600.0, 0.2):
        await engine.schedule(name, task, Times(every=every))
    taken = await place.consume(engine, queue, 9)
    for _ in range(5):
        await place.wait(0.1)
    await place.until(lambda: len(taken.deliveries) > 1)
    assert set(taken.bodies) == {1}
    (found,) = [each for each in await engine.schedules() if each.name == name]
    assert (found.queue, found.every, found.cron) == (queue, 0.2, None)
    assert await engine.unschedule(name)
    await place.calm()
    before = len(taken.deliveries)
    await place.wait(0.5)
    await place.calm()
    assert len(taken.deliveries) == before
    assert not await engine.unschedule(name)
    await engine.schedule(name, task, Times(cron="0 3 * * *"))
    (found,) = [each for each in await engine.schedules() if each.name == name]
    assert 0 < found.left <= 86_400
    assert await engine.unschedule(name)
    await _fails(engine.schedule(name, task, Times(cron="0 0 30 2 *")), UsageError)
    await _fails(engine.schedule(name, Publication("nothing", pack(1)), Times(every=1.0)), NoRoute)
    await engine.schedule(name, task, Times(every=0.2))
    await engine.delete(queue)
    assert name not in [each.name for each in await engine.schedules()]
    await engine.declare(QueueSpec(queue))
    await place.wait(0.5)
    await place.calm()
    assert (await engine.inspect(queue)).submitted == 0


def _step(queue: str, value: Any, *after: int, collect: bool = False, **options: Any) -> Step:
    return Step(Publication(queue, pack(value), **options), after, collect)


def _given(delivery: Delivery) -> list[tuple[str, Any]]:
    """The kinds of the outcomes that a task is given, and their payloads."""
    return [
        (outcome.kind.name, None if outcome.envelope is None else unpack(outcome.envelope))
        for _, outcome in delivery.inputs
    ]


@behaviour("E-42", "successors")
async def steps(place: Place) -> None:
    """Of tasks that are published together each begins when those before it have ended, is given their outcomes, in order."""
    engine, worker = await place.engine(), await place.engine()
    first, last = await place.queue(engine), await place.queue(engine, "last")
    taken = await place.consume(worker, first, 9)
    ended = await place.consume(worker, last, 9)
    a, b, c, d = await engine.publish_steps(
        [_step(first, "a"), _step(first, "b"), _step(last, "c", 1, 0, keep=False), _step(last, "d", 2)]
    )
    await place.until(lambda: len(taken.deliveries) == 2)
    recorder = Recorder()
    await engine.watch(d.id, recorder)
    assert (await engine.lookup(c.id)).after == (b.id, a.id)
    assert [(await engine.lookup(each.id)).state for each in (c, d)] == ["delayed", "delayed"]
    assert await taken.deliveries[0].ack(_result("of a"))
    await place.calm()
    assert not ended.deliveries
    assert await taken.deliveries[1].ack(_result("of b"))
    await place.until(lambda: ended.deliveries)
    (delivery,) = ended.deliveries
    assert (delivery.id, unpack(delivery.envelope)) == (c.id, "c")
    assert [each for each, _ in delivery.inputs] == [b.id, a.id]
    assert _given(delivery) == [("RESULT", "of b"), ("RESULT", "of a")]
    # Given back, it is given them again.
    await delivery.reject()
    await place.until(lambda: len(ended.deliveries) == 2)
    assert _given(ended.deliveries[1]) == [("RESULT", "of b"), ("RESULT", "of a")]
    await ended.deliveries[1].ack(_result("of c"))
    await place.until(lambda: len(ended.deliveries) == 3)
    assert _given(ended.deliveries[2]) == [("RESULT", "of c")]
    await ended.deliveries[2].ack()
    await place.until(lambda: recorder.outcomes)
    assert recorder.kind is OutcomeKind.RESULT


async def _outcome(place: Place, recorder: Recorder) -> Outcome:
    await place.until(lambda: recorder.outcomes)
    (outcome,) = recorder.outcomes
    return outcome


@behaviour("E-43", "successors")
async def failing_steps(place: Place) -> None:
    """A task whose predecessor does not end with a result is cancelled with the reason, and so is what comes after it."""
    engine, worker = await place.engine(), await place.engine()
    queue, last = await place.queue(engine), await place.queue(engine, "last")
    taken, ended = await place.consume(worker, queue, 9), await place.consume(worker, last, 9)
    error = Outcome(OutcomeKind.ERROR, pack("no"), "ValueError: no")
    for end, kind, said in (
        (lambda each: each.ack(error), "ERROR", "failed: ValueError: no"),
        (lambda each: each.reject(requeue=False, reason="given up"), "DEAD", "became a dead letter: given up"),
        (lambda each: engine.cancel(each.id), "CANCELLED", "was cancelled: cancelled before it was begun"),
    ):
        paused = kind == "CANCELLED"
        await engine.pause(queue, paused)
        steps = [
            _step(queue, 1),
            _step(last, 2, 0),
            _step(last, 3, 1),
            _step(last, 4, 0, collect=True),
        ]
        receipts = await engine.publish_steps(steps)
        recorders = [Recorder() for _ in receipts]
        for receipt, recorder in zip(receipts, recorders, strict=True):
            await engine.watch(receipt.id, recorder)
        if paused:
            await end(receipts[0])
        else:
            await place.until(lambda: taken.deliveries)
            await end(taken.deliveries.pop())
        await place.until(lambda: ended.deliveries)
        (delivery,) = ended.deliveries
        assert delivery.id == receipts[3].id
        assert [name for name, _ in _given(delivery)] == [kind]
        for recorder in recorders[1:3]:
            outcome = await _outcome(place, recorder)
            assert outcome.kind is OutcomeKind.CANCELLED
            assert outcome.detail == f"it came after task {receipts[0].id}, which {said}"
        await ended.deliveries.pop().ack()
    await engine.pause(queue, False)
    # One that is cancelled itself changes nothing for those before it.
    first, second = await engine.publish_steps([_step(queue, 1), _step(last, 2, 0)])
    assert await engine.cancel(second.id) == "withdrawn"
    await place.until(lambda: taken.deliveries)
    assert (taken.deliveries[0].id, await taken.deliveries[0].ack()) == (first.id, True)


@behaviour("E-44", "successors")
async def refused_steps(place: Place) -> None:
    """Tasks are published together or not at all; a key of the last one is that of all."""
    engine = await place.engine()
    queue = await place.queue(engine)
    small = await place.queue(engine, "small", max_length=2, at_limit="refuse")
    waits = await place.queue(engine, "waits", max_length=1)
    volatile = await place.queue(engine, "volatile", durable=False)

    async def refused(error: type[Exception], *steps: Step, **options: Any) -> None:
        await _fails(engine.publish_steps(steps, **options), error)
        assert (await engine.inspect(queue)).submitted == before

    before = 0
    await refused(NoRoute, _step(queue, 1), _step(place.name("nowhere"), 2, 0))
    await refused(UsageError)
    for after in ((0,), (1,), (-1,), ("0",), ([0],)):
        await refused(UsageError, _step(queue, 1, *after))
    await refused(UsageError, _step(queue, 1), _step(queue, 2, 0, 0))
    await refused(UsageError, _step(queue, 1), _step(queue, 2, 0, delay=1.0))
    await refused(UsageError, _step(queue, 1, dedup="k"), _step(queue, 2, 0))
    await refused(UsageError, _step(volatile, 1), _step(queue, 2, 0))
    half = Envelope("raw", bytes(engine.capabilities.max_body // 2 + 1))
    await refused(PayloadTooLarge, *[Step(Publication(queue, half))] * 2)
    await _send(engine, small)
    await refused(QueueFull, _step(queue, 1), _step(small, 2, 0), _step(small, 3, 0))
    await _send(engine, waits)
    await refused(Expired, _step(queue, 1), _step(waits, 2, 0), timeout=0)
    # With a queue that lets publishes wait for room, all of them wait.
    waiting = asyncio.ensure_future(engine.publish_steps([_step(queue, 1), _step(waits, 2, 0)]))
    await place.calm()
    assert ((await engine.inspect(queue)).submitted, waiting.done()) == (before, False)
    await (await engine.take(waits)).ack()
    assert len(await waiting) == 2
    receipts = await engine.publish_steps([_step(queue, 1), _step(queue, 2, 0, dedup="k")])
    (again,) = await engine.publish_steps([_step(queue, 1), _step(queue, 2, 0, dedup="k")])
    assert (again.id, again.duplicate) == (receipts[1].id, True)
    assert (await engine.inspect(queue)).submitted == 3
