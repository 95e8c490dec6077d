"""Virtual time for a bus on the memory engine: retries, times to live and schedules are tested without sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from redpoll.errors import ConfigError

__all__ = ["VirtualTime", "VirtualTimer"]

#: Turns of the loop after which the consequences of a moment are expected to be over.
_TURNS = 20

#: Seconds for a loop in another thread to take these turns.
_PATIENCE = 1.0


class VirtualTimer:
    """A scheduled call."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback
        self.loop = asyncio.get_running_loop()

    def cancel(self) -> None:
        """Cancel the call."""
        self.callback = None


class VirtualTime:
    """A clock that stands still until it is advanced: ``connect("memory://", clock=VirtualTime())``.

    It may be the clock of buses on several loops, in several threads; each is called on its own.

    The engine's times, and those of the patterns on it, are in this time: delays, times to live, deadlines, back-off, time
    limits. The event loop's own time continues: `asyncio.sleep` sleeps.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._numbers = count()
        self._timers: list[tuple[float, int, VirtualTimer]] = []
        self._loops: set[asyncio.AbstractEventLoop] = set()

    def __repr__(self) -> str:
        return f"<VirtualTime {self._now:g} s>"

    def time(self) -> float:
        """The time, in seconds; it begins with 0."""
        return self._now

    def call_at(self, when: float, callback: Callable[[], object], /) -> VirtualTimer:
        """Call a function at a time, when `advance` reaches it."""
        timer = VirtualTimer(callback)
        self._loops.add(timer.loop)
        heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    async def advance(self, seconds: float) -> None:
        """Advance the time; carry out what comes due, one moment after the other.

        After each moment the loop gets some turns, so that what it set off can happen before the next one.

        Args:
            seconds: How much, 0 or more.

        Raises:
            ConfigError: Time does not go backwards.

        Cancelling it leaves the time where it is.
        """
        if not seconds >= 0:
            raise ConfigError("seconds", seconds, "is no time that can go by")
        end = self._now + seconds
        await self._settle()
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heappop(self._timers)
            if timer.callback is not None:
                self._now = max(self._now, when)
                await self._on(timer.loop, timer)
                await self._settle()
        # Another task may have advanced it further.
        self._now = max(self._now, end)

    async def _settle(self) -> None:
        for loop in tuple(self._loops):
            await self._on(loop)
        await _turns()

    async def _on(self, loop: asyncio.AbstractEventLoop, timer: VirtualTimer | None = None) -> None:
        """Call functions that are due on a loop, perhaps in another thread, and let the loop have some turns."""
        if loop is asyncio.get_running_loop():
            if timer is not None and timer.callback is not None:
                timer.callback()
        elif loop.is_closed():
            self._loops.discard(loop)
        else:
            turns = _turns(timer)
            try:
                there = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(turns, loop))
            except RuntimeError:  # closed just now
                turns.close()
            else:
                # The loop may end meanwhile, and would never answer.
                await asyncio.wait([there], timeout=_PATIENCE)


async def _turns(timer: VirtualTimer | None = None) -> None:
    if timer is not None and timer.callback is not None:
        timer.callback()
    for _ in range(_TURNS):
        await asyncio.sleep(0)
