"""Pitfalls 34 to 37 of AMQP clients: threads, processes, the blocking face, cancelling."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import subprocess
import sys
import threading
from collections.abc import Awaitable
from pathlib import Path

import pytest

import redpoll
import redpoll.blocking
from redpoll.bus import QueueSpec, Task
from tests.bus.engines.amqp.support import Way, elapse, until, within
from tests.rabbitmq import Broker

pytestmark = [pytest.mark.broker]
nightly = pytest.mark.nightly
ROOT = Path(__file__).parents[4]


def test_34_threads_share_a_bus(rabbitmq: Broker) -> None:
    """Eight threads submit and call by one bus at once; each has its own results."""
    with redpoll.blocking.connect(rabbitmq.url) as bus:
        bus.queues.declare("q")
        with bus.tasks.worker(lambda task: task.data * 2, queue="q"), bus.rpc.serve("echo", lambda value: value):

            def run(number: int) -> None:
                for each in range(10):
                    value = number * 100 + each
                    assert bus.tasks.run(value, queue="q", timeout=30) == value * 2
                    assert bus.rpc.call("echo", None, value, timeout=30) == value

            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                list(pool.map(run, range(8)))


def test_35_calls_from_a_handler(rabbitmq: Broker) -> None:
    """A handler in a thread may call by its bus; a wait that timed out leaves nothing that a second one meets."""
    with redpoll.blocking.connect(rabbitmq.url) as bus:

        def outer(task: Task) -> int:
            return int(bus.rpc.call("echo", None, task.data, timeout=10)) + 1

        with bus.rpc.serve("echo", lambda value: value), bus.tasks.worker(outer, queue="q"):
            assert bus.tasks.run(1, queue="q", timeout=20) == 2
        go = threading.Event()
        with bus.rpc.serve("slow", lambda value: go.wait(20) and value, concurrency=2):
            with pytest.raises(TimeoutError):
                bus.rpc.call("slow", None, 1, timeout=0.2)
            go.set()
            assert bus.rpc.call("slow", None, 2, timeout=10) == 2
        with bus.rpc.serve("slow", lambda value: value):
            assert bus.rpc.call("slow", None, 3, timeout=10) == 3


FORKS = """
import asyncio, os, sys
import redpoll

async def main(url):
    async with redpoll.connect(url) as bus:
        await bus.queues.declare("q")
        await bus.tasks.submit("parent", queue="q", no_reply=True)
        child = os.fork()
        if not child:
            try:
                bus.tasks.submit("child", queue="q", no_reply=True).send(None)
            except redpoll.RedpollError as error:
                print(type(error).__name__, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        await bus.tasks.submit("parent again", queue="q", no_reply=True)
        print([claim.data async for claim in ended(bus)], flush=True)

async def ended(bus):
    async for claim in bus.tasks.each("q"):
        claim.set_result(None)
        yield claim

asyncio.run(main(sys.argv[1]))
"""


def test_36_fork(rabbitmq: Broker) -> None:
    """A forked child cannot use the bus of its parent, and sends nothing on its connection, on which the parent goes on."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, rabbitmq.url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert run.stdout.splitlines() == ["UsageError", "['parent', 'parent again']"], run.stdout + run.stderr


@pytest.mark.asyncio
@pytest.mark.parametrize("rounds", [60, pytest.param(1_000, marks=[nightly, pytest.mark.timeout(180)])])
async def test_37_cancelled_anywhere(rabbitmq: Broker, rounds: int) -> None:
    """Whatever is cancelled wherever it waits: what was confirmed is done, slots are free, calls are answered."""
    draw = random.Random(37)
    done: list[object] = []
    confirmed: list[int] = []

    async def work(task: Task) -> object:
        done.append(task.data)
        return task.data

    async with Way(rabbitmq) as way, redpoll.connect(way.url) as bus, redpoll.connect(rabbitmq.url) as other:

        async def submit(number: int) -> None:
            await bus.tasks.submit(number, queue="q", no_reply=True)
            confirmed.append(number)

        await bus.queues.declare("taken")
        async with bus.tasks.worker(work, queue="q", concurrency=2), other.rpc.serve("echo", lambda value: value):
            for number in range(rounds):
                verb: Awaitable[object]
                match number % 6:
                    case 0:
                        verb = submit(number)
                    case 1:
                        verb = bus.tasks.run(number + rounds, queue="q", timeout=20)
                    case 2:
                        verb = bus.rpc.call("echo", None, number, timeout=20)
                    case 3:
                        verb = bus.engine.take("taken", 20.0)
                    case 4:
                        verb = bus.queues.declare(QueueSpec(f"declared-{number}", expires=60))
                    case _:
                        verb = bus.broadcast.subscribe(lambda _: None, subject="x").__aenter__()
                each = asyncio.ensure_future(verb)
                for _ in range(draw.randrange(12)):
                    await asyncio.sleep(0)
                if draw.random() < 0.5:
                    await elapse(draw.random() * 0.004)
                each.cancel()
                await asyncio.wait([each])
            assert await within(bus.tasks.run("last", queue="q")) == "last"
            assert await bus.rpc.call("echo", None, "last", timeout=10) == "last"
            await until(lambda: set(confirmed) <= set(done), "all that was confirmed")
            await other.tasks.submit("x", queue="taken", no_reply=True)
            assert (await within(bus.engine.take("taken", 10.0))).id
