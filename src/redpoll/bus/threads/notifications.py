"""Notifications, for threads."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from redpoll.blocking.verbs import Attribute, Face, call, maker, verb
from redpoll.bus.notifications.listener import Listener
from redpoll.bus.notifications.notifications import Notifications
from redpoll.bus.notifications.notifier import Notifier, NotifierLike, Priorities, Route, RoutingNotifier
from redpoll.bus.notifications.records import NotificationOptions, NotificationStats, Priority
from redpoll.bus.threads.home import Home, Running
from redpoll.errors import UsageError

__all__ = ["BlockingListener", "BlockingNotifications", "BlockingNotifier", "BlockingRoutingNotifier"]

PrioritiesT = TypeVar("PrioritiesT", bound=Priorities)


class BlockingListener(Running[Listener]):
    """Takes notifications: see `redpoll.bus.notifications.Listener`."""

    stats = Attribute[NotificationStats]()
    """The statistics."""

    start = verb(Listener.start)
    stop = verb(Listener.stop)
    wait = verb(Listener.wait)
    reset = verb(Listener.reset)


class _Priorities(Face[PrioritiesT]):
    """A method for each priority."""

    notify = verb(Priorities.notify)
    debug = verb(Priorities.debug)
    audit = verb(Priorities.audit)
    info = verb(Priorities.info)
    warn = verb(Priorities.warn)
    error = verb(Priorities.error)
    critical = verb(Priorities.critical)
    sample = verb(Priorities.sample)


class BlockingNotifier(_Priorities[Notifier]):
    """Sends notifications in the name of a publisher: see `redpoll.bus.notifications.Notifier`.

    It can be given to `NotificationHandler` and `WSGIMiddleware`, which send by `post`.
    """

    _home: Home

    publisher = Attribute[str]()
    """The publisher."""

    topics = Attribute[tuple[str, ...]]()
    """The topics."""

    stats = Attribute[NotificationStats]()
    """The statistics of all notifiers of this bus."""

    def prepare(self, *, publisher: str | None = None, retry: int | None = None) -> BlockingNotifier:
        """A notifier for another publisher, or with other retries; None leaves either."""
        return BlockingNotifier(self._home, self._target.prepare(publisher=publisher, retry=retry))

    notify = verb(Notifier.notify)

    def bind(self) -> Self:
        """Bind this notifier to the loop, for `post`; return itself."""
        call(self._home, self._target.bind)
        return self

    def post(self, priority: Priority, event: str, payload: Any = None) -> None:
        """Send without waiting; at most 10,000 wait, and what fails is logged."""
        if self._target._loop is None:
            self.bind()
        self._target.post(priority, event, payload)


class BlockingRoutingNotifier(_Priorities[RoutingNotifier]):
    """Sends each notification by all notifiers with rules that it fits: see `redpoll.bus.notifications.RoutingNotifier`.

    It works as long as the bus of its first notifier is open. Those of other buses, and others that are awaited
    (`redpoll.bus.notifications.LogNotifier`), can be among them.

    Args:
        *routes: Rules, and notifiers.

    Raises:
        UsageError: None of them is a notifier of a bus for threads.
    """

    def __init__(self, *routes: Route[NotifierLike | BlockingNotifier] | NotifierLike | BlockingNotifier) -> None:
        homes: list[Home] = []

        def awaited(notifier: Any) -> NotifierLike:
            if isinstance(notifier, BlockingNotifier):
                homes.append(notifier._home)
                return notifier._target
            found: NotifierLike = notifier
            return found

        made: list[Route[NotifierLike]] = [
            Route(awaited(each.notifier), each.events, each.priorities)
            if isinstance(each, Route)
            else Route(awaited(each))
            for each in routes
        ]
        if not homes:
            raise UsageError("none of the notifiers is one of a bus for threads", "pass bus.notifier(...)")
        super().__init__(homes[0], RoutingNotifier(*made))


class BlockingNotifications(Face[Notifications]):
    """Events that listeners receive: see `redpoll.bus.notifications.Notifications`."""

    options = Attribute[NotificationOptions]()
    """Their options."""

    stats = Attribute[NotificationStats]()
    """The statistics of sent notifications."""

    notifier = maker(Notifications.notifier, BlockingNotifier)
    listen = maker(Notifications.listen, BlockingListener)
