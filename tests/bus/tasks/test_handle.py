"""What a submitter has of a task."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from typing import Any

import pytest

import redpoll
from redpoll.errors import RemoteError, TaskCancelled, UnknownTask
from tests.bus.tasks.support import Q, desk, turns, twice, until

pytestmark = pytest.mark.asyncio


async def test_found_again_by_its_id() -> None:
    """A task is found by its id from elsewhere, before it ends and after."""
    async with desk("found") as bus, desk("found", clock=bus.time) as other:
        handle = await bus.tasks.submit(1, Q)
        again = other.tasks.handle(handle.id, Q)
        assert await again.state() == "ready"
        waiting = asyncio.ensure_future(again.result())
        async with bus.tasks.worker(twice, Q):
            assert await waiting == 2
        late = other.tasks.handle(handle.id)
        assert (await late.result(), await late.result(), await late.state()) == (2, 2, "done")
        assert (late.id, late.duplicate, late.progress) == (handle.id, False, None)
        unknown = other.tasks.handle("nothing")
        for _ in range(2):
            with pytest.raises(UnknownTask):
                await unknown.result()


async def test_one_that_leaves_takes_nobody_along() -> None:
    """Several wait for a task that is found by its id; the first one is cancelled, and the others go on."""
    async with desk() as bus:
        handle = await bus.tasks.submit(1, Q)
        watch = bus.engine.watch
        gate = asyncio.Event()

        async def slow(*args: Any) -> None:
            await gate.wait()
            await watch(*args)

        bus.engine.watch = slow  # type: ignore[method-assign, assignment]
        again = bus.tasks.handle(handle.id)
        waiting = [asyncio.ensure_future(again.result()) for _ in range(3)]
        await turns()
        waiting[0].cancel()
        await turns()
        gate.set()
        async with bus.tasks.worker(twice, Q):
            assert await asyncio.gather(*waiting[1:]) == [2, 2]


async def test_waiting_has_a_limit() -> None:
    """A wait for a result ends at its timeout, and can begin again."""
    async with desk() as bus:
        handle = await bus.tasks.submit(1, Q)
        waiting = asyncio.ensure_future(handle.result(timeout=5))
        running = asyncio.ensure_future(bus.tasks.run(2, Q, timeout=5))
        await turns()
        await bus.time.advance(5)
        for each in (waiting, running):
            with pytest.raises(TimeoutError, match=r"no outcome after 5 s \(it continues: .* a worker has its queue\)"):
                await each
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0)
        cancelled = asyncio.ensure_future(handle.result())
        await turns()
        cancelled.cancel()
        await turns()
        assert cancelled.cancelled()
        async with bus.tasks.worker(twice, Q):
            assert [*await asyncio.gather(handle.result(), handle.result(timeout=1))] == [2, 2]


async def test_a_handler_that_raises() -> None:
    """K-10, KX-5: what a handler raises is final, and reaches the submitter with its class, text and traceback."""
    async with desk() as bus:
        seen: list[Any] = []

        def handler(task: Any) -> Any:
            seen.append(task.data)
            raise LookupError("nothing there")

        async with bus.tasks.worker(handler, Q):
            with pytest.raises(RemoteError, match="remote LookupError: nothing there") as caught:
                await bus.tasks.run(1, Q)
        assert caught.value.kind == "LookupError"
        assert "in handler" in (caught.value.traceback or "")
        assert seen == [1]


async def test_classes_that_are_allowed_are_made_again() -> None:
    """An exception is raised as itself where its very class is allowed, caused by what it was there."""
    async with desk(exceptions=[LookupError, UnicodeDecodeError]) as bus:

        async def handler(task: Any) -> Any:
            match task.data:
                case "allowed":
                    raise LookupError("gone", 3)
                case "below":
                    raise KeyError("gone")
                case _:
                    b"\xff".decode()

        async with bus.tasks.worker(handler, Q):
            with pytest.raises(LookupError, match="gone") as caught:
                await bus.tasks.run("allowed", Q)
            assert (type(caught.value), caught.value.args) == (LookupError, ("gone", 3))
            assert isinstance(caught.value.__cause__, RemoteError)
            with pytest.raises(RemoteError, match="KeyError"):
                await bus.tasks.run("below", Q)
            with pytest.raises(UnicodeDecodeError):
                await bus.tasks.run("decode", Q)


async def test_progress() -> None:
    """Progress comes by iterating, by a callback and as the latest value, before the outcome."""
    async with desk() as bus:

        async def handler(task: Any) -> Any:
            for number in range(3):
                assert task.progress(number) is not None
            return "done"

        handle = await bus.tasks.submit(None, Q)
        heard: list[Any] = []
        unheard: list[Any] = []
        handle.on_progress(heard.append)
        handle.on_progress(unheard.append)()
        again = bus.tasks.handle(handle.id)

        async def watch(one: Any) -> list[Any]:
            return [each async for each in one.watch()]

        watching = [asyncio.ensure_future(watch(each)) for each in (handle, again)]
        await turns()
        assert handle.progress is None
        async with bus.tasks.worker(handler, Q):
            assert await handle.result() == "done"
        assert await asyncio.gather(*watching) == [[0, 1, 2], [0, 1, 2]]
        assert [*heard, *unheard, handle.progress] == [0, 1, 2, 2]
        assert await watch(handle) == [2]


async def test_a_callback_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """What a callback for progress raises harms nobody else."""
    async with desk() as bus:
        handle = await bus.tasks.submit(None, Q)
        handle.on_progress(lambda value: 1 / value)
        async with bus.tasks.worker(lambda task: task.progress(0), Q):
            await handle.result()
        with caplog.at_level(logging.ERROR):
            await turns()
    assert "a callback for the progress" in caplog.text
    caplog.clear()


async def test_nested_futures() -> None:
    """K-09, K-23: a handler that returns a future: its result counts; who asks for it sees the future first."""
    async with desk() as bus:
        futures: list[Any] = []

        def handler(task: Any) -> Any:
            outer: concurrent.futures.Future[Any] = concurrent.futures.Future()
            futures.append(outer)
            return outer

        async with bus.tasks.worker(handler, "custom"):
            handle = await bus.tasks.submit(1, "custom")
            first = await handle.result(flat=False)
            assert await handle.state() == "taken"
            asking = asyncio.ensure_future(first.result(flat=False))
            flat = asyncio.ensure_future(handle.result())
            await turns()
            assert not asking.done()
            inner: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            futures[0].set_result(inner)
            second = await asking
            inner.set_result(5)
            assert await second.result(flat=False) == 5
            assert await flat == 5
            assert await handle.result(flat=False) is not None


async def test_cancelling() -> None:
    """A task that waits is withdrawn; the worker of another is asked to stop; one that ended is too late."""
    async with desk() as bus:
        begun: list[Any] = []

        async def handler(task: Any) -> Any:
            begun.append(task)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                begun.append(task.cancelled)

        waits = await bus.tasks.submit(1, Q)
        assert await waits.cancel() == "withdrawn"
        works = await bus.tasks.submit(2, Q)
        async with bus.tasks.worker(handler, Q):
            await until(lambda: begun)
            assert await works.cancel() == "asked"
            for each in (waits, works):
                with pytest.raises(TaskCancelled):
                    await each.result()
        assert begun[0].data == 2
        assert begun[1:] == [True]
        assert await works.cancel() == "too late"
        with pytest.raises(UnknownTask):
            await bus.tasks.handle("nothing").cancel()


async def test_slow_iterators_lose_the_oldest() -> None:
    """An iteration over progress keeps the latest 1,000 that were not taken."""
    async with desk() as bus:

        async def handler(task: Any) -> None:
            for number in range(1_200):
                task.progress(number)
                if number % 100 == 0:
                    # A worker keeps as many that it did not send.
                    await turns()

        handle = await bus.tasks.submit(None, Q)
        progress = handle.watch()
        first = asyncio.ensure_future(anext(progress))
        await turns()
        async with bus.tasks.worker(handler, Q):
            await handle.result()
        assert await first == 0
        assert [each async for each in progress] == list(range(200, 1_200))


@pytest.mark.asyncio
async def test_looking_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles of one id have one watcher at the engine, however many are made and dropped; the last one has the result."""
    async with redpoll.connect("memory://") as bus:
        task = await bus.tasks.submit(1, queue="q")
        asked: list[str] = []
        watch = bus.engine.watch

        async def count(name: str, watcher: Any) -> None:
            asked.append(name)
            await watch(name, watcher)

        monkeypatch.setattr(bus.engine, "watch", count)
        for _ in range(10):
            with pytest.raises(TimeoutError):
                await bus.tasks.handle(task.id, queue="q").result(timeout=0)
        waiting = [asyncio.ensure_future(bus.tasks.handle(task.id, queue="q").result()) for _ in range(3)]
        async with bus.tasks.worker(lambda each: each.data + 1, queue="q"):
            assert await asyncio.gather(*waiting) == [2, 2, 2]
        assert asked == [task.id]
        assert await bus.tasks.handle(task.id, queue="q").result() == 2
        assert asked == [task.id, task.id]
