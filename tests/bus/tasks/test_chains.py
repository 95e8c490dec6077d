"""Chains and groups of tasks with data of any kind; what engines do for them is tested by the conformance suite."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from redpoll.bus import Chain, QueueSpec, Task
from redpoll.errors import ConfigError, PayloadTooLarge, QueueFull, TaskCancelled, Unsupported, UsageError
from tests.bus.tasks.support import Q, desk, turns

pytestmark = pytest.mark.asyncio


async def echo(task: Task) -> Any:
    """Return the data, and what was before it."""
    return [task.data, *task.results]


async def test_an_engine_without_such_tasks() -> None:
    """Submitting is refused with the remedy, before anything is sent."""
    async with desk() as bus:
        engine: Any = bus.engine
        engine.capabilities = replace(engine.capabilities, engine="amqp", successors=False)
        with pytest.raises(Unsupported, match=r"tasks that come after others \(connect to redpoll://"):
            await bus.tasks.chain(1, Q).then(2, Q).submit()
        assert Q not in await bus.queues.names()


async def test_a_chain_is_submitted_again_as_other_tasks() -> None:
    """It may be a part of others, with a task that two come after, which is submitted once each time."""
    async with desk() as bus, bus.tasks.worker(echo, Q):
        first = bus.tasks.chain("first", Q)
        both = bus.tasks.group([first.then("a", Q), first.then("b", Q)])
        assert await both.then("last", Q).run() == ["last", ["a", ["first"]], ["b", ["first"]]]
        assert (await bus.queues.inspect(Q)).submitted == 4
        assert await both.run() == [["a", ["first"]], ["b", ["first"]]]
        assert (await bus.queues.inspect(Q)).submitted == 7
        assert repr(first.then("a", Q)) == f"<TaskChain to {Q!r} after 1>"
        assert repr(both) == "<TaskGroup of 2>"


async def test_what_is_submitted_together_is_bounded() -> None:
    """10,000 tasks are submitted in one step and no more, with data of `max_body` together; else none is."""
    async with desk() as bus:
        parts = [bus.tasks.chain(number, Q) for number in range(10_001)]
        with pytest.raises(UsageError, match=r"10001 tasks cannot be published together \(1 to 10000 can\)"):
            await bus.tasks.group(parts).submit()
        half = bytes(bus.capabilities.max_body // 2 + 1)
        with pytest.raises(PayloadTooLarge):
            await bus.tasks.chain(half, Q).then(half, Q).submit()
        await bus.queues.declare(QueueSpec(Q))
        assert (await bus.queues.inspect(Q)).submitted == 0
        await bus.tasks.group(parts[:-1]).submit()
        assert (await bus.queues.inspect(Q)).submitted == 10_000


async def test_options_of_a_part() -> None:
    """Each task has its own: a delay of the first, a priority, a deadline; others are refused where they are given."""
    async with desk() as bus:
        await bus.queues.declare(QueueSpec(Q, priorities=3))
        begun: list[Any] = []

        async def handler(task: Task) -> Any:
            begun.append((task.data, dict(task.headers), task.left is not None))

        chain = bus.tasks.chain(1, Q, delay=10, headers={"user": "ada"}).then(2, Q, priority=2, deadline=60)
        handle = await chain.submit()
        async with bus.tasks.worker(handler, Q):
            await bus.time.advance(9)
            assert begun == []
            await bus.time.advance(1)
            await handle.result()
        assert begun == [(1, {"user": "ada"}, False), (2, {}, True)]
        late = await bus.tasks.chain(1, Q).then(2, Q, deadline=5).submit()
        await bus.time.advance(6)
        with pytest.raises(TimeoutError, match="its deadline passed"):
            await late.result()
        with pytest.raises(UsageError, match="cannot have a delay"):
            await bus.tasks.chain(1, Q).then(2, Q, delay=1).submit()
        with pytest.raises(ConfigError, match="must be 0 to 2"):
            await bus.tasks.chain(1, Q, priority=3).submit()
        with pytest.raises(TypeError, match="no option 'timeout'"):
            bus.tasks.chain(1, Q, timeout=1)  # type: ignore[call-arg]  # wrong on purpose
        for wrong in ([], [echo], ["text"]):
            with pytest.raises(ConfigError, match="chains"):
                bus.tasks.group(wrong)  # type: ignore[arg-type]  # wrong on purpose


async def test_parts_of_two_buses() -> None:
    """They are refused by an error that names both, before anything is sent."""
    async with desk("one") as one, desk("two") as two:
        group = one.tasks.group([one.tasks.chain(1, Q), two.tasks.chain(2, Q)])
        for wrong in (group, group.then(3, Q), two.tasks.group([one.tasks.chain(1, Q)])):
            with pytest.raises(UsageError, match=r"tasks of .*memory://(one|two).* and of .*memory://(?!\1)(one|two)"):
                await wrong.submit()
        assert Q not in {*await one.queues.names(), *await two.queues.names()}


async def test_a_group_that_no_queue_holds() -> None:
    """More tasks than the limit of their queue are refused for good, though it is empty: they would never fit."""
    async with desk() as bus:
        await bus.queues.declare(QueueSpec(Q, max_length=3))
        parts = [bus.tasks.chain(number, Q) for number in range(3)]
        with pytest.raises(
            UsageError, match=rf"4 tasks of .* never fit into queue '{Q}', which holds 3 tasks \(submit"
        ):
            await bus.tasks.group(parts).then("all", Q).submit()
        assert len(await bus.tasks.group(parts).submit()) == 3


async def test_results_that_are_not_there_in_time() -> None:
    """All of a group has one time; the tasks go on, and what is cancelled while it waits for room was never sent."""
    async with desk() as bus:
        parts: list[Chain[Any]] = [bus.tasks.chain(number, Q) for number in range(2)]
        for collect in (False, True):
            running = asyncio.ensure_future(bus.tasks.group(parts, collect=collect).run(timeout=5))
            await turns()
            await bus.time.advance(5)
            with pytest.raises(TimeoutError):
                await running
        assert (await bus.queues.inspect(Q)).ready == 4
        await bus.queues.declare(QueueSpec("short", max_length=1))
        await bus.tasks.submit(1, "short")
        waiting = asyncio.ensure_future(bus.tasks.chain(1, Q).then(2, "short").submit())
        await turns()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert ((await bus.queues.inspect("short")).waiting, (await bus.queues.inspect(Q)).ready) == (0, 4)
        await bus.queues.declare(QueueSpec("small", max_length=1, at_limit="refuse"))
        await bus.tasks.submit(1, "small")
        with pytest.raises(QueueFull):
            await bus.tasks.chain(1, Q).then(2, "small").submit()


async def test_a_task_that_is_cancelled_takes_those_after_it_along() -> None:
    """One that waits is withdrawn; the handle of the last one says which task it was."""
    async with desk() as bus:
        handle = await bus.tasks.chain(1, Q).then(2, Q).then(3, Q).submit()
        (second,) = (await bus.engine.lookup(handle.id)).after
        assert await bus.tasks.handle(second).cancel() == "withdrawn"
        with pytest.raises(TaskCancelled, match=f"it came after task {second}, which was cancelled"):
            await handle.result()
        assert (await bus.queues.inspect(Q)).ready == 1
