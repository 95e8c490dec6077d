"""Turns of the event loop: a limit of the actions that begin in each, so that others are not delayed."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Turns"]


class Turns:
    """Limits the number of actions that begin in one turn of the loop, in order.

    Args:
        loop: The loop.
        most: Maximum actions per turn.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self._loop = loop
        self._most = self._left = most
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._counted = False

    async def wait(self) -> None:
        """Wait for a turn with room, usually the current one. Cancelling takes none."""
        if self._left > 0 and not self._waiting:
            self._left -= 1
            if not self._counted:
                self._counted = True
                self._loop.call_soon(self._next)
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _next(self) -> None:
        self._left = self._most
        waiting = self._waiting
        while waiting and self._left > 0:
            waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._left -= 1
        self._counted = self._left < self._most or bool(waiting)
        if self._counted:
            self._loop.call_soon(self._next)
