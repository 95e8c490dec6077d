"""Bodies that a hub has on disk alone: each is there when it is wanted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import redpoll
from redpoll import Config, DeadLettered
from redpoll.bus import Bus, OutcomeKind, QueueSpec
from redpoll.bus.broker.outputs import Brief
from redpoll.bus.broker.queue import CANCEL
from redpoll.bus.engines.hub.disk import DiskStore
from redpoll.bus.engines.hub.opening import open_store
from redpoll.bus.engines.hub.server import HubServer
from redpoll.errors import DecodeError, QueueEmpty, StoreError, TaskCancelled
from tests.bus.patterns import until

BODIES = [bytes([each]) * size for each, size in enumerate((1, 400, 1_000, 10, 100_000, 3_000))]


async def started(path: Path, recent: float = 0) -> HubServer:
    """Start a hub that keeps nothing, or so much, in memory which is on its disk."""
    hub = HubServer(open_store(path, reserve=65_536, recent=recent), Config(port=0, serializer="raw"))
    await hub.start()
    return hub


async def peek(bus: Bus, queue: str, state: Any = "ready") -> list[Any]:
    """Return the bodies of the tasks in a queue."""
    return [None if each.envelope is None else each.envelope.body for each in await bus.queues.browse(queue, state)]


@pytest.mark.asyncio
async def test_nothing_stays_in_memory(tmp_path: Path) -> None:
    """Tasks, outcomes and dead letters are read from disk to be looked at, handed out, watched, redriven; restarted too."""
    hub = await started(tmp_path)
    worked: list[bytes] = []

    async def handler(task: Any) -> Any:
        worked.append(task.data)
        if task.data == BODIES[2] and len(worked) < 5:
            raise DeadLettered(reason="not now")
        return task.data

    async with redpoll.connect(f"redpoll://{hub.address}", serializer="raw") as bus:
        made = [await bus.tasks.submit(each, queue="q") for each in BODIES]
        tasks = hub.broker.tasks
        await until(lambda: all(each.payload is None for each in tasks.found.values()))
        assert await peek(bus, "q") == BODIES
        described = await bus.engine.lookup(made[4].id)
        assert described.envelope is not None
        assert described.envelope.body == BODIES[4]
        async with bus.tasks.worker(handler, queue="q", concurrency=2):
            await until(lambda: len(worked) == len(BODIES) and not tasks.found)
        assert worked == BODIES
        assert await peek(bus, "q", "dead") == [BODIES[2]]
        await until(lambda: all(isinstance(each, Brief) for each in tasks.results._found.values()))
        assert await bus.tasks.handle(made[4].id, queue="q").result(timeout=10) == BODIES[4]
        with pytest.raises(DeadLettered, match="not now"):
            await bus.tasks.handle(made[2].id, queue="q").result(timeout=10)
        found = await bus.engine.lookup(made[5].id)
        assert found.outcome is not None
        assert (found.state, found.outcome.kind, found.queue) == ("done", OutcomeKind.RESULT, "q")
        assert found.outcome.envelope is not None
        assert found.outcome.envelope.body == BODIES[5]
    await hub.close()
    hub = await started(tmp_path)
    async with redpoll.connect(f"redpoll://{hub.address}", serializer="raw") as bus:
        assert await bus.tasks.handle(made[1].id, queue="q").result(timeout=10) == BODIES[1]
        assert await peek(bus, "q", "dead") == [BODIES[2]]
        (again,) = await bus.queues.redrive("q")
        assert await peek(bus, "q") == [BODIES[2]]
        async with bus.tasks.worker(handler, queue="q"):
            assert await bus.tasks.handle(again, queue="q").result(timeout=10) == BODIES[2]
    await hub.close()


@pytest.mark.asyncio
async def test_a_body_goes_along(tmp_path: Path) -> None:
    """A task on disk keeps its body where it becomes a dead letter of another queue, and in the turn that hands it out."""
    hub = await started(tmp_path)
    async with redpoll.connect(f"redpoll://{hub.address}", serializer="raw") as bus:
        await bus.queues.declare("grave")
        await bus.queues.declare(QueueSpec("passing", durable=False))
        await bus.queues.declare(QueueSpec("q", dead_letter="grave"))
        await bus.queues.declare(QueueSpec("stays", dead_letter="passing"))
        got: list[bytes] = []

        async def bury(task: Any) -> None:
            raise DeadLettered(reason="no")

        async def take(task: Any) -> None:
            got.append(task.data)

        for queue in ("q", "stays"):
            for each in BODIES:
                await bus.tasks.submit(each, queue=queue)
        await until(lambda: all(each.payload is None for each in hub.broker.tasks.found.values()))
        async with (
            bus.tasks.worker(take, queue="grave"),
            bus.tasks.worker(bury, queue="q"),
            bus.tasks.worker(bury, queue="stays"),
        ):
            await until(lambda: not hub.broker.tasks.found)
        assert got == BODIES
        # A queue that is not stored takes nothing that is.
        assert await peek(bus, "stays", "dead") == BODIES
        assert await bus.engine.purge("stays", "dead") == len(BODIES)
        assert await hub._turns.store.bodies([1 << 64]) == [None]
    await hub.close()


@pytest.mark.asyncio
async def test_a_damaged_body(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A task whose body is damaged beneath its hub becomes a dead letter that says so; the hub and its queue continue."""
    hub = await started(tmp_path)
    problem = r"what was written to hub\.bodies at byte 0 is not there"

    async def handler(task: Any) -> Any:
        return task.data

    async with redpoll.connect(f"redpoll://{hub.address}", serializer="raw") as bus:
        bad, good = [await bus.tasks.submit(each, queue="q") for each in (BODIES[4], BODIES[1])]
        await until(lambda: all(each.payload is None for each in hub.broker.tasks.found.values()))
        with (tmp_path / "hub.bodies").open("r+b") as file:
            file.write(b"x")
        async with bus.tasks.worker(handler, queue="q", concurrency=2):
            with pytest.raises(DeadLettered, match=problem):
                await bad.result(timeout=10)
            assert await good.result(timeout=10) == BODIES[1]
            assert f"task {bad.id} is given up: " in caplog.text
            (letter,) = await bus.queues.browse("q", "dead")
            assert letter.envelope is None
            assert "hub.bodies at byte 0" in letter.history[-1]
        for timeout in (0.0, 10.0, None):
            await bus.queues.redrive("q")
            with pytest.raises(DecodeError, match=problem):
                await bus.engine.take("q", timeout)
            with pytest.raises(QueueEmpty):
                await bus.engine.take("q")
        assert await hub._turns.store.check() != []
        assert await bus.queues.purge("q", "dead") == 1
        assert await hub._turns.store.check() == []
    await hub.close()


@pytest.mark.asyncio
async def test_a_backlog_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that are handed out one after the other are read many at a time, and memory keeps as many as it may."""
    hub = await started(tmp_path)
    async with redpoll.connect(f"redpoll://{hub.address}", serializer="raw") as bus:
        await bus.tasks.submit_many([b"%d" % each for each in range(300)], queue="q")
    await hub.close()
    hub = await started(tmp_path, recent=30_000)
    read, reads = DiskStore._find, list[int]()

    def find(store: DiskStore, tasks: Sequence[int]) -> list[bytes | StoreError]:
        reads.append(len(tasks))
        return read(store, tasks)

    monkeypatch.setattr(DiskStore, "_find", find)
    worked: list[bytes] = []
    async with redpoll.connect(f"redpoll://{hub.address}", serializer="raw") as bus:
        found = hub.broker.tasks.found
        kept: list[int] = []

        async def handler(task: Any) -> None:
            worked.append(task.data)
            kept.append(sum(each.size for each in found.values() if each.payload is not None))

        async with bus.tasks.worker(handler, queue="q", concurrency=1):
            await until(lambda: len(worked) == 300)
    assert 0 < max(kept) <= 30_000
    assert worked == [b"%d" % each for each in range(300)]
    assert len(reads) < 60
    await hub.close()


@pytest.mark.asyncio
async def test_records_stay_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client is told while a delivery to it waits for its body does not overtake that."""
    hub = await started(tmp_path)
    read, go_on = DiskStore._find, threading.Event()

    def find(store: DiskStore, tasks: Sequence[int]) -> list[bytes | StoreError]:
        assert go_on.wait(10)
        return read(store, tasks)

    async def handler(task: Any) -> None:
        await asyncio.Event().wait()

    async with redpoll.connect(f"redpoll://{hub.address}", serializer="raw") as bus:
        made = await bus.tasks.submit(BODIES[4], queue="q")
        (task,) = hub.broker.tasks.found.values()
        await until(lambda: task.payload is None)
        monkeypatch.setattr(DiskStore, "_find", find)
        async with bus.tasks.worker(handler, queue="q"):
            await until(lambda: hub.broker.queues.get("q").taken == 1)
            asked = asyncio.ensure_future(made.cancel())
            await until(lambda: task.flags & CANCEL)
            go_on.set()
            assert await asked == "asked"
            with pytest.raises(TaskCancelled):
                await made.result(timeout=10)
    await hub.close()
