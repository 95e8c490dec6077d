"""``bus.foreign``: exchanges and queues that are not redpoll's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import redpoll
from redpoll.bus.engines.amqp.foreign import Exchange, ForeignMessage, Properties, Queue
from redpoll.errors import Closed, ConfigError, NoRoute, SpecConflict, Unsupported, UsageError
from tests.rabbitmq import Broker

pytestmark = [pytest.mark.broker, pytest.mark.asyncio]

LOGS = Exchange("logs", durable=True)
AUDIT = Queue("audit", ((LOGS, "app.#"),), durable=True)
FULL = Properties(
    content_type="text/plain",
    content_encoding="utf-8",
    headers={"user": "ada", "n": 7, "raw": b"\x00", "deep": {"a": [1, None, True, 1.5]}},
    delivery_mode=2,
    priority=3,
    correlation_id="c",
    reply_to="r",
    expiration="60000",
    message_id="m",
    timestamp=1_795_545_761,
    type="t",
    user_id="guest",
    app_id="a",
)


async def one(consumer: Any) -> ForeignMessage:
    """The next message, soon."""
    async with asyncio.timeout(20):
        found: ForeignMessage = await anext(consumer)
    return found


async def test_everything_of_a_message_arrives(rabbitmq: Broker) -> None:
    """A message arrives with its body, its exchange, its routing key, its headers and all its properties."""
    async with redpoll.connect(rabbitmq.url) as bus:
        await bus.foreign.declare(AUDIT)
        await bus.foreign.publish(b"hello", exchange="logs", key="app.error", properties=FULL)
        await bus.foreign.publish(b"", key="audit")
        async with await bus.foreign.consume("audit", credit=2) as consumer:
            first, second = await one(consumer), await one(consumer)
            assert (first.body, first.exchange, first.key, first.properties) == (b"hello", "logs", "app.error", FULL)
            assert (second.body, second.exchange, second.key, second.redelivered) == (b"", "", "audit", False)
            assert second.properties == Properties()
            first.ack()
            second.ack()
        assert "audit" in rabbitmq.queues()


async def test_messages_that_were_not_acknowledged_come_again(rabbitmq: Broker) -> None:
    """A message that was given back comes again, and so does one that was open when its bus was closed; no other does."""
    async with redpoll.connect(rabbitmq.url) as bus:
        await bus.foreign.declare(AUDIT)
        for body in (b"kept", b"back", b"dropped", b"open"):
            await bus.foreign.publish(body, key="audit")
        consumer = await bus.foreign.consume("audit", credit=4)
        kept, back, dropped = await one(consumer), await one(consumer), await one(consumer)
        await one(consumer)
        kept.ack()
        kept.nack()  # it is acknowledged
        back.nack()
        dropped.nack(requeue=False)
        again = await one(consumer)
        assert (again.body, again.redelivered) == (b"back", True)
        again.ack()
        # It lets open messages be acknowledged, but takes no more.
        await consumer.close()
        await bus.foreign.publish(b"new", key="audit")
        with pytest.raises(StopAsyncIteration):
            await one(consumer)
    async with redpoll.connect(rabbitmq.url) as bus, await bus.foreign.consume("audit") as consumer:
        found = []
        for _ in range(2):
            message = await one(consumer)
            found.append((message.body, message.redelivered))
            message.ack()
        assert found == [(b"open", True), (b"new", False)]


async def test_credit(rabbitmq: Broker) -> None:
    """So many messages are open at a time as the credit says."""
    async with redpoll.connect(rabbitmq.url) as bus:
        await bus.foreign.declare(AUDIT)
        for number in range(5):
            await bus.foreign.publish(b"%d" % number, key="audit")
        got: list[ForeignMessage] = []
        came = asyncio.Event()

        def sink(message: ForeignMessage) -> None:
            got.append(message)
            came.set()

        async with await bus.foreign.consume("audit", credit=2, sink=sink):
            while len(got) < 5:
                came.clear()
                async with asyncio.timeout(20):
                    while len(got) < 2:
                        await came.wait()
                        came.clear()
                assert len(got) == 2
                got.pop(0).ack()
                if got[-1].body == b"4":
                    break
            got[0].ack()
        with pytest.raises(ConfigError, match="credit"):
            await bus.foreign.consume("audit", credit=0)


async def test_errors(rabbitmq: Broker) -> None:
    """What reaches no queue is `NoRoute`, as is consuming one that is not there; one that differs is a `SpecConflict`."""
    async with redpoll.connect(rabbitmq.url) as bus:
        with pytest.raises(NoRoute, match="nowhere"):
            await bus.foreign.publish(b"", key="nowhere")
        await bus.foreign.publish(b"", key="nowhere", mandatory=False)
        with pytest.raises(NoRoute, match="nowhere"):
            await bus.foreign.consume("nowhere")
        await bus.foreign.declare(AUDIT)
        with pytest.raises(UsageError, match="name"):
            await bus.foreign.declare(Queue("", exclusive=True))
        with pytest.raises(SpecConflict, match="audit"):
            await bus.foreign.declare(AUDIT._replace(arguments={"x-max-length": 1}, bindings=()))
        async with await bus.foreign.consume("audit", exclusive=True):
            with pytest.raises(SpecConflict, match="exclusive"):
                await bus.foreign.consume("audit")
        with pytest.raises(UsageError, match="with this type"):
            await bus.foreign.publish(b"", key="audit", properties=Properties(type="t" * 256))
        with pytest.raises(UsageError, match=r"queue\.declare cannot be sent"):
            await bus.foreign.declare(Queue("q" * 256))
        # The bus serves on.
        await bus.foreign.publish(b"", key="audit")
        await bus.foreign.delete("audit")
        with pytest.raises(NoRoute, match="audit"):
            await bus.foreign.delete("audit")
        foreign = bus.foreign
    with pytest.raises(Closed):
        await foreign.publish(b"", key="audit")


async def test_engines_without_them() -> None:
    """Other engines say that they have none, and which one has."""
    async with redpoll.connect("memory://") as bus:
        with pytest.raises(Unsupported, match="amqp://"):
            _ = bus.foreign


async def test_consumers_and_queues_survive_the_connection(rabbitmq: Broker) -> None:
    """A consumer goes on after a lost connection, its exclusive queue is made again, and its owner told."""
    async with redpoll.connect(rabbitmq.url) as bus:
        await bus.foreign.declare(AUDIT)
        lost = asyncio.Event()
        own = await bus.foreign.consume(Queue("", ((LOGS, "app.#"),), exclusive=True))
        consumer = await bus.foreign.consume("audit", lost=lost.set)
        await bus.foreign.publish(b"first", key="audit")
        first = await one(consumer)
        rabbitmq.close_connections()
        async with asyncio.timeout(20):
            await lost.wait()
        first.ack()  # it is not this one's any more
        again = await one(consumer)
        assert (again.body, again.redelivered) == (b"first", True)
        again.ack()
        async with asyncio.timeout(20):
            while not own.active:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await bus.foreign.publish(b"second", exchange="logs", key="app.x", timeout=20)
        assert [(await one(each)).body for each in (consumer, own)] == [b"second", b"second"]


async def test_consumer_waits_for_its_queue(rabbitmq: Broker) -> None:
    """A consumer whose queue is deleted is not active, says so, and goes on once the queue is there again."""
    async with redpoll.connect(rabbitmq.url) as bus:
        await bus.foreign.declare(AUDIT)
        consumer = await bus.foreign.consume("audit")
        await bus.foreign.delete("audit")
        async with asyncio.timeout(20):
            await bus.status.wait_for(redpoll.bus.EngineState.DEGRADED)
        assert not consumer.active
        assert "audit" in bus.status.reason
        await bus.foreign.declare(AUDIT)
        await bus.foreign.publish(b"again", key="audit")
        assert (await one(consumer)).body == b"again"
        assert consumer.active
