"""Pitfalls 10 to 14 of AMQP clients: dead connections that look alive, and live ones that look dead."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

import redpoll
from redpoll.bus import Bus, EngineState, Task
from redpoll.errors import ConfigError, RedpollError, SendError, SpecConflict
from redpoll.testing import Faults
from redpoll.testing.certificates import Certificates
from redpoll.testing.faults import Direction
from tests.bus.engines.amqp.support import BRIEF, HEARTBEAT, Consumers, Way, elapse, pair, states, until, within
from tests.rabbitmq import Broker

pytestmark = [pytest.mark.broker, pytest.mark.asyncio]
nightly = pytest.mark.nightly

#: Seconds in which a silent connection is noticed by default, at most.
NOTICED = 15.0


@nightly
@pytest.mark.parametrize("direction", ["forward", "back", "both"])
async def test_10_packets_are_dropped(rabbitmq: Broker, direction: Direction) -> None:
    """With the defaults a connection that carries nothing in one direction, or in both, is left in single seconds."""
    async with Way(rabbitmq) as way, redpoll.connect(rabbitmq.url) as other:
        async with redpoll.connect(way.url) as bus, Consumers(bus) as consumers:
            await consumers.reached(other)
            made, seen = way.stats().connections, states(bus)
            way.cut("silence", direction)
            began = time.monotonic()
            await until(lambda: seen, "the engine to notice", NOTICED)
            await until(lambda: way.stats().connections > made, "a connection")
            await until(lambda: bus.state is EngineState.READY, "the engine")
            assert time.monotonic() - began < NOTICED
            await consumers.reached(other)


@pytest.mark.parametrize("scheme", ["amqp", pytest.param("amqps", marks=nightly)])
@pytest.mark.parametrize("way_to_block", [pytest.param("sleep", marks=nightly), "spin"])
async def test_11_handlers_that_block_the_loop(
    rabbitmq: Broker, redpoll_pki: Certificates, way_to_block: str, scheme: str
) -> None:
    """A handler that blocks its loop for five heartbeats, asleep or computing, keeps its connection, encrypted or not."""
    url = rabbitmq.url if scheme == "amqp" else rabbitmq.encrypted_url(redpoll_pki)
    begun: list[int] = []

    async def work(task: Task) -> str:
        begun.append(task.attempt)
        end = time.monotonic() + 5 * HEARTBEAT
        while (left := end - time.monotonic()) > 0:
            if way_to_block == "sleep":
                time.sleep(left)  # noqa: ASYNC251  # that is the point
        return "done"

    # The proxy's loop is another one: that of this thread is blocked.
    async with redpoll.connect(url, **BRIEF) as bus, bus.tasks.worker(work, queue="q"):
        connections, seen = rabbitmq.names_of_connections(), states(bus)
        handle = await bus.tasks.submit(None, queue="q")
        assert await handle.result(timeout=20) == "done"
        assert (begun, rabbitmq.names_of_connections()) == ([1], connections)
        assert "reconnecting" not in seen


@nightly
async def test_12_heartbeats_behind_bulk_data(rabbitmq: Broker) -> None:
    """While a body of a megabyte takes five seconds, both ways, the connection is not taken for dead."""
    async with Way(rabbitmq) as way, pair(way) as (bus, _):
        await bus.queues.declare("q")
        way.set(Faults(rate=200_000))
        made, seen = way.stats().connections, states(bus)
        await within(bus.tasks.submit(bytes(1_000_000), queue="q", no_reply=True), 40)
        async with bus.tasks.next("q", timeout=40) as task:
            assert len(task.data) == 1_000_000
            task.set_result(None)
        assert way.stats().connections == made
        assert "reconnecting" not in seen


async def test_13_heartbeat_is_agreed_on(rabbitmq: Broker) -> None:
    """Both ends use the smaller of both heartbeats, and there is none without one."""
    async with redpoll.connect(rabbitmq.url, **BRIEF):
        assert set(rabbitmq.heartbeats()) == {HEARTBEAT}
    await until(lambda: not rabbitmq.connections(), "no connection")
    async with redpoll.connect(rabbitmq.url, heartbeat=600):
        assert set(rabbitmq.heartbeats()) == {60}
    with pytest.raises(ConfigError):
        redpoll.connect(rabbitmq.url, heartbeat=0)


async def block(rabbitmq: Broker, bus: Bus) -> None:
    """Raise an alarm, and wait until a bus knows: a server blocks a connection once that publishes, or one message later."""
    await bus.queues.declare("probe")
    rabbitmq.block()
    while bus.state is not EngineState.DEGRADED:
        with suppress(SendError):
            await bus.tasks.submit(None, queue="probe", no_reply=True, timeout=0.2)


async def test_14_blocked_by_an_alarm(rabbitmq: Broker) -> None:
    """While the server reads nothing the engine says so, submits end in their time or go on after it, and workers work on."""
    done: list[int] = []
    go = asyncio.Event()

    async def work(task: Task) -> None:
        await go.wait()
        done.append(task.data)

    async with (
        Way(rabbitmq) as way,
        redpoll.connect(way.url, **BRIEF) as bus,
        bus.tasks.worker(work, queue="q", concurrency=2),
    ):
        for number in range(20):
            await bus.tasks.submit(number, queue="q", no_reply=True)
        made = way.stats().connections
        await block(rabbitmq, bus)
        waiting = [asyncio.ensure_future(bus.tasks.submit(each, queue="q", no_reply=True)) for each in (20, 21)]
        assert not await bus.healthy()
        with pytest.raises(SendError) as failed:
            await bus.tasks.submit(22, queue="q", no_reply=True, timeout=0.3)
        assert not failed.value.sent or isinstance(failed.value, TimeoutError)
        go.set()
        # Longer than three heartbeats.
        await until(lambda: len(done) >= 20, "the tasks that were there")
        await elapse(3.5 * HEARTBEAT)
        assert not waiting[1].done()
        rabbitmq.block(False)
        await within(asyncio.gather(*waiting))
        await until(lambda: {20, 21} <= set(done), "the tasks that waited")
        await until(lambda: bus.state is EngineState.READY, "the engine")
        assert len(set(done)) == len(done)
        assert way.stats().connections == made


async def test_14_workers_start_while_publishes_are_blocked(rabbitmq: Broker) -> None:
    """While the server reads no publishes a program starts, a worker begins, in an old program too, and both take tasks."""
    done: list[int] = []

    async def work(task: Task) -> None:
        done.append(task.data)

    async with redpoll.connect(rabbitmq.url) as bus:
        for number in range(4):
            await bus.tasks.submit(number, queue="q", no_reply=True)
        await block(rabbitmq, bus)
        waiting = [asyncio.ensure_future(bus.tasks.submit(each, queue="q", no_reply=True)) for each in (4, 5)]
        worker = await within(bus.tasks.worker(work, queue="q").__aenter__(), 4.0)
        await until(lambda: {0, 1, 2, 3} <= set(done), "the tasks")
        await worker.close()
        async with redpoll.connect(rabbitmq.url) as late:
            worker = await within(late.tasks.worker(work, queue="q").__aenter__(), 4.0)
            assert late.state is EngineState.READY
            await worker.close()
        alone = await bus.engine.consume("q", exclusive=True)
        with pytest.raises(SpecConflict):
            await within(bus.tasks.worker(work, queue="q").__aenter__(), 4.0)
        await alone.close()
        rabbitmq.block(False)
        await within(asyncio.gather(*waiting))


@nightly
async def test_14_server_that_stops_reading(rabbitmq: Broker) -> None:
    """A server that does not read for a while is left; what was confirmed is there, what was never sent is not."""
    async with Way(rabbitmq) as way, pair(way) as (bus, other), Consumers(bus) as consumers:
        await consumers.reached(other)
        seen = states(bus)
        way.freeze(to="present")
        sent = [asyncio.ensure_future(bus.tasks.submit(f"t{number}", queue="worker")) for number in range(50)]
        await until(lambda: seen, "the engine to notice")
        await elapse(3 * HEARTBEAT)
        way.thaw()
        results = await within(asyncio.gather(*sent, return_exceptions=True), 40)
        kept = {f"t{number}" for number, each in enumerate(results) if not isinstance(each, BaseException)}
        never = {f"t{number}" for number, each in enumerate(results) if isinstance(each, SendError) and not each.sent}
        assert all(isinstance(each, RedpollError) for each in results if isinstance(each, BaseException))
        await until(lambda: kept <= set(consumers.got["worker"]), "the confirmed tasks")
        await consumers.reached(other)
        assert never.isdisjoint(consumers.got["worker"])
