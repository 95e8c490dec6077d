"""What the tests of wiring share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redpoll import Wiring
from redpoll.wiring import Queue
from redpoll.wiring.directory import Directory

#: Seconds that anything may take on a machine that is busy.
PATIENCE = 40.0


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.005)


async def get(queue: Queue | Wiring, count: int) -> list[Any]:
    """Take so many messages."""
    return [await queue.receive(PATIENCE) for _ in range(count)]


def directory(**options: Any) -> Directory:
    """A directory on a free port that needs no grace."""
    return Directory(port=0, lease=0.5, **options)
