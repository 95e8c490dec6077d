"""A worker whose handler blocks its event loop: what it has not begun goes to others, and nothing is begun twice."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import redpoll
from redpoll import Config
from redpoll.bus import Task
from redpoll.bus.engines.hub import clients, server
from redpoll.bus.engines.hub import protocol as p
from tests.bus.engines.hub.support import Running, running
from tests.bus.engines.hub.test_server import Client
from tests.node.support import PATIENCE, until

#: Signs of life are frequent.
QUICK = Config(keepalive=0.5)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a hub look often whether a loop is blocked."""
    monkeypatch.setattr(clients, "_STALL", 0.1)
    monkeypatch.setattr(server, "_PAUSE", 0.05)


class Blocked:
    """A worker of four slots on a loop of its own, whose handler blocks that at "long".

    Attributes:
        begun: The tasks that it began.
        long: Set while it is blocked.
        go: Ends that.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.begun: list[Any] = []
        self.long = threading.Event()
        self.go = threading.Event()
        self.up = threading.Event()
        self.loop: Any = None

    async def handle(self, task: Task) -> None:
        """Do one."""
        self.begun.append(task.data)
        if task.data == "long":
            self.long.set()
            self.go.wait(PATIENCE)

    async def run(self) -> None:
        """Work until the end."""
        self.loop = asyncio.get_running_loop()
        self.end = asyncio.Event()
        async with redpoll.connect(self._url, config=QUICK) as bus:
            async with bus.tasks.worker(self.handle, queue="q", concurrency=4):
                self.up.set()
                await self.end.wait()


@contextmanager
def blocked(hub: Running) -> Iterator[Blocked]:
    """Run such a worker, of whose life the hub has signs."""
    worker = Blocked(hub.url)
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    try:
        assert worker.up.wait(PATIENCE)
        yield worker
    finally:
        worker.go.set()
        worker.loop.call_soon_threadsafe(worker.end.set)
        thread.join()


@pytest.mark.asyncio
@pytest.mark.parametrize("together", [False, True])
async def test_tasks_of_a_blocked_worker_go_to_others(together: bool) -> None:
    """Tasks behind one that blocks the loop, also those of its message, are done by an idle worker; each is begun once."""
    with running() as hub, blocked(hub) as worker:
        async with redpoll.connect(hub.url) as bus:
            begun: list[Any] = []
            if together:
                made = await bus.tasks.submit_many(["long", 1, 2, 3], queue="q")
            else:
                made = [await bus.tasks.submit("long", queue="q")]
                assert await asyncio.to_thread(worker.long.wait, PATIENCE)
                made += await bus.tasks.submit_many([1, 2, 3], queue="q")

            async def handle(task: Task) -> None:
                begun.append((task.data, task.attempt))

            async with bus.tasks.worker(handle, queue="q", concurrency=4):
                for each in made[1:]:
                    await each.result(timeout=PATIENCE)
                assert begun == [(1, 1), (2, 1), (3, 1)]
                # It is given nothing while it is blocked.
                assert not await bus.tasks.run(4, queue="q", timeout=PATIENCE)
            info = await bus.queues.inspect("q")
            assert (info.taken, info.ready) == (1, 0)
            worker.go.set()
            await made[0].result(timeout=PATIENCE)
            await bus.tasks.run(5, queue="q", timeout=PATIENCE)
            assert worker.begun == ["long", 5]


@pytest.mark.asyncio
async def test_late_answers_of_a_blocked_worker() -> None:
    """An answer about what was begun counts only while the question is open: later the worker may have begun more."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            await bus.queues.declare("q")
            for number in range(3):
                await bus.tasks.submit(number, queue="q")
            client, signs = Client(hub), Client(hub)
            async with client.node, signs.node:
                await client.say([p.HELLO, p.VERSION, "w", ""], [p.CONSUME, 1, 7, "q", 3, False, False, True])
                await until(lambda: len([each for each in client.heard if each[0] == p.DELIVER]) == 3, "the tasks")
                first = next(each[2] for each in client.heard if each[0] == p.DELIVER)
                await signs.say([p.ALIVE, "w", ""])
                member = next(each for each in hub.hub._clients.values() if each.consumers)
                member.question = 5
                for number in (0, 6):
                    await signs.say([p.BEGUN, "w", "", number, [[7, first]]])
                assert (await bus.queues.inspect("q")).taken == 3
                await signs.say([p.BEGUN, "w", "", 5, [[7, first], [8, 0]]])
                assert (await bus.queues.inspect("q")).taken == 1
                await client.say([p.RESUME, 2])
                await client.answer(2)
                assert (await bus.queues.inspect("q")).taken == 3
                await signs.say([p.BEGUN, "w", "", 5, [[7, first]]])
                assert (await bus.queues.inspect("q")).taken == 3


@pytest.mark.asyncio
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="an eager handler has begun when its task has come")
async def test_a_worker_that_was_asked_begins_nothing() -> None:
    """A worker that told the hub what it has begun begins nothing else before the hub knows that its loop runs."""
    begun: list[Any] = []

    async def handle(task: Task) -> None:
        begun.append(task.data)

    with running() as hub:
        async with redpoll.connect(hub.url) as bus, redpoll.connect(hub.url) as other:
            async with bus.tasks.worker(handle, queue="q", concurrency=4):
                engine: Any = bus.engine
                (consumer,) = engine._consumers.values()
                delivered = consumer.deliver

                def deliver(delivery: Any) -> None:
                    delivered(delivery)
                    asked.append(True)
                    # As the thread does it, in the middle: the task has come, and its handler has not begun.
                    assert engine.suspend(1) == [[consumer.number, 0]]
                    consumer.deliver = delivered

                asked: list[bool] = []
                consumer.deliver = deliver
                task = await other.tasks.submit("a", queue="q")
                await task.result(timeout=PATIENCE)
                assert asked == [True]
                assert begun == ["a"]
                assert not engine.suspended
                info = await other.queues.inspect("q")
                assert info.delivered == info.requeued + 1 > 1


@pytest.mark.asyncio
async def test_a_sink_without_prefetch_gives_back_too() -> None:
    """A consumer of one task at a time hands nothing to its sink while nothing is to be begun; it comes again."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus, redpoll.connect(hub.url) as other:
            await bus.queues.declare("q")
            engine: Any = bus.engine
            consumer = await bus.engine.consume("q", credit=2)
            engine._question = 9
            await other.tasks.submit("a", queue="q")
            given = asyncio.ensure_future(anext(consumer))
            await until(lambda: hub.hub.broker.queues.found["q"].requeued, "a task that goes back")
            assert not given.done()
            engine._resume()
            delivery = await asyncio.wait_for(given, PATIENCE)
            assert await delivery.ack()
            await consumer.close()


@pytest.mark.asyncio
async def test_taking_at_once_after_a_block() -> None:
    """A call that takes what is there finds it, though the hub hands out nothing before it knows that the loop runs."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus, redpoll.connect(hub.url) as other:
            await bus.queues.declare("q")
            await bus.engine.consume("q", credit=0)
            await other.tasks.submit("a", queue="q")
            engine: Any = bus.engine
            client = next(each for each in hub.hub._clients.values() if each.consumers)
            hub.call(hub.hub.broker.peers.stall, client.member, [], 0.0)
            await until(lambda: client.member.stalled, "the answer to the hub's question")
            taking = asyncio.ensure_future(engine.take("q", 0))
            engine.suspend(9)
            delivery = await asyncio.wait_for(taking, PATIENCE)
            assert await delivery.ack()
            with pytest.raises(redpoll.QueueEmpty):
                await engine.take("q", 0)


@pytest.mark.asyncio
async def test_a_task_that_is_taken_at_once_stays() -> None:
    """A call that takes what is there has asked for one task: it gets it though the loop was blocked as it came."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus, redpoll.connect(hub.url) as other:
            await bus.queues.declare("q")
            await other.tasks.submit("a", queue="q")
            engine: Any = bus.engine
            taking = asyncio.ensure_future(engine.take("q", 0))
            await asyncio.sleep(0)  # the request is on its way
            ((_, begun),) = engine.suspend(9)
            delivery = await asyncio.wait_for(taking, PATIENCE)
            # What the hub was told of it: there, it is begun.
            assert begun > delivery.token
            assert await delivery.ack()
            await until(lambda: not engine.suspended, "the end of it")
            assert not hub.hub.broker.queues.found["q"].requeued
