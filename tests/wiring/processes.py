"""Wirings and directories in processes of their own, which are frozen, killed and started again while others go on.

``python -m tests.wiring.processes PLAN`` with a plan as JSON runs one. What it does it writes into a file, line by line, each
at once, so that it is there whatever ends the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Self

import redpoll
from redpoll import GLOBAL, Wiring
from redpoll.wiring import AtLimit, Gap, Limits, Style
from redpoll.wiring.directory import Directory
from tests.cli.support import environment
from tests.promise.programs import Log

#: Seconds that a process has for anything that it does.
PATIENCE = 30.0

#: Messages that a source sends each time that it is signalled.
BURST = 100


@dataclass(frozen=True)
class Plan:
    """What a process is told.

    Attributes:
        script: "directory", "source", "sink", "worker" or "binder".
        log: The file that it writes to.
        directory: The port of the directory.
        name: What it names its exchange or queue.
        bind: Exchange and queue that it binds; empty is none.
        style: Of its exchange.
        at_limit: Of its exchange.
        limit: Messages that its exchange, or its queue, holds for each pipe; 0 is as many as they do unless told otherwise.
        options: Of its wiring.
    """

    script: str
    log: str
    directory: int
    name: str = ""
    bind: tuple[str, ...] = ()
    style: str = "distribute"
    at_limit: str = "wait"
    limit: int = 0

    @property
    def limits(self) -> Limits:
        """What its exchange, or its queue, holds."""
        return Limits(messages=self.limit, resume=1.0) if self.limit else Limits()

    options: dict[str, Any] = field(default_factory=dict)


async def run_directory(plan: Plan, log: Log) -> None:
    """Be the directory."""
    async with Directory(port=plan.directory, lease=1.0) as names:
        log.write("ready")
        await names.serve_forever()


def wiring_of(plan: Plan, log: Log) -> Wiring:
    """Make the wiring that a plan says."""
    wiring = Wiring(f"127.0.0.1:{plan.directory}", bind_timeout=None, **plan.options)
    wiring.events.pipe_up = lambda binding: log.write("up", binding.exchange, binding.queue)
    wiring.events.pipe_lost = lambda binding, error: log.write(
        "lost", binding.exchange, binding.queue, type(error).__name__
    )
    return wiring


async def bind(plan: Plan, wiring: Wiring) -> None:
    """Bind what the plan says."""
    if plan.bind:
        await wiring.bind(*plan.bind)


async def run_source(plan: Plan, log: Log) -> None:
    """Send a burst each time that it is signalled; write down what was taken, as far as that was told."""
    signalled: asyncio.Queue[None] = asyncio.Queue()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, signalled.put_nowait, None)
    numbers = count()
    async with wiring_of(plan, log) as wiring:
        exchange = await wiring.create_exchange(
            plan.name, scope=GLOBAL, style=Style(plan.style), at_limit=AtLimit(plan.at_limit), limits=plan.limits
        )
        wiring.events.unconfirmed = lambda exchange, queues, count: log.write("unconfirmed", *queues, count)
        watch = asyncio.create_task(write_taken(exchange, log))
        await bind(plan, wiring)
        log.write("ready")
        while not watch.done():
            await signalled.get()
            for _ in range(BURST):
                await exchange.send(b"%d" % next(numbers))
            log.write("burst")


async def write_taken(exchange: redpoll.wiring.Exchange, log: Log) -> None:
    """Write down how it stands with the pipes, whenever that changes."""
    before: tuple[Any, ...] = ()
    while True:
        now = tuple((pipe.sent, pipe.taken, pipe.up) for pipe in exchange.pipes)
        if now != before:
            before = now
            log.write("pipes", json.dumps(now))
        await asyncio.sleep(0.005)


async def run_sink(plan: Plan, log: Log) -> None:
    """Write down what comes."""
    async with wiring_of(plan, log) as wiring:
        queue = await wiring.create_queue(plan.name, scope=GLOBAL, gaps=True)
        log.write("created")
        await bind(plan, wiring)
        log.write("ready")
        async for message in queue:
            if isinstance(message, Gap):
                log.write("gap", message.count, message.restarted)
            else:
                log.write("got", message.decode())


async def run_worker(plan: Plan, log: Log) -> None:
    """Write down what comes, each after some work; one that is called "stuck" is never done with its first."""
    async with wiring_of(plan, log) as wiring:
        queue = await wiring.create_queue(plan.name, scope=GLOBAL, limits=plan.limits)
        await bind(plan, wiring)
        log.write("ready")
        async for message in queue:
            log.write("began", message.decode())
            if plan.name == "stuck":
                await asyncio.Event().wait()
            await asyncio.sleep(0.001)
            log.write("got", message.decode())


async def run_binder(plan: Plan, log: Log) -> None:
    """Bind what others have, and stay."""
    async with wiring_of(plan, log) as wiring:
        await bind(plan, wiring)
        log.write("ready")
        await asyncio.Event().wait()


SCRIPTS = {
    "directory": run_directory,
    "source": run_source,
    "sink": run_sink,
    "worker": run_worker,
    "binder": run_binder,
}


class Process:
    """A process that carries out a plan; killed on leaving."""

    def __init__(self, folder: Path, script: str, directory: int, **more: Any) -> None:
        self.plan = Plan(script, str(folder / f"{script}-{time.monotonic_ns()}"), directory, **more)
        command = [sys.executable, "-m", "tests.wiring.processes", json.dumps(asdict(self.plan))]
        self._process = subprocess.Popen(command, env=environment())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def log(self) -> list[str]:
        """The lines that it wrote so far."""
        path = Path(self.plan.log)
        return path.read_text().splitlines() if path.exists() else []

    def logged(self, word: str) -> list[str]:
        """What follows a word in the lines that begin with it."""
        return [line.removeprefix(word).strip() for line in self.log if line.split()[0] == word]

    @property
    def pipes(self) -> list[tuple[int, int, bool]]:
        """Of a source: what was sent and taken by each pipe, and whether it is up."""
        last = (self.logged("pipes") or ["[]"])[-1]
        return [tuple(each) for each in json.loads(last)]

    @property
    def events(self) -> list[str]:
        """Of a sink: what came, and what was missing."""
        return [line for line in self.log if line.split()[0] in {"got", "gap"}]

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something.

        Raises:
            TimeoutError: It does not come.
        """
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end or self._process.poll() not in (None, -signal.SIGKILL):
                raise TimeoutError(f"waited in vain for {what} of {self.plan.script}: {self.log[-10:]}")
            time.sleep(0.005)

    def ready(self) -> Self:
        """Wait until it is."""
        self.until(lambda: self.logged("ready"), "its being ready")
        return self

    def burst(self, number: int) -> None:
        """Of a source: have it send, and wait until it has sent the burst of that number."""
        self.signal(signal.SIGUSR1)
        self.until(lambda: len(self.logged("burst")) >= number, f"burst {number}")

    def wait_events(self, count: int) -> None:
        """Of a sink: wait until so much has come."""
        self.until(lambda: len(self.events) >= count, f"{count} events")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End it, frozen or not, without a word."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Carry out the plan that was given."""
    told = json.loads(sys.argv[1])
    told["bind"] = tuple(told["bind"])
    plan = Plan(**told)
    redpoll.run(SCRIPTS[plan.script](plan, Log(plan.log)))


if __name__ == "__main__":
    main()
