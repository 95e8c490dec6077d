"""Tasks that a hub sends ahead of the slots of a worker: in order, begun by one, given back while they are not begun."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import redpoll
from redpoll import ConfigError
from redpoll.bus import Handle, Task
from redpoll.bus.broker.outputs import Write
from redpoll.bus.engines.hub import handles, pace
from redpoll.bus.state import EngineState
from redpoll.testing import FaultProxy
from tests.bus.engines.hub.memory_store import MemoryStore
from tests.bus.engines.hub.support import Running, running
from tests.node.support import PATIENCE, until


class Workers:
    """Workers of one slot each, whose handlers wait where a task says so.

    Attributes:
        begun: Who began what, in order.
        attempts: Which attempts these were, of others than the long ones.
        go: Ends the waiting.
    """

    def __init__(self) -> None:
        self.begun: list[tuple[str, Any]] = []
        self.attempts: set[int] = set()
        self.go = asyncio.Event()

    def worker(self, bus: redpoll.Bus, name: str, **options: Any) -> Any:
        """Make a worker."""

        async def work(task: Task) -> None:
            self.begun.append((name, task.data))
            if task.data == "long":
                await self.go.wait()
            else:
                self.attempts.add(task.attempt)

        return bus.tasks.worker(work, queue="q", concurrency=1, **options)

    def by(self, name: str) -> list[Any]:
        """What one of them began."""
        return [what for who, what in self.begun if who == name and what != "short"]


def ahead(bus: redpoll.Bus) -> list[int]:
    """How many tasks the consumers of a bus have ahead."""
    engine: Any = bus.engine
    return [len(each._ahead) for each in engine._consumers.values()]


async def warm_up(bus: redpoll.Bus) -> None:
    """Let the worker be known for short handlers."""
    for _ in range(60):
        await bus.tasks.run("short", queue="q", timeout=PATIENCE)


@asynccontextmanager
async def sent_ahead(
    url: str, workers: Workers, submitter: redpoll.Bus
) -> AsyncIterator[tuple[redpoll.Bus, Any, list[Handle]]]:
    """A worker in a long handler, with three tasks ahead."""
    async with redpoll.connect(url) as bus:
        worker = workers.worker(bus, "a", drain=0.0)
        async with worker:
            await warm_up(submitter)
            made = [await submitter.tasks.submit(each, queue="q") for each in ("long", 1, 2, 3)]
            await until(lambda: ahead(bus) == [3], "tasks that are sent ahead")
            try:
                yield bus, worker, made
            finally:
                workers.go.set()


async def results(made: list[Handle]) -> None:
    """Wait for all of them."""
    for each in made:
        await each.result(timeout=PATIENCE)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a handler short, and a hub quick, also where the machine is busy: the real figures are tested with `Pace`."""
    monkeypatch.setattr(pace, "_WORK", 1.0)
    monkeypatch.setattr(pace, "_SLOW", 4.0)
    monkeypatch.setattr(handles, "HELD", 1.0)
    monkeypatch.setattr(handles, "LEASE", 2 * PATIENCE)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker have tasks ahead for as long as it likes."""
    monkeypatch.setattr(handles, "HELD", 2 * PATIENCE)


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_tasks_ahead_are_begun_in_order() -> None:
    """A worker begins what it has ahead in order, once each, as it has slots."""
    workers = Workers()
    with running() as hub:
        async with redpoll.connect(hub.url) as other, sent_ahead(hub.url, workers, other) as (_, _, made):
            assert workers.by("a") == ["long"]
            info = await other.queues.inspect("q")
            assert (info.ready, info.taken) == (0, 4)
            workers.go.set()
            await results(made)
            assert workers.by("a") == ["long", 1, 2, 3]
            assert (await other.queues.inspect("q")).requeued == 0


@pytest.mark.asyncio
async def test_a_long_task_holds_no_others() -> None:
    """Tasks that wait behind a long one go to another worker that has a slot, in order, and that is no attempt."""
    workers = Workers()
    with running() as hub:
        async with redpoll.connect(hub.url) as other, redpoll.connect(hub.url) as idle:
            async with sent_ahead(hub.url, workers, other) as (bus, _, made), workers.worker(idle, "b"):
                await results(made[1:])
                assert workers.by("b") == [1, 2, 3]
                assert ahead(bus) == [0]
                workers.go.set()
                await results(made)
    assert workers.by("a") == ["long"]
    assert workers.attempts == {1}


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_a_late_look_is_no_long_task() -> None:
    """A look at the tasks ahead that comes late, as the loop was busy, gives none back; one in time does."""
    workers = Workers()
    with running() as hub:
        async with redpoll.connect(hub.url) as other, sent_ahead(hub.url, workers, other) as (bus, _, made):
            engine: Any = bus.engine
            (consumer,) = engine._consumers.values()
            for late, left in ((2 * PATIENCE, 3), (0.0, 0)):
                consumer._timer.cancel()
                consumer._due = bus.engine.clock.time() - late
                consumer._look()
                assert ahead(bus) == [left]
            workers.go.set()
            await results(made)
    assert workers.attempts == {1}


@pytest.mark.asyncio
async def test_what_comes_while_tasks_go_back() -> None:
    """One worker alone keeps the order, also where tasks went back while more were on their way to it."""
    workers = Workers()
    with running() as hub:
        async with redpoll.connect(hub.url) as other, sent_ahead(hub.url, workers, other) as (bus, _, made):
            made += [await other.tasks.submit(each, queue="q") for each in range(4, 40)]
            await until(lambda: ahead(bus) == [0], "their going back")
            workers.go.set()
            await results(made)
    assert workers.by("a") == ["long", *range(1, 40)]
    assert workers.attempts == {1}


@pytest.mark.asyncio
async def test_giving_back_ends() -> None:
    """A task behind the answer to those that went back is begun, though earlier ones are still on their way back."""
    loop = asyncio.get_running_loop()
    answers: list[asyncio.Future[None]] = []
    begun: list[int] = []

    def give_back(_number: int, _tokens: list[int]) -> asyncio.Future[None]:
        answers.append(loop.create_future())
        return answers[-1]

    engine: Any = SimpleNamespace(
        loop=loop, linked=True, suspended=False, give_back=give_back, say_if_linked=Mock(), look_drained=Mock()
    )

    def begin(delivery: Any) -> None:
        begun.append(delivery.token)

    consumer = handles.HubConsumer(engine, 1, "q", 1, begin, True, False, True)
    tasks: list[Any] = [SimpleNamespace(token=token, since=0.0) for token in (1, 2, 3, 4)]
    for each in tasks[:2]:
        consumer.deliver(each)
    consumer.give_back()
    consumer.ended(1)
    consumer.deliver(tasks[2])
    answers[0].set_result(None)
    await asyncio.sleep(0)
    consumer.deliver(tasks[3])
    assert begun == [1, 4]
    assert len(answers) == 2


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_a_worker_that_is_closed_gives_back_what_is_ahead() -> None:
    """A worker that closes gives back at once what it did not begin, and begins none of it; that is no attempt."""
    workers = Workers()
    with running() as hub:
        async with redpoll.connect(hub.url) as other, redpoll.connect(hub.url) as idle:
            async with sent_ahead(hub.url, workers, other) as (_, worker, made), workers.worker(idle, "b"):
                closing = asyncio.ensure_future(worker.close(None))
                await results(made[1:])
                assert not closing.done()
                workers.go.set()
                await closing
    assert (workers.by("a"), workers.by("b")) == (["long"], [1, 2, 3])
    assert workers.attempts == {1}


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_a_task_ahead_is_cancelled() -> None:
    """A task that was sent ahead is cancelled, and never begins."""
    workers = Workers()
    with running() as hub:
        async with redpoll.connect(hub.url) as other, sent_ahead(hub.url, workers, other) as (_, _, made):
            assert await made[2].cancel() == "asked"
            workers.go.set()
            with pytest.raises(redpoll.TaskCancelled):
                await made[2].result(timeout=PATIENCE)
            await made[3].result(timeout=PATIENCE)
    assert workers.by("a") == ["long", 1, 3]


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_a_lost_link_begins_nothing() -> None:
    """What a worker has ahead when its link is lost it does not begin; the hub gives it to others, blamed on none."""
    workers = Workers()
    with running() as hub:
        async with (
            redpoll.connect(hub.url) as other,
            redpoll.connect(hub.url) as idle,
            FaultProxy(hub.url[10:]) as proxy,
        ):
            async with sent_ahead(f"redpoll://{proxy.address}", workers, other) as (bus, _, made):
                proxy.refuse()
                proxy.cut()
                await until(lambda: bus.state is EngineState.RECONNECTING, "the loss of the link")
                assert ahead(bus) == [0]
                async with workers.worker(idle, "b"):
                    workers.go.set()
                    await results(made[1:])
                    proxy.admit()
    assert workers.by("a") == ["long"]
    assert sorted(set(workers.by("b")) - {"long"}) == [1, 2, 3]
    assert len(workers.by("b")) <= 4
    assert workers.attempts == {1}


@pytest.mark.asyncio
async def test_a_worker_that_stood_still_begins_nothing_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stood still gives back what came before, since the hub may have given it to another one meanwhile."""
    monkeypatch.setattr(handles, "HELD", 2 * PATIENCE)
    workers = Workers()
    with running() as hub:
        async with redpoll.connect(hub.url) as other, sent_ahead(hub.url, workers, other) as (_, _, made):
            monkeypatch.setattr(handles, "LEASE", -1.0)
            workers.go.set()
            await results(made)
            assert (await other.queues.inspect("q")).requeued == 3
    assert workers.by("a") == ["long", 1, 2, 3]
    assert workers.attempts == {1}


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_a_restarted_hub_has_what_was_ahead() -> None:
    """A hub that is restarted sends what was ahead again; each is begun once."""
    workers = Workers()
    kept: list[Write] = []
    store = MemoryStore(kept, epoch=1)
    hub = Running(store)
    port = hub.hub.address.port
    async with redpoll.connect(hub.url) as other, sent_ahead(hub.url, workers, other) as (bus, _, made):
        await asyncio.to_thread(hub.stop)
        await until(lambda: bus.state is EngineState.RECONNECTING, "the loss of the hub")
        hub = Running(MemoryStore(kept, store.name, 2), port=port)
        await until(lambda: bus.state is other.state is EngineState.READY, "the hub")
        workers.go.set()
        await results(made)
    await asyncio.to_thread(hub.stop)
    assert workers.by("a") == ["long", 1, 2, 3]
    assert workers.attempts == {1}


@pytest.mark.asyncio
async def test_without_prefetch() -> None:
    """A worker that wants none has only what it has slots for; the option is True or False."""
    workers = Workers()
    with running() as hub:
        async with redpoll.connect(hub.url) as bus, workers.worker(bus, "a", prefetch=False):
            await warm_up(bus)
            made = [await bus.tasks.submit(each, queue="q") for each in ("long", 1, 2, 3)]
            info = await bus.queues.inspect("q")
            assert (info.ready, info.taken) == (3, 1)
            workers.go.set()
            await results(made)
            with pytest.raises(ConfigError, match="prefetch"):
                workers.worker(bus, "b", prefetch=5)


@pytest.mark.asyncio
async def test_a_worker_whose_loop_was_blocked_takes_ahead_again() -> None:
    """What goes back as the loop was blocked ends the taking ahead at the hub: it is told to go on."""
    workers = Workers()
    with running() as hub:
        async with redpoll.connect(hub.url) as bus, redpoll.connect(hub.url) as other, workers.worker(bus, "a"):
            await warm_up(other)
            engine: Any = bus.engine
            (there,) = (each for peer in hub.hub.broker.peers.found.values() for each in peer.consumers.values())
            (here,) = engine._consumers.values()
            engine._question = 9
            task = await other.tasks.submit("short", queue="q")
            await until(lambda: hub.hub.broker.queues.found["q"].requeued, "a task that goes back")
            assert there.ahead == 0
            engine._resume()
            await task.result(timeout=PATIENCE)
            await until(lambda: there.ahead == here._pace.ahead > 0, "taking ahead")


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_notifications_are_sent_ahead() -> None:
    """A listener has notifications ahead, begins them in order, and begins none that went back as the loop was blocked."""
    begun: list[Any] = []
    go = asyncio.Event()

    async def take(notification: Any) -> None:
        begun.append(notification.payload)
        if notification.payload == "long":
            await go.wait()

    with running() as hub:
        async with redpoll.connect(hub.url) as bus, redpoll.connect(hub.url) as other:
            listener = bus.notifications.listen(SimpleNamespace(info=take), concurrency=1)
            async with listener:
                notifier = other.notifier("p")
                for _ in range(60):
                    await notifier.info("event", "short")
                await until(lambda: len(begun) == 60, "handlers that are known to be short")
                for each in ("long", 1, 2, 3):
                    await notifier.info("event", each)
                await until(lambda: ahead(bus) == [3], "notifications that are sent ahead")
                engine: Any = bus.engine
                engine._question = 9
                go.set()
                await until(lambda: ahead(bus) == [0], "notifications that go back")
                assert begun[60:] == ["long"]
                engine._resume()
                await until(lambda: listener.stats.handled == 64, "the rest")
    assert begun[60:] == ["long", 1, 2, 3]
