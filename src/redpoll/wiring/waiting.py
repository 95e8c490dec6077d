"""Tasks that wait: for the same thing, or for a turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["Turns", "Waiters"]


class Waiters:
    """Tasks that wait for the same thing, in order."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, passed_on: Callable[[], object]) -> None:
        """Wait until woken.

        Args:
            passed_on: Called if the task was woken and then cancelled: to wake another one, if there is a reason to.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
            else:
                passed_on()
            raise

    def wake(self) -> bool:
        """Wake the task that has waited longest; return False if none waits."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return True
        return False

    def wake_all(self) -> None:
        """Wake all tasks."""
        while self.wake():
            pass


class Turns:
    """Limits the number of actions that begin in one turn of the loop, in order.

    Args:
        loop: The loop.
        most: Maximum actions per turn.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self._loop = loop
        self._most = self._left = most
        self._waiters = Waiters()
        self._counted = False

    async def wait(self) -> None:
        """Wait for a turn with room, usually the current one. Cancelling takes none."""
        if self._left <= 0 or self._waiters:
            await self._waiters.wait(lambda: None)
            return
        self._left -= 1
        if not self._counted:
            self._counted = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._left = self._most
        while self._left > 0 and self._waiters.wake():
            self._left -= 1
        self._counted = self._left < self._most or bool(self._waiters)
        if self._counted:
            self._loop.call_soon(self._next)
