"""Submitting tasks."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest

import redpoll
from redpoll.bus import QueueSpec, Requeue
from redpoll.errors import (
    BatchError,
    Closed,
    ConfigError,
    EncodeError,
    Expired,
    NoRoute,
    PayloadTooLarge,
    QueueEmpty,
    QueueFull,
    ResultExpired,
    TaskExpired,
    UsageError,
)
from tests.bus.tasks.support import Q, desk, turns, twice, until

pytestmark = pytest.mark.asyncio


async def test_a_task_is_done_and_its_result_comes_back() -> None:
    """K-08: the handler sees the task, and the submitter gets what it returns."""
    async with desk() as bus:
        seen: list[Any] = []

        async def handler(task: Any) -> Any:
            seen.append((task.data, task.queue, task.attempt, task.tries, task.headers, task.left))
            return task.data + 1

        async with bus.tasks.worker(handler, Q):
            handle = await bus.tasks.submit(41, Q, headers={"trace": "x"})
            assert await handle.result() == 42
            assert await handle.state() == "done"
            assert await bus.tasks.run(1, Q) == 2
        assert seen == [(41, Q, 1, 1, {"trace": "x"}, None), (1, Q, 1, 1, {}, None)]


async def test_a_queue_is_declared_unless_told_otherwise() -> None:
    """K-36: a queue that does not exist is made, or with declare=False it is no route, in each verb."""
    async with desk() as bus:
        with pytest.raises(NoRoute):
            await bus.tasks.submit(1, "typo", declare=False)
        with pytest.raises(NoRoute):
            await bus.tasks.submit_many([1], "typo", declare=False)
        with pytest.raises(NoRoute):
            await bus.tasks.next("typo", 0, declare=False)
        with pytest.raises(NoRoute):
            async with bus.tasks.worker(twice, "typo", declare=False):
                pass
        with pytest.raises(NoRoute):
            await anext(bus.tasks.each("typo"))
        assert await bus.queues.names() == []
        await bus.tasks.submit_many([1, 2], "many")
        with pytest.raises(QueueEmpty):
            await bus.tasks.next("next", 0)
        async with bus.tasks.worker(twice, "worker"):
            assert await bus.queues.names() == ["many", "next", "worker"]
        assert (await bus.queues.inspect("many")).ready == 2


async def test_a_queue_that_differs_is_used_as_it_is() -> None:
    """What was declared otherwise before is no conflict."""
    async with desk() as bus:
        await bus.queues.declare(QueueSpec(Q, max_attempts=2))
        async with bus.tasks.worker(twice, Q):
            assert await bus.tasks.run(1, Q) == 2


async def test_nobody_asks_for_the_result() -> None:
    """K-11: with no_reply a task is done once, and nothing is stored."""
    async with desk() as bus:
        seen: list[Any] = []
        async with bus.tasks.worker(lambda task: seen.append(task.data), Q):
            handle = await bus.tasks.submit(1, Q, no_reply=True)
            (many,) = await bus.tasks.submit_many([2], Q, no_reply=True)
            await until(lambda: len(seen) == 2)
        for each in (handle, many):
            with pytest.raises(ResultExpired):
                await each.result()
        assert sorted(seen) == [1, 2]


async def test_delays_and_times() -> None:
    """A task waits for its delay or eta in the queue, and expires by its ttl or deadline."""
    async with desk() as bus:
        when = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=100)
        first = await bus.tasks.submit(1, Q, delay=10)
        second = await bus.tasks.submit(2, Q, eta=when)
        async with bus.tasks.worker(twice, Q):
            assert await first.state() == "delayed"
            await bus.time.advance(10)
            assert await first.result() == 2
            assert await second.state() == "delayed"
            await bus.time.advance(90)
            assert await second.result() == 4
        late = await bus.tasks.submit(3, Q, ttl=5)
        dead = await bus.tasks.submit(4, Q, deadline=5)
        await bus.time.advance(5)
        for handle in (late, dead):
            with pytest.raises(TaskExpired):
                await handle.result()
        with pytest.raises(ConfigError, match="time zone"):
            await bus.tasks.submit(1, Q, eta=dt.datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(UsageError):
            await bus.tasks.submit(1, Q, eta=when, delay=1)


async def test_values_that_cannot_be_are_refused() -> None:
    """A time or a priority that cannot be is refused where it is given, by its name; nothing is submitted."""
    async with desk() as bus:
        nan = float("nan")
        wrong: list[dict[str, Any]] = [
            {"delay": -1},
            {"delay": nan},
            {"delay": "5"},
            {"ttl": 0},
            {"ttl": -1},
            {"deadline": nan},
            {"deadline": 10**9},
            {"timeout": -1},
            {"priority": -1},
            {"priority": 1.5},
            {"priority": 40},
            {"eta": dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)},
            {"eta": dt.datetime.now(dt.UTC) + dt.timedelta(days=500)},
        ]
        for options in wrong:
            (name,) = options
            with pytest.raises(ConfigError, match=name):
                await bus.tasks.submit(1, Q, **options)
            if name != "deadline":
                with pytest.raises(ConfigError, match=name):
                    await bus.tasks.submit_many([1], Q, **options)
        with pytest.raises(ConfigError, match=r"in the past \(leave it out to begin the task at once\)"):
            await bus.tasks.submit(1, Q, eta=dt.datetime(2000, 1, 1, tzinfo=dt.UTC))
        assert await bus.queues.names() == []
        handle = await bus.tasks.submit(1, Q, eta=dt.datetime.now(dt.UTC) - dt.timedelta(seconds=9))
        for timeout in (-1, nan):
            with pytest.raises(ConfigError, match="timeout"):
                bus.tasks.next(Q, timeout)
            with pytest.raises(ConfigError, match="timeout"):
                await handle.result(timeout)
            with pytest.raises(ConfigError, match="delay"):
                Requeue(timeout)
        async with bus.tasks.next(Q, 0) as task:
            with pytest.raises(ConfigError, match="delay"):
                task.requeue(-1)
            task.set_result(2)
        assert await handle.result() == 2


async def test_a_deadline_counts_while_there_is_no_room() -> None:
    """A task whose deadline ends while it waits for room was never sent; one that gets room has what is left."""
    async with desk() as bus:
        await bus.queues.declare(QueueSpec(Q, max_length=1))
        await bus.tasks.submit(1, Q)
        waiting = [asyncio.ensure_future(bus.tasks.submit(2, Q, deadline=each)) for each in (5, 20)]
        await turns()
        await bus.time.advance(10)
        with pytest.raises(Expired, match="waiting for room"):
            await waiting[0]
        async with bus.tasks.next(Q, 0) as task:
            task.set_result(None)
        handle = await waiting[1]
        async with bus.tasks.next(Q, 0) as task:
            assert task.left == 10
            task.set_result(3)
        assert await handle.result() == 3


async def test_priorities() -> None:
    """Higher priorities are begun first; a priority that the queue has not is refused, never ignored."""
    async with desk() as bus:
        with pytest.raises(ConfigError, match=r"must be 0 in queue 'night' \(declare the queue with priorities=4"):
            await bus.tasks.submit(1, Q, priority=3)
        await bus.queues.declare(QueueSpec("levels", priorities=4))
        for number in range(4):
            await bus.tasks.submit(number, "levels", priority=number)
        assert [task.data async for task in bus.tasks.each("levels")] == [3, 2, 1, 0]


async def test_dedup() -> None:
    """A second task with the same key is the first one."""
    async with desk() as bus:
        first = await bus.tasks.submit(1, Q, dedup="k")
        second = await bus.tasks.submit(2, Q, dedup="k")
        third, fourth = await bus.tasks.submit_many([3, 4], Q, dedup=["k", "l"])
        assert (first.duplicate, second.duplicate, third.duplicate, fourth.duplicate) == (False, True, True, False)
        assert first.id == second.id == third.id != fourth.id
        async with bus.tasks.worker(twice, Q):
            assert [await each.result() for each in (first, second, third, fourth)] == [2, 2, 2, 8]


async def test_many() -> None:
    """submit_many keeps the order, and says which one failed."""
    async with desk(max_body=100) as bus:
        handles = await bus.tasks.submit_many(range(10), Q)
        assert [task.data async for task in bus.tasks.each(Q)] == list(range(10))
        assert len({each.id for each in handles}) == 10
        with pytest.raises(PayloadTooLarge):
            await bus.tasks.submit_many([1, "x" * 101], Q)
        with pytest.raises(EncodeError):
            await bus.tasks.submit_many([1, object()], Q)
        await bus.queues.declare(QueueSpec("small", max_length=2, at_limit="refuse"))
        with pytest.raises(BatchError) as caught:
            await bus.tasks.submit_many(range(5), "small")
        assert (caught.value.index, type(caught.value.error)) == (2, QueueFull)
        assert (await bus.queues.inspect(Q)).ready == 10


async def test_map() -> None:
    """Results come in the order of the items, and no more than the limit are open; leaving early cancels the rest."""
    async with desk() as bus:
        gate = asyncio.Event()

        async def handler(task: Any) -> Any:
            if task.data == 0:
                await gate.wait()
            return task.data * 2

        async with bus.tasks.worker(handler, Q):
            taken: list[int] = []

            def items() -> Any:
                for number in range(9):
                    taken.append(number)
                    yield number

            results = bus.tasks.map(items(), Q, limit=3)
            first = asyncio.ensure_future(anext(results))
            await turns()
            assert taken == [0, 1, 2]
            gate.set()
            assert [await first] + [each async for each in results] == [2 * number for number in range(9)]
        results = bus.tasks.map(range(9), Q, limit=3)
        first = asyncio.ensure_future(anext(results))
        await until(lambda: bus.engine.room.broker.tasks.found)  # type: ignore[attr-defined]
        await turns()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        info = await bus.queues.inspect(Q)
        assert (info.ready, info.cancelled) == (0, 3)
        with pytest.raises(ConfigError):
            await anext(bus.tasks.map([1], Q, limit=0))


async def test_an_error_in_a_map_comes_in_its_place() -> None:
    """What a handler raised is raised where its result would have come."""
    async with desk(exceptions=[ValueError]) as bus:

        async def handler(task: Any) -> Any:
            if task.data == 1:
                raise ValueError("one")
            return task.data

        async with bus.tasks.worker(handler, Q):
            results = bus.tasks.map(range(3), Q)
            assert await anext(results) == 0
            with pytest.raises(ValueError, match="one"):
                await anext(results)


async def test_what_cannot_be_sent_is_refused() -> None:
    """A value that cannot be encoded, or is too large, is an error of the submitter."""
    async with desk(max_body=100) as bus:
        with pytest.raises(EncodeError):
            await bus.tasks.submit(object(), Q)
        with pytest.raises(PayloadTooLarge):
            await bus.tasks.submit(b"x" * 101, Q)


async def test_a_closed_bus() -> None:
    """K-01, K-02: a bus is open inside of its block; every verb of a closed one raises Closed."""
    async with redpoll.connect("memory://") as bus:
        waiting = await bus.tasks.submit(1, Q)
        asking = asyncio.ensure_future(waiting.result())
        await turns()
    with pytest.raises(Closed):
        await asking
    with pytest.raises(Closed):
        await bus.tasks.submit(1, Q)
    with pytest.raises(Closed):
        await bus.tasks.run(1, Q)
    with pytest.raises(Closed):
        await bus.tasks.next(Q)
    with pytest.raises(Closed):
        async with bus.tasks.worker(twice, Q):
            pass
    with pytest.raises(Closed):
        await waiting.cancel()


async def test_priorities_of_a_queue_that_was_made_anew() -> None:
    """A queue that was deleted and declared with more priorities takes them at once."""
    async with desk() as bus:
        for priorities in (2, 5):
            await bus.queues.declare(QueueSpec(Q, priorities=priorities))
            await bus.tasks.submit(1, Q, priority=priorities - 1)
            with pytest.raises(ConfigError, match=f"must be 0 to {priorities - 1}"):
                await bus.tasks.submit(1, Q, priority=priorities)
            await bus.tasks.submit(1, Q, priority=priorities - 1)
            await bus.queues.delete(Q)
