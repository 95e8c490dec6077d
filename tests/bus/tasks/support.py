"""What tests of the tasks share: a bus in virtual time, and waiting for what should happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import redpoll
from redpoll.bus import Bus
from redpoll.testing import VirtualTime

Q = "night"


class Desk(Bus):
    """A bus on the memory engine, with its time."""

    time: VirtualTime


@asynccontextmanager
async def desk(name: str = "", **options: Any) -> AsyncIterator[Desk]:
    """Open a bus in virtual time."""
    time = options.pop("clock", None) or VirtualTime()
    bus = redpoll.connect(f"memory://{name}", clock=time, **options)
    bus.__class__ = Desk
    assert isinstance(bus, Desk)
    bus.time = time
    async with bus:
        yield bus


async def until(reached: Callable[[], object]) -> None:
    """Wait until something is so."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 10
    while not reached():
        assert loop.time() < end, "it did not happen in time"
        await asyncio.sleep(0)


async def turns() -> None:
    """Let what could happen happen."""
    for _ in range(20):
        await asyncio.sleep(0)


async def twice(task: Any) -> Any:
    """A handler."""
    return task.data * 2
