"""A RabbitMQ that restarts: what is not durable there is declared anew, and what was in flight ends as it says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import redpoll
from redpoll.bus import Bus, EngineState, Task
from redpoll.bus.engines.amqp.foreign import Exchange, Queue
from redpoll.errors import CallTimeout, Expired, NoRoute, NotConfirmed
from tests.rabbitmq import Broker, serves

# The server takes seconds to start.
pytestmark = [pytest.mark.broker, pytest.mark.nightly, pytest.mark.asyncio, pytest.mark.timeout(300)]

PATIENCE = 120.0
#: Nothing of redpoll's own is declared there: RabbitMQ 3.10 loses a stream for good that is a moment old when it is killed.
FOREIGN: dict[str, Any] = {"speak": "oslo"}


async def restart(rabbitmq: Broker, *buses: Bus) -> None:
    """Kill the server, start it again, and wait for the buses."""
    rabbitmq.server.kill()
    async with asyncio.timeout(PATIENCE):
        for bus in buses:
            await bus.status.wait_for(EngineState.RECONNECTING)
    rabbitmq.server.start()
    await serves(rabbitmq.server)
    async with asyncio.timeout(PATIENCE):
        for bus in buses:
            await bus.status.wait_for(EngineState.READY)


async def repeated(call: Any) -> Any:
    """The result of a call, which is made again while its way is not there."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call()
            except (NoRoute, NotConfirmed, CallTimeout):
                await asyncio.sleep(0.1)


async def test_publish_waits_for_a_connection(rabbitmq: Broker) -> None:
    """A message that no server takes in time was never sent, and is not sent later."""
    async with redpoll.connect(rabbitmq.url, **FOREIGN) as bus:
        await bus.foreign.declare(Queue("audit", durable=True))
        rabbitmq.server.kill()
        async with asyncio.timeout(PATIENCE):
            await bus.status.wait_for(EngineState.RECONNECTING)
        with pytest.raises(Expired):
            await bus.foreign.publish(b"late", key="audit", timeout=0.2)
        rabbitmq.server.start()
        await serves(rabbitmq.server)
        await bus.foreign.publish(b"in time", key="audit", timeout=PATIENCE)
        consumer = await bus.foreign.consume("audit")
        async with asyncio.timeout(PATIENCE):
            assert (await anext(consumer)).body == b"in time"


async def test_what_is_not_durable_is_declared_anew(rabbitmq: Broker) -> None:
    """A consumer of a queue that it declares receives again, by an exchange that was gone as well."""
    news = Exchange("news")
    async with redpoll.connect(rabbitmq.url, **FOREIGN) as bus:
        consumer = await bus.foreign.consume(Queue("reader", ((news, "#"),)))
        await restart(rabbitmq, bus)
        await repeated(lambda: bus.foreign.publish(b"again", exchange="news", key="x", timeout=PATIENCE))
        async with asyncio.timeout(PATIENCE):
            assert (await anext(consumer)).body == b"again"


@pytest.mark.parametrize("library", ["kiwipy", "oslo"])
async def test_calls_after_a_restart(rabbitmq: Broker, library: str) -> None:
    """A server is called again after a restart: its queues and exchanges are not durable."""

    class Endpoint:
        async def same(self, value: Any) -> Any:
            return value

    async def same(value: Any) -> Any:
        return value

    endpoint, method, message = (same, None, 7) if library == "kiwipy" else (Endpoint(), "same", {"value": 7})
    async with (
        redpoll.connect(rabbitmq.url, speak=library) as server,
        redpoll.connect(rabbitmq.url, speak=library) as client,
        server.rpc.serve("calc", endpoint),
    ):
        assert await client.rpc.call("calc", method, message, timeout=20) == 7
        await restart(rabbitmq, server, client)
        assert await repeated(lambda: client.rpc.call("calc", method, message, timeout=5)) == 7


async def test_tasks_after_a_restart(rabbitmq: Broker) -> None:
    """A task that waited is done after a restart, and so is one that is sent then: its exchange is not durable."""
    done: list[Any] = []

    async def work(task: Task) -> None:
        done.append(task.data)

    async with redpoll.connect(rabbitmq.url, speak="kiwipy") as bus:
        await bus.tasks.submit("before", no_reply=True)
        await restart(rabbitmq, bus)
        await repeated(lambda: bus.tasks.submit("after", no_reply=True, timeout=PATIENCE))
        async with bus.tasks.worker(work), asyncio.timeout(PATIENCE):
            while len(done) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert done == ["before", "after"]
