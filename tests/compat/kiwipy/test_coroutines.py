"""The communicator for coroutines, beyond what kiwiPy's own tests of 0.5.3 ask for."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import kiwipy
import pytest

import redpoll
from redpoll.compat import kiwipy as rmq
from redpoll.compat.kiwipy.connection import Codec
from redpoll.errors import Expired

pytestmark = [pytest.mark.asyncio, pytest.mark.interop]

PATIENCE = 20.0


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[rmq.RmqCommunicator]:
    """A communicator that is disconnected at the end."""
    made = await rmq.async_connect(url, **options)
    async with asyncio.timeout(PATIENCE), made:
        yield made


async def test_it_is_connected_again(url: str) -> None:
    """Disconnected, its verbs raise RuntimeError, and it has no properties; connected again it serves as before."""
    comm = rmq.RmqCommunicator(rmq.Connection(url))
    for _ in range(2):
        assert not comm.connected()
        assert comm.server_properties == {}
        for verb in (comm.add_rpc_subscriber(print), comm.task_send(1), comm.broadcast_send(1)):
            with pytest.raises(RuntimeError, match="not connected"):
                await verb
        async with comm:
            assert comm.connected()
            assert comm.loop is asyncio.get_running_loop()
            await comm.connect()
            await comm.add_rpc_subscriber(lambda _, message: message, "again")
            assert await (await comm.rpc_send("again", 1)) == 1
    await comm.disconnect()


async def test_the_tasks_of_a_worker_go_back(url: str) -> None:
    """KX-01: tasks of a communicator that is closed are done by another; the sender has one outcome of each."""
    async with opened(url) as comm:
        sent = [await comm.task_send(number) for number in range(5)]
        begun = asyncio.Event()

        def never(_: Any, task: Any) -> Any:
            begun.set()
            return asyncio.get_running_loop().create_future()

        async with opened(url, task_prefetch_count=2) as worker:
            await worker.add_task_subscriber(never)
            await begun.wait()
        await comm.add_task_subscriber(lambda _, task: task + 10)
        results = []
        for each in sent:
            assert each is not None
            result = await each
            # The first worker had begun it with a future.
            while asyncio.isfuture(result):
                result = await result
            results.append(result)
        assert results == [10, 11, 12, 13, 14]


async def test_an_iteration_and_a_dropped_outcome(url: str) -> None:
    """K-26, K-35: as for threads: iterating, a block, and an outcome that is dropped."""
    async with opened(url, testing_mode=True) as comm:
        queue = await comm.task_queue("drawer")
        sent = [await queue.task_send(number) for number in range(3)]
        async for task in queue:
            if task.body < 2:
                async with task.processing() as outcome:
                    outcome.set_result(task.body)
        async with queue.next_task() as task:
            held = task.process()
        with pytest.raises(kiwipy.QueueEmpty):
            async with queue.next_task():
                pass
        del held
        gc.collect()
        await asyncio.sleep(0)
        async with queue.next_task() as task:
            task.process().set_exception(ValueError("no"))
        assert [await each for each in sent[:2] if each] == [0, 1]
        with pytest.raises(kiwipy.RemoteException, match="no"):
            await sent[2]  # type: ignore[misc]


async def test_an_exception_that_no_future_raises(url: str) -> None:
    """A block that raises StopIteration is the sender's outcome; the queue is empty afterwards."""
    async with opened(url) as comm:
        queue = await comm.task_queue("drawer")
        sent = await queue.task_send("x")
        with pytest.raises(StopIteration):
            async with queue.next_task() as task, task.processing():
                next(iter(()))
        with pytest.raises(kiwipy.RemoteException, match="StopIteration"):
            await sent  # type: ignore[misc]
        with pytest.raises(kiwipy.QueueEmpty):
            async with queue.next_task():
                pass


async def test_a_queue_that_is_not_there(url: str) -> None:
    """K-36: a publisher finds no queue where nobody made one, and queues of one connection share its engine."""
    connection = await rmq.connect_robust(url)
    try:
        publisher = rmq.RmqTaskPublisher(connection, queue_name="nowhere")
        await publisher.connect()
        with pytest.raises(kiwipy.UnroutableError):
            await publisher.task_send(1)
        queue = rmq.RmqTaskQueue(connection, queue_name="nowhere")
        await queue.connect()
        await publisher.task_send("now", no_reply=True)
        async with queue.next_task() as task:
            assert (task.body, task.no_reply) == ("now", True)
            task.process().set_result(None)
        await queue.disconnect()
        await publisher.disconnect()
    finally:
        await connection.close()


async def test_what_is_not_sent(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that takes nothing: a broadcast is False and logged, a call is not delivered, a task is rejected."""

    async def publish(*args: Any, **options: Any) -> None:
        raise Expired(None, 1.0, "sending")

    async with opened("memory://") as comm:
        await comm.get_default_task_queue()
        monkeypatch.setattr(comm._connection.engine, "publish", publish)
        assert await comm.broadcast_send("lost") is False
        assert "a broadcast was not sent" in caplog.text
        with pytest.raises(kiwipy.DeliveryFailed):
            await comm.rpc_send("anybody", 1)
        with pytest.raises(kiwipy.TaskRejected):
            await comm.task_send(1)


async def test_programs_of_both_kinds_share_queues(url: str) -> None:
    """A program with `redpoll` and the serializer works on the tasks of one with kiwiPy's verbs, and sends it tasks."""
    codec = Codec(rmq.defaults.ENCODER, rmq.defaults.DECODER)
    async with opened(url, task_queue="shared") as comm, redpoll.connect(url, serializer=codec) as bus:
        async with bus.tasks.worker(lambda task: task.data * 2, "shared"):
            sent = await comm.task_send(21)
            assert sent is not None
            assert await sent == 42
        await comm.add_task_subscriber(lambda _, task: task * 3)
        assert await bus.tasks.run(14, "shared") == 42


async def test_two_at_the_same_time(url: str) -> None:
    """Of two that connect at the same time one makes the engine; of two subscribers for one recipient one is refused."""
    connection = rmq.Connection(url)
    engines, make = [], connection._make

    def made() -> Any:
        engines.append(make())
        return engines[-1]

    connection._make = made  # type: ignore[method-assign]
    await asyncio.gather(connection.connect(), connection.connect())
    assert engines == []  # it was made with the connection
    await connection.close()
    async with opened(url) as comm, asyncio.timeout(PATIENCE):
        adding = [comm.add_rpc_subscriber(lambda _, message: message, "twice") for _ in range(2)]
        first, second = await asyncio.gather(*adding, return_exceptions=True)
        assert first == "twice"
        assert isinstance(second, kiwipy.DuplicateSubscriberIdentifier)
        await comm.remove_rpc_subscriber("twice")
        with pytest.raises(kiwipy.UnroutableError):
            await comm.rpc_send("twice", 1)
