"""The last step of `redpoll demo`: tasks over a hub, with a worker that is killed meanwhile."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from redpoll.bus import Handle, connect
from redpoll.errors import RedpollError

from .child import Program
from .measure import Measurement

__all__ = ["AT_ONCE", "PATIENCE", "QUEUE", "Account", "lose_a_worker"]

QUEUE: Final = "demo"
"""The queue of the tasks."""

AT_ONCE: Final = 4
"""Tasks that a worker has at a time."""

PATIENCE: Final = 60.0
"""Seconds for a program to start, a hub to answer, a message to be confirmed, a task to have its outcome, under load."""


@dataclass(frozen=True, slots=True)
class Account:
    """The outcomes of the tasks.

    Attributes:
        submitted: Tasks that were confirmed to their submitter.
        results: Tasks with the correct result.
        outcomes: Outcomes that the hub recorded.
        begun_again: Tasks of the killed worker that another worker did.
    """

    submitted: int
    results: int
    outcomes: int
    begun_again: int

    @property
    def exact(self) -> bool:
        """True if each task has exactly one outcome, the correct one."""
        return self.submitted == self.results == self.outcomes


async def lose_a_worker(folder: str, tasks: int) -> tuple[Measurement, Account]:
    """Do tasks over a hub with two workers, one of which is killed when a third of the tasks are done.

    Args:
        folder: The folder of the hub.
        tasks: How many.

    Returns:
        The measurement, and the outcomes of the tasks.

    Raises:
        ChildError: A program did not start.
    """
    async with AsyncExitStack() as stack:
        _, hub = await Program.listening(stack, "hub", "--data", folder, "--port", "0")
        url = str(hub["url"])
        workers = [Program("worker", "redpoll.cli.demo_worker", url) for _ in range(2)]
        for worker in workers:
            await stack.enter_async_context(worker)
        for worker in workers:
            await worker.event("working", timeout=PATIENCE)
        bus = await stack.enter_async_context(connect(url, connect_timeout=PATIENCE))
        started = time.perf_counter()
        handles = await asyncio.gather(*(bus.tasks.submit(number, queue=QUEUE) for number in range(tasks)))
        answers = [asyncio.ensure_future(_answer(handle)) for handle in handles]
        await asyncio.gather(*answers[: tasks // 3])
        await workers[0].kill()
        found = await asyncio.gather(*answers)
        elapsed = time.perf_counter() - started
        info = await bus.queues.inspect(QUEUE)
    right = [attempt for number, (result, attempt) in enumerate(found) if result == number**2]
    account = Account(tasks, len(right), info.done, sum(attempt > 1 for attempt in right))
    work = f"tasks, {len(workers)} workers"
    return Measurement(work, len(right), elapsed, (), AT_ONCE, tasks - len(right)), account


async def _answer(handle: Handle) -> tuple[int, int]:
    try:
        result, attempt = await handle.result(PATIENCE)
    except (RedpollError, TimeoutError):
        return -1, 0
    return int(result), int(attempt)
