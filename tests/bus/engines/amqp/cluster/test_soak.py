"""Programs on a cluster of which a server is killed, frozen or restarted again and again.

It takes ten minutes; REDPOLL_TEST_SOAK is the time in seconds. What is done to which server comes of REDPOLL_TEST_SEED.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest

import redpoll
from benchmarks.rabbitmq import Server
from redpoll.bus import Bus, Task
from redpoll.errors import RedpollError
from tests.bus.engines.amqp.support import elapse, until
from tests.rabbitmq import TICK, Broker, serves

SECONDS: Final = float(os.environ.get("REDPOLL_TEST_SOAK") or 600)
#: Seconds between two troubles; and in which a frozen or killed server is away.
EVERY: Final = 20.0
AWAY: Final = TICK * 1.5
#: Seconds in which what was confirmed is done once all servers are back.
PATIENCE: Final = 120.0

pytestmark = [pytest.mark.broker, pytest.mark.nightly, pytest.mark.asyncio, pytest.mark.timeout(SECONDS + 900)]


class Account:
    """What was promised to the programs, and what was done for them."""

    def __init__(self) -> None:
        self.confirmed: set[int] = set()
        self.done: set[int] = set()
        self.begun: Counter[int] = Counter()
        self.answered: set[int] = set()
        self.failed: Counter[str] = Counter()

    async def work(self, task: Task) -> None:
        """Do a task."""
        self.done.add(task.data)

    async def note(self, number: int) -> int:
        """Serve a call."""
        self.begun[number] += 1
        return number


def sockets() -> set[str]:
    """Return the sockets of this process."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        try:
            name = str(each.readlink())
        except OSError:  # the one of the folder itself
            continue
        if name.startswith("socket:"):
            found.add(name)
    return found


async def ask(account: Account, end: float, once: Callable[[int], Coroutine[Any, Any, object]], at: range) -> None:
    """Ask for one after another until the time is over, and count what fails."""
    for number in itertools.islice(itertools.count(at.start, at.step), len(at)):
        if time.monotonic() > end:
            return
        try:
            await once(number)
        except (RedpollError, TimeoutError) as error:
            account.failed[type(error).__name__] += 1
        await asyncio.sleep(0.02)


async def trouble(servers: list[Server], end: float, drawn: random.Random) -> list[str]:
    """Kill, freeze or restart a server every twenty seconds, of which one is away at a time."""
    had = []
    while time.monotonic() < end:
        began = time.monotonic()
        server, kind = drawn.choice(servers), drawn.choice(["kill", "freeze", "restart"])
        had.append(kind)
        if kind == "restart":
            await asyncio.to_thread(server.stop)
        elif kind == "freeze":
            server.freeze()
            await elapse(AWAY)
            # The others have declared it down: it has to begin anew.
            server.kill()
        else:
            server.kill()
            await elapse(AWAY)
        server.start()
        await serves(server)
        await elapse(max(0.0, EVERY - (time.monotonic() - began)))
    return had


async def test_programs_survive_the_troubles_of_a_cluster(rabbitmq_cluster: Broker) -> None:
    """No confirmed task is lost, no call is begun twice, and no channel, queue, task or socket is left behind."""
    seed = os.environ.get("REDPOLL_TEST_SEED") or str(random.SystemRandom().randrange(1 << 32))
    account, url = Account(), rabbitmq_cluster.url
    before, tasks = sockets(), asyncio.all_tasks()
    async with AsyncExitStack() as stack:

        async def join() -> Bus:
            return await stack.enter_async_context(redpoll.connect(url))

        for _ in range(2):
            worker = await join()
            await stack.enter_async_context(worker.tasks.worker(account.work, queue="soak", concurrency=8))
            await stack.enter_async_context(worker.rpc.serve("soak", account))
        caller = await join()

        async def submit(number: int) -> None:
            await caller.tasks.submit(number, queue="soak", no_reply=True, timeout=20)
            account.confirmed.add(number)

        async def call(number: int) -> None:
            assert await caller.rpc.call("soak", "note", {"number": number}, timeout=20) == number
            account.answered.add(number)

        end = time.monotonic() + SECONDS
        asking = [ask(account, end, once, range(start, 10**9, 8)) for once in (submit, call) for start in range(8)]
        had, *_ = await asyncio.gather(trouble(rabbitmq_cluster.servers, end, random.Random(seed)), *asking)
        await until(lambda: account.confirmed <= account.done, "tasks that were confirmed", PATIENCE)
        print(
            f"REDPOLL_TEST_SEED={seed}: {Counter(had)}, {len(account.confirmed)} tasks confirmed, "
            f"{len(account.answered)} calls answered, {account.failed} failed"
        )
    assert account.confirmed
    assert account.answered
    assert max(account.begun.values()) == 1
    assert asyncio.all_tasks() == tasks
    assert sockets() <= before
    # Those that were away with their server when they were to be deleted expire.
    end = time.monotonic() + PATIENCE
    kept = {"soak", "soak.dead", "rpc:soak", "redpoll.queues"}
    while left := set(rabbitmq_cluster.queues()) - kept:
        assert time.monotonic() < end, left
        await elapse(1.0)
    assert rabbitmq_cluster.channels() == 0
    assert rabbitmq_cluster.connections() == 0
