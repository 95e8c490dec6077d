"""What the tests of patterns share: a bus in virtual time, and something to call."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import redpoll
from redpoll.bus import Bus
from redpoll.testing import VirtualTime

#: Seconds that a thread may need on a busy machine.
PATIENCE = 20.0


@asynccontextmanager
async def bus_in_virtual_time(**options: Any) -> AsyncIterator[tuple[Bus, VirtualTime]]:
    """A bus on the memory engine, and its clock."""
    clock = VirtualTime()
    async with redpoll.connect("memory://", clock=clock, **options) as bus:
        yield bus, clock


async def until(reached: Callable[[], object]) -> None:
    """Let the loop turn until something is so, which may be up to a thread that gets no time on a busy machine."""
    end = time.monotonic() + PATIENCE
    for turn in itertools.count():
        if reached():
            return
        if turn > 100_000 and time.monotonic() > end:
            raise AssertionError("it did not happen")
        await asyncio.sleep(0)


class Server:
    """An endpoint that remembers what it was called with."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.seen: list[Any] = []
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cancelled = False

    async def append(self, text: str) -> str:
        """Note a text."""
        self.seen.append(text)
        return self.name

    async def echo(self, value: Any) -> Any:
        """Give back a value."""
        return value

    async def subtract(self, a: int, b: int) -> int:
        """Take one number from another that is not less."""
        if b > a:
            raise ValueError("less than nothing")
        return a - b

    async def wait(self) -> str:
        """Wait until the test lets it go on."""
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return "went on"
