"""What befalls a hub and its workers, one thing at a time: a clear error, or what is documented, and no task is lost."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

import redpoll
from redpoll import Hub
from redpoll.bus import Task
from redpoll.bus.state import EngineState
from redpoll.testing import FaultProxy
from tests.bus.survival.conftest import Yard
from tests.bus.survival.programs import Running, ask
from tests.node.support import PATIENCE, elapse, until

#: Links that are silent for four times this are lost.
BRIEF = {"keepalive": 0.25}


async def held(yard: Yard, count: int, data: float = 0) -> tuple[list[Running], list[str]]:
    """Start workers, give each a task, and wait until all have begun; return them and the tasks."""
    workers = [yard.start("hold", ends=str(yard.folder / "ends"), node=BRIEF) for _ in range(count)]
    for each in workers:
        await each.wait("ready")
    async with redpoll.connect(yard.url) as bus:
        tasks = [(await bus.tasks.submit(data, queue="held")).id for _ in workers]
    for each in workers:
        await each.wait("begun")
    return workers, tasks


async def results(yard: Yard, tasks: list[str]) -> list[int]:
    """Wait for the results of tasks."""
    async with redpoll.connect(yard.url, wait=True) as bus:
        return [await bus.tasks.handle(each, queue="held").result(timeout=PATIENCE) for each in tasks]


def begins(workers: list[Running]) -> Counter[str]:
    """How often each task was begun."""
    return Counter(task for each in workers for _, task, _ in each.logged("begun"))


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["killed", "ended"])
async def test_hub_restarts_under_long_tasks(yard: Yard, way: str) -> None:
    """Eight workers in long tasks keep them over a hub that is killed, or ends by SIGTERM; what ends meanwhile counts."""
    hub = await yard.start_hub()
    workers, tasks = await held(yard, 8)
    if way == "killed":
        hub.kill()
    else:
        assert await hub.end() == 0
    (yard.folder / "ends").touch()
    await elapse(0.1)
    await yard.start_hub()
    done = await results(yard, tasks)
    assert len(set(done)) == 8
    assert set(begins(workers).values()) == {1}
    async with redpoll.connect(yard.url) as bus:
        assert (await bus.queues.inspect("held")).taken == 0


@pytest.mark.asyncio
async def test_frozen_past_its_death(yard: Yard) -> None:
    """A worker that is frozen for longer than it may be silent loses its task: its late outcome is refused, and it knows."""
    await yard.start_hub(node=BRIEF)
    frozen = yard.start("claim_one", node=BRIEF)
    async with redpoll.connect(yard.url) as bus:
        handle = await bus.tasks.submit(0, queue="held")
        await frozen.wait("begun")
        frozen.signal(signal.SIGSTOP)
        async with bus.tasks.next(queue="held", timeout=PATIENCE) as task:
            assert (task.id, task.attempt) == (handle.id, 2)
            frozen.signal(signal.SIGCONT)
            await frozen.wait("lost")
            await frozen.wait("refused")
            task.set_result("of another")
        assert await handle.result(timeout=PATIENCE) == "of another"


@pytest.mark.asyncio
async def test_computing_on_the_loop(yard: Yard) -> None:
    """A handler that computes on the loop for longer than a worker may be silent keeps its task: its process lives."""
    await yard.start_hub(node=BRIEF)
    workers, tasks = await held(yard, 2, 4 * BRIEF["keepalive"] * 2.5)
    (yard.folder / "ends").touch()
    assert len(set(await results(yard, tasks))) == 2
    assert set(begins(workers).values()) == {1}


@pytest.mark.asyncio
async def test_cut_at_random_inside_the_grace(tmp_path: Path) -> None:
    """Where a proxy cuts all links at random moments, and workers return inside the grace, nothing begins twice."""
    draw = random.Random(15)
    begun: Counter[int] = Counter()

    async def work(task: Task) -> int:
        begun[task.data] += 1
        await elapse(0.002)
        return int(task.data)

    async with Hub(tmp_path / "hub", port=0) as hub, FaultProxy(str(hub.address)) as proxy:
        async with redpoll.connect(f"redpoll://{proxy.address}") as bus, redpoll.connect(hub.url) as caller:
            async with bus.tasks.worker(work, queue="q", concurrency=8):
                handles = [await caller.tasks.submit(number, queue="q") for number in range(500)]
                done = asyncio.gather(*(handle.result(timeout=PATIENCE) for handle in handles))
                while not done.done():
                    await elapse(draw.random() * 0.1)
                    proxy.cut()
                assert await done == list(range(500))
    assert set(begun.values()) == {1}


@pytest.mark.asyncio
async def test_cut_about_as_long_as_the_grace(tmp_path: Path) -> None:
    """A worker whose links are lost for about the grace, again and again, goes on to consume, whichever end gave it up."""
    draw = random.Random(15)

    async def work(task: Task) -> int:
        return int(task.data)

    async with Hub(tmp_path / "hub", port=0) as hub, FaultProxy(str(hub.address)) as proxy:
        async with redpoll.connect(f"redpoll://{proxy.address}") as bus, redpoll.connect(hub.url) as caller:
            async with bus.tasks.worker(work, queue="q"):
                for number in range(8):
                    assert await caller.tasks.run(number, queue="q", timeout=PATIENCE) == number
                    proxy.refuse()
                    proxy.cut()
                    await asyncio.sleep(0.4 + draw.random() * 0.3)
                    proxy.admit()


@pytest.mark.asyncio
async def test_an_answer_that_is_lost(tmp_path: Path) -> None:
    """A worker whose outcome is recorded, but whose link is lost before it is told so, is told so when it returns."""
    async with Hub(tmp_path / "hub", port=0) as hub, FaultProxy(str(hub.address)) as proxy:
        async with redpoll.connect(f"redpoll://{proxy.address}") as bus, redpoll.connect(hub.url) as caller:
            handle = await caller.tasks.submit(1, queue="q")
            claim = await bus.tasks.next(queue="q")
            proxy.freeze("back")
            claim.set_result("recorded")
            assert await handle.result(timeout=PATIENCE) == "recorded"
            proxy.refuse()
            proxy.cut()
            proxy.thaw("back")
            await until(lambda: bus.state is EngineState.RECONNECTING, "the loss of the link")
            proxy.admit()
            assert await claim.confirmed()


@pytest.mark.asyncio
async def test_poison(yard: Yard) -> None:
    """A task that kills each of its workers ends among the dead letters, with its history; others of the queue are done."""
    await yard.start_hub()
    async with redpoll.connect(yard.url) as bus:
        await bus.queues.declare(redpoll.bus.QueueSpec("account", max_attempts=3))
        poison = await bus.tasks.submit({"kind": "poison", "seconds": 0, "number": 0}, queue="account")
        others = [
            await bus.tasks.submit({"kind": "short", "seconds": 0, "number": number}, queue="account")
            for number in range(20)
        ]
        crowd: list[Running] = []
        result = asyncio.ensure_future(poison.result(timeout=2 * PATIENCE))
        while not result.done():
            crowd = [*(each for each in crowd if each.alive)] or [yard.start("work")]
            await elapse(0.02)
        with pytest.raises(redpoll.DeadLettered):
            await result
        (dead,) = await bus.queues.browse("account", "dead")
        assert dead.id == poison.id
        *lost, _ = dead.history
        assert [each.endswith("was lost") for each in lost] == [True] * 3
        yard.start("work")
        for each in others:
            await each.result(timeout=PATIENCE)


async def is_known(bus: redpoll.Bus, task: str) -> bool:
    """Return whether a hub has a task, or its outcome."""
    try:
        await bus.engine.lookup(task)
    except (redpoll.UnknownTask, redpoll.ResultExpired):
        return False
    return True


@pytest.mark.asyncio
async def test_groups_over_kills(yard: Yard) -> None:
    """Hub, workers and submitters are killed: a group is there as a whole or not at all, is joined once, and none is left."""
    draw = random.Random(18)
    hub = await yard.start_hub()
    killed = {"join": 0, "group": 0, "hub": 0}
    crowd = [yard.start("join", seed) for seed in range(2)] + [yard.start("group", seed) for seed in range(2)]
    for _ in range(14):
        await elapse(0.3 + draw.random() * 0.4)
        what = draw.choice(["join", "group", "hub"])
        killed[what] += 1
        if what == "hub":
            hub.kill()
            hub = await yard.start_hub()
        else:
            victim = draw.choice([each for each in crowd if each.plan.script == what and each.alive])
            victim.kill()
            crowd.append(yard.start(what, len(crowd)))
    assert all(killed.values()), killed
    for each in crowd:
        if each.plan.script == "group":
            each.kill()
    async with redpoll.connect(yard.url, wait=True) as bus:

        async def is_done() -> bool:
            infos = [await bus.queues.inspect(queue) for queue in ("parts", "joins")]
            return not any(each.ready or each.taken or each.delayed or each.dead for each in infos)

        end = time.monotonic() + PATIENCE
        while not await is_done():
            assert time.monotonic() < end, [await bus.queues.inspect(queue) for queue in ("parts", "joins")]
            await asyncio.sleep(0.05)
        confirmed = {name: task for each in crowd for name, task in each.logged("confirmed")}
        assert len(confirmed) > 20
        for task in confirmed.values():
            assert await bus.tasks.handle(task, queue="joins").result(timeout=PATIENCE) == 3
        workers = [each for each in crowd if each.plan.script == "join"]
        begun = {what: [line for each in workers for line in each.logged(what)] for what in ("part", "join", "last")}
        # What was begun, but was not on disk when the hub was killed, was never submitted.
        tasks = {(what, name, task) for what, lines in begun.items() for name, task, _ in lines}
        known = Counter([(what, name) for what, name, task in tasks if await is_known(bus, task)])
    assert {name for _, name in known} >= confirmed.keys()
    for name in {name for _, name in known}:
        assert [known[what, name] for what in ("part", "join", "last")] == [3, 1, 1], name
    assert {given for _, _, given in begun["join"]} == {"[0,1,2]"}
    assert {given for _, _, given in begun["last"]} == {"[3]"}
    assert not [line for each in (*crowd, hub) for line in each.logged("fault")]


@pytest.mark.asyncio
async def test_ended_under_load(yard: Yard) -> None:
    """A hub that ends by SIGTERM under load gives nothing back and loses nothing: what was confirmed is done, once each."""
    hub = await yard.start_hub()
    workers = [yard.start("work", seed) for seed in range(2)]
    for each in workers:
        await each.wait("ready")
    confirmed: list[redpoll.bus.Handle] = []

    async def submit(bus: redpoll.Bus, first: int) -> None:
        for number in range(first, first + 200):
            data = {"kind": "short", "seconds": 0.001, "number": number}
            handle = await bus.tasks.submit(data, queue="account", dedup=str(number), timeout=PATIENCE)
            confirmed.append(handle)

    async with redpoll.connect(yard.url, wait=True) as bus:
        submitting = asyncio.gather(*(submit(bus, 1000 * each) for each in range(4)))
        for _ in range(2):
            await ask(lambda: sum(len(each.logged("begun")) for each in workers) > 100, "load")
            assert await hub.end() == 0
            hub = await yard.start_hub()
        await submitting
        for handle in confirmed:
            await handle.result(timeout=PATIENCE)
    assert len({each.id for each in confirmed}) == 800
    assert set(begins(workers).values()) == {1}


@pytest.mark.asyncio
async def test_never_answered(tmp_path: Path) -> None:
    """A worker that never answers keeps its task as long as it lives; its caller has an error at its deadline."""
    begun = asyncio.Event()

    async def work(task: Task) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        async with bus.tasks.worker(work, queue="q", drain=0.0):
            with pytest.raises(TimeoutError):
                await bus.tasks.run(1, queue="q", timeout=0.2)
            await begun.wait()
            assert (await bus.queues.inspect("q")).taken == 1
            late = await bus.tasks.submit(2, queue="q", deadline=0.1)
            with pytest.raises(redpoll.TaskExpired):
                await late.result(timeout=PATIENCE)


@pytest.mark.asyncio
async def test_a_thread_that_never_returns(tmp_path: Path) -> None:
    """A thread past its time limit has that outcome recorded at once; its slot is used until it returns, and no other."""
    import threading

    go = threading.Event()

    def work(task: Task) -> int:
        if task.data == 0:
            go.wait(PATIENCE)
        return int(task.data)

    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        async with bus.tasks.worker(work, queue="q", concurrency=2, time_limit=0.2):
            stuck = await bus.tasks.submit(0, queue="q")
            for number in range(1, 20):
                assert await bus.tasks.run(number, queue="q", timeout=PATIENCE) == number
            with pytest.raises(redpoll.TimeLimit):
                await stuck.result(timeout=PATIENCE)
            go.set()


async def cancel_all(bus: redpoll.Bus, count: int) -> None:
    """Cancel so many tasks at once, one of which is being worked on."""
    cancelled = asyncio.Event()

    async def work(task: Task) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    handles = await bus.tasks.submit_many(range(count), queue="q")
    async with bus.tasks.worker(work, queue="q", concurrency=1):
        await ask_taken(bus)
        answers = Counter(await asyncio.gather(*(each.cancel() for each in handles)))
        assert answers == {"withdrawn": count - 1, "asked": 1}
        await cancelled.wait()
        for each in handles:
            with pytest.raises(redpoll.TaskCancelled):
                await each.result(timeout=PATIENCE)
        info = await bus.queues.inspect("q")
        assert (info.ready, info.taken, info.delayed) == (0, 0, 0)
        begun = time.monotonic()
        await bus.tasks.submit(1, queue="other", timeout=PATIENCE)
        assert time.monotonic() - begun < PATIENCE


async def ask_taken(bus: redpoll.Bus) -> None:
    """Wait until a task is taken."""
    while not (await bus.queues.inspect("q")).taken:  # noqa: ASYNC110  # it is asked
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_cancelled_at_once(tmp_path: Path) -> None:
    """Thousands of tasks that are cancelled at once end, each as cancelled; none of those that waited begins."""
    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        await cancel_all(bus, 2_000)


@pytest.mark.nightly
@pytest.mark.asyncio
@pytest.mark.timeout(600)
async def test_a_hundred_thousand_cancelled_at_once(tmp_path: Path) -> None:
    """The same with 100,000."""
    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        await cancel_all(bus, 100_000)


@pytest.mark.asyncio
async def test_a_client_that_never_reads(yard: Yard) -> None:
    """A client that is frozen while it is told much keeps nobody else waiting, and the hub no more than its bounds."""
    await yard.start_hub(node=BRIEF)
    frozen = yard.start("listen")
    await frozen.wait("ready")
    async with redpoll.connect(yard.url) as bus:
        await bus.broadcast.send(bytes(10), subject="news")
        await frozen.wait("heard")
        frozen.signal(signal.SIGSTOP)
        for _ in range(300):
            await bus.broadcast.send(bytes(100_000), subject="news", timeout=PATIENCE)
        assert bus.state is EngineState.READY
        frozen.signal(signal.SIGCONT)
        # It is told again what is said from now on, over another link where the first is lost.
        count = len(frozen.logged("heard"))
        while len(frozen.logged("heard")) <= count + 1:
            await bus.broadcast.send(bytes(10), subject="news")
            await elapse(0.01)


@pytest.mark.asyncio
async def test_a_read_only_folder(yard: Yard) -> None:
    """A hub in a folder that it cannot write ends at once, with an error that names the folder."""
    (yard.folder / "file").touch()
    hub = yard.start("hub", data=str(yard.folder / "file" / "hub"))
    await hub.wait("closed")
    ((*_, text),) = hub.logged("fault")
    assert "StoreError" in " ".join(hub.logged("fault")[0])
    assert text


@pytest.mark.asyncio
async def test_two_hubs_on_one_folder(yard: Yard) -> None:
    """A second hub on a folder is refused, and the first one goes on."""
    await yard.start_hub()
    second = yard.start("hub", url="redpoll://127.0.0.1:0", data=str(yard.folder / "hub"))
    await second.wait("closed")
    assert "is used by another hub" in " ".join(second.logged("fault")[0]).replace("\\n", " ")
    async with redpoll.connect(yard.url) as bus:
        assert await (await bus.tasks.submit(1, queue="q")).state() == "ready"


@pytest.mark.asyncio
@pytest.mark.parametrize("seconds", [-86_400.0, 86_400.0])
async def test_clock_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Delays and deadlines are those of the monotonic clock: the system's clock jumps in a run, and between two."""
    true = time.time
    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        handle = await bus.tasks.submit(1, queue="q", delay=0.5)
        other = await bus.tasks.submit(2, queue="q", ttl=3_600.0)
        monkeypatch.setattr(time, "time", lambda: true() + seconds)
        assert await handle.state() == "delayed"
        assert await other.state() == "ready"
    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        async with bus.tasks.next(queue="q", timeout=PATIENCE) as task:
            task.set_result(None)
        # Set forward between two runs, it counts as time that passed: a task that waited for its hour has expired.
        state = await bus.tasks.handle(other.id, queue="q").state()
        assert state == ("done" if seconds > 0 or task.id == other.id else "ready")
