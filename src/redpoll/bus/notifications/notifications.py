"""``bus.notifications``: notifiers and listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import EllipsisType

from redpoll.bus.awaitables import close_all
from redpoll.bus.engine import Engine
from redpoll.bus.envelope import Payloads
from redpoll.bus.notifications.listener import Listener
from redpoll.bus.notifications.notifier import Notifier, Outlet, check_retry
from redpoll.bus.notifications.records import NotificationOptions, NotificationStats, check_topic, check_topics
from redpoll.bus.service import Service
from redpoll.checks import integer, optional, require, seconds

__all__ = ["Notifications"]


class Notifications:
    """Events that listeners receive at least once: ``bus.notifications``.

    Args:
        engine: The engine.
        payloads: The serializers.
        options: Their options.

    Attributes:
        options: Their options.
    """

    def __init__(self, engine: Engine, payloads: Payloads, options: NotificationOptions) -> None:
        self.options = options
        self._engine = engine
        self._payloads = payloads
        self._outlet = Outlet(engine, payloads, options)
        self._listeners: set[Service] = set()

    @property
    def stats(self) -> NotificationStats:
        """The statistics of sent notifications; `Listener.stats` are those of received ones."""
        return self._outlet.stats

    @property
    def in_place(self) -> bool:
        """True if all listeners receive notifications, as far as the engine knows."""
        return all(listener.in_place for listener in self._listeners)

    async def close(self, drain: float | None = 0.0) -> None:
        """Send posted notifications, stop all listeners, and wait some seconds for running handlers; for the bus."""
        try:
            await self._outlet.close(drain)
        except asyncio.CancelledError:
            drain = 0.0
            raise
        finally:
            await close_all(listener.close(drain) for listener in tuple(self._listeners))

    def notifier(
        self, publisher: str, *, topics: Sequence[str] | None = None, retry: int | EllipsisType | None = ...
    ) -> Notifier:
        """A notifier: ``notifier = bus.notifier("compute.host-1"); await notifier.info("instance.started", payload)``.

        Args:
            publisher: The publisher.
            topics: The topics; None are those of the options, as for `retry`.
            retry: The number of times one is sent again that was not taken, or not confirmed. None: until its time is over.

        Raises:
            ConfigError: A value cannot be.
        """
        where = self._topics(topics)
        tries = self.options.retry if isinstance(retry, EllipsisType) else retry
        check_retry(tries)
        return Notifier(self._outlet, publisher, where, tries)

    def listen(
        self,
        *endpoints: object,
        topics: Sequence[str] | None = None,
        pool: str | None = None,
        requeue: bool = False,
        concurrency: int = 8,
        batch: int | None = None,
        batch_timeout: float = 1.0,
        drain: float | None = 30.0,
    ) -> Listener:
        """A listener: ``async with bus.notifications.listen(endpoint, topics=["notifications"]): ...``.

        Each notification is handled by one listener of each pool, and by one of those that have none.

        Args:
            *endpoints: Objects with methods named like priorities, which are handed a `Notification`; only these priorities
                are taken. Or functions, which take all. Coroutine functions on the loop, others in threads. All endpoints
                with a `filter` that it matches have it, in order.
            topics: The topics; None are those of the options.
            pool: Name of its pool. A pool gets the notifications that are sent after its first listener started.
            requeue: Let one come again, to all endpoints, if one raises or returns `NotificationResult.REQUEUE`, after a
                second; one that raised ten times becomes a dead letter. Without it, it is logged and done.
            concurrency: Maximum running handlers per queue, each with one or a batch. 1 keeps their order. To short handlers
                without batches a hub sends more ahead, as to a worker with `prefetch`.
            batch: Hand lists of so many to the endpoints, of one priority each.
            batch_timeout: Seconds after the first one, when a list is handed over that is not full.
            drain: Seconds for running handlers to end when its context is left; None is no limit.

        Raises:
            ConfigError: A value cannot be.
        """
        where = self._topics(topics)
        if pool is not None:
            check_topic("pool", pool)
        for name, value, check in (
            ("concurrency", concurrency, integer(1, 2**20)),
            ("batch", batch, optional(integer(1, 2**20))),
            ("batch_timeout", batch_timeout, seconds),
        ):
            require(name, value, check)
        return Listener(
            self._engine,
            self._payloads,
            self.options,
            endpoints,
            topics=where,
            pool=pool,
            requeue=requeue,
            concurrency=concurrency,
            batch=batch,
            batch_timeout=batch_timeout,
            drain=drain,
            running=self._listeners,
        )

    def _topics(self, topics: Sequence[str] | None) -> tuple[str, ...]:
        if topics is None:
            return self.options.topics
        # Text is a sequence of text too, of its letters.
        where = topics if isinstance(topics, str) or not isinstance(topics, Iterable) else tuple(topics)
        return check_topics(where)
