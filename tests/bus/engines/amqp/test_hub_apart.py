"""A hub beside RabbitMQ that comes later, asks for tokens, or is killed alone; and threads that use both."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import pytest

import redpoll
from redpoll.blocking import connect
from redpoll.bus import EngineState, QueueSpec, Task
from redpoll.bus.engines.amqp.engine import AmqpEngine
from redpoll.bus.engines.hub.tokens import Tokens
from redpoll.errors import DialFailed, NoRoute, NotAuthorized, TaskCancelled
from tests.bus.engines.amqp.support import PATIENCE, until, within
from tests.bus.engines.hub.support import running
from tests.bus.engines.hub.test_recovery import SLOW, start_hub
from tests.bus.threads.support import double
from tests.ports import free_port
from tests.rabbitmq import Broker

pytestmark = pytest.mark.broker

ANN, BOB, CLEO = "ann-ann-ann-ann-1", "bob-bob-bob-bob-2", "cleo-cleo-cleo-cleo-3"
#: One program submits, and puts in what is due; one works.
FILE = f"""
[ann]
token = "{ANN}"
submit = ["amqp:q", "amqp:few", "amqp.scheduled"]
read_results = ["amqp:q"]
work = ["amqp.scheduled"]
[bob]
token = "{BOB}"
work = ["amqp:q", "amqp.scheduled"]
[cleo]
token = "{CLEO}"
work = ["amqp.scheduled"]
administer = ["amqp:q"]
"""


@pytest.mark.asyncio
async def test_a_hub_that_is_not_there_at_the_start(rabbitmq: Broker) -> None:
    """Without it a bus is not entered, and names it; told to wait, the bus is degraded until it comes, as submits wait."""
    port = free_port()
    url = f"redpoll://127.0.0.1:{port}"
    with pytest.raises(DialFailed, match=str(port)):
        await redpoll.connect(rabbitmq.url, results=url, connect_timeout=0.5).__aenter__()
    async with redpoll.connect(rabbitmq.url, results=url, wait=True, max_body=2**26) as bus:
        await until(lambda: bus.state is EngineState.DEGRADED, "RabbitMQ")
        assert bus.status.reason.startswith("the hub for results is connecting")
        submitting = asyncio.ensure_future(bus.tasks.submit(1, queue="q"))
        with running(port=port, max_body=2**25):
            handle = await within(submitting)
            await until(lambda: bus.state is EngineState.READY, "the hub")
            assert bus.capabilities.max_body == 2**25
            async with bus.tasks.worker(lambda task: task.data * 2, queue="q"):
                assert await within(handle.result()) == 2
            await bus.close()


@pytest.mark.asyncio
async def test_a_hub_with_tokens(rabbitmq: Broker, tmp_path: Path) -> None:
    """Each program does what its token permits, and leaves the rest to others; without one there is no way in."""
    file = tmp_path / "tokens.toml"
    file.write_text(FILE)
    done: list[int] = []

    async def work(task: Task) -> int:
        done.append(task.data)
        return int(task.data) * 2

    with running(tokens=Tokens(file)) as hub:

        def guarded(token: str) -> redpoll.Bus:
            return redpoll.connect(rabbitmq.url, results=hub.url.replace("://", f"://{token}@"))

        with pytest.raises(NotAuthorized):
            await guarded("eve-eve-eve-eve-3").__aenter__()
        async with guarded(ANN) as ann, guarded(BOB) as bob, bob.tasks.worker(work, queue="q"):
            handle = await ann.tasks.submit(2, queue="q")
            assert await within(handle.result()) == 4
            assert await ann.tasks.handle(handle.id, queue="q").state() == "done"
            # What is due comes to both in turn.
            await ann.tasks.schedule("often", 3, queue="q", every=0.2)
            await until(lambda: done.count(3) > 1, "tasks of the schedule")
            assert await ann.tasks.unschedule("often")
            with pytest.raises(NotAuthorized, match="may not submit 'amqp:q'"):
                await bob.tasks.submit(1, queue="q")
            # RabbitMQ drops a task, whose record the one who submitted it may not work on.
            await ann.queues.declare(QueueSpec("few", max_length=1, at_limit="drop-old"))
            first = await ann.tasks.submit(1, queue="few")
            await ann.tasks.submit(2, queue="few")
            with pytest.raises(TaskCancelled):
                await within(first.result())


@pytest.mark.asyncio
async def test_a_queue_that_the_hub_does_not_let_go(rabbitmq: Broker, tmp_path: Path) -> None:
    """A program whose token permits no administration neither purges nor deletes a queue: RabbitMQ's stays as it is too."""
    file = tmp_path / "tokens.toml"
    file.write_text(FILE)
    with running(tokens=Tokens(file)) as hub:
        async with redpoll.connect(rabbitmq.url, results=hub.url.replace("://", f"://{ANN}@")) as ann:
            await ann.tasks.submit(2, queue="q")
            for refused in (ann.queues.purge("q"), ann.queues.delete("q")):
                with pytest.raises(NotAuthorized, match="may not administer 'amqp:q'"):
                    await within(refused)
            assert (await ann.queues.inspect("q")).ready == 1
            assert "q" in await ann.queues.names()
            # One that may administer it, and not take its schedule away.
            await ann.tasks.schedule("seldom", 1, queue="q", every=3_600.0)
            async with redpoll.connect(rabbitmq.url, results=hub.url.replace("://", f"://{CLEO}@")) as cleo:
                with pytest.raises(NotAuthorized, match=r"may not submit 'amqp\.scheduled'"):
                    await within(cleo.queues.delete("q"))
                assert (await ann.queues.inspect("q")).ready == 1
                assert await ann.tasks.unschedule("seldom")
                await within(cleo.queues.delete("q"))
            assert "q" not in await ann.queues.names()


@pytest.mark.asyncio
async def test_a_queue_that_rabbitmq_does_not_let_go(rabbitmq: Broker) -> None:
    """A queue that RabbitMQ does not delete keeps its schedules; once it is gone, they go too."""
    url = rabbitmq.user("limited", rabbitmq.url)
    rabbitmq.permit("limited", configure="^(?!q$)")
    with running() as hub:
        async with redpoll.connect(rabbitmq.url, results=hub.url) as bus:
            await bus.queues.declare("q")
            await bus.tasks.schedule("seldom", 1, queue="q", every=3_600.0)
            async with redpoll.connect(url, results=hub.url) as limited:
                with pytest.raises(NotAuthorized, match="access to queue 'q'"):
                    await within(limited.queues.delete("q"))
            assert "q" in await bus.queues.names()
            assert [each.name for each in await bus.engine.schedules()] == ["seldom"]
            # An operator deletes it.
            assert isinstance(bus.engine, AmqpEngine)
            await bus.engine.session.ask("queue.delete", 0, "q", 0)
            with pytest.raises(NoRoute):
                await within(bus.queues.delete("q"))
            assert await bus.engine.schedules() == []
            assert "q" not in await bus.queues.names()


@pytest.mark.asyncio
async def test_a_hub_that_is_killed_alone(rabbitmq: Broker, tmp_path: Path) -> None:
    """Tasks that run continue, and none begins again; the hub that takes the place has their outcomes, and what waited."""
    port = free_port()
    begun: Counter[int] = Counter()
    go = asyncio.Event()

    async def work(task: Task) -> int:
        begun[task.data] += 1
        await go.wait()
        return int(task.data)

    async with contextlib.AsyncExitStack() as hubs:
        hub = await start_hub(hubs, tmp_path, port)
        url = f"redpoll://127.0.0.1:{port}"
        async with redpoll.connect(rabbitmq.url, results=url, wait=True) as bus:
            async with bus.tasks.worker(work, queue="q", concurrency=2):
                handles = [await within(bus.tasks.submit(number, queue="q"), SLOW) for number in range(4)]
                await until(lambda: len(begun) == 2, "two tasks")
                hub.kill()
                await hub.wait()
                await until(lambda: bus.state is EngineState.DEGRADED, "the loss of the hub")
                go.set()
                waiting = asyncio.ensure_future(bus.tasks.submit(4, queue="q"))
                await start_hub(hubs, tmp_path, port)
                results = [await within(each.result(), SLOW) for each in [*handles, await within(waiting, SLOW)]]
                assert results == [0, 1, 2, 3, 4]
                assert begun == dict.fromkeys(range(5), 1)


@pytest.mark.asyncio
async def test_closing_waits_for_a_hub_that_is_away(rabbitmq: Broker, tmp_path: Path) -> None:
    """A program that drains waits within its time for the hub to take what its handlers returned: nothing is done again."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def work(task: Task) -> int:
        begun.set()
        await go.wait()
        return int(task.data) * 2

    async with redpoll.Hub(tmp_path, port=0) as hub:
        url = hub.url
        bus = await redpoll.connect(rabbitmq.url, results=url).__aenter__()
        worker = await bus.tasks.worker(work, queue="q").__aenter__()
        handle = await bus.tasks.submit(2, queue="q")
        await within(begun.wait())
    await until(lambda: bus.state is EngineState.DEGRADED, "the loss of the hub")
    go.set()
    await until(lambda: not worker.running, "the end of the handler")
    closing = asyncio.ensure_future(bus.close(600))
    async with redpoll.Hub(tmp_path, port=int(url.rpartition(":")[2])):
        await within(closing, SLOW)
        async with redpoll.connect(rabbitmq.url, results=url) as later:
            assert await later.tasks.handle(handle.id, queue="q").state() == "done"
            assert await within(later.tasks.handle(handle.id, queue="q").result()) == 4


def test_threads_with_both(rabbitmq: Broker) -> None:
    """A bus for threads has what the hub adds: keys, cancelling, results that are found later, schedules."""
    with running() as hub:
        with connect(rabbitmq.url, results=hub.url) as bus:
            first = bus.tasks.submit(2, queue="q", dedup="k")
            assert bus.tasks.submit(2, queue="q", dedup="k").duplicate
            cancelled = bus.tasks.submit(3, queue="q")
            assert cancelled.cancel() == "withdrawn"
            with pytest.raises(TaskCancelled):
                cancelled.result(PATIENCE)
            with bus.tasks.worker(double, queue="q"):
                assert first.result(PATIENCE) == 4
        with connect(rabbitmq.url, results=hub.url) as bus:
            assert bus.tasks.handle(first.id, queue="q").result(PATIENCE) == 4
            bus.tasks.schedule("often", 5, queue="q", every=0.2)
            with bus.tasks.next("q", timeout=PATIENCE) as task:
                assert task.data == 5
                task.set_result(None)
            assert bus.tasks.unschedule("often")
