"""Notifiers: one publisher, or rules that choose among several."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Generic, Protocol, TypeVar

from redpoll.bus.context import check_headers, inherit
from redpoll.bus.engine import Engine
from redpoll.bus.envelope import Envelope, Payloads
from redpoll.bus.notifications.records import (
    NotificationOptions,
    NotificationStats,
    Priority,
    check_priority,
    pack_fields,
    queue_spec,
    subject_name,
)
from redpoll.bus.tries import Tries
from redpoll.checks import integer, optional, require
from redpoll.errors import NotAuthorized, RedpollError
from redpoll.locks import new_lock
from redpoll.node.reports import Repeated

__all__ = ["Notifier", "NotifierLike", "Outlet", "Priorities", "Route", "RoutingNotifier", "check_retry"]

_log = logging.getLogger("redpoll.bus.notifications")

_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
#: Notifications from other threads that wait to be sent.
_POSTED: Final = 10_000


def check_retry(retry: int | None) -> None:
    """Validate a number of retries.

    Raises:
        ConfigError: It cannot be.
    """
    require("retry", retry, optional(integer(0, 2**31)))


class NotifierLike(Protocol):
    """The interface of notifiers: `Notifier`, `RoutingNotifier`, or one's own."""

    async def notify(
        self, priority: Priority, event: str, payload: Any, *, headers: Mapping[str, Any] | None = None
    ) -> None:
        """Send a notification."""


class Outlet:
    """The sender of all notifications of a bus.

    Args:
        engine: The engine.
        payloads: The serializers.
        options: Their options.

    Attributes:
        payloads: The serializers.
        options: Their options.
        stats: The statistics.
    """

    def __init__(self, engine: Engine, payloads: Payloads, options: NotificationOptions) -> None:
        self.options = options
        self.stats = NotificationStats()
        self._engine = engine
        self.payloads = payloads
        # The subjects whose queues were declared, by topic and priority.
        self._subjects: dict[tuple[str, str], str] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        # How many posted ones are not sent yet; the loop has not seen all of them.
        self._posted = 0
        self._unsent = Repeated(_log_unsent)
        self._lock = new_lock()

    async def send(self, topics: Sequence[str], priority: Priority, envelope: Envelope, retry: int | None) -> None:
        """Send a notification to each topic, in their order."""
        for topic in topics:
            try:
                await self._send(topic, priority, envelope, retry)
            except BaseException:
                self.stats.failed += 1
                raise
            self.stats.sent += 1
            self.stats.count(priority)

    async def _send(self, topic: str, priority: Priority, envelope: Envelope, retry: int | None) -> None:
        clock, left = self._engine.clock, self.options.timeout
        since = clock.time()
        tries = None
        while True:
            try:
                # The queue of those that have no pool is there before the first of them listens: nothing is lost.
                subject = self._subjects.get((topic, priority)) or await self._declare(topic, priority)
                await self._engine.publish(envelope, subject=subject, timeout=left)
            except RedpollError as error:
                if tries is None:
                    # At least once: listeners know a second one by its id.
                    times = (retry, "sending a notification", _PAUSE, _LONGEST_PAUSE)
                    tries = Tries(clock, self.options.timeout, *times, harmless=True)
                    tries.began = since
                if not tries.covers(error):
                    raise
            else:
                return
            await tries.pause()
            left = tries.left()

    async def _declare(self, topic: str, priority: Priority) -> str:
        try:
            await self._engine.declare(queue_spec(self.options, topic, priority))
        except NotAuthorized as error:
            _log.debug("the queue of %s.%s is left to its listeners: %s", topic, priority, error)
        subject = self._subjects[topic, priority] = subject_name(topic, priority)
        return subject

    def post(self, loop: asyncio.AbstractEventLoop, sending: Any) -> None:
        """Send from any thread, without waiting: a coroutine of `Notifier.notify`; what fails is logged."""

        def begin() -> None:
            job = loop.create_task(self._logged(sending))
            self._jobs.add(job)
            job.add_done_callback(end)

        def end(job: asyncio.Task[None]) -> None:
            self._jobs.discard(job)
            with self._lock:
                self._posted -= 1
                self.stats.dropped += job.cancelled()

        with self._lock:
            fits = self._posted < _POSTED
            self._posted += fits
            self.stats.dropped += not fits
        if not fits:
            sending.close()
            return
        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError:  # the loop is closed
            sending.close()
            with self._lock:
                self._posted -= 1
                self.stats.dropped += 1

    async def _logged(self, sending: Any) -> None:
        try:
            await sending
        except RedpollError as error:
            self._unsent.note(error)

    async def close(self, drain: float | None = 0.0) -> None:
        """Wait some seconds until posted notifications were sent; the rest is dropped, and counted."""
        # Posted notifications begin, and those that wait for nothing are sent.
        await asyncio.sleep(0)
        try:
            if self._jobs:
                await asyncio.wait(self._jobs, timeout=drain)
        finally:
            left = tuple(self._jobs)
            for job in left:
                job.cancel()
            if left:
                _log.warning("%d notifications were not sent: their bus was closed", len(left))
                await asyncio.wait(left)
            self._unsent.close()


def _log_unsent(count: int, last: RedpollError) -> None:
    what = "a notification was" if count == 1 else f"{count:,} notifications were"
    _log.warning("%s not sent: %s", what, last)


class Priorities:
    """A method for each priority."""

    async def notify(
        self, priority: Priority, event: str, payload: Any = None, *, headers: Mapping[str, Any] | None = None
    ) -> None:
        """Send a notification."""
        raise NotImplementedError

    def debug(self, event: str, payload: Any = None) -> Coroutine[Any, Any, None]:
        """Send a notification for debugging."""
        return self.notify("debug", event, payload)

    def audit(self, event: str, payload: Any = None) -> Coroutine[Any, Any, None]:
        """Send a notification for accounting."""
        return self.notify("audit", event, payload)

    def info(self, event: str, payload: Any = None) -> Coroutine[Any, Any, None]:
        """Send a notification of a normal event."""
        return self.notify("info", event, payload)

    def warn(self, event: str, payload: Any = None) -> Coroutine[Any, Any, None]:
        """Send a warning."""
        return self.notify("warn", event, payload)

    def error(self, event: str, payload: Any = None) -> Coroutine[Any, Any, None]:
        """Send a notification of an error."""
        return self.notify("error", event, payload)

    def critical(self, event: str, payload: Any = None) -> Coroutine[Any, Any, None]:
        """Send a notification of a critical error."""
        return self.notify("critical", event, payload)

    def sample(self, event: str, payload: Any = None) -> Coroutine[Any, Any, None]:
        """Send a measurement."""
        return self.notify("sample", event, payload)


class Notifier(Priorities):
    """Sends notifications in the name of a publisher. Made by ``bus.notifier``.

    A notification is sent when the queues have it, as surely as the engine can; listeners are not waited for. It is handled
    at least once by each pool of listeners.

    Args:
        outlet: The sender.
        publisher: The publisher: "compute.host-1".
        topics: The topics.
        retry: The number of times one is sent again that was not taken, or not confirmed. None: until its time is over.
    """

    def __init__(self, outlet: Outlet, publisher: str, topics: tuple[str, ...], retry: int | None) -> None:
        self.publisher = publisher
        self.topics = topics
        self._outlet = outlet
        self._retry = retry
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<Notifier {self.publisher!r} to {', '.join(self.topics)}>"

    @property
    def stats(self) -> NotificationStats:
        """The statistics of all notifiers of this bus."""
        return self._outlet.stats

    def prepare(self, *, publisher: str | None = None, retry: int | None = None) -> Notifier:
        """Return a notifier for another publisher, or with other retries; None leaves either.

        Raises:
            ConfigError: The retries cannot be.
        """
        check_retry(retry)
        return Notifier(self._outlet, publisher or self.publisher, self.topics, self._retry if retry is None else retry)

    async def notify(
        self, priority: Priority, event: str, payload: Any = None, *, headers: Mapping[str, Any] | None = None
    ) -> None:
        """Send a notification, to each topic.

        Args:
            priority: One of `PRIORITIES`.
            event: The type of the event.
            payload: The data of the event.
            headers: For listeners, beside those of `use_headers`; only those that the options name are sent.

        Raises:
            ConfigError: There is no such priority.
            EncodeError: The payload cannot be written.
            NotSent: It was not taken in time.
            NotConfirmed: It may have been taken, and no retry is left.
        """
        check_priority(priority)
        if headers is not None:
            check_headers(headers)
        outlet, sent = self._outlet, None
        if outlet.options.headers:
            context = inherit(headers, None)[0] or {}
            sent = {name: context[name] for name in outlet.options.headers if name in context} or None
        fields = os.urandom(16).hex(), self.publisher, event, priority, time.time()
        envelope = pack_fields(outlet.payloads, payload, outlet.options.compress, sent, *fields)
        await outlet.send(self.topics, priority, envelope, self._retry)

    def bind(self) -> Notifier:
        """Bind this notifier to the running loop, for `post` from other threads; return itself."""
        self._loop = asyncio.get_running_loop()
        return self

    def post(self, priority: Priority, event: str, payload: Any = None) -> None:
        """Send from any thread, without waiting; at most 10,000 wait, and what fails is logged."""
        if self._loop is None or self._loop.is_closed():
            self._outlet.stats.dropped += 1
            return
        self._outlet.post(self._loop, self.notify(priority, event, payload))


NotifierT_co = TypeVar("NotifierT_co", covariant=True)


@dataclass(frozen=True)
class Route(Generic[NotifierT_co]):
    """A rule for a notifier. Each field that is given has to match; an event matches one of the patterns."""

    notifier: NotifierT_co
    """The notifier."""
    events: tuple[str, ...] = ()
    """Patterns as those of files: ``compute.*``. None of them: all events."""
    priorities: tuple[Priority, ...] = ()
    """None of them: all priorities."""

    def accepts(self, priority: str, event: str) -> bool:
        """Return True if a notification fits."""
        if self.priorities and priority not in self.priorities:
            return False
        return not self.events or any(fnmatchcase(event, each) for each in self.events)


class RoutingNotifier(Priorities):
    """Sends each notification by all notifiers with rules that it fits; those without rules send everything.

    They may be of several buses. All are tried; then the first error is raised. Without rules and notifiers it drops
    everything.

    Args:
        *routes: Rules, and notifiers.
    """

    def __init__(self, *routes: Route[NotifierLike] | NotifierLike) -> None:
        self._routes = [each if isinstance(each, Route) else Route(each) for each in routes]

    async def notify(
        self, priority: Priority, event: str, payload: Any = None, *, headers: Mapping[str, Any] | None = None
    ) -> None:
        """Send a notification. See `Notifier.notify`."""
        errors: list[Exception] = []
        for route in self._routes:
            if route.accepts(priority, event):
                try:
                    await route.notifier.notify(priority, event, payload, headers=headers)
                except Exception as error:  # noqa: BLE001  # it may be anybody's
                    errors.append(error)
        if errors:
            raise errors[0]
