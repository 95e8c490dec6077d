"""Engines: how tasks are handed out, and how they end."""

from __future__ import annotations

import asyncio
from functools import partial

from redpoll.bus import EngineState, Envelope, OutcomeKind, QueueSpec
from redpoll.errors import Closed, NoRoute, QueueEmpty, ResultExpired, SpecConflict, UnknownTask, UsageError
from redpoll.testing.conformance.engine.messages import bodies, pack, result, send, unpack
from redpoll.testing.conformance.frame import Place, Recorder, attempt, behaviour, fails

__all__: list[str] = []


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
    assert await delivery.ack(result("done"))
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
    await fails(engine.publish(pack(1), queue=place.name("nowhere")), NoRoute)
    await fails(engine.publish(pack(1), queue=queue, mandatory=True), NoRoute)
    await fails(engine.publish(pack(1), subject=place.name("news"), mandatory=True), NoRoute)
    await fails(engine.consume(place.name("nowhere")), NoRoute)
    await fails(engine.take(place.name("nowhere")), NoRoute)
    await fails(engine.inspect(place.name("nowhere")), NoRoute)
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
        await send(engine, queue, number)
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
        await send(engine, queue, number)
    await place.until(lambda: sum(len(each.deliveries) for each in workers) == 9)
    assert [len(each.deliveries) for each in workers] == [3, 3, 3]
    assert sorted(number for each in workers for number in each.bodies) == list(range(9))


@behaviour("E-06")
async def given_back(place: Place) -> None:
    """A task that is given back comes again, before others, and that is no attempt."""
    engine = await place.engine()
    queue = await place.queue(engine)
    taken = await place.consume(engine, queue)
    await send(engine, queue, "a")
    await send(engine, queue, "b")
    await place.until(lambda: taken.deliveries)
    assert await taken.deliveries[0].reject()
    await place.until(lambda: len(taken.deliveries) == 2)
    assert (taken.bodies, taken.deliveries[1].attempt) == (["a", "a"], attempt(engine, 2))


@behaviour("E-08")
async def excluded(place: Place) -> None:
    """A task that a worker excludes goes to another one; when all have excluded it, it waits a second."""
    engine = await place.engine()
    queue = await place.queue(engine)
    workers = [await place.consume(engine, queue) for _ in range(2)]
    await send(engine, queue, "a")
    await place.until(lambda: workers[0].deliveries)
    await workers[0].deliveries[0].reject(exclude=True)
    await place.until(lambda: workers[1].deliveries)
    await workers[1].deliveries[0].reject(exclude=True)
    await place.calm()
    assert [len(each.deliveries) for each in workers] == [1, 1]
    await place.wait(1.1)
    await place.until(lambda: sum(len(each.deliveries) for each in workers) == 3)


@behaviour("E-10")
async def it_ends_once(place: Place) -> None:
    """A second ack, a late give-back, progress after the end: each says False and changes nothing."""
    engine = await place.engine()
    queue = await place.queue(engine)
    taken = await place.consume(engine, queue)
    _, recorder = await send(engine, queue)
    await place.until(lambda: taken.deliveries)
    (delivery,) = taken.deliveries
    assert await delivery.ack(result(1))
    assert not await delivery.ack(result(2))
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
    _, recorder = await send(sender, queue, "a")
    await place.until(lambda: first.deliveries)
    second = await place.consume(sender, queue)
    await place.kill(victim)
    await place.wait(1.0)
    await place.until(lambda: second.deliveries)
    assert (second.bodies, second.deliveries[0].attempt) == (["a"], 2)
    await second.deliveries[0].ack(result("done"))
    await place.until(lambda: recorder.outcomes)


@behaviour("E-12")
async def at_most_once(place: Place) -> None:
    """A task that was accepted is not given to another worker: when its own is killed, it ends as lost."""
    sender, victim = await place.engine(), await place.engine()
    queue = await place.queue(sender)
    first = await place.consume(victim, queue)
    _, recorder = await send(sender, queue, keep=False)
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
    _, recorder = await send(sender, calls, keep=False)
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
    _, recorder = await send(sender, queue)
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
    receipt, recorder = await send(engine, queue)
    assert await engine.cancel(receipt.id) == "withdrawn"
    await place.until(lambda: recorder.outcomes)
    assert recorder.kind is OutcomeKind.CANCELLED
    taken = await place.consume(engine, queue)
    receipt, recorder = await send(engine, queue)
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
    receipt, recorder = await send(engine, queue)
    await place.until(lambda: len(taken.deliveries) == 2)
    await engine.cancel(receipt.id)
    assert await taken.deliveries[1].ack(result(1))
    assert await engine.cancel(receipt.id) == "too late"
    await fails(engine.cancel("s-1-0"), UnknownTask)
    await place.until(lambda: recorder.outcomes)
    assert recorder.kind is OutcomeKind.RESULT


@behaviour("E-15", "progress")
async def telling(place: Place) -> None:
    """Messages of a publisher to a task reach its worker, in order, and wait for it to listen."""
    sender, worker = await place.engine(), await place.engine()
    queue = await place.queue(sender)
    receipt, _ = await send(sender, queue)
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


@behaviour("E-22", "results")
async def stored_results(place: Place) -> None:
    """A task and its outcome are found by its id, by others too; an outcome not kept, or an unknown task, is an error."""
    sender, other = await place.engine(), await place.engine()
    queue = await place.queue(sender)
    receipt, _ = await send(sender, queue, "a")
    info = await other.lookup(receipt.id)
    assert (info.id, info.queue, info.state, info.attempt) == (receipt.id, queue, "ready", 1)
    watcher = Recorder()
    await other.watch(receipt.id, watcher)
    taken = await place.consume(other, queue, 5)
    await place.until(lambda: taken.deliveries)
    assert (await sender.lookup(receipt.id)).state == "taken"
    await taken.deliveries[0].ack(result("r"))
    late = Recorder()
    await other.watch(receipt.id, late)
    await place.until(lambda: watcher.outcomes and late.outcomes)
    assert watcher.result == late.result == "r"
    info = await other.lookup(receipt.id)
    assert info.state == "done"
    assert info.outcome is not None
    unkept, _ = await send(sender, queue, "b", keep=False)
    await place.until(lambda: len(taken.deliveries) == 2)
    await taken.deliveries[1].ack()
    await fails(sender.lookup(unkept.id), ResultExpired)
    await fails(sender.watch(unkept.id, Recorder()), ResultExpired)
    store = receipt.id.partition("-")[0]
    for unknown in ("", "x", "a-b-c", f"{receipt.id}0", f"{store}-{2**70}-{0:016x}"):
        await fails(sender.lookup(unknown), UnknownTask)


@behaviour("E-23")
async def taking_one(place: Place) -> None:
    """One task can be taken, at once or when it comes; none in time, or a deleted queue, fails; cancelling loses nothing."""
    engine = await place.engine()
    queue = await place.queue(engine)
    await fails(engine.take(queue), QueueEmpty)
    await send(engine, queue, "a")
    assert bodies([await engine.take(queue)]) == ["a"]
    waiting = asyncio.ensure_future(engine.take(queue, None))
    await place.calm()
    await send(engine, queue, "b")
    delivery = await waiting
    assert unpack(delivery.envelope) == "b"
    await delivery.reject()
    assert bodies([await engine.take(queue, 5.0)]) == ["b"]
    cancelled = asyncio.ensure_future(engine.take(queue, None))
    await place.calm()
    _, recorder = await send(engine, queue, "c")
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
    await fails(empty, QueueEmpty)
    assert not recorder.outcomes
    for timeout in (None, 60.0):
        gone = asyncio.ensure_future(engine.take(queue, timeout))
        await place.calm()
        await engine.delete(queue)
        await place.until(gone.done)
        await fails(gone, NoRoute)
        await engine.declare(QueueSpec(queue))


@behaviour("E-32")
async def closing(place: Place) -> None:
    """Closing waits for open deliveries as told, gives the rest back unblamed, and settles everything that is open."""
    engine, other = await place.engine(), await place.engine()
    queue = await place.queue(other)
    empty = await place.queue(other, "empty", max_length=1)
    taken = await place.consume(engine, queue, 2)
    recorders = [(await send(engine, queue, number))[1] for number in range(2)]
    await place.until(lambda: len(taken.deliveries) == 2)
    listener = Recorder()
    taken.deliveries[1].listen(listener)
    await send(engine, empty)
    calls = await place.queue(other, "calls")
    accepted = Recorder()
    await engine.consume(calls, credit=2, sink=accepted.deliver, accept=True)
    asked, call = await send(engine, calls), (await send(engine, calls))[1]
    await place.until(lambda: len(accepted.deliveries) == 2)
    if engine.capabilities.cancel:
        assert await engine.cancel(asked[0].id) == "asked"
    iterated, events = await engine.consume(empty, credit=0), await engine.subscribe([place.name("x")])
    waiting = asyncio.ensure_future(engine.publish(pack(1), queue=empty))
    taking = asyncio.ensure_future(engine.take(place.name("q"), None))
    await place.calm()
    closing = asyncio.ensure_future(engine.close(drain=2.0))
    await place.calm()
    assert await taken.deliveries[0].ack(result("in time"))
    late = asyncio.ensure_future(engine.take(await place.queue(other, "late"), None))
    events_too = await engine.subscribe([place.name("x")])
    iterated_too = await engine.consume(empty, credit=0)
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
    for awaitable in (waiting, taking, late, engine.publish(pack(1), queue=queue), engine.inspect(queue)):
        await fails(awaitable, Closed)
    for iterator in (iterated, events, iterated_too, events_too):
        await fails(anext(iterator), StopAsyncIteration)
    delivery = await other.take(queue)
    assert (unpack(delivery.envelope), delivery.attempt) == (1, attempt(other, 2))


@behaviour("E-35")
async def exclusive_consumers(place: Place) -> None:
    """A queue with an exclusive consumer lets no other join, from no bus, until that is closed."""
    engine, other = await place.engine(), await place.engine()
    queue = await place.queue(engine)
    alone = await engine.consume(queue, exclusive=True)
    await fails(other.consume(queue), SpecConflict)
    for each in (engine, other):
        await fails(each.take(queue), SpecConflict)
        await fails(each.take(queue, 1.0), SpecConflict)
    await alone.close()
    await other.consume(queue)
    await fails(engine.consume(queue, exclusive=True), SpecConflict)


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
        await send(engine, queue, number)
    await asyncio.wait([waiting])
    found = [await anext(consumer)]
    assert bodies(found) == [0]
    await place.calm()
    await consumer.close()
    assert not consumer.active
    await fails(anext(consumer), StopAsyncIteration)
    assert await found[0].ack()
    assert bodies([await engine.take(queue), await engine.take(queue)]) == [1, 2]


@behaviour("E-38", "attempts")
async def attempts(place: Place) -> None:
    """A task that was begun as often as it may is a dead letter; blame counts, give-backs only where all hand-outs do."""
    engine = await place.engine()
    number = max(2, attempt(engine, 4))
    queue = await place.queue(engine, max_attempts=number)
    _, recorder = await send(engine, queue)
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
    await send(engine, calm, "a")
    await send(engine, failing)
    for number in range(1, 4):
        await place.until(partial(_came, taken, number))
        await taken.deliveries[-1].reject(blame=True, reason="it failed")
    await send(engine, calm, "b")
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
    await fails(bus.__aenter__(), UsageError)
