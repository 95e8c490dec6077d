"""A queue from callbacks to iterators, on one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

from redpoll.errors import UsageError
from redpoll.platforms import forks

__all__ = ["Feed", "forked_error"]

T = TypeVar("T")


def forked_error() -> UsageError:
    """Return the error of a bus in a forked child of its process."""
    return UsageError("this bus belongs to the process that forked this one", "connect in the child")


class Feed(Generic[T]):
    """Items in order, for one or several tasks that wait for them. Cancelling a wait loses nothing.

    Args:
        limit: Items at most; one more pushes the oldest out. None: no limit, where the source has one.

    Attributes:
        items: The items that were not taken yet.
        dropped: Items that were pushed out.
    """

    __slots__ = ("_ended", "_error", "_fork", "_limit", "_waiters", "dropped", "items")

    def __init__(self, limit: int | None = None) -> None:
        self.items: deque[T] = deque()
        self.dropped = 0
        self._limit = limit
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._ended = False
        self._error: Exception | None = None
        self._fork = forks.number

    @property
    def ended(self) -> bool:
        """True once nothing more comes."""
        return self._ended

    def push(self, item: T) -> None:
        """Add an item."""
        if self._limit is not None and len(self.items) >= self._limit:
            self.items.popleft()
            self.dropped += 1
        self.items.append(item)
        self._wake()

    def end(self, error: Exception | None = None) -> None:
        """End the iteration, or raise an error there, once it is empty; the first end counts."""
        if not self._ended:
            self._ended = True
            self._error = error
            while self._waiters:
                self._wake()

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def take(self) -> T:
        """Wait for the next item.

        Raises:
            StopAsyncIteration: It ended.
            Exception: It ended with that.
            UsageError: This is a forked child of its process.
        """
        while self._fork != forks.number or not self.items:
            if self._fork != forks.number:
                raise forked_error()
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except BaseException:
                with suppress(ValueError):  # it was woken
                    self._waiters.remove(waiter)
                if waiter.done() and not waiter.cancelled() and self.items:
                    # It was this one's turn: somebody else's now.
                    self._wake()
                raise
        return self.items.popleft()
