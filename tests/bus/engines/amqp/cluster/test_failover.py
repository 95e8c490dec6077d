"""Programs go on when the server that they are connected to is killed or frozen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import redpoll
from redpoll.bus import Bus
from redpoll.bus.engines.amqp.engine import AmqpEngine
from redpoll.bus.state import EngineState
from redpoll.errors import RedpollError
from tests.rabbitmq import Broker, serves

pytestmark = [pytest.mark.broker, pytest.mark.nightly, pytest.mark.asyncio, pytest.mark.timeout(300)]


class Adder:
    """A server."""

    def add(self, a: int, b: int) -> int:
        """Add."""
        return a + b


async def double(task: Any) -> Any:
    """Work."""
    return task.data * 2


def port_of(bus: Bus) -> int:
    """Return the port of the server that a bus is connected to."""
    assert isinstance(bus.engine, AmqpEngine)
    transport = bus.engine.session.outgoing.transport
    assert transport is not None
    port: int = transport.get_extra_info("peername")[1]
    return port


async def next_success(bus: Bus) -> float:
    """Return the seconds until a call and a task have succeeded."""
    began = time.monotonic()
    asks: list[Callable[[], Awaitable[Any]]] = [
        lambda: bus.rpc.call("adder", "add", {"a": 1, "b": 2}, timeout=3),
        lambda: bus.tasks.run(4, queue="double", timeout=10),
    ]
    for ask in asks:
        while True:
            try:
                await ask()
            except (RedpollError, TimeoutError):
                assert time.monotonic() - began < 60
                await asyncio.sleep(0.02)
            else:
                break
    return time.monotonic() - began


async def test_killed_servers_are_left_for_others(rabbitmq_cluster: Broker) -> None:
    """Calls and tasks succeed soon after the connected server was killed, one server after another (pitfall 9)."""
    url = rabbitmq_cluster.url
    async with redpoll.connect(url) as caller, redpoll.connect(url) as worker:
        async with worker.rpc.serve("adder", Adder()), worker.tasks.worker(double, queue="double"):
            await next_success(caller)
            for _ in range(2):
                victim = next(each for each in rabbitmq_cluster.servers if each.port == port_of(caller))
                victim.kill()
                # 0.6 s where nothing else runs.
                assert await next_success(caller) < 10
                victim.start()
                await serves(victim)


async def test_frozen_server_is_reported_and_left(rabbitmq_cluster: Broker) -> None:
    """A frozen server is degraded within five seconds; then others serve."""
    url = rabbitmq_cluster.url
    async with redpoll.connect(url) as caller, redpoll.connect(url) as worker:
        async with worker.rpc.serve("adder", Adder()), worker.tasks.worker(double, queue="double"):
            await next_success(caller)
            await caller.status.wait_for(EngineState.READY)
            victim = next(each for each in rabbitmq_cluster.servers if each.port == port_of(caller))
            began = time.monotonic()
            victim.freeze()
            await caller.status.wait_for(EngineState.DEGRADED)
            assert time.monotonic() - began < 5
            assert await next_success(caller) < 30
            # One that was declared down has to begin anew, to join the others again.
            victim.kill()
            victim.start()
            await serves(victim)
