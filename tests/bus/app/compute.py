"""An app whose functions run in processes: their children import this module."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from redpoll import GIVEN, App, Retry
from redpoll.bus import QueueSpec, Task

app = App("memory://")

QUEUE = QueueSpec("computing", max_attempts=3)


@dataclass
class Sum:
    """A result."""

    value: int
    process: int


@app.task(queue=QUEUE.name, pool="process")
def add(numbers: list[int], task: Task = GIVEN) -> Sum:
    """Add numbers, and say who does it."""
    task.progress(task.tries)
    return Sum(sum(numbers), os.getpid())


@app.task(queue=QUEUE.name, pool="process", retry=Retry(times=1, on=KeyError, backoff=0.01))
def fail(number: int, task: Task = GIVEN) -> int:
    """Fail, in one way or another."""
    if number == 0:
        raise SystemExit(3)
    if number == 1 and task.tries == 1:
        raise KeyError("again")
    return task.tries


@app.task(queue=QUEUE.name, pool="process")
def die(path: str, task: Task = GIVEN) -> int:
    """Be killed at the first attempt."""
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task.attempt


@app.task(queue=QUEUE.name, pool="process", time_limit=0.5)
def hang() -> None:
    """Go on for longer than it may."""
    while True:
        time.sleep(0.01)


@app.task(queue=QUEUE.name, pool="process")
def strange() -> object:
    """Return what cannot be sent."""
    return lambda: 1
