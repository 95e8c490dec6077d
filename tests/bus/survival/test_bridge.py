"""An account kept outside: bridges between two hubs are killed at random under load, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import redpoll
from redpoll.bus import Bus, QueueSpec, Task
from redpoll.errors import NoRoute, PeerLost, RedpollError
from tests.bus.survival.conftest import Yard
from tests.bus.survival.programs import Running, ask
from tests.node.support import elapse
from tests.ports import free_port

pytestmark = pytest.mark.asyncio

#: What is drawn comes of this.
SEED = int(os.environ.get("REDPOLL_TEST_SEED") or 16)
#: Each way has a queue, a service and a subject.
WAYS = ("there", "back")


class Ledger:
    """What was asked for, and what became of it."""

    def __init__(self) -> None:
        self.tasks: dict[str, list[Any]] = {way: [] for way in WAYS}
        self.begun: Counter[tuple[str, int]] = Counter()
        self.called: Counter[str] = Counter()
        self.answers: dict[str, str] = {}
        self.heard: Counter[str] = Counter()

    async def work(self, way: str, task: Task) -> int:
        """Work on a task."""
        self.begun[way, task.data["number"]] += 1
        await elapse(task.data["seconds"])
        return int(task.data["number"]) + 1

    async def serve(self, name: str) -> str:
        """Answer a call."""
        self.called[name] += 1
        await elapse(0.01)
        return name

    def passed(self) -> bool:
        """Return whether a call was answered over a bridge, and a broadcast heard."""
        return bool(self.heard) and any(answer == name for name, answer in self.answers.items())

    async def call(self, bus: Bus, way: str, name: str) -> None:
        """Call, and note the answer."""
        try:
            self.answers[name] = await bus.rpc.call(way, None, name, timeout=10)
        except (PeerLost, NoRoute) as error:
            self.answers[name] = type(error).__name__

    def check_calls(self) -> None:
        """Check that no call was made twice, and that those that were answered were made."""
        assert max(self.called.values()) == 1
        for name, answer in self.answers.items():
            if answer == name:
                assert self.called[name] == 1
            elif answer == "NoRoute":
                assert self.called[name] == 0


class Pair:
    """Two hubs, bridges between them, and the programs on either side."""

    def __init__(self, yard: Yard, seed: int) -> None:
        self.yard = yard
        self.draw = random.Random(seed)
        self.urls = [f"redpoll://127.0.0.1:{free_port()}" for _ in WAYS]
        self.hubs: list[Running] = []
        self.bridges: list[Running] = []
        self.kills = 0

    async def start_hub(self, side: int) -> Running:
        """Start a hub, and wait until it serves."""
        data = str(self.yard.folder / f"hub-{side}")
        running = self.yard.start("hub", url=self.urls[side], data=data, limits={"reclaim": 2.0})
        await running.wait("ready")
        return running

    async def begin(self) -> None:
        """Start both hubs and two bridges, one of which waits."""
        self.hubs = [await self.start_hub(side) for side in range(2)]
        for _ in range(2):
            self.bridges.append(self.start_bridge())
            await self.bridges[-1].wait("ready")

    def start_bridge(self) -> Running:
        """Start a bridge."""
        return self.yard.start("bridge", url=self.urls[0], other=self.urls[1])

    async def rage(self, seconds: float, *, hubs: bool) -> None:
        """Kill bridges, and perhaps hubs, for so long; most of the time the one that is active."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(0.3 + self.draw.random() * 0.9)
            if hubs and self.draw.random() < 0.3:
                side = self.draw.randrange(2)
                self.hubs[side].kill()
                self.hubs[side] = await self.start_hub(side)
            else:
                number = self.draw.randrange(2)
                self.bridges[number].kill()
            self.kills += 1
            self.bridges = [each if each.alive else self.start_bridge() for each in self.bridges]


@asynccontextmanager
async def programs(pair: Pair, ledger: Ledger) -> AsyncIterator[list[Bus]]:
    """A worker and a server on each side for what the other side asks, in this process."""
    async with (
        redpoll.connect(pair.urls[0], wait=True) as left,
        redpoll.connect(pair.urls[1], wait=True) as right,
    ):
        for bus in (left, right):
            for way in WAYS:
                await bus.queues.declare(QueueSpec(way, max_attempts=None))
        async with (
            right.tasks.worker(lambda task: ledger.work("there", task), queue="there", concurrency=4),
            left.tasks.worker(lambda task: ledger.work("back", task), queue="back", concurrency=4),
            right.rpc.serve("there", ledger.serve),
            left.rpc.serve("back", ledger.serve),
            right.broadcast.subscribe(lambda each: ledger.heard.update([each.body]), subject="there"),
            left.broadcast.subscribe(lambda each: ledger.heard.update([each.body]), subject="back"),
        ):
            yield [left, right]


async def ask_for(buses: list[Bus], ledger: Ledger, draw: random.Random, ended: Callable[[], bool]) -> None:
    """Submit, call and broadcast on both sides until the end."""
    calls: set[asyncio.Task[None]] = set()
    number = 0
    while not ended():
        for way, bus in zip(WAYS, buses, strict=True):
            data = {"number": number, "seconds": draw.random() * 0.02}
            while True:
                try:
                    ledger.tasks[way].append(await bus.tasks.submit(data, queue=way, dedup=f"{number}"))
                    break
                except RedpollError:
                    await asyncio.sleep(0.1)
            calls.add(asyncio.ensure_future(ledger.call(bus, way, f"{way}-{number}")))
            try:
                await bus.broadcast.send(f"{way}-{number}", subject=way)
            except RedpollError:
                pass
        number += 1
        await asyncio.sleep(draw.random() * 0.02)
    await asyncio.gather(*calls, return_exceptions=True)


async def keep_account(yard: Yard, seconds: float, seed: int, *, hubs: bool) -> tuple[Pair, Ledger]:
    """Kill for so long under load, and then check that all is there."""
    pair, ledger = Pair(yard, seed), Ledger()
    await pair.begin()
    async with programs(pair, ledger) as buses:
        raging = asyncio.ensure_future(pair.rage(seconds, hubs=hubs))
        # Where bridges are killed as fast as they start, what is asked for afterwards passes.
        await ask_for(buses, ledger, pair.draw, lambda: raging.done() and ledger.passed())
        await raging
        for way in WAYS:
            tasks = ledger.tasks[way]
            assert [await each.result(timeout=60) for each in tasks] == [number + 1 for number in range(len(tasks))]
        for way, bus in zip(WAYS, buses, strict=True):
            info = await bus.queues.inspect(way)
            assert (info.ready, info.taken, info.dead) == (0, 0, 0)
    print(f"{pair.kills} kills, {sum(map(len, ledger.tasks.values()))} tasks, {len(ledger.answers)} calls")
    faults = [line for each in pair.bridges for line in each.logged("fault")]
    assert not faults, faults[:3]
    return pair, ledger


def check_once(ledger: Ledger) -> None:
    """Check that each task was begun once, and that nothing else was done or heard twice."""
    assert set(ledger.begun.values()) == {1}
    assert len(ledger.begun) == sum(map(len, ledger.tasks.values()))
    assert max(ledger.heard.values()) == 1
    ledger.check_calls()


async def test_bridges_are_killed(yard: Yard) -> None:
    """Bridges are killed for a few seconds: each task is done once, no call is made twice, no broadcast heard twice."""
    pair, ledger = await keep_account(yard, 4, SEED, hubs=False)
    assert pair.kills >= 2
    check_once(ledger)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(2))
async def test_bridges_are_killed_for_minutes(yard: Yard, part: int) -> None:
    """The same for four minutes, in two parts."""
    _, ledger = await keep_account(yard, 120, SEED + part, hubs=False)
    check_once(ledger)


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_hubs_and_bridges_are_killed(yard: Yard) -> None:
    """Hubs on both sides and bridges are killed for two minutes: no task is lost, and no call is made twice."""
    _, ledger = await keep_account(yard, 120, SEED, hubs=True)
    ledger.check_calls()


async def test_a_hub_restarts_under_a_bridge(yard: Yard) -> None:
    """Either hub may be stopped and started: the bridge keeps what it holds, and passes what comes later."""
    pair, ledger = Pair(yard, SEED), Ledger()
    await pair.begin()
    async with programs(pair, ledger) as (left, _):
        for side in range(2):
            tasks = [await left.tasks.submit({"number": number, "seconds": 0.5}, queue="there") for number in range(6)]
            await ask(lambda: len(ledger.begun) >= 4, "the begin of tasks")
            await pair.hubs[side].end()
            pair.hubs[side] = await pair.start_hub(side)
            tasks += [await left.tasks.submit({"number": 9, "seconds": 0}, queue="there")]
            assert [await each.result(timeout=20) for each in tasks] == [1, 2, 3, 4, 5, 6, 10]
            assert set(ledger.begun.values()) == {1}
            ledger.begun.clear()
