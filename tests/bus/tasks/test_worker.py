"""Workers with coroutines."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest

from redpoll.bus import QueueSpec, Requeue, Retry, current_context
from redpoll.errors import (
    BadPayload,
    ConfigError,
    DeadLettered,
    EncodeError,
    RemoteError,
    ResultTooLarge,
    TaskCancelled,
    TaskRejected,
    TimeLimit,
    Unsupported,
    UsageError,
)
from tests.bus.tasks.support import Q, desk, turns, twice, until

pytestmark = pytest.mark.asyncio


async def forever(task: Any) -> Any:
    """A handler that does not end."""
    await asyncio.get_running_loop().create_future()


async def test_concurrency_is_the_credit() -> None:
    """A worker has no more tasks than it has slots; the rest waits in the queue, for others."""
    async with desk() as bus:
        gate = asyncio.Event()
        running = 0
        most = 0

        async def handler(task: Any) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await gate.wait()
            running -= 1

        handles = await bus.tasks.submit_many(range(9), Q)
        async with bus.tasks.worker(handler, Q, concurrency=3) as worker:
            await until(lambda: running == 3)
            info = await bus.queues.inspect(Q)
            assert (worker.running, info.taken, info.ready) == (3, 3, 6)
            async with bus.tasks.worker(handler, Q, concurrency=2):
                await until(lambda: running == 5)
                gate.set()
                for each in handles:
                    assert await each.result() is None
        assert most == 5


async def test_a_worker_that_is_gone_takes_nothing() -> None:
    """K-12: after the worker has ended, nobody does what is submitted, and it waits."""
    async with desk() as bus:
        async with bus.tasks.worker(twice, Q) as worker:
            active = [worker.active]
        assert [*active, worker.active] == [True, False]
        handle = await bus.tasks.submit(1, Q)
        await turns()
        assert await handle.state() == "ready"
        with pytest.raises(UsageError):
            async with worker:
                pass


async def test_requeue() -> None:
    """Requeue gives a task back, without blame, after its delay."""
    async with desk() as bus:
        seen: list[int] = []

        async def handler(task: Any) -> Any:
            seen.append(task.attempt)
            if len(seen) < 3:
                raise Requeue(delay=5, reason="not yet")
            return "done"

        async with bus.tasks.worker(handler, Q):
            handle = await bus.tasks.submit(1, Q)
            await until(lambda: len(seen) == 1)
            assert await handle.state() == "delayed"
            await bus.time.advance(5)
            assert len(seen) == 2
            await bus.time.advance(5)
            assert await handle.result() == "done"
        assert seen == [1, 1, 1]


async def test_rejected_tasks_go_to_another() -> None:
    """KX-4: a task that is rejected goes to the next worker; when all have rejected it, it waits longer each time."""
    async with desk() as bus:
        asked: list[str] = []
        willing = False

        def worker(name: str) -> Any:
            async def handler(task: Any) -> Any:
                asked.append(name)
                if not willing:
                    raise TaskRejected
                return name

            return bus.tasks.worker(handler, Q)

        async with worker("a"), worker("b"):
            handle = await bus.tasks.submit(1, Q)
            await turns()
            assert sorted(asked) == ["a", "b"]
            await bus.time.advance(1)
            assert len(asked) == 4
            await bus.time.advance(1.5)
            assert len(asked) == 4
            willing = True
            await bus.time.advance(0.5)
            assert await handle.result() in {"a", "b"}
        assert str(TaskRejected()) == "task was rejected"


async def test_giving_up() -> None:
    """DeadLettered makes a task a dead letter with its history, and redriving makes a new one of it."""
    async with desk() as bus:

        async def hopeless(task: Any) -> Any:
            raise DeadLettered(reason="no such host")

        async with bus.tasks.worker(hopeless, Q):
            handle = await bus.tasks.submit(4, Q)
            with pytest.raises(DeadLettered, match="no such host"):
                await handle.result()
        assert await handle.state() == "dead"
        (dead,) = await bus.queues.browse(Q, "dead")
        assert (dead.id, dead.history) == (handle.id, ("no such host",))
        (again,) = await bus.queues.redrive(Q)
        async with bus.tasks.worker(twice, Q):
            assert await bus.tasks.handle(again).result() == 8


async def test_a_time_limit_cancels_a_coroutine() -> None:
    """A handler that takes longer than its time limit is cancelled, and that is the outcome."""
    async with desk() as bus:
        ended: list[str] = []

        async def handler(task: Any) -> Any:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.append("cancelled")

        async with bus.tasks.worker(handler, Q, time_limit=30):
            handle = await bus.tasks.submit(1, Q)
            await turns()
            await bus.time.advance(29)
            assert await handle.state() == "taken"
            await bus.time.advance(1)
            with pytest.raises(TimeLimit, match="it took longer than 30 s"):
                await handle.result()
        assert ended == ["cancelled"]


async def test_a_time_limit_can_be_a_failed_try() -> None:
    """Where the policy covers TimeLimit the task is tried again, and it is an attempt that failed as well."""
    async with desk() as bus:
        await bus.queues.declare(QueueSpec(Q, max_attempts=2))
        async with bus.tasks.worker(forever, Q, time_limit=1, retry=Retry(on=TimeLimit, backoff=1, jitter=0)):
            handle = await bus.tasks.submit(1, Q)
            await turns()
            await bus.time.advance(2)
            (info,) = await bus.queues.browse(Q, "taken")
            assert (info.attempt, info.history) == (2, ("try 1 failed: it took longer than 1 s",))
            await bus.time.advance(1)
            with pytest.raises(DeadLettered, match="2 attempts failed"):
                await handle.result()


async def test_a_deadline_reaches_the_handler() -> None:
    """A handler knows how much time is left, and is cancelled when it has passed."""
    async with desk() as bus:
        left: list[Any] = []

        async def handler(task: Any) -> Any:
            left.append(task.left)
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                left.append(task.cancelled)
                raise

        async with bus.tasks.worker(handler, Q):
            await bus.tasks.submit(1, Q, deadline=10)
            await turns()
            await bus.time.advance(10)
            await until(lambda: len(left) == 2)
        assert left == [10, True]


async def test_a_handler_that_is_cancelled_by_itself() -> None:
    """A handler that raises cancellation ends its task as cancelled."""
    async with desk() as bus:

        async def handler(task: Any) -> Any:
            raise asyncio.CancelledError

        async with bus.tasks.worker(handler, Q):
            with pytest.raises(TaskCancelled):
                await bus.tasks.run(1, Q)


async def test_closing_drains() -> None:
    """A worker that is closed takes nothing new, lets handlers finish in time, and gives back the rest unblamed."""
    async with desk() as bus:
        gate = asyncio.Event()
        begun: list[Any] = []

        async def handler(task: Any) -> Any:
            begun.append(task.data)
            if task.data == "quick":
                await gate.wait()
            else:
                await forever(task)
            return task.data

        quick, slow, third = await bus.tasks.submit_many(["quick", "slow", "third"], Q)
        worker = bus.tasks.worker(handler, Q, concurrency=2, drain=10)
        async with worker:
            await until(lambda: len(begun) == 2)
            bus.time.call_at(5, gate.set)
            closing = asyncio.ensure_future(bus.time.advance(10))
        await closing
        assert await quick.result() == "quick"
        assert (await slow.state(), await third.state()) == ("ready", "ready")
        assert begun == ["quick", "slow"]
        async with bus.tasks.next(Q) as task:
            assert (task.data, task.attempt) == ("slow", 1)
        await worker.close()


async def test_several_may_close_a_worker() -> None:
    """Each that closes a worker waits until no handler runs, for as long as it said."""
    async with desk() as bus:
        gate = asyncio.Event()

        async def handler(_: Any) -> str:
            await gate.wait()
            return "done"

        worker = await bus.tasks.worker(handler, Q).__aenter__()
        handle = await bus.tasks.submit(1, Q)
        await until(lambda: worker.running)
        closing = [asyncio.ensure_future(worker.close(None)) for _ in range(2)]
        await turns()
        gate.set()
        await asyncio.gather(*closing)
        assert await handle.result() == "done"


async def test_a_failure_is_never_a_result() -> None:
    """What a handler raises that cannot be told is an error; the task is not done well for that."""

    class Hostile(Exception):  # noqa: N818
        @property
        def args(self) -> Any:  # type: ignore[override]
            raise OSError

    async def handler(_: Any) -> None:
        raise Hostile

    async with desk() as bus:
        for each in (handler, lambda task: asyncio.run(handler(task))):
            async with bus.tasks.worker(each, Q):
                with pytest.raises(RemoteError, match="Hostile"):
                    await bus.tasks.run(1, Q)


async def test_a_block_that_fails_does_not_wait() -> None:
    """A worker whose block ends by an exception stops its handlers at once."""
    async with desk() as bus:
        handle = await bus.tasks.submit(1, Q)

        async def work() -> None:
            async with bus.tasks.worker(forever, Q) as worker:
                await until(lambda: worker.running)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await work()
        assert await handle.state() == "ready"


async def test_a_bus_that_is_closed_first() -> None:
    """Handlers of a bus that was closed are cancelled, and their worker can still be closed."""
    async with desk("first") as other:
        async with desk("first", clock=other.time) as bus:
            handle = await other.tasks.submit(1, Q)
            worker = await bus.tasks.worker(forever, Q).__aenter__()
            await until(lambda: worker.running)
            await bus.close()
            await until(lambda: not worker.running)
            await worker.close()
        assert await handle.state() == "ready"


async def test_bus_close_drains() -> None:
    """Closing a bus with a drain lets handlers finish, and their results count."""
    async with desk("drained") as other:
        gate = asyncio.Event()

        async def handler(task: Any) -> Any:
            await gate.wait()
            return 5

        opened = desk("drained", clock=other.time)
        bus = await opened.__aenter__()
        handle = await other.tasks.submit(1, Q)
        worker = await bus.tasks.worker(handler, Q).__aenter__()
        await until(lambda: worker.running)
        closing = asyncio.ensure_future(bus.close(drain=None))
        await turns()
        gate.set()
        await closing
        assert await handle.result() == 5
        await worker.close()
        await opened.__aexit__(None, None, None)


@pytest.mark.parametrize("cancels", [True, False])
async def test_a_worker_that_is_killed(cancels: bool) -> None:
    """KX-1, KX-3: what a killed worker held goes to another; what it says later is refused, and its handler is cancelled."""
    async with desk("killed") as sender, desk("killed", clock=sender.time) as killed:
        results: list[Any] = []
        gate = asyncio.Event()

        async def zombie(task: Any) -> Any:
            try:
                await gate.wait()
            except asyncio.CancelledError:
                results.append("cancelled")
                raise
            results.append(task.lost)
            return "late"

        async def second(task: Any) -> Any:
            return task.attempt

        handle = await sender.tasks.submit(1, Q)
        worker = await killed.tasks.worker(zombie, Q, cancel_lost=cancels).__aenter__()
        await until(lambda: worker.running)
        killed.engine.abort()  # type: ignore[attr-defined]
        async with sender.tasks.worker(second, Q):
            await sender.time.advance(1)
            assert await handle.result() == 2
        gate.set()
        for job in tuple(worker._jobs):  # as an engine does that finds out
            job.delivery.lose()  # type: ignore[attr-defined]
        await until(lambda: not worker.running)
        assert results == (["cancelled"] if cancels else [True])
        assert await handle.result() == 2
        await worker.close()


async def test_results_that_cannot_be_sent() -> None:
    """A result that cannot be encoded or is too large is an error of the handler; the task does not hang."""
    async with desk(max_body=10_000) as bus:

        async def handler(task: Any) -> Any:
            return object() if task.data == "object" else b"x" * 20_000

        async with bus.tasks.worker(handler, Q):
            with pytest.raises(EncodeError):
                await bus.tasks.run("object", Q)
            with pytest.raises(ResultTooLarge, match="20003 bytes"):
                await bus.tasks.run("large", Q)


async def test_an_error_that_is_too_large() -> None:
    """An error with a long text is told in short."""
    async with desk(max_body=600) as bus:

        async def handler(task: Any) -> Any:
            raise ValueError("x" * 3_000)

        async with bus.tasks.worker(handler, Q):
            with pytest.raises(RemoteError, match="ValueError: xxx"):
                await bus.tasks.run(1, Q)


async def test_a_payload_that_cannot_be_read() -> None:
    """A worker without the serializer of a task ends it with an error that has both names."""
    async with desk("names", serializer="pickle") as bus, desk("names", clock=bus.time) as other:
        async with other.tasks.worker(twice, Q):
            with pytest.raises(BadPayload, match=r"'pickle'.*msgpack"):
                await bus.tasks.run(1, Q)


async def test_handlers_have_contexts_of_their_own() -> None:
    """What one handler puts into a context variable no other sees."""
    name = contextvars.ContextVar("name", default="nobody")

    async def handler(task: Any) -> Any:
        before = name.get()
        name.set(task.data)
        return before

    async with desk() as bus, bus.tasks.worker(handler, Q, concurrency=1):
        assert [each async for each in bus.tasks.map("abc", Q)] == ["nobody"] * 3


@pytest.mark.parametrize("begun", [True, False])
async def test_a_loop_that_ends_gives_tasks_back(begun: bool) -> None:
    """A handler that is cancelled from outside, as at the end of a loop, has no outcome."""
    async with desk() as bus:
        handle = await bus.tasks.submit(1, Q)
        async with bus.tasks.worker(forever, Q, concurrency=1) as worker:
            await until(lambda: worker.running)
            if begun:
                await turns()
            (job,) = worker._jobs
            worker._consumer.set_credit(0)  # type: ignore[union-attr]
            job.work.cancel()
            await turns()
        assert await handle.state() == "ready"


async def test_cancelled_before_it_began() -> None:
    """A task that is cancelled between its hand-out and its first step is not begun."""
    async with desk() as bus:
        begun: list[Any] = []

        async def handler(task: Any) -> Any:
            begun.append(task.data)

        async with bus.tasks.worker(handler, Q, concurrency=1) as worker:
            handle = await bus.tasks.submit(1, Q)
            await until(lambda: worker.running or begun)
            if not begun:  # with eager tasks it is, at once
                (job,) = worker._jobs
                job.cancelled("cancelled")
                with pytest.raises(TaskCancelled):
                    await handle.result()
                assert not begun


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (twice, {"concurrency": 0}),
        (twice, {"time_limit": 0}),
        (twice, {"pool": "thread"}),
        (lambda task: task, {"pool": "fibre"}),
        (lambda: 1, {}),
        (twice, {"retry": 3}),
        (lambda task: task, {"pool": "process"}),
    ],
)
async def test_a_worker_that_cannot_be_is_refused(handler: Any, options: dict[str, Any]) -> None:
    """A wrong option, and a handler that cannot be called or sent, are refused when the worker is made."""
    async with desk() as bus:
        with pytest.raises(ConfigError):
            bus.tasks.worker(handler, Q, **options)
        with pytest.raises(
            ConfigError, match=r"handler=3: must be a function, not int \(a handler is a plain function or"
        ):
            bus.tasks.worker(3, Q)  # type: ignore[arg-type]


async def test_a_deleted_queue_is_seen() -> None:
    """A worker whose queue was deleted is not active any more."""
    async with desk() as bus, bus.tasks.worker(twice, Q) as worker:
        await bus.queues.delete(Q)
        await until(lambda: not worker.active)
        assert "0 of 8 slots" in repr(worker)


async def test_a_task_leaves_nothing_to_the_garbage_collector() -> None:
    """What a handler worked on is gone when it has ended, though its context has it: no references go in a circle."""
    async with desk() as bus:
        seen: list[weakref.ref[Any]] = []

        async def handler(_: Any) -> None:
            seen.append(weakref.ref(current_context().delivery))

        def in_thread(_: Any) -> None:
            seen.append(weakref.ref(current_context().delivery._delivery))  # type: ignore[union-attr]

        gc.collect()
        gc.disable()
        try:
            for each in (handler, in_thread):
                async with bus.tasks.worker(each, Q, concurrency=1):
                    await bus.tasks.run(1, Q)
            # The thread of the pool lets go of what it worked on a moment later.
            await until(lambda: [each() for each in seen] == [None, None])
        finally:
            gc.enable()


async def test_a_long_task_stays_its_workers() -> None:
    """A task that takes a month is its worker's for all of it: another one that is idle is never given it."""
    async with desk("month") as bus, desk("month", clock=bus.time) as other:
        assert bus.capabilities.hold is None
        begun: list[str] = []
        gate = asyncio.Event()

        async def slow(_: Any) -> str:
            begun.append("slow")
            await gate.wait()
            return "done"

        async def idle(_: Any) -> None:
            begun.append("idle")

        async with bus.tasks.worker(slow, Q):
            handle = await other.tasks.submit(1, Q)
            await until(lambda: begun)
            async with other.tasks.worker(idle, Q):
                await bus.time.advance(30 * 86_400)
                gate.set()
                assert await handle.result() == "done"
        assert begun == ["slow"]


async def test_a_handler_is_stopped_in_its_first_step() -> None:
    """A handler that is stopped in its first step is cancelled at its next await, also where that step is done at once."""
    async with desk() as bus:

        async def handler(_: Any) -> None:
            delivery: Any = current_context().delivery
            delivery.cancel("not wanted")
            await asyncio.get_running_loop().create_future()

        async with bus.tasks.worker(handler, Q):
            handle = await bus.tasks.submit(1, Q)
            await turns()
            with pytest.raises(TaskCancelled, match="not wanted"):
                await handle.result(0)


async def test_time_limit_that_the_engine_cannot_keep() -> None:
    """A time limit over the time after which the engine takes tasks away is refused, and names both; a smaller one is not."""
    async with desk() as bus:
        engine: Any = bus.engine
        engine.capabilities = replace(engine.capabilities, hold=1_800.0)
        with pytest.raises(Unsupported, match="3600 s: it takes tasks away after 1800 s"):
            await bus.tasks.worker(forever, Q, time_limit=3_600).__aenter__()
        async with bus.tasks.worker(forever, Q, time_limit=1_800):
            pass
