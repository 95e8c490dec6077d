"""A lasting consumer: after its queue was deleted, it begins again once the queue exists again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Self

from redpoll.bus.awaitables import sleep, with_owner
from redpoll.bus.engine import Clock, Consumer, Delivery, Engine
from redpoll.bus.records import QueueSpec
from redpoll.errors import Closed, NoRoute, RedpollError, UsageError

__all__ = ["LastingConsumer"]

_log = logging.getLogger("redpoll.bus")

#: Seconds between two looks whether the queue is there again.
_PAUSE: Final = 1.0


class LastingConsumer:
    """Receives tasks until it is closed: by a sink, or by iterating. While its queue does not exist, it polls for it.

    Args:
        clock: The engine's.
        queue: Name of the queue.
        begin: Begins to consume.
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
        self._closed = asyncio.Event()
        self._order = asyncio.Lock()
        self._runner: asyncio.Task[None] | None = None

    @classmethod
    async def declared(cls, engine: Engine, spec: QueueSpec, **options: Any) -> Self:
        """Begin to consume a queue, which is declared, also each time that it was deleted.

        Args:
            engine: The engine.
            spec: The queue.
            **options: Those of `Engine.consume`.

        Raises:
            RedpollError: As `Engine.declare` and `Engine.consume` do.
        """

        async def begin() -> Consumer:
            await engine.declare(spec)
            try:
                return await engine.consume(spec.name, **options)
            except NoRoute:
                # It was deleted meanwhile; or a hub was restarted, which keeps durable ones alone.
                await engine.declare(spec)
                return await engine.consume(spec.name, **options)

        return await cls(engine.clock, spec.name, begin).open(sink="sink" in options)

    @property
    def active(self) -> bool:
        """True if the engine hands out to it."""
        return self._consumer.active

    async def open(self, *, sink: bool = True) -> Self:
        """Begin.

        Args:
            sink: True if `begin` has a sink. If False, the queue is looked for while the consumer is iterated.

        Raises:
            RedpollError: As `Engine.consume` does.
        """
        self._consumer = await self._begin()
        if sink:
            self._runner = with_owner(asyncio.get_running_loop().create_task(self._last()))
        return self

    def set_credit(self, credit: int) -> None:
        """Set how many deliveries may be open at a time; it holds for a queue that comes back too."""
        self._credit = credit
        # Also while it is not active: one that reconnects comes back with its own credit.
        self._consumer.set_credit(credit)

    async def close(self) -> None:
        """Receive no more."""
        self._closed.set()
        if self._runner is not None:
            self._runner.cancel()
        await self._consumer.close()
        if self._runner is not None:
            await asyncio.wait([self._runner])

    async def _last(self) -> None:
        # All that comes goes to the sink: this waits for the end alone.
        with suppress(StopAsyncIteration, Closed):
            await self.__anext__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """Wait for the next delivery."""
        while True:
            consumer = self._consumer
            try:
                return await consumer.__anext__()
            except (Closed, UsageError):  # a forked child
                raise
            except RedpollError as error:
                async with self._order:
                    # Another one that iterates may have found it.
                    if self._consumer is consumer:
                        await self._return(error)

    async def _return(self, error: RedpollError) -> None:
        _log.warning("consuming queue %r stopped, retrying: %s", self._queue, error)
        while not self._closed.is_set():
            try:
                consumer = await self._again()
            except Closed:
                raise
            except RedpollError as problem:
                _log.debug("consuming queue %r failed again: %s", self._queue, problem)
                await sleep(self._clock, _PAUSE)
            else:
                self._consumer = consumer
                if self._credit is not None:
                    consumer.set_credit(self._credit)
                _log.info("consuming queue %r again", self._queue)
                if self._closed.is_set():
                    await consumer.close()
                return
        raise StopAsyncIteration
