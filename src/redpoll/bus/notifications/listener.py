"""Listeners: they receive notifications one by one or in batches, filtered, one listener of each pool."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from redpoll.bus.awaitables import is_cancelled, unexpected
from redpoll.bus.context import CURRENT, Context
from redpoll.bus.engine import Delivery, Engine, Timer
from redpoll.bus.envelope import Outcome, OutcomeKind, Payloads
from redpoll.bus.failures import pack_failure
from redpoll.bus.lasting import LastingConsumer
from redpoll.bus.notifications.records import (
    PRIORITIES,
    Notification,
    NotificationFilter,
    NotificationOptions,
    NotificationResult,
    NotificationStats,
    queue_spec,
    unpack,
)
from redpoll.bus.service import ProgramEnds, Service, Source
from redpoll.checks import is_async
from redpoll.errors import BadPayload, ConfigError
from redpoll.node.reports import Repeated

__all__ = ["Listener"]

_log = logging.getLogger("redpoll.bus.notifications")

_new: Final = tuple.__new__

_REQUEUE_DELAY: Final = 1.0


class _Handler(NamedTuple):
    function: Callable[[Any], Any]
    wants: NotificationFilter | None
    in_thread: bool


class Listener(Service):
    """Receives notifications. Made by ``bus.notifications.listen``; one in work at its end is delivered again.

    `redpoll.bus.Listener` is something else: the protocol by which an engine reports changes of a task to its worker.

    Args:
        engine: The engine.
        payloads: The serializers.
        options: The options of notifications.
        endpoints: The endpoints, in order.
        topics: The topics.
        pool: Its pool; None is the group of all that have none.
        requeue: Deliver again what fails, or what an endpoint gives back.
        concurrency: Maximum running handlers per queue.
        batch: Maximum size of a batch; None is one by one.
        batch_timeout: Seconds after which a batch is handed over.
        drain: Seconds for running handlers to end.
        running: The set that it is in while it runs, for its owner.

    Attributes:
        stats: The statistics.
    """

    def __init__(
        self,
        engine: Engine,
        payloads: Payloads,
        options: NotificationOptions,
        endpoints: Sequence[object],
        *,
        topics: tuple[str, ...],
        pool: str | None,
        requeue: bool,
        concurrency: int,
        batch: int | None,
        batch_timeout: float,
        drain: float | None,
        running: set[Service],
    ) -> None:
        super().__init__(concurrency, drain, running)
        self.stats = NotificationStats()
        self._engine = engine
        self._payloads = payloads
        self._options = options
        self._topics = topics
        self._pool = pool
        self._requeue = requeue
        self._size = batch
        self._timeout = batch_timeout
        self._handlers = _handlers(endpoints)
        self._batches: dict[str, list[Delivery]] = {name: [] for name in self._handlers}
        self._timers: dict[str, Timer] = {}
        self._failures = Repeated(_log_failed)
        self._unreadable = Repeated(_log_unreadable)

    def __repr__(self) -> str:
        return f"<Listener to {', '.join(self._topics)}{f' of pool {self._pool}' if self._pool else ''}>"

    async def _open(self, sources: list[Source]) -> None:
        credit, take = self.concurrency, self._take
        if self._size is not None:
            credit, take = self._size * credit, self._collect
        for topic in self._topics:
            for priority in self._handlers:
                spec = queue_spec(self._options, topic, priority, self._pool)
                # One that waits for its batch would be given back.
                options = {"credit": credit, "sink": partial(take, priority), "prefetch": self._size is None}
                sources.append(await LastingConsumer.declared(self._engine, spec, **options))

    def _stopping(self) -> None:
        for priority, waiting in self._batches.items():
            self._fire(priority, waiting)
        self._failures.close()
        self._unreadable.close()

    # -- one by one, or many

    def _take(self, priority: str, delivery: Delivery) -> None:
        self._work(_priority_of(delivery, priority), [delivery])

    def _collect(self, priority: str, delivery: Delivery) -> None:
        priority = _priority_of(delivery, priority)
        waiting = self._batches.setdefault(priority, [])
        waiting.append(delivery)
        if len(waiting) >= (self._size or 1):
            self._fire(priority, waiting)
        elif len(waiting) == 1:
            clock = self._engine.clock
            self._timers[priority] = clock.call_at(clock.time() + self._timeout, partial(self._fire, priority, waiting))

    def _fire(self, priority: str, waiting: list[Delivery]) -> None:
        timer = self._timers.pop(priority, None)
        if timer is not None:
            timer.cancel()
        if waiting:
            batch, waiting[:] = waiting[:], []
            self._work(priority, batch)

    def _work(self, priority: str, batch: list[Delivery]) -> None:
        holder: list[asyncio.Task[None] | None] = [None]
        holder[0] = self._begin(self._handle(priority, batch, holder), batch)

    def _unbegun(self, item: list[Delivery]) -> None:
        for delivery in item:
            delivery.reject(reason="its listener was stopped")

    async def _handle(self, priority: str, batch: list[Delivery], holder: list[asyncio.Task[None] | None]) -> None:
        read: list[tuple[Delivery, Notification]] = []
        try:
            for delivery in batch:
                notification = self._read(delivery) if delivery.begin() else None
                if notification is not None:
                    read.append((delivery, notification))
            try:
                requeue = await self._offer(priority, [each for _, each in read])
            except GeneratorExit as error:
                problem = unexpected(error, holder[0])
                self._failures.note((len(read), priority, problem))
                self._fail(read, problem)
            except ProgramEnds as error:
                for delivery, _ in read:
                    delivery.reject(delay=_REQUEUE_DELAY, reason=str(error))
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # a handler may raise anything
                if isinstance(error, asyncio.CancelledError) and is_cancelled():
                    for delivery, _ in read:
                        delivery.reject(reason="its listener was stopped")
                    return
                self._failures.note((len(read), priority, error))
                self._fail(read, error)
            else:
                self._done(priority, read, requeue=requeue)
        finally:
            self._ended(holder[0])

    def _read(self, delivery: Delivery) -> Notification | None:
        try:
            limit = self._engine.capabilities.max_body
            return unpack(self._payloads, delivery.envelope, delivery.attempt, limit)
        except BadPayload as error:
            self._unreadable.note(error)
            self.stats.failed += 1
            # Nobody here can: it is kept as a dead letter.
            delivery.reject(requeue=False, reason=str(error))
            return None

    async def _offer(self, priority: str, notifications: list[Notification]) -> bool:
        """Hand notifications to all endpoints that want them; return True if one gave them back."""
        for handler in self._handlers.get(priority, ()):
            wanted = [each for each in notifications if handler.wants is None or handler.wants.matches(each)]
            if not wanted:
                continue
            if self._size is None:
                CURRENT.set(_new(Context, (wanted[0].headers, None)))
            given: Any = wanted[0] if self._size is None else wanted
            result = self._in_thread(handler.function, given) if handler.in_thread else handler.function(given)
            answer = await self._awaited(result)
            if answer is NotificationResult.REQUEUE and self._requeue:
                return True
        return False

    def _done(self, priority: str, read: list[tuple[Delivery, Notification]], *, requeue: bool) -> None:
        for delivery, _ in read:
            if requeue:
                self.stats.requeued += 1
                delivery.reject(delay=_REQUEUE_DELAY, reason="given back by its listener")
            else:
                self.stats.handled += 1
                self.stats.count(priority)
                delivery.ack()

    def _fail(self, read: list[tuple[Delivery, Notification]], error: BaseException) -> None:
        for delivery, _ in read:
            self.stats.failed += 1
            if self._requeue:
                # Blamed: one that fails again and again becomes a dead letter.
                delivery.reject(delay=_REQUEUE_DELAY, blame=True, reason=f"its listener raised {type(error).__name__}")
            else:
                delivery.ack(Outcome(OutcomeKind.ERROR, pack_failure(error)))


def _priority_of(delivery: Delivery, priority: str) -> str:
    """Return the priority of a notification, since an engine may have one queue for those of a pool."""
    told = (delivery.envelope.meta or {}).get("priority")
    return told if told in PRIORITIES else priority


def _log_failed(count: int, last: tuple[int, str, BaseException]) -> None:
    number, priority, error = last
    times = "" if count == 1 else f" {count:,} times, the last time"
    _log.error("a listener failed%s with %d of priority %s", times, number, priority, exc_info=error)


def _handlers(endpoints: Sequence[object]) -> dict[str, list[_Handler]]:
    """Return the handlers of each priority that has any."""
    found: dict[str, list[_Handler]] = {}
    for endpoint in endpoints:
        if inspect.isclass(endpoint):
            raise ConfigError("endpoints", endpoint, "is a class", "pass an instance")
        wants = getattr(endpoint, "filter", None)
        if wants is not None and not isinstance(wants, NotificationFilter):
            raise ConfigError("filter", wants, "of an endpoint must be a NotificationFilter")
        for priority in PRIORITIES:
            function = endpoint if inspect.isroutine(endpoint) else getattr(endpoint, priority, None)
            if callable(function):
                handler = _Handler(function, wants, not is_async(function))
                found.setdefault(priority, []).append(handler)
    if not found:
        raise ConfigError("endpoints", endpoints, f"must have methods named like priorities: {', '.join(PRIORITIES)}")
    return found


def _log_unreadable(count: int, last: BadPayload) -> None:
    what = "a notification" if count == 1 else f"{count:,} notifications"
    _log.error("%s cannot be read: %s", what, last)
