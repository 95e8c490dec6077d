"""Engines: tasks that come after others."""

from __future__ import annotations

import asyncio
from typing import Any

from redpoll.bus import Envelope, Outcome, OutcomeKind, Publication, Step
from redpoll.bus.engine import Delivery
from redpoll.errors import Expired, NoRoute, PayloadTooLarge, QueueEmpty, QueueFull, UsageError
from redpoll.testing.conformance.engine.messages import bodies, pack, result, send, unpack
from redpoll.testing.conformance.frame import Place, Recorder, behaviour, fails

__all__: list[str] = []


@behaviour("E-30", "successors")
async def successors(place: Place) -> None:
    """Successors are published with the outcome, or not at all."""
    engine = await place.engine()
    queue, other = await place.queue(engine), await place.queue(engine, "other")
    await send(engine, queue)
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
    assert bodies([await engine.take(other)]) == ["next"]
    await fails(engine.take(other), QueueEmpty)


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
    assert await taken.deliveries[0].ack(result("of a"))
    await place.calm()
    assert not ended.deliveries
    assert await taken.deliveries[1].ack(result("of b"))
    await place.until(lambda: ended.deliveries)
    (delivery,) = ended.deliveries
    assert (delivery.id, unpack(delivery.envelope)) == (c.id, "c")
    assert [each for each, _ in delivery.inputs] == [b.id, a.id]
    assert _given(delivery) == [("RESULT", "of b"), ("RESULT", "of a")]
    # Given back, it is given them again.
    await delivery.reject()
    await place.until(lambda: len(ended.deliveries) == 2)
    assert _given(ended.deliveries[1]) == [("RESULT", "of b"), ("RESULT", "of a")]
    await ended.deliveries[1].ack(result("of c"))
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
        await fails(engine.publish_steps(steps, **options), error)
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
    await refused(UsageError, _step(queue, 1), *[_step(small, number, 0) for number in range(3)])
    narrow = await place.queue(engine, "narrow", max_bytes=2_000)
    await refused(UsageError, *[Step(Publication(narrow, Envelope("raw", bytes(900))))] * 2)
    assert len(await engine.publish_steps([Step(Publication(narrow, Envelope("raw", bytes(3_000))))])) == 1
    await send(engine, small)
    await refused(QueueFull, _step(queue, 1), _step(small, 2, 0), _step(small, 3, 0))
    await send(engine, waits)
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
