"""A bridge between two engines in this process: whatever a program asks of its bus, a program on the other side answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

import redpoll
from redpoll import Bridge
from redpoll.bus import Broadcast, Bus, EngineState, Envelope, QueueSpec, Task
from redpoll.bus.engines.memory.handles import MemoryConsumer
from redpoll.bus.notifications import Notification
from redpoll.errors import (
    CallTimeout,
    Closed,
    ConfigError,
    DeadLettered,
    DialFailed,
    NoRoute,
    PeerLost,
    RemoteError,
    TaskCancelled,
    TaskExpired,
    TimeLimit,
    UsageError,
)
from redpoll.testing import VirtualTime
from tests.bus.patterns import Server, until
from tests.ports import free_port

pytestmark = pytest.mark.asyncio

_names = itertools.count()


@dataclass
class Sides:
    """Two engines in virtual time, a program on each, and what joins them."""

    clock: VirtualTime
    urls: tuple[str, str]
    first: Bus
    second: Bus
    bridges: list[Bridge]

    @property
    def bridge(self) -> Bridge:
        """The first bridge."""
        return self.bridges[0]

    def connect(self, side: int, **options: Any) -> Bus:
        """A further bus on one of the engines."""
        return redpoll.connect(self.urls[side], clock=self.clock, **options)

    async def join(self, **options: Any) -> Bridge:
        """Add a bridge."""
        made = Bridge(self.connect(0), self.connect(1), **options)
        await made.__aenter__()
        self.bridges.append(made)
        return made

    async def look(self, times: int = 1) -> None:
        """Let bridges look at the queues."""
        await self.clock.advance(1.0 * times)

    def kill(self, bridge: Bridge) -> None:
        """End a bridge as SIGKILL ends a process."""
        assert bridge._runner is not None
        bridge._runner.cancel()
        for flow in [each for flows in bridge._flows.values() for each in flows]:
            # Nothing is said any more.
            flow._end = flow.jobs.discard  # type: ignore[method-assign, assignment]
            for job in flow.jobs:
                job.task.cancel()
        for bus in bridge._buses:
            bus.engine.abort()  # type: ignore[attr-defined]  # of memory engines
        self.bridges.remove(bridge)


@asynccontextmanager
async def sides(bridges: int = 1, **options: Any) -> AsyncIterator[Sides]:
    """Two engines and a bridge between them."""
    clock = VirtualTime()
    number = next(_names)
    urls = f"memory://left-{number}", f"memory://right-{number}"
    first, second = (redpoll.connect(url, clock=clock) for url in urls)
    async with first, second:
        made = Sides(clock, urls, first, second, [])
        try:
            for _ in range(bridges):
                await made.join(**options)
            yield made
        finally:
            for each in tuple(made.bridges):
                await each.close()


@pytest.fixture(params=[False, True], ids=["there", "back"])
def turned(request: pytest.FixtureRequest) -> bool:
    """Whether callers are on the second side."""
    return bool(request.param)


def ends(joined: Sides, turned: bool) -> tuple[Bus, Bus]:
    """The side of the callers, and that of the workers."""
    return (joined.second, joined.first) if turned else (joined.first, joined.second)


async def double(task: Task) -> int:
    """Work."""
    task.progress("half")
    return int(task.data) * 2


# Tasks


async def test_tasks_are_worked_on_at_the_other_side(turned: bool) -> None:
    """A task ends with the result of a worker on the other side; its origin is told of its progress, and knows it as done."""
    async with sides() as joined:
        here, there = ends(joined, turned)
        progress: list[Any] = []
        async with there.tasks.worker(double, queue="q"):
            task = await here.tasks.submit(21, queue="q")
            task.on_progress(progress.append)
            assert await task.state() == "ready"
            await joined.look()
            assert await task.result(timeout=5) == 42
            await until(lambda: progress == ["half"])
            assert (await here.tasks.handle(task.id).state(), joined.bridge.forwarded) == ("done", 1)
            # No worker is needed on this side, and none is pretended.
            assert (await here.queues.inspect("q")).consumers == 1
        await joined.look()
        assert (await here.queues.inspect("q")).consumers == 0


async def fail(task: Task) -> None:
    """End in the way that the task names."""
    match task.data:
        case "error":
            raise ValueError("wanted")
        case "dead":
            raise DeadLettered(reason="no use")
        case "cancelled":
            raise asyncio.CancelledError
        case _:
            await asyncio.Event().wait()


async def test_each_outcome_crosses() -> None:
    """Errors, dead letters, cancellations, time limits and deadlines at the far side are those of the task at its origin."""
    async with sides() as joined:
        wanted: dict[str, tuple[type[Exception], str]] = {
            "error": (RemoteError, "wanted"),
            "dead": (DeadLettered, "no use"),
            "cancelled": (TaskCancelled, "cancelled by its handler"),
            "late": (TimeLimit, "longer than 5 s"),
        }
        async with joined.second.tasks.worker(fail, queue="q", time_limit=5):
            tasks = {name: await joined.first.tasks.submit(name, queue="q") for name in wanted}
            expired = await joined.first.tasks.submit("expired", queue="q", deadline=4)
            await joined.look(7)
            for name, (kind, text) in wanted.items():
                with pytest.raises(kind, match=text):
                    await tasks[name].result(timeout=0)
            with pytest.raises(TaskExpired):
                await expired.result(timeout=0)
        assert (await joined.first.queues.inspect("q")).dead == 1
        assert joined.bridge.held == 0


async def test_an_expired_copy_is_an_expired_task() -> None:
    """A task that the far queue's own time to live ends has expired at its origin as well."""
    async with sides() as joined:
        await joined.second.queues.declare(QueueSpec("q", ttl=3))
        blocked = await joined.second.engine.consume("q", credit=0)
        task = await joined.first.tasks.submit(1, queue="q")
        await joined.look(6)
        with pytest.raises(TaskExpired):
            await task.result(timeout=0)
        await blocked.close()


async def test_cancelling_crosses() -> None:
    """Cancelling a task asks its worker on the other side to stop; one that was not begun there is withdrawn there."""
    async with sides() as joined:
        begun: list[Any] = []

        async def wait(task: Task) -> None:
            begun.append(task.data)
            await asyncio.Event().wait()

        async with joined.second.tasks.worker(wait, queue="q", concurrency=1):
            tasks = [await joined.first.tasks.submit(number, queue="q") for number in range(2)]
            await joined.look()
            await until(lambda: begun == [0])
            assert joined.bridge.held == 2
            for task in reversed(tasks):
                assert await task.cancel() == "asked"
            for task in tasks:
                with pytest.raises(TaskCancelled):
                    await task.result(timeout=5)
        assert begun == [0]
        assert (await joined.second.queues.inspect("q")).cancelled == 2


class Told:
    """A worker's listener that keeps what is said."""

    def __init__(self) -> None:
        self.said: list[bytes | memoryview] = []

    def lost(self) -> None:
        """Ignore it."""

    def cancelled(self, reason: str) -> None:
        """Ignore it."""

    def told(self, envelope: Envelope) -> None:
        """Keep it."""
        self.said.append(envelope.body)


async def test_what_a_publisher_says_reaches_the_worker_in_order() -> None:
    """Messages to the worker of a task cross in their order, the ones that were said before the far side had it too."""
    async with sides() as joined:
        await joined.second.queues.declare("q")
        worker = await joined.second.engine.consume("q", credit=1)
        task = await joined.first.tasks.submit(1, queue="q")
        await joined.look()
        delivery = await anext(worker)
        listener = Told()
        delivery.listen(listener)
        for number in range(20):
            assert await joined.first.engine.tell(task.id, Envelope("raw", b"%d" % number))
        await until(lambda: len(listener.said) == 20)
        assert listener.said == [b"%d" % number for number in range(20)]
        delivery.ack()
        await worker.close()


async def test_what_is_said_before_the_far_side_has_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages to the worker, and a cancellation, wait until the far engine has confirmed the task."""
    async with sides() as joined:
        await joined.second.queues.declare("q")
        worker = await joined.second.engine.consume("q", credit=1)
        engine: Any = joined.bridge._buses[1].engine
        publish, confirmed = engine.publish, asyncio.Event()

        async def confirm_late(receipt: Any) -> Any:
            await confirmed.wait()
            return await receipt

        monkeypatch.setattr(engine, "publish", lambda *args, **options: confirm_late(publish(*args, **options)))
        task = await joined.first.tasks.submit(1, queue="q")
        await joined.look()
        listener = Told()
        delivery = await anext(worker)
        delivery.listen(listener)
        for number in range(5):
            await joined.first.engine.tell(task.id, Envelope("raw", b"%d" % number))
        assert await task.cancel() == "asked"
        await joined.look()
        assert not listener.said
        confirmed.set()
        await until(lambda: delivery.cancelled)
        assert listener.said == [b"%d" % number for number in range(5)]
        delivery.ack()
        assert await task.result(timeout=5) is None
        await worker.close()


async def test_a_deadline_crosses(caplog: pytest.LogCaptureFixture) -> None:
    """The far side knows how much time a task has left; one that waits there for room too long is no fault of the queue."""
    async with sides() as joined:
        await joined.second.queues.declare(QueueSpec("q", max_length=1))
        worker = await joined.second.engine.consume("q", credit=0)
        task = await joined.first.tasks.submit(1, queue="q", deadline=10)
        await joined.look(4)
        later = await joined.first.tasks.submit(2, queue="q", deadline=3)
        worker.set_credit(1)
        delivery = await anext(worker)
        assert delivery.left is not None
        assert 5 < delivery.left < 8
        await joined.look(4)
        with pytest.raises(TaskExpired):
            await later.result(timeout=0)
        delivery.ack()
        assert await task.result(timeout=5) is None
        await worker.close()
    assert "cannot pass" not in caplog.text


async def test_order_is_kept() -> None:
    """Tasks of one sender begin in their order, though the bridge takes them in portions."""
    async with sides() as joined:
        seen: list[int] = []

        async def work(task: Task) -> None:
            seen.append(task.data)

        await joined.first.tasks.submit_many(range(100), queue="q")
        async with joined.second.tasks.worker(work, queue="q", concurrency=1):
            for _ in range(100):
                await joined.look()
                if len(seen) == 100:
                    break
        assert seen == list(range(100))


async def test_new_queues_are_found_and_others_left_alone() -> None:
    """Queues that appear later are served, those that the patterns do not name never; the far settings are taken over."""
    async with sides(queues=["images.*", "plain"]) as joined:
        await joined.look(3)
        await joined.second.queues.declare(QueueSpec("images.large", priorities=3, max_length=7))
        for queue in ("images.large", "plain", "other"):
            await joined.second.tasks.worker(double, queue=queue).__aenter__()
        await joined.look()
        assert sorted(name for name in await joined.first.queues.names() if "bridge" not in name) == [
            "images.large",
            "plain",
        ]
        spec = (await joined.first.queues.inspect("images.large")).spec
        assert (spec.priorities, spec.max_length) == (3, 7)
        assert await joined.first.tasks.run(1, queue="images.large") == 2
        with pytest.raises(NoRoute):
            await joined.first.tasks.submit(1, queue="other", declare=False)
        # A queue that is deleted, and made again, is served again.
        await joined.first.queues.delete("plain")
        await joined.look(2)
        assert await joined.first.tasks.run(2, queue="plain") == 4


async def test_a_pause_while_the_near_side_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bridge that pauses while an engine reconnects takes nothing either when that is back, until it looks again."""
    async with sides() as joined:
        async with joined.second.tasks.worker(double, queue="q"):
            await joined.look()
            (flow,) = [each for each in joined.bridge._flows["q"] if each.active]
            with monkeypatch.context() as patch:
                patch.setattr(MemoryConsumer, "active", False)
                flow.pause()
            task = await joined.first.tasks.submit(1, queue="q")
            assert (await joined.first.queues.inspect("q")).ready == 1
            await joined.look()
            assert await task.result(timeout=5) == 2


async def test_names_that_no_engine_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that is named without wildcards is served also where an engine does not list it."""
    async with sides(queues=["q"]) as joined:
        for bus in joined.bridge._buses:

            async def none() -> list[str]:
                return []

            monkeypatch.setattr(bus.engine, "queues", none)
        async with joined.second.tasks.worker(double, queue="q"):
            await joined.look()
            assert await joined.first.tasks.run(1, queue="q") == 2


async def test_queues_that_are_gone_are_forgotten() -> None:
    """Nothing is kept of a queue that was deleted on both sides."""
    async with sides() as joined:
        async with joined.second.tasks.worker(double, queue="q"):
            await joined.look()
            assert list(joined.bridge._flows) == ["q"]
        for bus in (joined.first, joined.second):
            await bus.queues.delete("q")
        await joined.look(2)
        assert not joined.bridge._flows


async def test_a_slow_far_side_is_not_flooded() -> None:
    """The bridge holds as many tasks as the far side takes, and a few more; the rest waits at its origin."""
    async with sides() as joined:
        gate = asyncio.Semaphore(0)

        async def slow(task: Task) -> None:
            await gate.acquire()

        await joined.first.tasks.submit_many(range(500), queue="q")
        async with joined.second.tasks.worker(slow, queue="q", concurrency=2):
            await joined.look(20)
            assert joined.bridge.held <= 32
            assert (await joined.first.queues.inspect("q")).ready >= 468
            for _ in range(500):
                gate.release()
            await until(lambda: joined.bridge.held == 0 or joined.bridge.forwarded == 500)
            for _ in range(500):
                await joined.look()
                if joined.bridge.forwarded == 500:
                    break
        assert joined.bridge.forwarded == 500


async def test_a_bridge_takes_more_where_more_is_taken() -> None:
    """While the far side begins everything, more is passed at each look, up to the limit."""
    async with sides(limit=300) as joined:
        await joined.first.tasks.submit_many(range(1_000), queue="q")
        async with joined.second.tasks.worker(fail, queue="q", concurrency=1_000, drain=0):
            held = []
            for _ in range(8):
                await joined.look()
                held.append(joined.bridge.held)
            assert held[0] == 16
            assert held[-1] == 300
            assert held == sorted(held)


async def test_short_tasks_are_taken_in_larger_portions() -> None:
    """As many are held as were done since the last look, where they are short."""
    async with sides() as joined:
        short = True

        async def work(task: Task) -> None:
            if not short:
                await asyncio.Event().wait()

        async with joined.second.tasks.worker(work, queue="q", concurrency=1_000, drain=0):
            await joined.look()
            await asyncio.gather(*(joined.first.tasks.run(number, queue="q") for number in range(200)))
            await joined.look()
            short = False
            await joined.first.tasks.submit_many(range(500), queue="q")
            await until(lambda: joined.bridge.held >= 200)
            assert joined.bridge.held == 200


# Workers on both sides


async def test_each_side_does_its_own_work_first() -> None:
    """While both sides have workers with free slots, no task crosses."""
    async with sides() as joined:
        where: list[str] = []

        async def first(task: Task) -> None:
            where.append("first")

        async def second(task: Task) -> None:
            where.append("second")

        async with joined.first.tasks.worker(first, queue="q"), joined.second.tasks.worker(second, queue="q"):
            for _ in range(5):
                await joined.look()
                await asyncio.gather(*(joined.first.tasks.run(1, queue="q") for _ in range(4)))
        assert where == ["first"] * 20


async def test_idle_workers_help_the_other_side() -> None:
    """Tasks that wait for busy workers pass to a side whose workers are idle, and none of them goes back."""
    async with sides() as joined:
        begun: list[str] = []
        gate = asyncio.Event()

        async def work(task: Task, side: str) -> None:
            begun.append(side)
            await gate.wait()

        await joined.first.tasks.submit_many(range(10), queue="q")
        async with (
            joined.first.tasks.worker(partial(work, side="first"), queue="q", concurrency=2),
            joined.second.tasks.worker(partial(work, side="second"), queue="q", concurrency=3),
        ):
            await joined.look(10)
            assert sorted(begun) == ["first"] * 2 + ["second"] * 3
            # One more look finds that no more are begun; what waits there is little.
            assert joined.bridge.held <= 6
            gate.set()
            await joined.look(10)
            assert len(begun) == 10
        assert (await joined.second.queues.inspect("q")).requeued == 0


async def test_a_shared_task_does_not_go_back() -> None:
    """A task that waits on the side that was to help stays there, though the other side is idle by then."""
    async with sides() as joined:
        gates = asyncio.Event(), asyncio.Event()

        async def first(task: Task) -> None:
            await gates[0].wait()

        async def second(task: Task) -> None:
            await gates[1].wait()

        await joined.first.tasks.submit_many(range(4), queue="q")
        async with (
            joined.first.tasks.worker(first, queue="q", concurrency=1),
            joined.second.tasks.worker(second, queue="q", concurrency=1),
        ):
            await joined.look(4)
            assert joined.bridge.held == 2
            gates[0].set()
            await joined.look(4)
            # One is begun at the other side, and one waits for it.
            assert joined.bridge.held == 2
            assert (await joined.first.queues.inspect("q")).submitted == 4
            gates[1].set()
            await joined.look(2)
        assert joined.bridge.held == 0


async def test_tasks_follow_their_workers() -> None:
    """When the workers move to the other side, so do the tasks that crossed and were not begun; each is done once."""
    async with sides() as joined:
        done: list[int] = []
        await joined.first.tasks.submit_many(range(10), queue="q")
        await joined.second.queues.declare("q")
        stopped = await joined.second.engine.consume("q", credit=0)
        await joined.look()
        assert joined.bridge.held == 10
        await stopped.close()

        async def work(task: Task) -> None:
            done.append(task.data)

        async with joined.first.tasks.worker(work, queue="q"):
            await joined.look(5)
            assert sorted(done) == list(range(10))
        assert joined.bridge.held == 0
        assert (await joined.first.queues.inspect("q")).done == 20  # the tasks, and the copies of their copies


# Calls


class Calculator:
    """What is served."""

    def __init__(self) -> None:
        self.calls = 0
        self.closed, self.gate = asyncio.Event(), asyncio.Event()
        self.told: list[str] = []

    async def add(self, a: int, b: int) -> int:
        """Add."""
        self.calls += 1
        return a + b

    async def divide(self, a: int, b: int) -> float:
        """Divide."""
        return a / b

    async def hang(self) -> None:
        """Return when the test says so."""
        self.calls += 1
        await self.gate.wait()

    async def note(self, text: str) -> None:
        """Note a text."""
        self.told.append(text)

    async def count(self, below: int) -> AsyncGenerator[int, None]:
        """Count."""
        try:
            for number in range(below):
                yield number
        finally:
            self.closed.set()


async def test_calls_find_their_server(turned: bool) -> None:
    """Calls, errors of calls, casts, messages to all servers and to one of them reach servers on the other side."""
    async with sides() as joined:
        here, there = ends(joined, turned)
        with pytest.raises(NoRoute):
            await here.rpc.call("calculator", "add", {"a": 1, "b": 2})
        server = Calculator()
        async with there.rpc.serve("calculator", server, server="host-1"):
            await joined.look()
            client = here.rpc.client("calculator", timeout=3)
            assert await client.add(a=1, b=2) == 3
            assert await here.rpc.call("calculator", "add", {"a": 3, "b": 2}, server="host-1") == 5
            assert await here.rpc.call("calculator", "add", {"a": 3, "b": 4}, retry=2) == 7
            with pytest.raises(ZeroDivisionError):
                await client.divide(a=1, b=0)
            await here.rpc.cast("calculator", "note", {"text": "cast"})
            await here.rpc.fanout("calculator", "note", {"text": "all"})
            await until(lambda: sorted(server.told) == ["all", "cast"])
        # The server is gone, and with it the pretence of one.
        await joined.look()
        with pytest.raises(NoRoute):
            await here.rpc.call("calculator", "add", {"a": 1, "b": 2})


async def test_a_server_that_just_left_is_no_loss(turned: bool) -> None:
    """A call that finds no server at the far side any more was not made: it waits, and a server on either side takes it."""
    async with sides() as joined:
        async with joined.second.rpc.serve("calculator", Calculator()):
            await joined.look()
        call = asyncio.ensure_future(joined.first.rpc.call("calculator", "add", {"a": 1, "b": 2}, timeout=30))
        await joined.look(3)
        assert not call.done()
        # It was given back once, and not again and again.
        assert (await joined.first.queues.inspect("rpc:calculator")).requeued == 1
        async with (joined.first if turned else joined.second).rpc.serve("calculator", Calculator()):
            await joined.look(3)
            assert await call == 3


async def test_deadlines_and_cancellations_of_calls_cross() -> None:
    """A call whose time ends, or that its caller cancels, is stopped at its server on the other side."""
    async with sides() as joined:
        server = Server()
        async with joined.second.rpc.serve("s", server):
            await joined.look()
            late = asyncio.ensure_future(joined.first.rpc.call("s", "wait", timeout=2))
            await until(server.begun.is_set)
            await joined.look(3)
            with pytest.raises(CallTimeout):
                await late
            await until(lambda: server.cancelled)
            server.begun.clear()
            server.cancelled = False
            left = asyncio.ensure_future(joined.first.rpc.call("s", "wait", timeout=60))
            await until(server.begun.is_set)
            left.cancel()
            await until(lambda: server.cancelled)
        assert joined.bridge.held == 0


async def test_streams_cross(turned: bool) -> None:
    """The parts of a streamed answer cross in order, with their back-pressure; a caller that leaves stops the server."""
    async with sides() as joined:
        here, there = ends(joined, turned)
        server = Calculator()
        async with there.rpc.serve("calculator", server):
            await joined.look()
            parts = [part async for part in here.rpc.stream("calculator", "count", {"below": 300})]
            assert parts == list(range(300))
            server.closed.clear()
            async with here.rpc.stream("calculator", "count", {"below": 10**9}) as stream:
                assert await anext(stream) == 0
            await until(server.closed.is_set)
        assert joined.bridge.held == 0


async def test_a_stream_whose_caller_was_killed_ends() -> None:
    """The server of a stream stops when its caller on the other side is gone without a word."""
    async with sides() as joined:
        server = Calculator()
        caller = joined.connect(0)
        await caller.__aenter__()
        async with joined.second.rpc.serve("calculator", server):
            await joined.look()
            stream = caller.rpc.stream("calculator", "count", {"below": 10**9}, timeout=None)
            assert await anext(stream) == 0
            caller.engine.abort()  # type: ignore[attr-defined]  # of memory engines
            await joined.clock.advance(100)
            await until(server.closed.is_set)


async def test_a_call_is_made_at_most_once() -> None:
    """The caller of a call that was at its server as the bridge was killed gets PeerLost; no bridge makes it again."""
    async with sides(bridges=2) as joined:
        server = Calculator()
        async with joined.second.rpc.serve("calculator", server):
            await joined.look()
            call = asyncio.ensure_future(joined.first.rpc.call("calculator", "hang", timeout=60))
            await until(lambda: server.calls == 1)
            joined.kill(joined.bridge)
            await joined.look(5)
            with pytest.raises(PeerLost):
                await call
            server.gate.set()
            await joined.look()
            assert server.calls == 1
            assert await joined.first.rpc.call("calculator", "add", {"a": 1, "b": 2}) == 3


async def test_a_lost_server_is_told_as_such() -> None:
    """The caller of a call whose server on the other side was killed gets PeerLost."""
    async with sides() as joined:
        killed = joined.connect(1)
        await killed.__aenter__()
        server = Calculator()
        service = killed.rpc.serve("calculator", server)
        await service.start()
        await joined.look()
        call = asyncio.ensure_future(joined.first.rpc.call("calculator", "hang", timeout=60))
        await until(lambda: server.calls == 1)
        killed.engine.abort()  # type: ignore[attr-defined]  # of memory engines
        await joined.look(3)
        with pytest.raises(PeerLost):
            await call
        await service.close()


# Broadcasts and notifications


async def listen(bus: Bus, heard: list[Any], **options: Any) -> None:
    """Receive broadcasts."""
    await bus.broadcast.subscribe(lambda each: heard.append(each.body), **options).__aenter__()


async def test_broadcasts_cross_once() -> None:
    """With several bridges, each subscriber on either side receives each broadcast once, with all that belongs to it."""
    async with sides(bridges=3) as joined:
        heard: list[list[Any]] = [[], []]
        whole: list[Broadcast] = []
        await joined.second.broadcast.subscribe(whole.append, subject="news").__aenter__()
        for bus, each in zip((joined.first, joined.second), heard, strict=True):
            await listen(bus, each, subject="#")
        await joined.look(3)
        await joined.first.broadcast.send("one", subject="news", sender=7, headers={"h": 1})
        await joined.second.broadcast.send("two", subject="state.changed")
        await joined.first.broadcast.send("three")
        await joined.look(5)
        assert [sorted(each) for each in heard] == [["one", "three", "two"]] * 2
        assert (whole[0].sender, whole[0].subject, whole[0].headers) == (7, "news", {"h": 1})
        assert [each.events for each in joined.bridges] == [3, 0, 0]


async def test_a_durable_subscription_has_each_broadcast_once() -> None:
    """A durable subscription takes broadcasts of both sides, once each."""
    async with sides() as joined:
        heard: list[Any] = []
        await listen(joined.second, heard, subject="#", durable="log")
        await joined.look()
        await joined.first.broadcast.send(1, subject="a")
        await joined.second.broadcast.send(2, subject="a")
        await joined.look(5)
        assert sorted(heard) == [1, 2]


async def test_notifications_cross_once(turned: bool) -> None:
    """Notifiers and listeners on either side: each pool handles each notification once, also those of before the listener."""
    async with sides() as joined:
        here, there = ends(joined, turned)
        seen: list[Any] = []
        pooled: list[Any] = []

        async def see(each: Notification) -> None:
            seen.append(each.payload)

        async def see_of_pool(each: Notification) -> None:
            pooled.append(each.payload)

        notifier = here.notifier("compute", topics=["jobs"])
        await notifier.info("early", 0)
        async with (
            there.notifications.listen(see, topics=["jobs"]),
            there.notifications.listen(see_of_pool, topics=["jobs"], pool="audit"),
        ):
            await joined.look()
            await notifier.info("from here", 1)
            await there.notifier("other", topics=["jobs"]).info("from there", 2)
            await joined.look(5)
        assert (sorted(seen), sorted(pooled)) == ([0, 1, 2], [1, 2])
        assert joined.bridge.held == 0


async def test_a_chain_of_engines() -> None:
    """Two bridges of different names make a chain: tasks, calls and broadcasts pass over the engine in the middle."""
    async with sides(name="one") as joined:
        url = f"memory://third-{next(_names)}"
        server = Calculator()
        async with (
            redpoll.connect(url, clock=joined.clock) as third,
            Bridge(joined.connect(1), redpoll.connect(url, clock=joined.clock), name="two"),
            third.tasks.worker(double, queue="q"),
            third.rpc.serve("calculator", server),
        ):
            heard: list[Any] = []
            for bus in (joined.first, joined.second, third):
                await listen(bus, heard)
            await joined.look(4)
            assert await joined.first.tasks.run(4, queue="q") == 8
            assert await joined.first.rpc.call("calculator", "add", {"a": 1, "b": 2}) == 3
            await joined.first.broadcast.send("from the first")
            await third.broadcast.send("from the third")
            await joined.look(2)
            assert sorted(heard) == ["from the first"] * 3 + ["from the third"] * 3


async def test_a_task_in_a_circle_stays_somewhere() -> None:
    """Bridges that are wrongly in a circle pass a task on a bounded number of times, and it is not lost."""
    async with sides(name="one") as joined:
        async with Bridge(joined.connect(0), joined.connect(1), name="two"):
            task = await joined.first.tasks.submit(3, queue="q")
            async with joined.second.tasks.worker(double, queue="q", concurrency=1):
                await joined.look()
            waiting = await joined.second.engine.consume("q", credit=0)
            await joined.look(2)
            await waiting.close()
            await joined.look(60)
            infos = [await bus.queues.inspect("q") for bus in (joined.first, joined.second)]
            assert sum(each.submitted for each in infos) <= 18
            async with joined.second.tasks.worker(double, queue="q"), joined.first.tasks.worker(double, queue="q"):
                await joined.look(60)
                assert await task.result(timeout=0) == 6


# One of a name, killed and closed


async def test_another_bridge_takes_over_and_joins_what_is_there() -> None:
    """When the active bridge is killed another one takes over; tasks that were at the far side are not begun again."""
    async with sides(bridges=2) as joined:
        begun: list[Any] = []
        gate = asyncio.Event()

        async def work(task: Task) -> int:
            begun.append(task.data)
            await gate.wait()
            return int(task.data)

        assert [each.active for each in joined.bridges] == [True, False]
        assert repr(joined.bridges[1]) == "<Bridge 'main' waiting>"
        async with joined.second.tasks.worker(work, queue="q"):
            tasks = [await joined.first.tasks.submit(number, queue="q") for number in range(5)]
            await joined.look()
            await until(lambda: len(begun) == 5)
            joined.kill(joined.bridge)
            await joined.look(5)
            assert joined.bridge.active
            gate.set()
            assert [await each.result(timeout=5) for each in tasks] == list(range(5))
        assert sorted(begun) == list(range(5))


async def test_a_bridge_that_is_cut_off_gives_its_place_away() -> None:
    """A bridge that one of the sides takes for gone gives up its place on the other one after some seconds, not at once."""
    async with sides(bridges=2) as joined:
        first, second = joined.bridges
        cut = first._buses[1].engine
        await first._locks[1].close()
        cut.status.change(EngineState.RECONNECTING, "cut off")
        await joined.look(2)
        assert not second.active
        cut.status.change(EngineState.READY)
        await joined.look(2)
        assert (first.active, second.active) == (True, False)
        await first._locks[1].close()
        cut.status.change(EngineState.RECONNECTING, "cut off again")
        await joined.look(8)
        assert (first.active, second.active) == (False, True)
        async with joined.second.tasks.worker(double, queue="q"):
            task = await joined.first.tasks.submit(4, queue="q")
            await joined.look(2)
            assert await task.result(timeout=5) == 8
        cut.status.change(EngineState.READY)
        await joined.look(2)
        assert (first.active, second.active) == (False, True)


async def test_a_bridge_that_is_cut_off_while_it_looks_gives_its_place_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that waits for a side that is not there does not keep its place."""
    async with sides(bridges=2) as joined:
        first, second = joined.bridges
        cut = first._buses[1].engine
        waiting = asyncio.Event()

        async def queues() -> list[str]:
            waiting.set()
            await asyncio.Event().wait()
            return []

        monkeypatch.setattr(cut, "queues", queues)
        await joined.look()
        await waiting.wait()
        await first._locks[1].close()
        cut.status.change(EngineState.RECONNECTING, "cut off")
        monkeypatch.undo()
        await joined.look(8)
        assert (first.active, second.active) == (False, True)
        cut.status.change(EngineState.READY)
        await joined.look(2)
        assert (first.active, second.active) == (False, True)


async def test_an_outcome_that_a_killed_bridge_did_not_record_is_not_lost() -> None:
    """A task that ended at the far side while no bridge was there ends at its origin once there is one, and is done once."""
    async with sides() as joined:
        begun: list[Any] = []
        gate = asyncio.Event()

        async def work(task: Task) -> str:
            begun.append(task.data)
            await gate.wait()
            return "done"

        async with joined.second.tasks.worker(work, queue="q"):
            task = await joined.first.tasks.submit(1, queue="q")
            await joined.look()
            await until(lambda: bool(begun))
            joined.kill(joined.bridge)
            gate.set()
            await joined.look(3)
            assert await task.state() == "ready"
            await joined.join()
            await joined.look()
            assert await task.result(timeout=5) == "done"
        assert begun == [1]


async def test_closing_waits_as_long_as_it_may_and_gives_the_rest_back() -> None:
    """A bridge that closes waits for what ends in time; the rest goes back without blame, and the next bridge joins it."""
    async with sides() as joined:
        begun: list[Any] = []
        gates = [asyncio.Event(), asyncio.Event()]

        async def work(task: Task) -> int:
            begun.append(task.data)
            await gates[task.data].wait()
            return int(task.data)

        async with joined.second.tasks.worker(work, queue="q"):
            tasks = [await joined.first.tasks.submit(number, queue="q") for number in range(2)]
            await joined.look()
            await until(lambda: len(begun) == 2)
            closing = asyncio.ensure_future(joined.bridge.close(drain=0.2))
            gates[0].set()
            assert await tasks[0].result(timeout=5) == 0
            await closing
            await joined.bridge.wait()
            with pytest.raises(Closed):
                await joined.bridge._buses[0].tasks.submit(1, queue="q")
            assert await tasks[1].state() == "ready"
            await joined.join()
            await joined.look()
            gates[1].set()
            assert await tasks[1].result(timeout=5) == 1
            info = await joined.first.engine.lookup(tasks[1].id)
        assert begun == [0, 1]
        assert info.attempt == 1


async def test_closing_cancels_calls() -> None:
    """A call that is at its server as the bridge closes is cancelled there, and its caller gets TaskCancelled."""
    async with sides() as joined:
        server = Server()
        async with joined.second.rpc.serve("s", server):
            await joined.look()
            call = asyncio.ensure_future(joined.first.rpc.call("s", "wait", timeout=60))
            await until(server.begun.is_set)
            await joined.bridge.close()
            with pytest.raises(TaskCancelled):
                await call
            await until(lambda: server.cancelled)


async def test_killed_again_and_again() -> None:
    """Bridges that are killed under load lose no task: each ends with its own result, at its origin, and was begun once."""
    async with sides(bridges=2) as joined:
        begun: dict[str, list[int]] = {"there": [], "back": []}

        async def work(task: Task, way: str) -> int:
            begun[way].append(task.data)
            await asyncio.sleep(0)
            return int(task.data) + 1

        tasks: dict[str, list[Any]] = {"there": [], "back": []}
        async with (
            joined.second.tasks.worker(partial(work, way="there"), queue="there", concurrency=3),
            joined.first.tasks.worker(partial(work, way="back"), queue="back", concurrency=3),
        ):
            for number in range(40):
                for way, bus in (("there", joined.first), ("back", joined.second)):
                    tasks[way] += [await bus.tasks.submit(10 * number + each, queue=way) for each in range(10)]
                await joined.look()
                if number % 3 == 2:
                    for _ in range(number % 7):
                        await asyncio.sleep(0)
                    joined.kill(joined.bridge)
                    await joined.join()
            for _ in range(200):
                await joined.look()
                if all(each.ending is not None for way in tasks.values() for each in [task._watch for task in way]):
                    break
            for way, some in tasks.items():
                assert [await each.result(timeout=0) for each in some] == [number + 1 for number in range(400)]
                assert sorted(begun[way]) == list(range(400)), way


# What goes wrong


async def test_what_cannot_be_joined_is_refused() -> None:
    """A bridge of an engine with itself, to nowhere, or with wrong options is an error that says so."""
    name = f"memory://same-{next(_names)}"
    with pytest.raises(ConfigError, match="is the same engine as the first"):
        await Bridge(name, name).__aenter__()
    with pytest.raises(DialFailed):
        await Bridge("memory://", f"redpoll://127.0.0.1:{free_port()}?connect_timeout=0.2").__aenter__()
    with pytest.raises(ConfigError, match="there is no such engine"):
        Bridge("memory://", "nowhere://")
    options: list[dict[str, Any]] = [{"queues": "a"}, {"subjects": "a"}, {"subjects": [""]}, {"name": ""}]
    options += [{"limit": 0}, {"period": 0}]
    for wrong in options:
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Bridge("memory://", "memory://", **wrong)
    async with Bridge("memory://", "memory://") as bridge:
        with pytest.raises(UsageError, match="entered before"):
            await bridge.__aenter__()
    await Bridge("memory://", "memory://").close()


async def test_closing_that_is_cancelled_while_it_ends() -> None:
    """A bridge whose closing is cancelled, while it waits for what it sends at the end, closes both sides."""
    one, other = redpoll.connect("memory://"), redpoll.connect("memory://")
    bridge = await Bridge(one, other).__aenter__()
    errand = asyncio.ensure_future(asyncio.Event().wait())
    bridge.errands.add(errand)  # type: ignore[arg-type]
    closing = asyncio.ensure_future(bridge.close())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not closing.done()
    closing.cancel()
    await asyncio.wait([closing])
    errand.cancel()
    assert [one.state, other.state] == [EngineState.CLOSED] * 2


async def test_a_side_that_is_closed_ends_the_bridge() -> None:
    """A bridge one of whose buses was closed under it says so to whoever waits for its end."""
    async with sides() as joined:
        bus = joined.connect(0)
        async with Bridge(bus, joined.connect(1), name="other") as bridge:
            await bus.close()
            await joined.look(2)
            with pytest.raises(Closed):
                await bridge.wait()


async def test_bodies_over_a_limit_are_told() -> None:
    """A task too large for the far side is a dead letter at its origin; a result too large for its origin is an error."""
    async with sides() as joined:
        small = f"memory://small-{next(_names)}"
        async with (
            redpoll.connect(small, clock=joined.clock, max_body=1_000) as bus,
            Bridge(joined.connect(0), redpoll.connect(small, clock=joined.clock, max_body=1_000), name="small"),
            bus.tasks.worker(double, queue="in"),
            joined.first.tasks.worker(lambda _: bytes(2_000), queue="out"),
        ):
            await joined.look()
            task = await joined.first.tasks.submit(bytes(2_000), queue="in")
            with pytest.raises(DeadLettered, match="limit of 1"):
                await task.result(timeout=5)
            with pytest.raises(redpoll.ResultTooLarge, match="limit of 1"):
                await bus.tasks.run(1, queue="out")


async def test_an_engine_without_keys_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Where an engine has no dedup keys the bridge says once, at its start, that a task may run twice there."""
    async with sides() as joined:
        bus = joined.connect(1)
        engine: Any = bus.engine
        engine.capabilities = replace(engine.capabilities, dedup=False)
        async with Bridge(joined.connect(0), bus, name="other"), joined.second.tasks.worker(double, queue="q"):
            await joined.look(3)
    assert caplog.text.count("may run twice there if a bridge is killed") == 1
