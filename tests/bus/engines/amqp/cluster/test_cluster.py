"""The cluster of RabbitMQ that tests start themselves."""

from __future__ import annotations

import asyncio
import contextlib

import aiormq
import pytest

from tests.rabbitmq import Broker, serves
from tests.test_rabbitmq import get

pytestmark = [pytest.mark.broker, pytest.mark.nightly]


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_cluster_serves_without_one_of_its_servers(rabbitmq_cluster: Broker) -> None:
    """A queue of the cluster serves on whichever server is left when one is killed, and that one joins again."""
    first, second, third = rabbitmq_cluster.servers
    connection = await aiormq.connect(rabbitmq_cluster.url_of(first))
    channel = await connection.channel()
    await channel.queue_declare("kept", durable=True, arguments={"x-queue-type": "quorum"})
    await channel.basic_publish(b"one", routing_key="kept")
    await connection.close()
    first.kill()
    found: list[bytes] = []
    async with asyncio.timeout(60):
        while not found:
            # The two that are left may not have a leader yet.
            with contextlib.suppress(aiormq.AMQPError):
                found.append(await get(rabbitmq_cluster.url_of(third)))
            await asyncio.sleep(0.1)
    assert found == [b"one"]
    first.start()
    await serves(first)
    assert second.evaluate("length(rabbit_mnesia:cluster_nodes(running))") == "3"
