"""taskiq on a hub and in memory: what its own brokers and result backends are tested for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from taskiq import AckableMessage, BrokerMessage, TaskiqEvents, TaskiqResult
from taskiq.api import run_receiver_task
from taskiq.depends.progress_tracker import TaskProgress, TaskState
from taskiq.exceptions import ResultGetError
from taskiq.utils import maybe_awaitable

import redpoll
from redpoll.bus import QueueSpec
from redpoll.bus.engines.hub.opening import open_store
from redpoll.compat.taskiq import RedpollBroker, RedpollResultBackend
from redpoll.errors import Closed, SpecConflict
from tests.bus.engines.hub.support import running

pytestmark = pytest.mark.interop

#: Seconds that a test waits for something at most.
PATIENCE = 30.0


def on_a_hub(test: Callable[[str], Coroutine[Any, Any, None]], tmp_path: Path) -> None:
    """Run a test with the URL of a hub."""
    with running(open_store(tmp_path / "hub", reserve=65_536)) as hub:
        redpoll.run(test(hub.url))


def message(name: str, **labels: object) -> BrokerMessage:
    """Return a message."""
    return BrokerMessage(task_id=name, task_name="work", message=name.encode(), labels=labels)


def queues(broker: RedpollBroker) -> Any:
    """The queues, over the connection of a broker."""
    assert broker._bus is not None
    return broker._bus.queues


async def next_of(messages: Any) -> AckableMessage:
    """Return the next message."""
    found: AckableMessage = await asyncio.wait_for(anext(messages), PATIENCE)
    return found


def test_kick_and_listen(tmp_path: Path) -> None:
    """A kicked message is received byte for byte, and is gone once it is acknowledged, not before."""

    async def test(url: str) -> None:
        broker = RedpollBroker(url)
        await broker.startup()
        await broker.kick(message("one"))
        messages = broker.listen()
        found = await next_of(messages)
        assert found.data == b"one"
        assert (await queues(broker).inspect("taskiq")).taken == 1
        await maybe_awaitable(found.ack())
        while (await queues(broker).inspect("taskiq")).taken:  # noqa: ASYNC110  # the hub has no event
            await asyncio.sleep(0.01)
        await messages.aclose()
        await broker.shutdown()

    on_a_hub(test, tmp_path)


def test_unacknowledged_tasks_go_to_others(tmp_path: Path) -> None:
    """A worker that ends without having acknowledged leaves its tasks to another one, in order."""

    async def test(url: str) -> None:
        first, second = RedpollBroker(url, prefetch=2), RedpollBroker(url)
        await first.startup()
        await second.startup()
        for name in ("one", "two", "three"):
            await first.kick(message(name))
        messages = first.listen()
        assert [(await next_of(messages)).data for _ in range(2)] == [b"one", b"two"]
        await messages.aclose()
        await first.shutdown()
        others = second.listen()
        assert [(await next_of(others)).data for _ in range(3)] == [b"one", b"two", b"three"]
        await others.aclose()
        await second.shutdown()

    on_a_hub(test, tmp_path)


def test_labels(tmp_path: Path) -> None:
    """The labels say the priority, and how long a task is delayed; the queue keeps it meanwhile."""

    async def test(url: str) -> None:
        broker = RedpollBroker(url, QueueSpec("work", priorities=3, max_attempts=None))
        await broker.startup()
        await broker.kick(message("later", delay=0.2, priority=2))
        await broker.kick(message("low"))
        await broker.kick(message("high", priority=2))
        assert (await queues(broker).inspect("work")).delayed == 1
        messages = broker.listen()
        assert [(await next_of(messages)).data for _ in range(3)] == [b"high", b"low", b"later"]
        await messages.aclose()
        await broker.shutdown()

    on_a_hub(test, tmp_path)


def test_tasks_and_results(tmp_path: Path) -> None:
    """Tasks run in taskiq's own receiver; their results and exceptions come back."""

    async def test(url: str) -> None:
        broker = RedpollBroker(url).with_result_backend(RedpollResultBackend(url))

        @broker.task  # type: ignore[untyped-decorator]
        async def divide(a: int, b: int) -> float:
            return a / b

        await broker.startup()
        worker = asyncio.create_task(run_receiver_task(broker))
        task = await divide.kiq(6, 3)
        assert (await task.wait_result(timeout=PATIENCE)).return_value == 2
        failed = await (await divide.kiq(1, 0)).wait_result(timeout=PATIENCE)
        assert failed.is_err
        assert isinstance(failed.error, ZeroDivisionError)
        worker.cancel()
        await asyncio.wait([worker])
        await broker.shutdown()

    on_a_hub(test, tmp_path)


def test_result_backend(tmp_path: Path) -> None:
    """A result is there once it was stored, for another process too, until it expires; without one there is an error."""

    async def test(url: str) -> None:
        backend, other = RedpollResultBackend[int](url), RedpollResultBackend[int](url, expires=0.05)
        await backend.startup()
        await other.startup()
        assert not await backend.is_result_ready("one")
        with pytest.raises(ResultGetError):
            await backend.get_result("one")
        result = TaskiqResult(is_err=False, log="said", return_value=5, execution_time=0.1, labels={"a": "b"})
        await backend.set_result("one", result)
        assert await other.is_result_ready("one")
        assert await other.get_result("one", with_logs=True) == result
        assert (await other.get_result("one")).log is None
        await other.set_result("one", result)
        while await backend.is_result_ready("one"):  # noqa: ASYNC110  # it expires by the clock
            await asyncio.sleep(0.01)
        await backend.shutdown()
        await other.shutdown()

    on_a_hub(test, tmp_path)


def test_progress(tmp_path: Path) -> None:
    """The progress of a task is the last that was stored."""

    async def test(url: str) -> None:
        backend = RedpollResultBackend[int](url)
        await backend.startup()
        assert await backend.get_progress("one") is None
        for done in (1, 2):
            await backend.set_progress("one", TaskProgress(state=TaskState.STARTED, meta={"done": done}))
        found = await backend.get_progress("one")
        assert found is not None
        assert (found.state, found.meta) == (TaskState.STARTED, {"done": 2})
        await backend.shutdown()

    on_a_hub(test, tmp_path)


def test_use_before_startup() -> None:
    """A broker or a backend that was not started says so; a prefetch that cannot be is refused."""

    async def test() -> None:
        with pytest.raises(Closed, match="startup"):
            await RedpollBroker("memory://").kick(message("one"))
        with pytest.raises(Closed, match="startup"):
            await RedpollResultBackend[int]("memory://").is_result_ready("one")

    redpoll.run(test())
    with pytest.raises(redpoll.errors.ConfigError, match="prefetch"):
        RedpollBroker("memory://", prefetch=0)


def test_a_failure_leaves_nothing_connected() -> None:
    """A broker that could not start, or whose shutdown handlers fail, is disconnected."""

    async def fail(_: object) -> None:
        raise RuntimeError("no")

    async def test() -> None:
        async with redpoll.connect("memory://failing") as bus:
            await bus.engine.declare(QueueSpec("taskiq", kind="events"))
            before = asyncio.all_tasks()
            broker = RedpollBroker("memory://failing")
            with pytest.raises(SpecConflict):
                await broker.startup()
            with pytest.raises(Closed, match="startup"):
                await broker.kick(message("one"))
            broker = RedpollBroker("memory://failing", "other")
            broker.add_event_handler(TaskiqEvents.CLIENT_SHUTDOWN, fail)
            await broker.startup()
            with pytest.raises(RuntimeError, match="no"):
                await broker.shutdown()
            with pytest.raises(Closed, match="startup"):
                await broker.kick(message("one"))
            assert asyncio.all_tasks() == before

    redpoll.run(test())
