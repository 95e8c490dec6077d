"""Notifications, for threads."""

from __future__ import annotations

from typing import Any, Self

from redpoll.blocking.verbs import Face, call, maker, verb
from redpoll.bus.notifications.listener import Listener
from redpoll.bus.notifications.notifications import Notifications
from redpoll.bus.notifications.notifier import Notifier
from redpoll.bus.notifications.records import NotificationOptions, NotificationStats, Priority
from redpoll.bus.threads.home import Home, Running

__all__ = ["BlockingListener", "BlockingNotifications", "BlockingNotifier"]


class BlockingListener(Running[Listener]):
    """Takes notifications: see `redpoll.bus.notifications.Listener`."""

    @property
    def stats(self) -> NotificationStats:
        """What became of them."""
        return self._target.stats

    start = verb(Listener.start)
    stop = verb(Listener.stop)
    wait = verb(Listener.wait)
    reset = verb(Listener.reset)


class BlockingNotifier(Face[Notifier]):
    """Sends notifications in the name of a publisher: see `redpoll.bus.notifications.Notifier`.

    It can be given to `NotificationHandler` and `WSGIMiddleware`, which send by `post`.
    """

    _home: Home

    @property
    def publisher(self) -> str:
        """Who sends them."""
        return self._target.publisher

    @property
    def topics(self) -> tuple[str, ...]:
        """Where to."""
        return self._target.topics

    @property
    def stats(self) -> NotificationStats:
        """What became of what all notifiers of this bus sent."""
        return self._target.stats

    def prepare(self, *, publisher: str | None = None, retry: int | None = None) -> BlockingNotifier:
        """A notifier for another publisher, or with other retries; None leaves either."""
        return BlockingNotifier(self._home, self._target.prepare(publisher=publisher, retry=retry))

    notify = verb(Notifier.notify)
    debug = verb(Notifier.debug)
    audit = verb(Notifier.audit)
    info = verb(Notifier.info)
    warn = verb(Notifier.warn)
    error = verb(Notifier.error)
    critical = verb(Notifier.critical)
    sample = verb(Notifier.sample)

    def bind(self) -> Self:
        """Let this notifier be used by `post`; returns itself."""
        call(self._home, self._target.bind)
        return self

    def post(self, priority: Priority, event: str, payload: Any = None) -> None:
        """Send without waiting; at most 10,000 wait, and what fails is logged."""
        if self._target._loop is None:
            self.bind()
        self._target.post(priority, event, payload)


class BlockingNotifications(Face[Notifications]):
    """Something happened, and whoever wants to know is told: see `redpoll.bus.notifications.Notifications`."""

    @property
    def options(self) -> NotificationOptions:
        """Their options."""
        return self._target.options

    @property
    def stats(self) -> NotificationStats:
        """What became of what was sent here."""
        return self._target.stats

    notifier = maker(Notifications.notifier, BlockingNotifier)
    listen = maker(Notifications.listen, BlockingListener)
