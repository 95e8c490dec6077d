"""An account kept outside: hub, workers and callers are killed at random under load, and no promise is broken."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from functools import partial

import pytest

import redpoll
from redpoll.bus import Bus
from redpoll.errors import RedpollError, RemoteError
from tests.bus.survival.account import Account
from tests.bus.survival.conftest import Yard
from tests.bus.survival.programs import QUEUE, Running, ask

#: What is drawn comes of this.
SEED = int(os.environ.get("REDPOLL_TEST_SEED") or 15)
#: Processes of each kind.
CROWD = {"work": 2, "claim": 2, "call": 2}


def _came_up(running: Running) -> bool:
    return bool(running.logged("ready")) or not running.alive


class Siege:
    """Processes that are killed at random, and started again."""

    def __init__(self, yard: Yard, seed: int) -> None:
        self._yard = yard
        self._draw = random.Random(seed)
        self._hub: Running
        self._crowd: list[Running] = []
        self.kills = 0

    def _start(self, script: str) -> Running:
        return self._yard.start(script, self._draw.randrange(1 << 32))

    async def begin(self) -> None:
        """Start all."""
        self._hub = await self._yard.start_hub()
        self._crowd = [self._start(script) for script, count in CROWD.items() for _ in range(count)]
        for each in self._crowd:
            # Poison that others submitted may have killed a worker before it was ready.
            await ask(partial(_came_up, each), f"ready of {each.plan.script}")

    def replace(self) -> None:
        """Start again what was killed, by poison too."""
        assert self._hub.alive
        self._crowd = [each if each.alive else self._start(each.plan.script) for each in self._crowd]

    async def rage(self, seconds: float) -> None:
        """Kill one after another for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(self._draw.random() * 1.2)
            if self._draw.random() < 0.3:
                self._hub.kill()
                self._hub = await self._yard.start_hub()
            else:
                self._draw.choice(self._crowd).kill()
            self.kills += 1
            self.replace()

    async def settle(self) -> None:
        """Submit nothing more, and let workers have all the rest."""
        callers = [each for each in self._crowd if each.plan.script == "call"]
        for each in callers:
            each.kill()
        self._crowd = [each for each in self._crowd if each not in callers]
        async with redpoll.connect(self._yard.url, wait=True) as bus:
            await self._until(bus, lambda info: not (info.ready or info.taken or info.delayed))

    async def _until(self, bus: Bus, reached: Callable[[redpoll.bus.QueueInfo], bool]) -> None:
        end = time.monotonic() + 120
        while not reached(info := await bus.queues.inspect(QUEUE.name)):
            if time.monotonic() > end:
                left = [await bus.queues.browse(QUEUE.name, state) for state in ("ready", "taken", "delayed")]
                pytest.fail(f"left: {left} of {info}")
            self.replace()
            await asyncio.sleep(0.1)


async def answer(bus: Bus, task: str) -> str:
    """The outcome of a task, as callers write it down."""
    try:
        return repr(await bus.tasks.handle(task, QUEUE.name).result(timeout=5)).replace(" ", "")
    except (RedpollError, RemoteError) as error:
        return type(error).__name__


async def keep_account(yard: Yard, seconds: float, seed: int) -> Account:
    """Let a siege take so long, and hold what was promised against what there is."""
    siege = Siege(yard, seed)
    await siege.begin()
    await siege.rage(seconds)
    await siege.settle()
    account = Account(yard.running)
    async with redpoll.connect(yard.url) as bus:
        found, answers = {}, {}
        for task in account.tasks:
            try:
                found[task] = await bus.engine.lookup(task)
            except RedpollError as error:
                pytest.fail(f"{task} was confirmed, and is lost: {error}")
            answers[task] = await answer(bus, task)
    account.check(found, answers)
    print(f"{siege.kills} kills, {len(account.tasks)} tasks, {sum(map(len, account.begun.values()))} begun,")
    return account


@pytest.mark.nightly
@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_half_a_minute(yard: Yard) -> None:
    """Each confirmed task has one outcome, none that is recorded is begun again, and each caller is answered in time."""
    account = await keep_account(yard, 30, SEED)
    assert len(account.tasks) > 200
    assert any(account.recorded.values())


@pytest.mark.nightly
@pytest.mark.asyncio
@pytest.mark.timeout(2_700)
@pytest.mark.parametrize("part", range(2))
async def test_an_hour(yard: Yard, part: int) -> None:
    """The same for an hour, in two parts."""
    account = await keep_account(yard, 1_800, SEED + part)
    assert len(account.tasks) > 10_000
