"""The RabbitMQ that tests start themselves."""

from __future__ import annotations

import asyncio
import socket

import aiormq
import pytest

import benchmarks.rabbitmq
from tests.node.support import until
from tests.rabbitmq import Broker, serves

needs_rabbitmq = pytest.mark.broker


async def put(url: str, body: bytes) -> None:
    """Publish to a durable queue, confirmed."""
    connection = await aiormq.connect(url)
    channel = await connection.channel()
    await channel.queue_declare("kept", durable=True)
    properties = aiormq.spec.Basic.Properties(delivery_mode=2)
    await channel.basic_publish(body, routing_key="kept", properties=properties)
    await connection.close()


async def get(url: str) -> bytes:
    """Take from it."""
    connection = await aiormq.connect(url)
    channel = await connection.channel()
    message = await channel.basic_get("kept", no_ack=True)
    await connection.close()
    return bytes(message.body)


@needs_rabbitmq
@pytest.mark.nightly
@pytest.mark.asyncio
async def test_killed_server_restarts_with_its_data(rabbitmq: Broker) -> None:
    """A server that was killed refuses connections, and has its durable messages when it runs again, where it was."""
    await put(rabbitmq.url, b"one")
    rabbitmq.server.kill()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", rabbitmq.server.port), timeout=1)
    rabbitmq.server.start()
    await serves(rabbitmq.server)
    assert await get(rabbitmq.url) == b"one"


@needs_rabbitmq
@pytest.mark.asyncio
async def test_frozen_server_says_nothing(rabbitmq: Broker) -> None:
    """A frozen server answers nothing though its system takes connections, and what it was asked once it continues."""
    rabbitmq.server.freeze()
    reader, writer = await asyncio.open_connection("127.0.0.1", rabbitmq.server.port)
    writer.write(b"AMQP\x00\x00\x09\x01")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(answer := asyncio.ensure_future(reader.readexactly(3))), 0.2)
    rabbitmq.server.thaw()
    assert await answer == b"\x01\x00\x00", "no frame of a method on channel 0"
    writer.close()
    await writer.wait_closed()


@needs_rabbitmq
@pytest.mark.asyncio
async def test_tests_see_what_is_in_their_virtual_host(rabbitmq: Broker) -> None:
    """A test sees its queues and exchanges, and how many connections and channels there are; it can close them."""
    connection = await aiormq.connect(rabbitmq.url)
    channel = await connection.channel()
    await channel.queue_declare("a.b")
    await channel.exchange_declare("news")
    assert (rabbitmq.queues(), rabbitmq.exchanges()) == (["a.b"], ["news"])
    assert (rabbitmq.connections(), rabbitmq.channels()) == (1, 1)
    rabbitmq.close_connections()
    await until(lambda: connection.is_closed, "the end of the connection")
    await until(lambda: not rabbitmq.connections(), "the end of the connection at the server")
    await until(lambda: len(asyncio.all_tasks()) == 1, "the end of its tasks")


@needs_rabbitmq
@pytest.mark.asyncio
async def test_memory_alarm_blocks_publishers(rabbitmq: Broker) -> None:
    """Once the alarm is raised the server confirms nothing, and what was sent meanwhile when that is over."""
    connection = await aiormq.connect(rabbitmq.url)
    channel = await connection.channel()
    await channel.queue_declare("q")
    rabbitmq.block()
    # It blocks a connection once that publishes, which is confirmed still.
    await channel.basic_publish(b"", routing_key="q")
    sent = asyncio.ensure_future(channel.basic_publish(b"", routing_key="q"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(sent), 0.2)
    rabbitmq.block(False)
    assert isinstance(await sent, aiormq.spec.Basic.Ack)
    await connection.close()


def test_missing_rabbitmq_fails_the_tests_that_need_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where RabbitMQ is not installed such a test fails, and says how to install it; it is not skipped."""
    monkeypatch.setattr(benchmarks.rabbitmq, "DAEMON", "no-such-program")
    pytester.makepyfile("def test_it(rabbitmq): pass")
    result = pytester.runpytest_inprocess("-p", "tests.rabbitmq", "-p", "no:asyncio")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*RabbitMQ is not installed: apt-get install rabbitmq-server*"])
