"""Pitfalls 21 to 29 of AMQP clients: messages that are with a consumer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import aiormq
import pytest

import redpoll
from redpoll.bus import EngineState, Outcome, OutcomeKind, QueueSpec, Task
from redpoll.bus.engines.amqp.engine import AmqpEngine
from redpoll.bus.engines.amqp.foreign.engine import DialectEngine
from redpoll.bus.engines.amqp.link import Channel
from redpoll.errors import DeadLettered, NoRoute, QueueEmpty, TaskRejected, Unsupported
from redpoll.testing import Faults
from tests.bus.engines.amqp.support import HEARTBEAT, Way, elapse, pair, states, until, within
from tests.bus.engines.amqp.workers import Worker
from tests.rabbitmq import Broker

pytestmark = [pytest.mark.broker, pytest.mark.asyncio]
nightly = pytest.mark.nightly


async def test_21_a_worker_takes_what_it_has_slots_for(rabbitmq: Broker) -> None:
    """Two workers that join one after the other share a backlog, and a call passes it by."""
    done: Counter[str] = Counter()

    def work_as(name: str) -> Callable[[Task], Awaitable[None]]:
        async def work(task: Task) -> None:
            await elapse(0.01)
            done[name] += 1

        return work

    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        await bus.tasks.submit_many(range(300), queue="q", no_reply=True)
        async with (
            bus.tasks.worker(work_as("first"), queue="q", concurrency=2),
            bus.rpc.serve("echo", lambda value: value),
        ):
            await until(lambda: done["first"] >= 10, "the first worker")
            async with other.tasks.worker(work_as("second"), queue="q", concurrency=2):
                began = time.monotonic()
                assert await other.rpc.call("echo", None, 1) == 1
                assert time.monotonic() - began < 1.0
                await until(lambda: sum(done.values()) == 300, "all tasks")
    assert done["second"] >= 75


async def test_22_handlers_call_by_the_bus_that_they_are_served_by(rabbitmq: Broker) -> None:
    """Answers need no slot: handlers that use all of them call other servers of their bus, four deep."""
    async with redpoll.connect(rabbitmq.url) as bus, contextlib.AsyncExitStack() as servers:

        def deep(number: int) -> Callable[[int], Awaitable[int]]:
            async def handle(value: int) -> int:
                return value if number == 0 else int(await bus.rpc.call(f"depth-{number - 1}", None, value + 1))

            return handle

        for number in range(4):
            await servers.enter_async_context(bus.rpc.serve(f"depth-{number}", deep(number), concurrency=1))
        calls = (bus.rpc.call("depth-3", None, each, timeout=15) for each in range(8))
        assert await within(asyncio.gather(*calls)) == [each + 3 for each in range(8)]


async def test_23_ended_after_a_reconnect(rabbitmq: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """A task that ends after its connection was replaced is given out once more; its first worker is told, no other ends."""
    begun: list[Task] = []
    go = asyncio.Event()

    async def work(task: Task) -> None:
        begun.append(task)
        if len(begun) == 1:
            await go.wait()

    async with Way(rabbitmq) as way, pair(way) as (bus, other):
        async with bus.tasks.worker(work, queue="q", concurrency=1, cancel_lost=False):
            await other.tasks.submit("x", queue="q")
            await until(lambda: begun, "the task")
            made, seen = way.stats().connections, states(bus)
            way.cut()
            await until(lambda: begun[0].lost, "the worker to be told")
            await until(lambda: "ready" in seen, "the engine")
            restored = way.stats().connections
            go.set()
            await until(lambda: len(begun) == 2, "the second delivery")
            await other.tasks.submit("y", queue="q")
            await until(lambda: len(begun) == 3, "the next task")
        assert [each.data for each in begun] == ["x", "x", "y"]
        assert begun[1].attempt == 2
        assert way.stats().connections == restored > made
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_23_ends_twice(rabbitmq: Broker) -> None:
    """A second ack and one of a lost delivery are no-ops that say so, and close nothing."""
    async with Way(rabbitmq) as way, pair(way) as (bus, other):
        await bus.queues.declare("q")
        consumer = await bus.engine.consume("q", credit=5)
        await bus.tasks.submit(1, queue="q")
        first = await within(consumer.__anext__())
        assert await first.ack(Outcome(OutcomeKind.RESULT))
        assert not await first.ack(Outcome(OutcomeKind.RESULT))
        await bus.tasks.submit(2, queue="q")
        second = await within(consumer.__anext__())
        way.cut()
        await until(lambda: second.lost, "the loss")
        assert not await second.ack()
        assert not await second.reject()
        assert not await second.accept()
        third = await within(consumer.__anext__())
        assert await third.ack()
        await other.tasks.submit(3, queue="q")
        assert await (await within(consumer.__anext__())).ack()
        await consumer.close()


async def test_23_claims_hear_that_they_are_lost(rabbitmq: Broker) -> None:
    """Tasks that were taken one by one, at once or after waiting, hear that they are lost with their connection."""
    async with Way(rabbitmq) as way, pair(way) as (bus, other):
        await other.tasks.submit_many(range(3), queue="q", no_reply=True)
        claims = [await bus.tasks.next("q", timeout=timeout) for timeout in (0, 5, None)]
        await asyncio.sleep(0)
        way.cut()
        await until(lambda: all(each.lost for each in claims), "all to hear of it")
        for each in claims:
            each.set_result(None)
            assert not await each.confirmed()
        again = {(await within(other.engine.take("q", 15.0))).attempt for _ in claims}
        assert again == {2}


@nightly
async def test_24_a_worker_that_was_frozen(rabbitmq: Broker, worker: Worker) -> None:
    """The task of a worker that is frozen for longer than it may be silent is done by another one; its own end is refused."""
    async with redpoll.connect(rabbitmq.url) as bus:
        handle = await bus.tasks.submit("x", queue="q")
        worker.start(rabbitmq.url, HEARTBEAT)
        await worker.says("begun")
        worker.freeze()
        async with bus.tasks.next("q", timeout=30) as task:
            assert task.attempt == 2
            worker.thaw()
            await worker.says("lost")
            worker.tell("end")
            await worker.says("refused")
            task.set_result("of another")
        assert await handle.result(timeout=10) == "of another"


@nightly
async def test_25_consumer_timeout_of_the_server(rabbitmq: Broker) -> None:
    """A task that takes longer than the server lets a delivery be open is begun again, and costs no other one."""
    begun: Counter[str] = Counter()

    async def work(task: Task) -> None:
        begun[task.data] += 1
        if task.data == "long" and begun["long"] == 1:
            await elapse(8.0)

    rabbitmq.set_limit("consumer_timeout", 2_000)
    rabbitmq.set_limit("channel_tick_interval", 1_000)
    async with redpoll.connect(rabbitmq.url) as bus:
        async with bus.tasks.worker(work, queue="q", concurrency=2), bus.tasks.worker(work, queue="beside"):
            await bus.tasks.submit("long", queue="q")
            await until(lambda: begun["long"], "the long task")
            await elapse(5.0)
            for queue in ("q", "beside"):
                await bus.tasks.submit(queue, queue=queue)
            await until(lambda: begun["q"] and begun["beside"], "the others")
            await until(lambda: begun["long"] >= 2, "the long task again")
            await until(lambda: bus.state is EngineState.READY, "the engine")
            assert (begun["q"], begun["beside"]) == (1, 1)


@pytest.mark.parametrize("options", [{}, {"wait": True}, {"speak": "kiwipy"}], ids=["ours", "waiting", "kiwipy"])
async def test_25_longer_than_the_server_allows(
    rabbitmq: Broker, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    """The limit of a server that cannot be told otherwise is said, in one warning, and a longer time limit is refused."""

    async def work(task: Task) -> None:
        """Do nothing."""

    async with redpoll.connect(rabbitmq.url, **options) as bus:
        await bus.status.wait_for(EngineState.READY)
        hold = bus.capabilities.hold
        if hold is None:
            pytest.skip("this server takes the limit from the consumer")
        with caplog.at_level(logging.WARNING):
            async with bus.tasks.worker(work, queue="q"), bus.tasks.worker(work, queue="p"):
                pass
        assert len([each for each in caplog.records if f"{hold:g}" in each.getMessage()]) == 1
        with pytest.raises(Unsupported, match="consumer_timeout"):
            async with bus.tasks.worker(work, queue="q", time_limit=hold * 2):
                pass
    async with redpoll.connect(rabbitmq.url, consumer_timeout=10 * hold, **options) as bus:
        assert bus.capabilities.hold == 10 * hold
        async with bus.tasks.worker(work, queue="q", time_limit=hold * 2):
            pass


@pytest.mark.parametrize("speak", [None, "kiwipy"])
async def test_25_server_that_is_told(rabbitmq: Broker, caplog: pytest.LogCaptureFixture, speak: str | None) -> None:
    """A server that knows the limit of a consumer is told it, also where the bus was entered before it was there."""
    async with redpoll.connect(rabbitmq.url, speak=speak, wait=True) as bus:
        await bus.status.wait_for(EngineState.READY)
        engine = bus.engine
        assert isinstance(engine, AmqpEngine | DialectEngine)
        engine.session.incoming.version = (3, 11, 15)
        assert bus.capabilities.hold is None
        asked: list[Any] = []
        channel_ask = Channel.ask

        def ask(channel: Channel, name: str, *arguments: Any) -> Any:
            if name == "basic.consume":
                asked.append(arguments[-1])
            return channel_ask(channel, name, *arguments)

        with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(Channel, "ask", ask)
            async with bus.tasks.worker(lambda task: None, queue="q", time_limit=86_400.0):
                pass
        assert [each.get("x-consumer-timeout", 0) > 86_400_000 for each in asked] == [True]
        assert not caplog.records


async def test_26_rejected_by_the_only_worker(rabbitmq: Broker) -> None:
    """A task that its only worker rejects waits before it comes again, and others come meanwhile."""
    begun: Counter[str] = Counter()

    async def work(task: Task) -> None:
        begun[task.data] += 1
        if task.data == "bad":
            raise TaskRejected("not for me")

    async with redpoll.connect(rabbitmq.url) as bus, bus.tasks.worker(work, queue="q", concurrency=1):
        await bus.tasks.submit("bad", queue="q")
        await bus.tasks.submit("good", queue="q")
        await until(lambda: begun["good"], "the other task")
        await elapse(1.0)
        assert begun["bad"] <= 4


async def test_26_attempts_on_a_slow_connection(rabbitmq: Broker) -> None:
    """A task that was begun as often as it may is a dead letter, also for a program that begins far from the server."""
    handed: list[int] = []
    async with Way(rabbitmq) as way, redpoll.connect(rabbitmq.url) as other:
        await other.queues.declare(QueueSpec("q", max_attempts=2))
        handle = await other.tasks.submit(1, queue="q")
        for _ in range(2):
            await (await within(other.engine.take("q", 10.0))).reject()
        way.set(Faults(delay=0.03))
        async with redpoll.connect(way.url, connect_timeout=20.0) as bus:
            worker = bus.tasks.worker(lambda task: handed.append(task.attempt), queue="q", declare=False)
            await within(worker.__aenter__())
            with pytest.raises(DeadLettered):
                await handle.result(timeout=20)
            await until(lambda: bus.state is EngineState.READY, "the engine")
            await worker.close()
    assert not handed


async def test_26_messages_that_cannot_be_read(rabbitmq: Broker) -> None:
    """A message with strange properties, or a body that nobody can read, ends no consumer and goes round in no circle."""
    done: list[object] = []

    async def work(task: Task) -> None:
        done.append(task.data)

    async with redpoll.connect(rabbitmq.url) as bus, bus.tasks.worker(work, queue="q"):
        connection = await aiormq.connect(rabbitmq.url)
        channel = await connection.channel()
        make = aiormq.spec.Basic.Properties
        for properties in (
            make(),
            make(content_type="application/x-none", message_id="x" * 200, headers={"redpoll": {"a": [1, None]}}),
            make(content_type="msgpack", expiration="60000", correlation_id="é", reply_to="nobody"),
        ):
            await channel.basic_publish(b"\xc1\xff", routing_key="q", properties=properties)
        await bus.tasks.submit("good", queue="q")
        await until(lambda: "good" in done, "the good one")
        await elapse(0.5)
        info = await bus.queues.inspect("q")
        assert (info.ready, info.taken) == (0, 0)
        assert len(done) <= 4
        await connection.close()


async def test_27_iterations(rabbitmq: Broker) -> None:
    """An iteration survives a reconnect and cancelled waits, gives out nothing stale, and ends when it is closed."""
    async with Way(rabbitmq) as way, pair(way) as (bus, other):
        await other.queues.declare("q")
        consumer = await bus.engine.consume("q", credit=3)
        for _ in range(3):
            waiting = asyncio.ensure_future(consumer.__anext__())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        await other.tasks.submit_many(range(3), queue="q", no_reply=True)
        first = await within(consumer.__anext__())
        way.cut()
        await until(lambda: first.lost, "the loss")
        got: list[int] = []
        while len(got) < 3:
            delivery = await within(consumer.__anext__())
            if await delivery.ack():
                got.append(bus.payloads.unpack(delivery.envelope))
        assert sorted(got) == [0, 1, 2]
        await consumer.close()
        with pytest.raises(StopAsyncIteration):
            await consumer.__anext__()


async def test_28_cancelled_operations(rabbitmq: Broker) -> None:
    """Operations that are cancelled, fail or time out close no channel: a worker beside them keeps its task."""
    begun: list[int] = []
    channels = 0
    go = asyncio.Event()

    async def work(task: Task) -> int:
        begun.append(task.attempt)
        await go.wait()
        return 1

    async with redpoll.connect(rabbitmq.url) as bus, bus.tasks.worker(work, queue="q"):
        handle = await bus.tasks.submit(None, queue="q")
        await until(lambda: begun, "the task")
        for number in range(25):
            verb: Awaitable[object]
            match number % 5:
                case 0:
                    verb = bus.queues.declare(f"declared-{number}")
                case 1:
                    verb = bus.queues.inspect("nowhere")
                case 2:
                    verb = bus.engine.take("q", 5.0)
                case 3:
                    verb = bus.rpc.call("nobody", None, 1, mandatory=False, timeout=0.05)
                case _:
                    verb = bus.tasks.submit(1, queue="nowhere", declare=False)
            each = asyncio.ensure_future(verb)
            for _ in range(number // 5):
                await asyncio.sleep(0)
            each.cancel()
            await asyncio.wait([each])
        for attempt in range(4):
            if attempt == 1:
                channels = rabbitmq.channels()
            for bad in (bus.queues.inspect("nowhere"), bus.queues.delete("nowhere"), bus.engine.take("nowhere")):
                with pytest.raises(NoRoute):
                    await bad
            with pytest.raises(QueueEmpty):
                await bus.engine.take("q", 0.05)
        go.set()
        assert await handle.result(timeout=10) == 1
        assert begun == [1]
        await until(lambda: rabbitmq.channels() <= channels, f"no more channels than {channels}: {rabbitmq.channels()}")


async def test_29_one_at_a_time(rabbitmq: Broker) -> None:
    """With one slot tasks are done one after another in the order of their submits."""
    seen: list[int] = []
    running = 0

    async def work(task: Task) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        seen.append(task.data)
        running -= 1

    async with redpoll.connect(rabbitmq.url) as bus:
        await bus.tasks.submit_many(range(100), queue="q", no_reply=True)
        async with bus.tasks.worker(work, queue="q", concurrency=1):
            await until(lambda: len(seen) == 100, "all tasks")
    assert seen == list(range(100))


async def test_29_a_worker_that_stops(rabbitmq: Broker) -> None:
    """A worker that stops lets what it began end, and gives the rest back, which another worker has at once."""
    begun: list[int] = []
    done: list[int] = []

    async def work(task: Task) -> None:
        begun.append(task.data)
        await elapse(0.2)
        done.append(task.data)

    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        await other.tasks.submit_many(range(20), queue="q", no_reply=True)
        async with bus.tasks.worker(work, queue="q", concurrency=2):
            await until(lambda: len(begun) == 2, "two tasks")
        rest: list[int] = []
        async for claim in other.tasks.each("q"):
            rest.append(claim.data)
            claim.set_result(None)
        assert len(done) == len(begun) == 2
        assert sorted([*done, *rest]) == list(range(20))


async def test_a_cancelled_subscription_leaves_no_queue(rabbitmq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription that is cancelled while its queue is declared leaves none, though its bus goes on."""
    ask = Channel.ask
    declared: list[str] = []

    def cancelling(channel: Channel, name: str, *arguments: Any) -> asyncio.Future[tuple[Any, ...]]:
        asked = ask(channel, name, *arguments)
        if name == "queue.declare" and arguments[1].startswith("redpoll.events."):
            declared.append(arguments[1])
            subscribing.cancel()
        return asked

    async with redpoll.connect(rabbitmq.url) as bus:
        monkeypatch.setattr(Channel, "ask", cancelling)
        subscribing = asyncio.ensure_future(bus.engine.subscribe(["a.*"]))
        await asyncio.wait((subscribing,))
        monkeypatch.undo()
        assert subscribing.cancelled()
        assert declared
        await bus.queues.declare("q")
        await until(lambda: not set(declared) & set(rabbitmq.queues()), "its queue to be deleted")
