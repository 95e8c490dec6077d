"""A consumer that comes back: where its queue was deleted, it begins again when the queue is there again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Self

from redpoll.bus.awaitables import sleep
from redpoll.bus.engine import Clock, Consumer
from redpoll.errors import Closed, RedpollError

__all__ = ["LastingConsumer"]

_log = logging.getLogger("redpoll.bus")

#: Seconds between two looks whether the queue is there again.
_PAUSE: Final = 1.0


class LastingConsumer:
    """Takes tasks by a sink until it is closed. While its queue is not there, it is not active, and looks for it.

    Args:
        clock: The engine's.
        queue: Name of the queue.
        begin: Begins to consume, by a sink.
        again: Does so after the queue was deleted; None is the same.
    """

    def __init__(
        self,
        clock: Clock,
        queue: str,
        begin: Callable[[], Awaitable[Consumer]],
        again: Callable[[], Awaitable[Consumer]] | None = None,
    ) -> None:
        self._clock = clock
        self._queue = queue
        self._begin = begin
        self._again = again or begin
        self._consumer: Consumer
        self._credit: int | None = None
        self._runner: asyncio.Task[None]

    @property
    def active(self) -> bool:
        """Whether the engine really hands out to it."""
        return self._consumer.active

    async def open(self) -> Self:
        """Begin.

        Raises:
            RedpollError: As `Engine.consume` does.
        """
        self._consumer = await self._begin()
        self._runner = asyncio.get_running_loop().create_task(self._last())
        return self

    def set_credit(self, credit: int) -> None:
        """Set how many deliveries may be open at a time; it holds for a queue that comes back too."""
        self._credit = credit
        if self._consumer.active:
            self._consumer.set_credit(credit)

    async def close(self) -> None:
        """Take no more."""
        self._runner.cancel()
        await self._consumer.close()
        await asyncio.wait([self._runner])

    async def _last(self) -> None:
        while True:
            try:
                # All that comes goes to the sink: this waits for the end alone.
                await self._consumer.__anext__()
            except (StopAsyncIteration, Closed):
                return
            except RedpollError as error:
                _log.warning("nothing is taken from queue %r until it is there again: %s", self._queue, error)
                try:
                    await self._return()
                except Closed:
                    return
                _log.info("queue %r is there again", self._queue)

    async def _return(self) -> None:
        while True:
            try:
                consumer = await self._again()
            except Closed:
                raise
            except RedpollError as error:
                _log.debug("queue %r is not there again: %s", self._queue, error)
                await sleep(self._clock, _PAUSE)
            else:
                self._consumer = consumer
                if self._credit is not None:
                    consumer.set_credit(self._credit)
                return
