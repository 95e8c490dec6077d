"""Notifications of events to their listeners: ``bus.notifications``."""

from redpoll.bus.notifications.listener import Listener
from redpoll.bus.notifications.local import LogNotifier
from redpoll.bus.notifications.notifications import Notifications
from redpoll.bus.notifications.notifier import Notifier, NotifierLike, Route, RoutingNotifier
from redpoll.bus.notifications.producers import ASGIMiddleware, NotificationHandler, WSGIMiddleware
from redpoll.bus.notifications.records import (
    PRIORITIES,
    Notification,
    NotificationFilter,
    NotificationOptions,
    NotificationResult,
    NotificationStats,
    Priority,
)

__all__ = [
    "PRIORITIES",
    "ASGIMiddleware",
    "Listener",
    "LogNotifier",
    "Notification",
    "NotificationFilter",
    "NotificationHandler",
    "NotificationOptions",
    "NotificationResult",
    "NotificationStats",
    "Notifications",
    "Notifier",
    "NotifierLike",
    "Priority",
    "Route",
    "RoutingNotifier",
    "WSGIMiddleware",
]
