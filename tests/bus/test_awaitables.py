"""What is done already can be awaited as a future can."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

import redpoll
from redpoll.bus.awaitables import FALSE, TRUE, Done, Failed, close_all, future_of, of_thread, unexpected
from redpoll.errors import RemoteError
from tests.node.support import PATIENCE, turns, until


@pytest.mark.asyncio
async def test_a_result_is_there() -> None:
    """Awaiting gives the result without a turn of the loop, as often as one likes; gather takes it too."""
    done = Done([1])
    assert await done is await done
    assert (await TRUE, await FALSE) == (True, False)
    assert list(await asyncio.gather(TRUE, FALSE)) == [True, False]


@pytest.mark.asyncio
async def test_an_error_is_raised_where_it_is_awaited() -> None:
    """An error that nobody awaits is nobody's; awaited it is raised."""
    Failed(ValueError("unseen"))
    with pytest.raises(ValueError, match="seen"):
        await Failed(ValueError("seen"))


@pytest.mark.asyncio
async def test_all_are_closed() -> None:
    """Each is begun, though the caller is cancelled before that; the first error is raised when all have ended."""
    log: list[str] = []

    async def close(name: str, error: Exception | None = None) -> None:
        log.append(name)
        try:
            await turns(3)
        except asyncio.CancelledError:
            log.append(f"{name} cancelled")
            raise
        log.append(f"{name} closed")
        if error is not None:
            raise error

    closing = asyncio.ensure_future(close_all(close(name) for name in "ab"))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert log == ["a", "b", "a cancelled", "b cancelled"]
    log.clear()
    with pytest.raises(OSError, match="first"):
        await close_all([close("a", OSError("first")), close("b", OSError("second")), close("c")])
    assert log == ["a", "b", "c", "a closed", "b closed", "c closed"]
    await close_all([])


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [StopIteration(7), SystemExit(7), KeyboardInterrupt(7), GeneratorExit(7)])
async def test_futures_of_threads_end(error: BaseException) -> None:
    """An exception of a thread that no future of a loop can raise is raised as another error, before and during the wait."""
    for ended in (True, False):
        future: Future[int] = Future()
        waiting = asyncio.ensure_future(of_thread(future))
        if not ended:
            await turns()
        future.set_exception(error)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(RuntimeError, match=f"raised {type(error).__name__}: 7") as raised:
                await waiting
        assert raised.value.__cause__ is error


@pytest.mark.asyncio
async def test_futures_of_threads_are_cancelled() -> None:
    """A wait that is cancelled cancels its future, and the other way around; results and other errors are as they are."""
    future: Future[int] = Future()
    waiting = asyncio.ensure_future(of_thread(future))
    await turns()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert future.cancelled()
    with pytest.raises(asyncio.CancelledError):
        await of_thread(future)
    done: Future[int] = Future()
    done.set_result(3)
    assert await of_thread(done) == 3
    failed: Future[int] = Future()
    failed.set_exception(KeyError("k"))
    with pytest.raises(KeyError, match="k"):
        await of_thread(failed)


@pytest.mark.asyncio
async def test_generator_exits_of_handlers() -> None:
    """A handler that raises `GeneratorExit` fails as any other: its work ends, and no slot is lost."""

    async def leave(_: Any) -> None:
        raise GeneratorExit

    class Endpoint:
        async def info(self, notification: Any) -> None:
            """Raise."""
            seen.append(notification)
            raise GeneratorExit

        async def leave(self) -> None:
            """Raise."""
            raise GeneratorExit

    seen: list[Any] = []
    async with redpoll.connect("memory://") as bus, bus.tasks.worker(leave, "q", concurrency=1):
        for _ in range(2):
            with pytest.raises((RemoteError, RuntimeError), match="GeneratorExit"):
                await bus.tasks.run(1, "q", timeout=PATIENCE)
        async with bus.rpc.serve("a", Endpoint(), concurrency=1):
            for _ in range(2):
                with pytest.raises((RemoteError, RuntimeError), match="GeneratorExit"):
                    await bus.rpc.call("a", "leave", timeout=PATIENCE)
        async with bus.notifications.listen(Endpoint(), topics=["t"]) as listener:
            await bus.notifier("p", topics=["t"]).info("e")
            await until(lambda: listener.stats.failed, "the failure")


def test_a_coroutine_that_is_closed() -> None:
    """A coroutine that is closed ends with its own exception: nothing is said for it any more."""

    async def wait() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except GeneratorExit as error:
            problems.append(unexpected(error, task))

    async def begin() -> asyncio.Task[None]:
        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        return task

    problems: list[Exception] = []
    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(begin())
    coroutine: Any = task.get_coro()
    coroutine.close()
    task.cancel()
    loop.run_until_complete(asyncio.wait([task]))
    loop.close()
    assert not problems


@pytest.mark.asyncio
async def test_the_future_of_an_awaitable() -> None:
    """What has a future of its own gives that; for anything else there is one that ends with it."""
    loop = asyncio.get_running_loop()

    class Own:
        def __init__(self) -> None:
            self.made = loop.create_future()

        def future(self) -> asyncio.Future[None]:
            return self.made

        def __await__(self) -> Any:
            raise AssertionError("it is awaited")

    own = Own()
    assert future_of(own) is own.made
    assert future_of(own.made) is own.made
    assert await future_of(Done(5)) == 5
    with pytest.raises(OSError, match="no"):
        await future_of(Failed(OSError("no")))
