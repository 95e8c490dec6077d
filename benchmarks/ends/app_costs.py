"""The costs of an app beside its tasks: its start, its schedules, and its types. The server end stands by."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import redpoll
from benchmarks.control import Control, Fields, arguments, now
from benchmarks.ends.app_tasks import BROKER, broker, working
from benchmarks.ends.hub_rounds import stand_by
from benchmarks.memory import processor_time

#: Names the number of schedules to a worker.
SCHEDULES = "REDPOLL_BENCHMARK_SCHEDULES"
DAY = 86_400.0
RUN = ["redpoll", "run", "benchmarks.ends.app_costs", "--workers", "1"]


@dataclass
class Place:
    """A part of a record."""

    latitude: float
    longitude: float


@dataclass
class Record:
    """An argument with ten fields."""

    number: int = 7
    name: str = "a name"
    weight: float = 1.5
    active: bool = True
    data: bytes = b"x" * 64
    tags: list[str] = field(default_factory=lambda: ["one", "two"])
    counts: dict[str, int] = field(default_factory=lambda: {"a": 1, "b": 2})
    place: Place = field(default_factory=lambda: Place(1.5, 2.5))
    parent: int | None = None
    note: str | None = "text"


async def nothing() -> None:
    """Do nothing, once a day."""


def make() -> redpoll.App:
    """Make the app of the worker, or of this end."""
    made = redpoll.App(os.environ.get(BROKER))
    for number in range(int(os.environ.get(SCHEDULES, "0"))):
        made.schedule(every=DAY, queue="daily", name=f"daily-{number}")(nothing)
    return made


app = make()


@app.task(queue="first")
async def begun() -> float:
    """Return when it began."""
    return now()


@app.task(queue="typed")
async def store(record: Record) -> None:
    """Take a record."""


def run(url: str, schedules: int = 0) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a worker of the app."""
    os.environ[SCHEDULES] = str(schedules)
    return working(RUN, url)


def children(process: int) -> list[int]:
    """Return the processes that a process has started (Linux only)."""
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


async def start(job: Fields) -> float:
    """Start a worker again and again, for a task that waits for it; return the seconds until that begins."""
    taken = []
    for _ in range(job["count"]):
        handle = await begun.submit()
        started = now()
        with run(app.url):
            taken.append(await handle.result() - started)
    return median(taken)


async def rest(job: Fields) -> float:
    """Return the part of a processor that a worker with schedules takes, its parent and the hub included."""
    with run(app.url, job["count"]) as worker:
        await begun.run()
        # The hub is a child of this process.
        processes = {*children(os.getpid()), *children(worker.pid)}
        await asyncio.sleep(1)
        started, used = now(), sum(map(processor_time, processes))
        await asyncio.sleep(job["seconds"])
        used = sum(map(processor_time, processes)) - used
        return used / (now() - started)


async def convert(job: Fields) -> float:
    """Return the seconds of the processor of one conversion, at the sender and at the worker."""
    record, shape = Record(), store.shape
    assert shape.arguments(shape.to_wire({"record": record})) == {"record": record}
    count: int = job["count"]
    started = time.process_time()
    for _ in range(count):
        shape.arguments(shape.to_wire({"record": record}))
    return (time.process_time() - started) / count


WORK = {"start": start, "rest": rest, "convert": convert}


async def measure(control: Control, options: Fields) -> None:
    """Do each job by its name."""
    with broker({**options, "runs": "hub"}) as app.url:
        async with app:
            control.write(address=None)
            async for job in control.jobs_async():
                control.write(value=await WORK[job["work"]](job))


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    if role == "server":
        control.write(address=None)
        stand_by(control)
    else:
        redpoll.run(measure(control, options))


if __name__ == "__main__":
    main()
