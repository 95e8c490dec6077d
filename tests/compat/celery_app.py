"""An application of Celery for workers: REDPOLL_TEST_HUB is its hub, REDPOLL_TEST_LOG notes what began."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

import redpoll.compat.celery  # noqa: F401  # it registers the transport and the backend

HUB = os.environ["REDPOLL_TEST_HUB"]
app: Any = Celery("tests", broker=HUB, backend=HUB)
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, broker_connection_retry_on_startup=True)


@app.task  # type: ignore[untyped-decorator]
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@app.task  # type: ignore[untyped-decorator]
def hold(number: int, path: str) -> tuple[int, int]:
    """Note that it began, and end when there is a file."""
    log = Path(os.environ["REDPOLL_TEST_LOG"])
    with log.open("a") as file:
        file.write(f"{number} {os.getppid()}\n")
    while not Path(path).exists():
        time.sleep(0.01)
    return number, os.getppid()
