"""Engines: what queues, subjects and schedules do with tasks, and their administration."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Any

from redpoll.bus import Envelope, Outcome, OutcomeKind, Publication, QueueSpec, Times
from redpoll.errors import (
    BatchError,
    Closed,
    ConfirmTimeout,
    Expired,
    NoRoute,
    PayloadTooLarge,
    QueueEmpty,
    QueueFull,
    ResultTooLarge,
    SpecConflict,
    UsageError,
)
from redpoll.testing.conformance.engine.messages import bodies, pack, result, send, unpack
from redpoll.testing.conformance.frame import Place, Recorder, behaviour, fails

__all__: list[str] = []

_TIMES = ("delay", "ttl", "deadline", "timeout")


@behaviour("E-07", "delay")
async def given_back_for_later(place: Place) -> None:
    """A task that is given back with a delay comes after it; others come meanwhile. The engine keeps it."""
    engine = await place.engine()
    queue = await place.queue(engine)
    taken = await place.consume(engine, queue)
    await send(engine, queue, "a")
    await send(engine, queue, "b")
    await place.until(lambda: taken.deliveries)
    await taken.deliveries[0].reject(delay=1.0)
    await place.until(lambda: len(taken.deliveries) == 2)
    await taken.deliveries[1].ack()
    assert (await engine.inspect(queue)).delayed == 1
    await place.wait(1.1)
    await place.until(lambda: len(taken.deliveries) == 3)
    assert taken.bodies == ["a", "b", "a"]


@behaviour("E-09", "browse")
async def dead_letters(place: Place) -> None:
    """A task that is given up is a dead letter with its history, and comes back as a new one when it is redriven."""
    engine = await place.engine()
    queue = await place.queue(engine)
    taken = await place.consume(engine, queue)
    receipt, recorder = await send(engine, queue, "a")
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


@behaviour("E-16")
async def times_to_live(place: Place) -> None:
    """A task that was not begun in its time expires: its own, or else the queue's; one that was begun goes on."""
    engine = await place.engine()
    queue = await place.queue(engine, ttl=1.0)
    taken = await place.consume(engine, queue)
    recorders = [(await send(engine, queue, each, ttl=ttl))[1] for each, ttl in (("a", None), ("b", None), ("c", 60))]
    await place.wait(1.2)
    await place.until(lambda: recorders[1].outcomes)
    assert recorders[1].kind is OutcomeKind.EXPIRED
    assert await taken.deliveries[0].ack(result())
    await place.until(lambda: len(taken.deliveries) == 2)
    assert taken.bodies == ["a", "c"]


@behaviour("E-17")
async def deadlines(place: Place) -> None:
    """A task ends at its deadline, though it was begun: its worker is told, and a later outcome is refused."""
    engine = await place.engine()
    queue = await place.queue(engine)
    taken = await place.consume(engine, queue)
    _, recorder = await send(engine, queue, deadline=1.0)
    await place.until(lambda: taken.deliveries)
    left = taken.deliveries[0].left
    assert left is not None
    assert 0 < left <= 1.0
    listener = Recorder()
    taken.deliveries[0].listen(listener)
    await place.wait(1.2)
    await place.until(lambda: recorder.outcomes and listener.heard)
    assert (recorder.kind, listener.heard) == (OutcomeKind.EXPIRED, ["cancelled"])
    assert not await taken.deliveries[0].ack(result("late"))
    assert len(recorder.outcomes) == 1
    await send(engine, queue, "next")
    await place.until(lambda: len(taken.deliveries) == 2)


@behaviour("E-18", "delay")
async def delays(place: Place) -> None:
    """A task with a delay is given out after it, and not before."""
    engine = await place.engine()
    queue = await place.queue(engine)
    taken = await place.consume(engine, queue, 5)
    await send(engine, queue, "late", delay=1.0)
    await send(engine, queue, "now")
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
        await send(engine, queue, body, priority=priority)
    taken = await place.consume(engine, queue, 9)
    await place.until(lambda: len(taken.deliveries) == 5)
    assert taken.bodies == ["b", "d", "e", "c", "a"]


@behaviour("E-20", "dedup")
async def duplicates(place: Place) -> None:
    """A second task with a key is the first one: same id, one delivery, both watchers hear, also after the end."""
    engine = await place.engine()
    queue = await place.queue(engine)
    first, one = await send(engine, queue, "a", dedup="k")
    second, two = await send(engine, queue, "b", dedup="k")
    assert (second.id, second.duplicate, first.duplicate) == (first.id, True, False)
    taken = await place.consume(engine, queue, 5)
    await place.until(lambda: taken.deliveries)
    await taken.deliveries[0].ack(result("r"))
    third, three = await send(engine, queue, "c", dedup="k")
    await place.until(lambda: one.outcomes and two.outcomes and three.outcomes)
    assert third.id == first.id
    await place.calm()
    assert taken.bodies == ["a"]
    short = await place.queue(engine, "short", max_length=2)
    for number in range(2):
        await send(engine, short, number)
    waiting = [asyncio.ensure_future(send(engine, short, "late", dedup="k")) for _ in range(2)]
    await place.calm()
    for _ in range(3):
        await (await engine.take(short, 1.0)).ack(result("done"))
    (fourth, four), (fifth, five) = await asyncio.gather(*waiting)
    assert (fourth.duplicate, fifth.duplicate, fourth.id == fifth.id) == (False, True, True)
    await place.until(lambda: four.outcomes and five.outcomes)
    await fails(engine.take(short), QueueEmpty)


@behaviour("E-21")
async def full_queues(place: Place) -> None:
    """A full queue lets a publish wait until there is room or its time ends, refuses it, or drops its oldest task."""
    engine = await place.engine()
    queue = await place.queue(engine, max_length=1)
    await send(engine, queue, "a")
    late = asyncio.ensure_future(engine.publish(pack("b"), queue=queue, timeout=0.5))
    await place.calm()
    await place.wait(0.6)
    # An engine that tries again may have sent it once more as its time ended.
    ends = Expired if engine.capabilities.waits_in_order else (Expired, ConfirmTimeout)
    error = await fails(late, ends)
    assert error.sent is isinstance(error, ConfirmTimeout)
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
    await send(engine, refusing)
    assert not (await fails(engine.publish(pack(1), queue=refusing), QueueFull)).sent
    ring = await place.queue(engine, "ring", max_length=1, at_limit="drop-old")
    _, dropped = await send(engine, ring, "old")
    await send(engine, ring, "new")
    await place.until(lambda: dropped.outcomes)
    assert dropped.kind is OutcomeKind.DEAD
    assert bodies([await engine.take(ring)]) == ["new"]


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
    await fails(second, Closed)
    await last


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
        assert bodies([await engine.take(queue)]) == ["x"]
    await place.queue(engine, "full", topics=(place.name("t.#"),), max_length=1, at_limit="refuse")
    await engine.publish(pack("y"), subject=place.name("t.2"))
    await fails(engine.publish(pack("z"), subject=place.name("t.3")), QueueFull)
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
    assert (await fails(engine.declare(QueueSpec(queue, ttl=5)), SpecConflict)).field == "ttl"
    await engine.declare(QueueSpec(queue, ttl=5), update=True)
    assert (await engine.inspect(queue)).spec.ttl == 5
    assert (await fails(engine.declare(QueueSpec(queue, durable=False), update=True), SpecConflict)).field == "durable"
    assert queue in await engine.queues()


@behaviour("E-28")
async def deleting(place: Place) -> None:
    """With its queue a task ends as cancelled, its worker is told, and a consumer ends with an error."""
    engine = await place.engine()
    queue = await place.queue(engine)
    consumer = await engine.consume(queue)
    _, recorder = await send(engine, queue)
    delivery = await anext(consumer)
    await engine.delete(queue, if_unused=True)
    assert queue in await engine.queues()
    await engine.delete(queue)
    await fails(anext(consumer), NoRoute)
    await place.until(lambda: recorder.outcomes and delivery.cancelled)
    assert recorder.kind is OutcomeKind.CANCELLED
    assert not consumer.active
    assert not await delivery.ack()
    await fails(engine.delete(queue), NoRoute)


@behaviour("E-29", "browse")
async def operating(place: Place) -> None:
    """A queue can be paused, looked at, moved from, purged."""
    engine = await place.engine()
    queue, other = await place.queue(engine), await place.queue(engine, "other")
    await engine.pause(queue)
    taken = await place.consume(engine, queue, 9)
    recorders = [(await send(engine, queue, number))[1] for number in range(4)]
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
    await send(engine, queue, "go")
    await place.until(lambda: taken.deliveries)
    assert bodies([await engine.take(other)]) == [0]


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
    await send(engine, queue)
    delivery = await engine.take(queue)
    try:
        await delivery.ack(Outcome(OutcomeKind.RESULT, body))
    except ResultTooLarge:
        pass
    else:
        raise AssertionError("it was taken")
    assert await delivery.ack()


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
        await taken.deliveries[number].ack(result(number))
    receipts = await publishing
    await place.until(lambda: all(each.outcomes for each in recorders))
    assert [each.id for each in receipts] == [each.id for each in taken.deliveries]
    assert [each.result for each in recorders] == list(range(6))
    refusing = await place.queue(engine, "refusing", max_length=2, at_limit="refuse")
    error = await fails(engine.publish_many([pack(number) for number in range(4)], queue=refusing), BatchError)
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
    _, recorder = await send(engine, queue)
    await engine.delete(queue)
    await place.until(lambda: recorder.outcomes and "deleted" in heard)
    # The task may be here before its confirmation.
    assert sorted(heard[2:4]) == ["delivered", "submitted"]
    assert heard[:2] + heard[4:] == ["declared", "consumer", "cancelled", "consumer gone", "deleted"]
    end()
    await place.queue(engine, "more")
    await place.calm()
    assert heard[-1] == "deleted"


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
        await fails(wrong, UsageError)
    for field, value in (("delay", "5"), ("delay", math.nan), ("priority", "1"), ("ttl", "5"), ("deadline", -math.inf)):
        try:
            Publication(queue, pack(1), **{field: value})  # type: ignore[arg-type]
        except UsageError:
            continue
        raise AssertionError(f"it was taken: {field}")
    await send(engine, queue)
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
    await fails(engine.schedule(name, task, Times(cron="0 0 30 2 *")), UsageError)
    await fails(engine.schedule(name, Publication("nothing", pack(1)), Times(every=1.0)), NoRoute)
    await engine.schedule(name, task, Times(every=0.2))
    await engine.delete(queue)
    assert name not in [each.name for each in await engine.schedules()]
    await engine.declare(QueueSpec(queue))
    await place.wait(0.5)
    await place.calm()
    assert (await engine.inspect(queue)).submitted == 0
