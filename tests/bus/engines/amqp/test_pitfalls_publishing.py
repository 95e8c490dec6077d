"""Pitfalls 15 to 20 of AMQP clients: what becomes of a message that is published.

Pitfall 18 is about benchmarks that compare confirmed publishes with others: benchmarks/ says of each row what is confirmed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Literal

import pytest

import redpoll
from redpoll.bus import EngineState, QueueSpec, Receipt
from redpoll.bus.engines.amqp.engine import AmqpEngine
from redpoll.bus.engines.amqp.publishing import Sending
from redpoll.bus.engines.amqp.topology import EVENTS
from redpoll.bus.engines.amqp.wire import Properties
from redpoll.errors import (
    Closed,
    Expired,
    NoRoute,
    NotAuthorized,
    NotConfirmed,
    QueueFull,
    RedpollError,
    SendError,
)
from redpoll.testing import Faults
from tests.bus.engines.amqp.support import BRIEF, Way, elapse, pair, until, within
from tests.rabbitmq import Broker

pytestmark = [pytest.mark.broker, pytest.mark.asyncio]
nightly = pytest.mark.nightly


async def drained(bus: redpoll.bus.Bus, queue: str) -> Counter[object]:
    """Take all that is in a queue, and return how often each of it was there."""
    found: Counter[object] = Counter()
    async for claim in bus.tasks.each(queue):
        found[claim.data] += 1
        claim.set_result(None)
    return found


@pytest.mark.parametrize("direction", ["forward", "back"])
@pytest.mark.parametrize("places", [6, pytest.param(60, marks=[nightly, pytest.mark.timeout(180)])])
async def test_15_lost_at_each_byte_of_a_publish(
    rabbitmq: Broker, direction: Literal["forward", "back"], places: int
) -> None:
    """Wherever a publish or its confirmation is cut off: confirmed and there, never sent and not there, or not known."""
    async with Way(rabbitmq) as way, pair(way) as (bus, other):
        await bus.queues.declare("q")
        before = getattr(way.stats(), direction)
        await bus.tasks.submit("whole", queue="q", no_reply=True)
        size = getattr(way.stats(), direction) - before
        ends: dict[str, object] = {}
        for place in range(places):
            number = f"at {place}"
            way.set(Faults(cut_after=place * (size + 1) // places), direction, to="present")
            (ends[number],) = await within(
                asyncio.gather(bus.tasks.submit(number, queue="q", no_reply=True, timeout=10), return_exceptions=True)
            )
            way.set()
            await until(lambda: bus.state is EngineState.READY, "the engine")
        there = await drained(other, "q")
    for number, end in ends.items():
        assert there[number] <= 1, f"{number} is there {there[number]} times"
        if isinstance(end, BaseException):
            assert isinstance(end, SendError), repr(end)
            assert isinstance(end, NotConfirmed) or (not end.sent and not there[number]), repr(end)
        else:
            assert there[number] == 1, f"{number} was confirmed, and is not there"


async def test_15_closing_ends_what_is_open(rabbitmq: Broker) -> None:
    """A publish that waits for its confirmation when the bus is closed ends, and so does one that comes after it."""
    async with Way(rabbitmq) as way, pair(way) as (bus, _):
        await bus.queues.declare("q")
        way.freeze()
        open_ones = [asyncio.ensure_future(bus.tasks.submit(each, queue="q", no_reply=True)) for each in range(5)]
        await elapse(0.1)
        await within(bus.close())
        for each in open_ones:
            with pytest.raises((Closed, SendError)):
                await within(each, 1)
        with pytest.raises(Closed):
            await bus.tasks.submit(6, queue="q")


@pytest.mark.timeout(120)
async def test_15_at_most_once_is_never_sent_twice(rabbitmq: Broker) -> None:
    """However often the connection is lost meanwhile, a call with retry=0 is begun at most once."""
    begun: Counter[int] = Counter()

    async def serve(number: int) -> int:
        begun[number] += 1
        return number

    async with Way(rabbitmq) as way, Way(rabbitmq) as theirs:
        async with redpoll.connect(way.url, **BRIEF) as bus, redpoll.connect(theirs.url, **BRIEF) as server:
            async with server.rpc.serve("calls", serve):
                answered = 0
                for number in range(60):
                    call = asyncio.ensure_future(bus.rpc.call("calls", None, number, timeout=2.0, retry=0, wait=1))
                    if number % 4 == 0:
                        for _ in range(number % 9):
                            await asyncio.sleep(0.001)
                        (way if number % 8 else theirs).cut()
                    with contextlib.suppress(RedpollError, TimeoutError):
                        answered += await call == number
    assert max(begun.values()) == 1
    assert answered > 30


async def test_16_publishing_while_disconnected(rabbitmq: Broker) -> None:
    """A submit that finds no connection in its time is never sent, not later either; one with more time is."""
    async with Way(rabbitmq) as way, pair(way) as (bus, other):
        await bus.queues.declare("q")
        way.refuse()
        way.cut()
        await until(lambda: bus.state is EngineState.RECONNECTING, "the loss")
        patient = asyncio.ensure_future(bus.tasks.submit("patient", queue="q", no_reply=True, timeout=20))
        with pytest.raises(Expired) as failed:
            await bus.tasks.submit("brief", queue="q", no_reply=True, timeout=0.2)
        assert not failed.value.sent
        hurried = asyncio.ensure_future(bus.tasks.submit("cancelled", queue="q", no_reply=True))
        await elapse(0.05)
        hurried.cancel()
        way.admit()
        await within(patient)
        await until(lambda: bus.state is EngineState.READY, "the engine")
        assert await drained(other, "q") == {"patient": 1}


async def test_16_what_waits_is_bounded(rabbitmq: Broker) -> None:
    """While there is no connection no more than a bound of bytes waits; what is over it fails at once, never sent."""
    async with Way(rabbitmq) as way, pair(way) as (bus, _):
        await bus.queues.declare("q")
        way.refuse()
        way.cut()
        await until(lambda: bus.state is EngineState.RECONNECTING, "the loss")
        body, waiting = bytes(4_000_000), []
        for _ in range(100):
            waiting.append(asyncio.ensure_future(bus.tasks.submit(body, queue="q", no_reply=True)))
            await asyncio.sleep(0)
        refused = [each for each in waiting if each.done()]
        assert refused
        for each in refused:
            error = each.exception()
            assert isinstance(error, QueueFull)
            assert not error.sent
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)


async def test_17_confirms_are_pipelined(rabbitmq: Broker) -> None:
    """A hundred submits at once wait for few round trips together, not for one each."""
    async with Way(rabbitmq) as way, pair(way) as (bus, _):
        await bus.queues.declare("q")
        way.set(Faults(delay=0.05))
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(*(bus.tasks.submit(each, queue="q", no_reply=True) for each in range(100)))
        assert loop.time() - began < 2.5  # one by one they would take ten seconds


async def test_19_each_publish_has_its_own_end(rabbitmq: Broker) -> None:
    """Of publishes that are open together, each hears of itself: a missing queue, a full one, one without a consumer."""
    async with redpoll.connect(rabbitmq.url) as bus:
        await bus.queues.declare("good")
        await bus.queues.declare(QueueSpec("full", max_length=1, at_limit="refuse"))
        await bus.tasks.submit(0, queue="full", no_reply=True)
        await elapse(0.1)
        engine, pack = bus.engine, bus.payloads.pack
        publishes = []
        for number in range(30):
            envelope = pack(number)
            publishes += [
                engine.publish(envelope, queue="good"),
                engine.publish(envelope, queue="missing"),
                engine.publish(envelope, queue="full"),
                engine.publish(envelope, queue="good", mandatory=True),
            ]
        ends = await within(asyncio.gather(*publishes, return_exceptions=True))
        assert {type(each) for each in ends[1::4]} == {NoRoute}
        # It may hold one or two more than its limit: RabbitMQ takes that for a soft one.
        assert {type(each) for each in ends[2::4][3:]} == {QueueFull}
        assert {type(each) for each in ends[3::4]} == {NoRoute}
        assert not [each for each in ends[::4] if isinstance(each, BaseException)]
        assert (await bus.queues.inspect("good")).ready == 30


async def test_19_one_that_is_not_allowed(rabbitmq: Broker) -> None:
    """RabbitMQ closes the channel of a publish that it refuses: those behind it are taken once, others at most once."""
    url = rabbitmq.user("limited", rabbitmq.url)
    rabbitmq.permit_topics("limited", EVENTS, "^open")
    async with redpoll.connect(url) as bus, redpoll.connect(rabbitmq.url) as other:
        await bus.queues.declare("q")
        engine, pack = bus.engine, bus.payloads.pack
        assert isinstance(engine, AmqpEngine)
        before = [engine.publish(pack(f"before {each}"), queue="q") for each in range(5)]
        refused = [engine.publish(pack(0), subject="secret.a") for _ in range(2)]
        behind = []
        for number in range(20):
            behind += [engine.publish(pack(number), queue="q"), engine.publish(pack(number), subject="open.a")]
        ends = await within(asyncio.gather(*before, *refused, *behind, return_exceptions=True))
        assert {type(each) for each in ends[:5]} <= {Receipt, NotConfirmed}
        assert {type(each) for each in ends[5:7]} == {NotAuthorized}
        assert not [each for each in ends[7:] if isinstance(each, BaseException)]
        # One that could be sent again is not, or it would be refused without end.
        for key in ("secret.c", "secret." + "c" * 240):
            again = Sending(EVENTS, key, Properties(), b"", again=True)
            engine.publisher.send(again)
            with pytest.raises(NotAuthorized, match=r"secret\.c"):
                await within(again)
        there = await drained(other, "q")
    confirmed = [f"before {each}" for each, end in enumerate(ends[:5]) if isinstance(end, Receipt)]
    assert set(there) >= {*confirmed, *range(20)}
    assert set(there.values()) == {1}


async def test_20_a_server_that_does_not_read(rabbitmq: Broker) -> None:
    """What is submitted to a connected server that reads nothing is bounded: some of it waits, the rest fails unsent."""
    async with Way(rabbitmq) as way, pair(way, heartbeat=20) as (bus, other):
        await bus.queues.declare("q")
        engine = bus.engine
        assert isinstance(engine, AmqpEngine)
        transport = engine.session.outgoing.transport
        assert transport is not None
        way.freeze(to="present")
        body, most = bytes(1_000_000), 0
        # All of one turn, and one after the other.
        waiting = [asyncio.ensure_future(bus.tasks.submit(body, queue="q", no_reply=True)) for _ in range(20)]
        for _ in range(100):
            waiting.append(asyncio.ensure_future(bus.tasks.submit(body, queue="q", no_reply=True)))
            await asyncio.sleep(0)
            most = max(most, transport.get_write_buffer_size())
        await until(lambda: any(each.done() for each in waiting), "a refusal")
        assert most < 4_000_000
        refused = [each for each in waiting if each.done()]
        assert 10 < len(refused) < 60
        for each in refused:
            error = each.exception()
            assert isinstance(error, QueueFull)
            assert not error.sent
        # One that may not wait for long ends in its time, never sent, and makes room.
        with pytest.raises(SendError) as failed:
            await bus.tasks.submit(1, queue="q", no_reply=True, timeout=0.2)
        assert not failed.value.sent
        await until(lambda: bus.state is EngineState.DEGRADED, "the engine to say so")
        way.thaw()
        kept = [each for each in waiting if each not in refused]
        await within(asyncio.gather(*kept), 60)
        await until(lambda: bus.state is EngineState.READY, "the engine")
        assert sum((await drained(other, "q")).values()) == len(kept)
