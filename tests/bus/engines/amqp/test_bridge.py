"""A bridge between a hub and RabbitMQ: programs on either side serve each other, and move while they are used."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import redpoll
from redpoll import Bridge, Hub
from redpoll.bus import Broadcast, Bus, Task
from redpoll.bus.engines.amqp.publishing import Sending
from redpoll.bus.engines.amqp.wire import Properties
from redpoll.errors import RemoteError, TaskCancelled
from tests.bus.survival.programs import Plan, Running
from tests.node.support import PATIENCE, until
from tests.rabbitmq import Broker

pytestmark = [pytest.mark.broker, pytest.mark.asyncio]

_names = itertools.count()


@asynccontextmanager
async def sides(rabbitmq: Broker, folder: Path, turned: bool) -> AsyncIterator[tuple[Bus, Bus, Bridge]]:
    """A hub and RabbitMQ, a bridge, and a program on each: that of the callers first."""
    async with (
        Hub(folder / "hub", 0) as hub,
        redpoll.connect(hub.url) as ours,
        redpoll.connect(rabbitmq.url) as rabbit,
        Bridge(hub.url, rabbitmq.url, period=0.2) as bridge,
    ):
        yield (rabbit, ours, bridge) if turned else (ours, rabbit, bridge)


@pytest.fixture(params=[False, True], ids=["to RabbitMQ", "to the hub"])
def turned(request: pytest.FixtureRequest) -> bool:
    """Whether the callers are on RabbitMQ."""
    return bool(request.param)


class Service:
    """What is served."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def add(self, a: int, b: int) -> int:
        """Add."""
        return a + b

    async def count(self, below: int) -> AsyncGenerator[int, None]:
        """Count."""
        for number in range(below):
            yield number

    async def hang(self) -> None:
        """Wait to be cancelled."""
        self.told.append("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.told.append("cancelled")
            raise

    async def note(self, text: str) -> None:
        """Note a text."""
        self.told.append(text)


async def test_both_sides_serve_each_other(rabbitmq: Broker, tmp_path: Path, turned: bool) -> None:
    """Tasks with progress and errors, calls, streams, casts, broadcasts and notifications pass between a hub and RabbitMQ."""
    listening = asyncio.Event()

    async def work(task: Task) -> int:
        await listening.wait()
        task.progress("half")
        if task.data < 0:
            raise ValueError("less than nothing")
        return int(task.data) * 2

    async with sides(rabbitmq, tmp_path, turned) as (here, there, bridge):
        service = Service()
        progress: list[str] = []
        seen: list[int] = []
        heard: list[Broadcast] = []
        await here.notifier("me", topics=["jobs"]).info("early", 0)
        async with (
            there.tasks.worker(work, queue="numbers"),
            there.rpc.serve("service", service),
            there.notifications.listen(lambda each: seen.append(each.payload), topics=["jobs"]),
            there.broadcast.subscribe(heard.append, subject="news"),
            here.broadcast.subscribe(heard.append, subject="news"),
            asyncio.timeout(PATIENCE),
        ):
            task = await here.tasks.submit(21, queue="numbers")
            task.on_progress(progress.append)
            listening.set()
            assert await task.result() == 42
            assert progress == ["half"]
            with pytest.raises(RemoteError, match="less than nothing"):
                await here.tasks.run(-1, queue="numbers")
            many = await here.tasks.submit_many(range(200), queue="numbers")
            assert [await each.result() for each in many] == [2 * number for number in range(200)]
            assert await here.rpc.call("service", "add", {"a": 1, "b": 2}, wait=PATIENCE, timeout=PATIENCE) == 3
            parts = [part async for part in here.rpc.stream("service", "count", {"below": 200})]
            assert parts == list(range(200))
            await here.rpc.cast("service", "note", {"text": "cast"})
            await here.rpc.fanout("service", "note", {"text": "all"})
            await here.notifier("me", topics=["jobs"]).info("later", 1)
            await here.broadcast.send("from here", subject="news")
            await there.broadcast.send("from there", subject="news")
            await until(lambda: (len(service.told), len(seen), len(heard)) == (2, 2, 4), "all that was sent")
            await until(lambda: bridge.held == 0, "the end of all")
        assert (sorted(service.told), sorted(seen)) == (["all", "cast"], [0, 1])
        assert sorted(each.body for each in heard) == ["from here"] * 2 + ["from there"] * 2


async def test_work_is_cancelled_at_the_other_side(rabbitmq: Broker, tmp_path: Path, turned: bool) -> None:
    """A call whose caller leaves, and a task that is cancelled, are stopped at the other side."""

    async def work(task: Task) -> None:
        await service.hang()

    async with sides(rabbitmq, tmp_path, turned) as (here, there, _):
        service = Service()
        async with there.rpc.serve("service", service), there.tasks.worker(work, queue="numbers", drain=0):
            call = asyncio.ensure_future(here.rpc.call("service", "hang", wait=PATIENCE, timeout=PATIENCE))
            await until(lambda: service.told == ["begun"], "the call")
            call.cancel()
            await until(lambda: service.told == ["begun", "cancelled"], "the end of the call")
            task = await here.tasks.submit(1, queue="numbers")
            await until(lambda: len(service.told) == 3, "the begin of the task")
            assert await here.engine.cancel(task.id) == "asked"
            await until(lambda: len(service.told) == 4, "the end of the task")
            with pytest.raises(TaskCancelled):
                await task.result(timeout=PATIENCE)


async def test_a_system_moves_and_returns(rabbitmq: Broker, tmp_path: Path) -> None:
    """Workers and submitters move from a hub to RabbitMQ and back, one by one, under load: each task is done once."""
    begun: Counter[int] = Counter()
    numbers = itertools.count()
    results: dict[int, int] = {}

    async def work(task: Task) -> int:
        begun[task.data] += 1
        return int(task.data) + 1

    async def submit(bus: Bus) -> None:
        while True:
            number = next(numbers)
            results[number] = await bus.tasks.run(number, queue="numbers")

    async def submitted(more: int = 20) -> None:
        least = len(results) + more
        await until(lambda: len(results) >= least, "more results")

    async with sides(rabbitmq, tmp_path, False) as (hub, rabbit, bridge):
        workers = [hub.tasks.worker(work, queue="numbers", concurrency=2) for _ in range(2)]
        for each in workers:
            await each.__aenter__()
        submitting = [asyncio.ensure_future(submit(hub)) for _ in range(2)]
        await submitted()
        for target in (rabbit, hub):
            for place in range(2):
                # A worker moves, and then one that submits: what it waits for ends first.
                moved = target.tasks.worker(work, queue="numbers", concurrency=2)
                await moved.__aenter__()
                await workers[place].close(PATIENCE)
                workers[place] = moved
                await submitted()
                submitting.append(asyncio.ensure_future(submit(target)))
                await submitted()
        for task in submitting:
            task.cancel()
        await asyncio.gather(*submitting, return_exceptions=True)
        await until(lambda: bridge.held == 0, "the end of what is held")
        for each in workers:
            await each.close(PATIENCE)
    assert all(results[number] == number + 1 for number in results)
    assert set(begun.values()) == {1}
    assert begun.keys() >= results.keys()


async def test_a_killed_bridge_loses_no_task(rabbitmq: Broker, tmp_path: Path, turned: bool) -> None:
    """Tasks that are at the other side as a bridge is killed are done: once at a hub, at RabbitMQ perhaps twice."""
    begun: Counter[int] = Counter()
    gate = asyncio.Event()

    async def work(task: Task) -> int:
        begun[task.data] += 1
        await gate.wait()
        return int(task.data)

    async with (
        Hub(tmp_path / "hub", 0) as hub,
        redpoll.connect(hub.url) as ours,
        redpoll.connect(rabbitmq.url) as rabbit,
    ):
        here, there = (rabbit, ours) if turned else (ours, rabbit)
        plan = Plan("bridge", str(tmp_path / "first"), hub.url, given={"other": rabbitmq.url})
        bridges = [Running(plan)]
        try:
            await bridges[0].wait("ready")
            async with there.tasks.worker(work, queue="numbers", concurrency=50), asyncio.timeout(PATIENCE):
                tasks = [await here.tasks.submit(number, queue="numbers") for number in range(10)]
                await until(lambda: len(begun) == 10, "the begin of all")
                bridges[0].kill()
                bridges.append(Running(replace(plan, log=str(tmp_path / "second"))))
                await bridges[1].wait("ready")
                gate.set()
                assert [await each.result() for each in tasks] == list(range(10))
        finally:
            for each in bridges:
                each.kill()
    assert max(begun.values()) <= (1 if turned else 2)


async def test_it_says_that_a_task_may_run_twice(
    rabbitmq: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """RabbitMQ has no dedup keys: a bridge to it says once what that means."""
    async with sides(rabbitmq, tmp_path, False):
        assert caplog.text.count("a task may run twice there if a bridge is killed") == 1


async def test_messages_of_other_programs_are_kept_apart(rabbitmq: Broker, tmp_path: Path) -> None:
    """Messages without an id, of a program that is not redpoll's, are each a task of their own, for later bridges too."""
    seen: list[Any] = []

    async def work(task: Task) -> None:
        seen.append(bytes(task.data))

    async with (
        Hub(tmp_path / "hub", 0) as hub,
        redpoll.connect(hub.url) as ours,
        redpoll.connect(rabbitmq.url) as rabbit,
    ):
        engine: Any = rabbit.engine
        await rabbit.queues.declare("numbers")
        async with ours.tasks.worker(work, queue="numbers"):
            for number in range(4):
                async with Bridge(hub.url, rabbitmq.url, period=0.2) as bridge:
                    sending = Sending("", "numbers", Properties(), b"%d" % number)
                    engine.parts.publisher.send(sending)
                    await sending
                    await until(lambda: bridge.forwarded == 1 and not bridge.held, "the next message")
    assert seen == [b"0", b"1", b"2", b"3"]
