"""The bus of a program."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import AsyncIterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

import redpoll
from redpoll.bus import EngineState, EngineURL, QueueSpec, Task, connect
from redpoll.bus.engines.memory import MemoryEngine, open_engine
from redpoll.errors import Closed, ConfigError, SpecConflict, TaskCancelled, Unsupported, UsageError


@pytest.mark.parametrize(
    "url",
    ["memory://a:1", "memory://me@a", "memory://a,b", "memory://a/b", "memory://?size=1", "memory://?max_body=x"],
)
def test_a_memory_engine_has_a_name_and_no_more(url: str) -> None:
    """What a memory engine cannot mean is refused when the bus is made."""
    with pytest.raises(ConfigError):
        connect(url)


def test_an_unknown_engine_names_those_there_are() -> None:
    """A scheme without an engine is an error with the schemes that have one."""
    with pytest.raises(ConfigError, match=r"there is no such engine \(there are amqp://, .*memory://"):
        connect("gopher://host")
    with pytest.raises(ConfigError, match="serializer"):
        connect("memory://", serializer="nothing")


@pytest.mark.asyncio
@pytest.mark.parametrize("url", ["memory://", "redpoll://127.0.0.1", "amqp://127.0.0.1"])
async def test_a_bus_that_was_not_entered_says_so(url: str) -> None:
    """Whatever a bus is asked for before it is entered raises `Closed`, with the remedy."""
    bus = connect(url)
    for operation in (
        lambda: bus.tasks.submit(1),
        lambda: bus.tasks.run(1, timeout=2),
        lambda: bus.tasks.next(timeout=2),
        lambda: bus.tasks.worker(print).__aenter__(),
        lambda: bus.rpc.call("calculator", "add"),
        lambda: bus.rpc.serve("calculator", print).start(),
        lambda: bus.broadcast.send("x", subject="a"),
        lambda: bus.notifier("host-1").info("begun"),
        bus.queues.names,
    ):
        with pytest.raises(Closed, match=r"the bus is not running \(enter it first: async with redpoll\.connect"):
            await operation()
    await bus.close()


@pytest.mark.asyncio
async def test_a_bus_has_queues_to_look_at() -> None:
    """The queues of a bus are declared, looked at and repaired by their names."""
    async with redpoll.connect("memory://", max_body=1_000) as bus:
        assert isinstance(bus, redpoll.Bus)
        assert (bus.state, bus.capabilities.max_body) == (EngineState.READY, 1_000)
        assert await bus.healthy()
        await bus.queues.declare("night")
        await bus.queues.declare(QueueSpec("day", ttl=5))
        with pytest.raises(SpecConflict):
            await bus.queues.declare("day")
        await bus.queues.declare("day", update=True)
        assert await bus.queues.names() == ["night", "day"]
        await bus.queues.pause("night")
        for number in range(3):
            await bus.engine.publish(bus.payloads.pack(number), queue="night")
        assert len(await bus.queues.browse("night", limit=2)) == 2
        assert await bus.queues.move("night", "day", 1) == 1
        assert await bus.queues.purge("night") == 2
        await bus.queues.resume("night")
        assert (await bus.queues.inspect("night")).paused is False
        await (await bus.engine.take("day")).reject(requeue=False)
        assert len(await bus.queues.redrive("day")) == 1
        await bus.queues.delete("day", if_unused=True)
        await bus.queues.delete("night")
        assert await bus.queues.names() == ["day"]
    assert not await bus.healthy()
    assert repr(bus) == "<Bus <MemoryEngine memory:// closed>>"


@pytest.mark.asyncio
@pytest.mark.parametrize("fails", [True, False])
async def test_closing_ends_the_patterns_first(fails: bool) -> None:
    """What patterns want to end is ended before the engine is closed, all of it, also if one raises."""
    ended: list[tuple[str, EngineState]] = []
    drains: list[float] = []
    bus = connect("memory://")

    def ending(name: str) -> Any:
        async def end(drain: float) -> None:
            ended.append((name, bus.state))
            drains.append(drain)
            if fails:
                raise OSError(name)

        return end

    names = ("tasks", "rpc", "broadcast", "notifications")
    async with bus:
        for name in names:
            setattr(getattr(bus, name), "close", ending(name))  # noqa: B010  # mypy has it that a method stays
        seen: list[tuple[EngineState, str]] = []
        bus.status.watch(lambda *change: seen.append(change))
        if fails:
            with pytest.raises(OSError, match="tasks"):
                await bus.close(3.0)
        else:
            await bus.close(3.0)
    await bus.close()
    assert ended == [(name, EngineState.READY) for name in names]
    # One time for all of them.
    assert drains[0] == 3.0
    assert all(after <= before for before, after in pairwise(drains))
    assert seen == [(EngineState.CLOSED, "")]


@pytest.mark.asyncio
async def test_a_second_close_waits_for_the_first() -> None:
    """What is being worked on has its time, whoever else closes the bus; a first close that is cancelled closes at once."""
    for cancels in (False, True):
        gate, begun = asyncio.Event(), asyncio.Event()

        async def wait(_: Any, gate: asyncio.Event = gate, begun: asyncio.Event = begun) -> str:
            begun.set()
            await gate.wait()
            return "done"

        bus = connect("memory://")
        async with bus:
            await bus.rpc.serve("a", wait).start()
            call = asyncio.ensure_future(bus.rpc.call("a", None, 1))
            await begun.wait()
            first = asyncio.ensure_future(bus.close(None))
            second = asyncio.ensure_future(bus.close())
            for _ in range(10):
                await asyncio.sleep(0)
            assert not first.done()
            assert not second.done()
            if cancels:
                first.cancel()
                with pytest.raises(TaskCancelled):
                    await call
            else:
                gate.set()
                assert await call == "done"
            await second
            assert bus.state is EngineState.CLOSED
            await asyncio.wait([first])
            assert first.cancelled() is cancels


def _wait(event: threading.Event, _: Task) -> None:
    """A handler in a thread."""
    event.wait()


@pytest.mark.asyncio
async def test_closing_closes_workers() -> None:
    """Handlers finish inside the drain, and are stopped after it, before the engine is closed; threads are not waited for."""
    for drain in (None, 0.0):
        gate, begun, stuck = asyncio.Event(), asyncio.Event(), threading.Event()
        ended: list[str] = []

        async def wait(
            task: Task, gate: asyncio.Event = gate, begun: asyncio.Event = begun, ended: list[str] = ended
        ) -> None:
            begun.set()
            try:
                await gate.wait()
                ended.append("done")
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        bus = connect("memory://")
        async with bus:
            worker = bus.tasks.worker(wait)
            await worker.__aenter__()
            if drain is not None:
                await bus.tasks.worker(partial(_wait, stuck), "stuck").__aenter__()
                await bus.tasks.submit(1, "stuck")
            await bus.tasks.submit(1)
            await begun.wait()
            closing = asyncio.ensure_future(bus.close(drain))
            if drain is None:
                for _ in range(10):
                    await asyncio.sleep(0)
                assert not closing.done()
                gate.set()
            await asyncio.wait_for(closing, 10)
            assert (ended, worker.running, worker.active) == (["done" if drain is None else "cancelled"], 0, False)
            stuck.set()


@pytest.mark.asyncio
async def test_a_bus_is_entered_once() -> None:
    """Entering an open bus again is refused, and leaves it open."""
    async with connect("memory://") as bus:
        with pytest.raises(UsageError, match="entered before"):
            await bus.__aenter__()
        assert bus.state is EngineState.READY
        await bus.queues.declare("night")


def test_how_to_connect_is_told_to_every_engine() -> None:
    """The options wait and connect_timeout are checked; an engine that is always there takes them too."""
    connect("memory://?wait=1&connect_timeout=3", wait=True, connect_timeout=0.5)
    for wrong in ({"wait": 1}, {"connect_timeout": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            connect("memory://", **wrong)


def test_options_of_the_url_count_unless_given() -> None:
    """An option can stand in the URL; one that is given counts instead."""
    assert connect("memory://?max_body=7").capabilities.max_body == 7
    assert connect("memory://?max_body=7", max_body=8).capabilities.max_body == 8
    with pytest.raises(ConfigError, match="max_body"):
        connect("memory://", max_body=0)


@pytest.mark.asyncio
async def test_a_bus_that_was_not_entered_can_be_closed() -> None:
    """Closing a bus that never was open is nothing."""
    bus = connect("memory://")
    await bus.close()
    assert bus.state is EngineState.CLOSED
    assert isinstance(open_engine(EngineURL.parse("memory://x"), {}), MemoryEngine)


@pytest.mark.asyncio
async def test_capabilities_are_the_truth() -> None:
    """The memory engine promises what memory can; what an engine cannot do is refused with its name, and not done less."""
    async with connect("memory://") as bus:
        can = bus.capabilities
        assert (can.engine, can.confirm, can.results, can.hold) == ("memory", "memory", "stored", None)
        engine: Any = bus.engine
        engine.capabilities = dataclasses.replace(can, delay=False, dedup=False, priorities=1, progress=False)
        lacking: list[dict[str, Any]] = [{"delay": 1}, {"dedup": "k"}, {"priority": 1}]
        for options in lacking:
            with pytest.raises(Unsupported, match="memory"):
                await bus.tasks.submit(1, **options)
        with pytest.raises(Unsupported, match="streamed"):
            await anext(bus.rpc.stream("a", "b"))
        assert await bus.queues.names() == []


@pytest.mark.asyncio
async def test_closing_that_is_cancelled_does_not_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not wait any more for what a pattern works on does not wait for what the engine has out, either."""
    bus = redpoll.connect("memory://")
    await bus.__aenter__()
    begun = asyncio.Event()

    async def hang(drain: float | None = 0.0) -> None:
        begun.set()
        if drain != 0:
            await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(bus.rpc, "close", hang)
    await bus.tasks.submit(1)
    claim = await bus.tasks.next()
    closing = asyncio.ensure_future(bus.close(None))
    await begun.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(closing, 10)
    assert claim.lost
    assert bus.state is EngineState.CLOSED


@pytest.mark.asyncio
async def test_closing_that_is_cancelled_at_any_turn_has_closed() -> None:
    """Whenever the close of a bus is cancelled, workers, servers, listeners, subscriptions and engine are closed."""
    moment, ended = 0, False
    while not ended:
        moment += 1
        bus = redpoll.connect("memory://")
        await bus.__aenter__()
        worker = await bus.tasks.worker(work, "jobs").__aenter__()
        server = bus.rpc.serve("calculator", Closing())
        await server.start()
        subscription = await bus.broadcast.subscribe(work).__aenter__()
        await bus.notifications.listen(Closing()).start()
        closing = asyncio.ensure_future(bus.close())
        for _ in range(moment):
            await asyncio.sleep(0)
        ended = closing.done()
        closing.cancel()
        await asyncio.wait([closing])
        await server.wait()
        assert bus.state is EngineState.CLOSED, moment
        assert [worker.active, subscription.active] == [False] * 2, moment
        left = [bus.tasks._workers, bus.rpc._servers, bus.notifications._listeners, bus.broadcast._open]
        assert left == [set()] * 4, moment
    assert moment > 5


class Closing:
    """An endpoint."""

    async def info(self, *_: Any) -> None:
        """Do nothing."""


async def work(*_: Any) -> None:
    """Do nothing."""


@pytest.mark.asyncio
async def test_a_child_receives_nothing() -> None:
    """What waits in a bus is the parent's: in a forked child waiting is refused, and closing does nothing."""

    class Endpoint:
        async def parts(self) -> AsyncIterator[int]:
            yield 1
            yield 2

    async with connect("memory://") as bus, bus.rpc.serve("s", Endpoint()):
        plain, durable = bus.broadcast.subscribe(), bus.broadcast.subscribe(durable="d")
        async with plain, durable:
            await bus.broadcast.send("waits")
            handle = await bus.tasks.submit("task")
            claim = await bus.tasks.next()
            claim.progress("half")
            watch, stream = handle.watch(), bus.rpc.stream("s", "parts")
            assert (await anext(watch), await anext(stream)) == ("half", 1)
            await asyncio.sleep(0)
            child = os.fork()
            if not child:
                refused = 0
                asyncio._set_running_loop(None)
                try:
                    for use in (plain, durable, watch, stream):
                        with pytest.raises(UsageError, match="forked"):
                            asyncio.run(asyncio.wait_for(anext(use), 5))
                        refused += 1
                    with pytest.raises(UsageError, match="forked"):
                        asyncio.run(asyncio.wait_for(handle.result(), 5))
                    asyncio.run(asyncio.wait_for(bus.close(), 5))
                    refused += 1
                finally:
                    os._exit(refused)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(status) == 5
            assert [(await anext(each)).body for each in (plain, durable)] == ["waits"] * 2
            claim.set_result("done")
            assert (await handle.result(), await anext(stream)) == ("done", 2)
