"""Plain functions in threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import sys
import threading
from typing import Any

import pytest

from redpoll.bus import Retry
from redpoll.errors import (
    RemoteError,
    TaskCancelled,
    TimeLimit,
)
from tests.bus.tasks.support import Q, desk, turns, until

pytestmark = pytest.mark.asyncio


class Gate:
    """A handler that waits in its thread."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.open = threading.Event()
        self.cancelled = threading.Event()

    def __call__(self, task: Any) -> Any:
        self.begun.set()
        while not self.open.wait(0.005):
            if task.cancelled:
                self.cancelled.set()
        return "done"


async def test_a_plain_function_runs_in_a_thread() -> None:
    """A plain function does not run on the loop, sees the context of its worker, and tells progress from there."""
    name = contextvars.ContextVar("name", default="")
    async with desk() as bus:

        def handler(task: Any) -> Any:
            task.progress("here")
            return threading.current_thread().name, name.get(), threading.get_ident()

        name.set("worker")
        async with bus.tasks.worker(functools.partial(handler), Q, concurrency=2):
            handle = await bus.tasks.submit(1, Q)
            thread, context, number = await handle.result()
        assert thread.startswith("redpoll tasks night")
        assert (context, handle.progress) == ("worker", "here")
        assert number != threading.get_ident()


async def test_the_loop_goes_on_while_threads_work() -> None:
    """Other tasks are taken and ended while a handler computes."""
    gate = Gate()
    async with desk() as bus, bus.tasks.worker(gate, Q, concurrency=1):
        slow = await bus.tasks.submit(1, Q)
        await until(gate.begun.is_set)
        async with bus.tasks.worker(lambda task: task.data, "other"):
            assert [each async for each in bus.tasks.map(range(20), "other")] == list(range(20))
        gate.open.set()
        assert await slow.result() == "done"


async def test_threads_that_raise() -> None:
    """What a function raises in its thread is retried and told as that of a coroutine; SystemExit ends its task alone."""
    async with desk() as bus:
        tries: list[int] = []

        def handler(task: Any) -> Any:
            if task.data == "exit":
                tries.append(0)
                sys.exit(3)
            if task.data == "retry":
                tries.append(task.tries)
                raise OSError("again")
            return "lives"

        async with bus.tasks.worker(handler, Q, retry=Retry(times=1, backoff=1, jitter=0)):
            with pytest.raises(RemoteError, match="SystemExit"):
                await bus.tasks.run("exit", Q)
            handle = await bus.tasks.submit("retry", Q)
            await until(lambda: tries == [0, 1])
            await until(lambda: bus.engine.room.broker.queues.get(Q).delayed)  # type: ignore[attr-defined]
            await bus.time.advance(1)
            with pytest.raises(RemoteError, match="OSError"):
                await handle.result()
        assert tries == [0, 1, 2]


async def test_a_pool_of_ones_own() -> None:
    """KX-8: a handler may return the future of a pool; its task is done when that is, and can be cancelled meanwhile."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        async with desk() as bus, bus.tasks.worker(lambda task: pool.submit(pow, 2, task.data), Q):
            assert await bus.tasks.run(5, Q) == 32
        pending: concurrent.futures.Future[Any] = concurrent.futures.Future()
        async with desk() as bus, bus.tasks.worker(lambda task: pending, Q) as worker:
            handle = await bus.tasks.submit(1, Q)
            await until(lambda: handle._watch.nested)
            await handle.cancel()
            with pytest.raises(TaskCancelled):
                await handle.result()
            await until(lambda: not worker.running)
        assert pending.cancelled()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_a_pool_whose_thread_exits(kind: type[BaseException]) -> None:
    """What would end the loop, raised in a thread whose future a handler returned, is an error of the task."""

    def leave() -> None:
        raise kind

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        async with desk() as bus, bus.tasks.worker(lambda _: pool.submit(leave), Q):
            with pytest.raises(RemoteError, match=f"the function raised {kind.__name__}"):
                await bus.tasks.run(1, Q)


@pytest.mark.parametrize("breaks", [True, False])
async def test_what_cannot_be_cancelled(breaks: bool) -> None:
    """A thread that returns, too late, what has no way to be cancelled or fails to be, ends its task; the slot is free."""

    class Later:
        if breaks:

            def cancel(self) -> None:
                raise OSError

        def __await__(self) -> Any:
            yield

    gate = Gate()

    def handler(task: Any) -> Any:
        gate(task)
        return Later()

    async with desk() as bus, bus.tasks.worker(handler, Q, time_limit=10) as worker:
        handle = await bus.tasks.submit(1, Q)
        await until(gate.begun.is_set)
        await bus.time.advance(10)
        with pytest.raises(TimeLimit):
            await handle.result()
        gate.open.set()
        await until(lambda: not worker.running)


async def test_a_coroutine_that_a_thread_returned_too_late() -> None:
    """A coroutine that a function returns is closed if its task was stopped before its first step."""
    closed: list[str] = []

    async def never() -> None:
        closed.append("begun")

    async with desk() as bus, bus.tasks.worker(lambda _: never(), Q) as worker:
        begin = worker.run

        def cancelled(job: Any, value: Any = None) -> Any:
            job.cancelled("in between")
            return begin(job, value)

        worker.run = cancelled  # type: ignore[method-assign]
        handle = await bus.tasks.submit(1, Q)
        with pytest.raises(TaskCancelled):
            await handle.result()
    assert not closed


async def test_progress_of_a_thread_is_bounded() -> None:
    """Of what a thread says while the loop stands still, the newest thousand is kept, and it wakes the loop once."""
    seen: list[Any] = []
    begun, go_on, told = threading.Event(), threading.Event(), threading.Event()

    def handler(task: Any) -> Any:
        begun.set()
        go_on.wait(10)
        for number in range(5_000):
            task.progress(number)
        told.set()
        return "done"

    async with desk() as bus, bus.tasks.worker(handler, Q):
        handle = await bus.tasks.submit(1, Q)
        handle.on_progress(seen.append)
        await until(begun.is_set)
        go_on.set()
        assert told.wait(10)
        assert await handle.result() == "done"
        await turns()
    assert seen == list(range(4_000, 5_000))


async def test_a_thread_sees_that_it_is_cancelled() -> None:
    """A thread cannot be stopped: it is told, and what it returns then still counts."""
    gate = Gate()
    async with desk() as bus, bus.tasks.worker(gate, Q):
        handle = await bus.tasks.submit(1, Q)
        await until(gate.begun.is_set)
        assert await handle.cancel() == "asked"
        await until(gate.cancelled.is_set)
        gate.open.set()
        assert await handle.result() == "done"


async def test_a_time_limit_keeps_the_slot_of_a_thread() -> None:
    """The outcome of a thread that takes too long is recorded, and its slot is free only when it has returned."""
    gate = Gate()
    async with desk() as bus, bus.tasks.worker(gate, Q, concurrency=1, time_limit=10) as worker:
        first = await bus.tasks.submit(1, Q)
        second = await bus.tasks.submit(2, Q)
        await until(gate.begun.is_set)
        await bus.time.advance(10)
        with pytest.raises(TimeLimit):
            await first.result()
        await turns()
        assert (worker.running, await second.state()) == (1, "ready")
        gate.open.set()
        assert await second.result() == "done"


async def test_a_time_limit_that_is_tried_again_waits_for_the_thread() -> None:
    """A task goes back only when its thread has returned."""
    gate = Gate()
    policy = Retry(on=TimeLimit, backoff=1, jitter=0)
    async with desk() as bus, bus.tasks.worker(gate, Q, concurrency=1, time_limit=10, retry=policy):
        handle = await bus.tasks.submit(1, Q)
        await until(gate.begun.is_set)
        await bus.time.advance(10)
        assert await handle.state() == "taken"
        gate.open.set()
        await until(lambda: bus.engine.room.broker.queues.get(Q).delayed)  # type: ignore[attr-defined]
        await bus.time.advance(1)
        assert await handle.result() == "done"


async def test_closing_waits_for_threads() -> None:
    """A worker that is closed waits for its threads, and what they return counts."""
    gate = Gate()
    async with desk() as bus:
        worker = bus.tasks.worker(gate, Q, concurrency=1)
        async with worker:
            handle = await bus.tasks.submit(1, Q)
            await until(gate.begun.is_set)
            closing = asyncio.ensure_future(worker.close(0))
            await turns()
            assert not closing.done()
            gate.open.set()
            await closing
        assert await handle.result() == "done"
