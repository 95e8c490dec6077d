"""Hubs, workers and callers in processes of their own, which are killed and frozen; what they do they write down."""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import os
import random
import secrets
import signal
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import redpoll
from redpoll import Config, Hub
from redpoll.bus import Bus, Claim, QueueSpec, Task
from redpoll.bus.broker import Limits
from redpoll.errors import DeadLettered, NotConfirmed, RedpollError, RemoteError, TaskCancelled
from tests.node.processes import LIFETIME, compute
from tests.node.support import elapse
from tests.promise.programs import Log

__all__ = ["QUEUE", "Plan", "Running", "ask"]

QUEUE: Final = QueueSpec("account", max_attempts=3)

#: Seconds that a process has for one thing that a test waits for.
PATIENCE: Final = 20.0


@dataclass(frozen=True)
class Plan:
    """What a process is told.

    Attributes:
        script: Its name in `SCRIPTS`.
        log: The file that it writes to.
        url: The hub.
        seed: What is drawn comes of it.
        given: More.
    """

    script: str
    log: str
    url: str
    seed: int = 0
    given: dict[str, Any] = field(default_factory=dict)


async def hub(plan: Plan, log: Log) -> None:
    """Serve until SIGTERM."""
    given = plan.given
    made = Hub(
        given["data"],
        int(plan.url.rpartition(":")[2]),
        limits=Limits(**given.get("limits", {})),
        config=Config(**given.get("node", {})),
    )
    async with made:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        log.write("ready")
        serving = asyncio.ensure_future(made.serve_forever())
        await asyncio.wait([serving, asyncio.ensure_future(ended.wait())], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        serving.cancel()


# Workers: each line has the moment, by the clock that all processes of a machine share.


def _begin(task: Task, log: Log) -> None:
    log.write("begun", time.monotonic(), task.id, task.attempt)
    if task.data["kind"] == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    elif task.data["kind"] == "error":
        raise ValueError("wanted")


async def work(plan: Plan, log: Log) -> None:
    """Work by handlers, on the loop and in threads."""
    draw = random.Random(plan.seed)

    async def on_loop(task: Task) -> list[Any]:
        _begin(task, log)
        await elapse(task.data["seconds"])
        return [task.data["number"], os.getpid(), draw.random()]

    def in_thread(task: Task) -> list[Any]:
        _begin(task, log)
        threading.Event().wait(task.data["seconds"])
        return [task.data["number"], os.getpid(), draw.random()]

    async with redpoll.connect(plan.url, wait=True) as bus:
        await _declared(bus)
        async with (
            bus.tasks.worker(on_loop, queue=QUEUE.name, concurrency=3),
            # Short tasks are sent ahead to this one.
            bus.tasks.worker(on_loop, queue=QUEUE.name, concurrency=1),
            bus.tasks.worker(in_thread, queue=QUEUE.name, concurrency=2),
        ):
            log.write("ready")
            await asyncio.Event().wait()


async def claim(plan: Plan, log: Log) -> None:
    """Work by claims, whose worker is told whether their outcomes are recorded."""
    draw = random.Random(plan.seed)

    async def one(bus: Bus) -> None:
        while True:
            with suppress(RedpollError):
                await each(await bus.tasks.next(queue=QUEUE.name))

    async def each(claimed: Claim) -> None:
        try:
            _begin(claimed, log)
        except ValueError as error:
            claimed.set_exception(error)
        else:
            await elapse(claimed.data["seconds"])
            claimed.set_result([claimed.data["number"], os.getpid(), draw.random()])
        if await claimed.confirmed():
            log.write("recorded", time.monotonic(), claimed.id)
        else:
            log.write("refused", time.monotonic(), claimed.id)

    async with redpoll.connect(plan.url, wait=True) as bus:
        await _declared(bus)
        log.write("ready")
        await asyncio.gather(*(one(bus) for _ in range(4)))


async def _declared(bus: Bus) -> None:
    while True:
        with suppress(RedpollError):
            await bus.queues.declare(QUEUE)
            return


# Callers

#: Kinds of tasks, and how many of a hundred there are.
KINDS: Final = {"short": 86, "long": 6, "error": 5, "poison": 1, "cancelled": 2}
#: Seconds that a caller has for a result.
DEADLINE: Final = 8.0


async def call(plan: Plan, log: Log) -> None:
    """Submit tasks, some with a key and again where that was not confirmed, and wait for the results of some."""
    draw = random.Random(plan.seed)
    # An hour of killing uses up all the numbers of processes.
    program = secrets.token_hex(6)
    names = (f"{program}-{number}" for number in range(1 << 30))

    async def one(bus: Bus) -> None:
        while True:
            await asyncio.sleep(draw.random() * 0.04)
            (kind,) = draw.choices(list(KINDS), list(KINDS.values()))
            seconds = draw.random() * (1.0 if kind == "long" else 0.005)
            data = {"kind": kind, "seconds": seconds, "number": next(names)}
            await (submit if draw.random() < 0.5 else run)(bus, data)

    async def submit(bus: Bus, data: dict[str, Any]) -> None:
        while True:
            try:
                handle = await bus.tasks.submit(data, queue=QUEUE.name, dedup=data["number"], timeout=DEADLINE)
            except NotConfirmed:
                continue
            except RedpollError as error:
                log.write("unsent", data["number"], type(error).__name__)
                return
            log.write("confirmed", handle.id, data["number"])
            if data["kind"] == "cancelled":
                with suppress(RedpollError):
                    log.write("cancel", time.monotonic(), handle.id, (await handle.cancel()).replace(" ", "-"))
            return

    async def run(bus: Bus, data: dict[str, Any]) -> None:
        log.write("asked", data["number"], time.monotonic())
        answer = "error"
        task = ""
        try:
            handle = await bus.tasks.submit(data, queue=QUEUE.name, timeout=DEADLINE)
            task = handle.id
            log.write("confirmed", task, data["number"])
            answer = repr(await handle.result(timeout=DEADLINE)).replace(" ", "")
            log.write("result", task, answer)
        except (RedpollError, RemoteError, TimeoutError) as error:
            if isinstance(error, DeadLettered | RemoteError | TaskCancelled) and getattr(error, "outcome", True):
                log.write("result", task, type(error).__name__)
            answer = type(error).__name__
        finally:
            log.write("answered", data["number"], time.monotonic(), answer)

    async with redpoll.connect(plan.url, wait=True) as bus:
        await _declared(bus)
        log.write("ready")
        await asyncio.gather(*(one(bus) for _ in range(8)))


# For single cases


async def hold(plan: Plan, log: Log) -> None:
    """Work on tasks until told to end by a file; compute on the loop for the seconds that a task names."""
    ends = Path(plan.given["ends"])

    async def handler(task: Task) -> int:
        log.write("begun", time.monotonic(), task.id, task.attempt)
        if task.data:
            compute(float(task.data))
        await until_there(ends)
        return os.getpid()

    async with redpoll.connect(plan.url, wait=True, config=Config(**plan.given["node"])) as bus:
        async with bus.tasks.worker(handler, queue="held", concurrency=1):
            log.write("ready")
            await asyncio.Event().wait()


async def claim_one(plan: Plan, log: Log) -> None:
    """Take one task, and end it once it is lost; write whether that was recorded."""
    async with redpoll.connect(plan.url, wait=True, config=Config(**plan.given["node"])) as bus:
        claimed = await bus.tasks.next(queue="held")
        log.write("begun", time.monotonic(), claimed.id, claimed.attempt)
        while not claimed.lost:  # noqa: ASYNC110  # a claim tells nobody
            await asyncio.sleep(0.01)
        log.write("lost")
        claimed.set_result(os.getpid())
        log.write("recorded" if await claimed.confirmed() else "refused", time.monotonic(), claimed.id)


#: Parts of each group, and what comes of them.
PARTS: Final = 3


async def join(plan: Plan, log: Log) -> None:
    """Work on the parts of groups, on what joins them, and on what comes after that; write down what that was given."""

    async def handler(task: Task) -> Any:
        log.write(str(task.data[0]), str(task.data[1]), task.id, repr(task.results).replace(" ", ""))
        await elapse(0.002)
        if task.data[0] == "part":
            return task.data[2]
        return sum(task.results)

    async with redpoll.connect(plan.url, wait=True) as bus:
        async with (
            bus.tasks.worker(handler, queue="parts", concurrency=4),
            bus.tasks.worker(handler, queue="joins", concurrency=2),
        ):
            log.write("ready")
            await asyncio.Event().wait()


async def group(plan: Plan, log: Log) -> None:
    """Submit groups with what joins them and what comes after that, again where that was not confirmed."""
    names = (f"{secrets.token_hex(6)}-{number}" for number in range(1 << 30))
    async with redpoll.connect(plan.url, wait=True) as bus:

        async def submit(name: str) -> None:
            parts = [bus.tasks.chain(["part", name, number], "parts") for number in range(PARTS)]
            joined = bus.tasks.group(parts).then(["join", name], "joins").then(["last", name], "joins", dedup=name)
            while True:
                log.write("begins", name)
                with suppress(NotConfirmed):
                    handle = await joined.submit(timeout=DEADLINE)
                    break
            log.write("confirmed", name, handle.id)

        log.write("ready")
        for _ in range(plan.given.get("number", 1 << 30)):
            with suppress(RedpollError):
                await submit(next(names))
            await asyncio.sleep(0.01)


async def listen(plan: Plan, log: Log) -> None:
    """Hear what is said."""
    async with redpoll.connect(plan.url, wait=True) as bus:
        async with bus.broadcast.subscribe(lambda _: log.write("heard"), subject="news"):
            log.write("ready")
            await asyncio.Event().wait()


async def bridge(plan: Plan, log: Log) -> None:
    """Join the hub with another one."""
    async with redpoll.Bridge(
        redpoll.connect(plan.url, wait=True), redpoll.connect(plan.given["other"], wait=True), period=0.1
    ) as joined:
        log.write("ready")
        await joined.wait()


SCRIPTS: Final[dict[str, Callable[[Plan, Log], Awaitable[None]]]] = {
    "hub": hub,
    "work": work,
    "claim": claim,
    "call": call,
    "hold": hold,
    "claim_one": claim_one,
    "join": join,
    "group": group,
    "listen": listen,
    "bridge": bridge,
}


class _Faults(logging.Handler):
    """Writes down what a library should not have to say."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.ERROR)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.write("fault", record.name, repr(self.format(record)))


def run(plan: Plan) -> None:
    """Do what the plan says."""
    signal.alarm(LIFETIME)
    log = Log(plan.log)
    logging.getLogger().addHandler(_Faults(log))
    threading.excepthook = lambda info: log.write("fault", "thread", repr(info.exc_value))
    try:
        asyncio.run(SCRIPTS[plan.script](plan, log))  # type: ignore[arg-type]  # they are coroutines
    except BaseException:  # noqa: BLE001  # the test is told
        log.write("fault", "script", repr(traceback.format_exc()))
    log.write("closed")


# A process that is forked from one that has imported all this starts at once.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.bus.survival.programs"])


class Running:
    """A process that carries out a plan.

    Attributes:
        killed: When it was killed; infinity if it was not.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._process: BaseProcess = _CONTEXT.Process(target=run, args=(plan,), daemon=True)
        self._process.start()
        self.killed = math.inf

    @property
    def alive(self) -> bool:
        """True if it runs, or is frozen."""
        return self._process.is_alive()

    @property
    def log(self) -> list[list[str]]:
        """The words of the lines that it wrote so far."""
        return list(_lines(Path(self.plan.log)))

    def logged(self, word: str) -> list[list[str]]:
        """What follows a word in the lines that begin with it."""
        return [rest for first, *rest in self.log if first == word]

    async def wait(self, word: str, count: int = 1) -> None:
        """Wait until it has written a word so many times."""
        await ask(lambda: len(self.logged(word)) >= count, f"{word} of {self.plan.script}", self)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End it, frozen or not, without a word."""
        self._process.kill()
        self._process.join()
        self.killed = min(self.killed, time.monotonic())

    async def end(self) -> int | None:
        """Have it end by SIGTERM; return its code."""
        self.signal(signal.SIGTERM)
        await ask(lambda: not self.alive, f"the end of {self.plan.script}")
        return self._process.exitcode


def _lines(path: Path) -> Iterator[list[str]]:
    """The lines of a file; one that was not written to its end does not count."""
    if path.exists():
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield line.split()


async def until_there(path: Path) -> None:
    """Wait for a file."""
    while not path.exists():  # noqa: ASYNC110  # another process makes it
        await asyncio.sleep(0.01)


async def ask(reached: Callable[[], object], what: str, running: Running | None = None) -> None:
    """Wait until something is so.

    Raises:
        TimeoutError: It does not happen.
    """
    end = time.monotonic() + PATIENCE
    while not reached():
        if time.monotonic() > end or (running is not None and not running.alive and not reached()):
            raise TimeoutError(f"waited in vain for {what}: {running.log[-10:] if running is not None else ''}")
        await asyncio.sleep(0.01)
