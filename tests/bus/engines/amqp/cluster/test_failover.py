"""Programs go on when the server that they are connected to is killed or frozen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import redpoll
from benchmarks.rabbitmq import Server
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


class Killer:
    """A server whose method kills the server of RabbitMQ that it was called through.

    Args:
        broker: The cluster.
        bus: The bus that it is served on.
    """

    def __init__(self, broker: Broker, bus: Bus) -> None:
        self._broker = broker
        self._bus = bus
        self.begun = 0

    def kill(self) -> int:
        """Kill it, and return its port."""
        self.begun += 1
        port = port_of(self._bus)
        server_at(self._broker, port).kill()
        return port


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


async def linked(bus: Bus) -> None:
    """Wait until a bus is connected."""
    assert isinstance(bus.engine, AmqpEngine)
    async with asyncio.timeout(60):
        await bus.engine.session.linked()


def server_at(broker: Broker, port: int) -> Server:
    """Return the server of a port."""
    return next(each for each in broker.servers if each.port == port)


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
                victim = server_at(rabbitmq_cluster, port_of(caller))
                victim.kill()
                # 0.6 s where nothing else runs.
                assert await next_success(caller) < 10
                victim.start()
                await serves(victim)


async def test_call_returns_whose_handler_kills_the_server_that_it_came_through(rabbitmq_cluster: Broker) -> None:
    """The answer takes another way, and no handler begins twice: all servers, one after another (O-23)."""
    url = rabbitmq_cluster.url
    async with redpoll.connect(url) as caller, redpoll.connect(url) as callee:
        killer = Killer(rabbitmq_cluster, callee)
        async with callee.rpc.serve("killer", killer):
            killed: set[int] = set()
            while len(killed) < len(rabbitmq_cluster.servers):
                assert killer.begun < 9
                await linked(caller)
                await linked(callee)
                begun = killer.begun
                async with asyncio.timeout(30):
                    port = await caller.rpc.call("killer", "kill", timeout=30)
                assert killer.begun == begun + 1
                killed.add(port)
                victim = server_at(rabbitmq_cluster, port)
                victim.start()
                await serves(victim)


@pytest.mark.parametrize("heartbeat", [4, 1])
async def test_frozen_server_is_reported_and_left(rabbitmq_cluster: Broker, heartbeat: int) -> None:
    """A frozen server is degraded within five seconds; then others serve, also if they learn of it later than programs."""
    url = f"{rabbitmq_cluster.url}?heartbeat={heartbeat}"
    async with redpoll.connect(url) as caller, redpoll.connect(url) as worker:
        async with worker.rpc.serve("adder", Adder()), worker.tasks.worker(double, queue="double"):
            await next_success(caller)
            await caller.status.wait_for(EngineState.READY)
            victim = server_at(rabbitmq_cluster, port_of(caller))
            began = time.monotonic()
            victim.freeze()
            await caller.status.wait_for(EngineState.DEGRADED)
            assert time.monotonic() - began < 5
            assert await next_success(caller) < 30
            # One that was declared down has to begin anew, to join the others again.
            victim.kill()
            victim.start()
            await serves(victim)
