"""A worker of `redpoll demo`: `python -m redpoll.cli.demo_worker URL` squares numbers until its standard input ends."""

from __future__ import annotations

import asyncio
import sys

from redpoll.bus import Task, connect

from .demo_hub import AT_ONCE, PATIENCE, QUEUE
from .output import Output
from .runtime import Stop
from .serving import stop_at_eof

__all__ = ["main"]


async def _square(task: Task) -> list[int]:
    await asyncio.sleep(0.005)
    return [task.data**2, task.attempt]


async def main(url: str) -> None:
    """Work on the queue of the demo until standard input ends.

    Args:
        url: The URL of the hub.
    """
    stop = Stop()
    async with (
        connect(url, connect_timeout=PATIENCE) as bus,
        bus.tasks.worker(_square, queue=QUEUE, concurrency=AT_ONCE),
    ):
        Output(json=True).event("working", {"url": url})
        await stop_at_eof(stop)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
