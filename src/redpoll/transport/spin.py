"""Spinning: an event loop that polls for a little while after each read and write, instead of letting the process sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

__all__ = ["Spin"]


class Spin:
    """Keeps one event loop awake after the last read or write of a node.

    A process that sleeps is woken late, which may take longer than everything else in a round trip.

    Args:
        loop: The event loop of the node.
        microseconds: Time for which it polls.
        clock: Returns the time in seconds; the loop's own may stand still for a turn.
    """

    __slots__ = ("_clock", "_loop", "_polling", "_seconds", "_until")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, microseconds: int, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._loop = loop
        self._seconds = microseconds * 1e-6
        self._clock = clock
        self._polling = False
        self._until = 0.0

    def extend(self) -> None:
        """Poll from now on for the whole time: something was read or written."""
        self._until = self._clock() + self._seconds
        if not self._polling:
            self._polling = True
            self._loop.call_soon(self._poll)

    def stop(self) -> None:
        """Let the loop sleep: the node stopped."""
        self._until = 0.0

    def _poll(self) -> None:
        # A callback that is due keeps the loop from waiting for its sockets.
        if self._clock() < self._until:
            self._loop.call_soon(self._poll)
        else:
            self._polling = False
