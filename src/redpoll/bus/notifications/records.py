"""Plain values of notifications: the record, its filter, its options, its queue and its envelope."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Literal

from redpoll.bus.envelope import Envelope, Payloads
from redpoll.bus.records import AtLimit, QueueSpec, check_subject
from redpoll.checks import Check, flag, integer, one_of, optional, require, seconds
from redpoll.errors import BadPayload, ConfigError

__all__ = [
    "PRIORITIES",
    "QUEUES",
    "Notification",
    "NotificationFilter",
    "NotificationOptions",
    "NotificationResult",
    "NotificationStats",
    "Priority",
    "check_priority",
    "check_topic",
    "check_topics",
    "pack",
    "pack_fields",
    "queue_spec",
    "subject_name",
    "unpack",
]

Priority = Literal["debug", "audit", "info", "warn", "error", "critical", "sample"]

PRIORITIES: Final[tuple[Priority, ...]] = ("debug", "audit", "info", "warn", "error", "critical", "sample")
"""The priorities of notifications; each has a queue of its own, and none comes before another."""

QUEUES: Final = "notifications:"
"""The beginning of the names of their queues."""

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
#: Smaller payloads are not compressed.
_SMALL: Final = 512
#: The format of Python's `gzip`.
_GZIP: Final = 31

# The keys of what a notification says beside its payload.
_ID, _PUBLISHER, _EVENT, _PRIORITY, _TIME, _PACKED = "id", "publisher", "event", "priority", "time", "gzip"
_FIELDS: Final = _ID, _PUBLISHER, _EVENT, _PRIORITY, _TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """Something that happened, as a listener is given it."""

    event: str
    """The type of the event: "instance.started"."""
    payload: Any
    """The data of the event."""
    publisher: str
    """The publisher: "compute.host-1"."""
    priority: Priority
    """The priority."""
    id: str
    """Its own; a notification that comes again has the same."""
    timestamp: float
    """Seconds since the epoch, when it was sent, by the clock there."""
    headers: Mapping[str, Any] = field(default_factory=dict)
    """The headers that may travel along, see `NotificationOptions.headers`."""
    attempt: int = 1
    """Above 1 if listeners were lost with it, or failed."""


class NotificationResult(Enum):
    """The results of a listener; None is `HANDLED`."""

    #: It is done.
    HANDLED = "handled"
    #: It is to come again, to any listener of the group; only where the listener was made with ``requeue=True``.
    REQUEUE = "requeue"


class NotificationFilter:
    """The notifications that an endpoint wants: all fields that are given have to match, from the beginning of each text.

    As the attribute `filter` of an endpoint. A missing value, or one that is no text, does not match.

    Args:
        publisher: A regular expression.
        event: A regular expression.
        payload: Regular expressions by key.
        headers: Regular expressions by key.

    Raises:
        ConfigError: One is no regular expression.
    """

    def __init__(
        self,
        *,
        publisher: str | None = None,
        event: str | None = None,
        payload: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._texts = [
            (name, _pattern(name, text))
            for name, text in (("publisher", publisher), ("event", event))
            if text is not None
        ]
        self._maps = [
            (name, key, _pattern(name, text))
            for name, wanted in (("payload", payload), ("headers", headers))
            for key, text in (wanted or {}).items()
        ]

    def matches(self, notification: Notification) -> bool:
        """Return True if a notification is wanted."""
        if not all(pattern.match(getattr(notification, name)) for name, pattern in self._texts):
            return False
        for name, key, pattern in self._maps:
            found = getattr(notification, name)
            value = found.get(key) if isinstance(found, Mapping) else None
            if not isinstance(value, str) or not pattern.match(value):
                return False
        return True


def _pattern(name: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(name, text, f"is no regular expression: {error}") from error


def _names(value: Any) -> str | None:
    good = isinstance(value, tuple) and all(isinstance(each, str) for each in value)
    return None if good else "must be a tuple of names"


_CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "durable": flag,
        "max_bytes": integer(1, 2**53),
        "at_limit": one_of("wait", "refuse", "drop-old"),
        "ttl": optional(seconds),
        "timeout": optional(seconds),
        "retry": optional(integer(0, 2**31)),
        "compress": flag,
        "headers": _names,
        "url": lambda value: None if value is None or isinstance(value, str) else "must be text",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationOptions:
    """The options of notifications: ``connect(url, notifications=NotificationOptions(durable=False))``. Times are seconds.

    Notifiers and listeners of one topic have the same of those that are a queue's: durable, max_bytes, at_limit, ttl.

    Raises:
        ConfigError: A field has a value that it cannot have.
    """

    url: str | None = None
    """Another engine for notifications. None: that of the bus."""

    topics: tuple[str, ...] = ("notifications",)
    """The topics of notifiers and listeners, unless these say otherwise."""

    durable: bool = True
    """True if they survive a restart of the engine."""

    max_bytes: int = 256 * 2**20
    """Bytes of notifications that wait in each queue at most."""

    at_limit: AtLimit = "drop-old"
    """The fate of one for which there is no room: the oldest ones are dropped, it is refused, or its sender waits."""

    ttl: float | None = None
    """After which one is dropped that no listener took. None: never."""

    timeout: float | None = 60.0
    """Until one is taken by its queues. None: no limit."""

    retry: int | None = None
    """The number of times one is sent again that was not taken, or may not have been. None: until its time is over."""

    compress: bool = False
    """True to compress payloads above 512 bytes, by gzip; every listener reads them."""

    headers: tuple[str, ...] = ()
    """The headers that travel along: all others are kept back, since listeners may be anybody's."""

    def __post_init__(self) -> None:
        """Check every field."""
        for name, check in _CHECKS.items():
            require(name, getattr(self, name), check)
        check_topics(self.topics)


@dataclass(slots=True)
class NotificationStats:
    """The statistics of notifications."""

    sent: int = 0
    """Taken by the queues, once for each topic."""
    failed: int = 0
    """Not sent, or failed in a listener."""
    handled: int = 0
    """Handled by a listener."""
    requeued: int = 0
    """Given back by a listener."""
    dropped: int = 0
    """Number of notifications from other threads that were dropped: too many waited to be sent."""
    by_priority: dict[str, int] = field(default_factory=dict)
    """Sent or handled, by priority."""

    def count(self, priority: str) -> None:
        """Count one more of a priority."""
        self.by_priority[priority] = self.by_priority.get(priority, 0) + 1


def check_priority(priority: str) -> None:
    """Validate a priority.

    Raises:
        ConfigError: There is no such priority.
    """
    if priority not in PRIORITIES:
        raise ConfigError("priority", priority, f"must be one of {', '.join(PRIORITIES)}")


def check_topic(name: str, topic: object) -> None:
    """Check a topic, or a pool.

    Raises:
        ConfigError: It cannot be one.
    """
    check_subject(name, topic)
    if ":" in str(topic) or "@" in str(topic):
        raise ConfigError(name, topic, "must not contain : or @")


def check_topics(topics: Any) -> tuple[str, ...]:
    """Return topics that are a tuple of at least one, each of which can be one.

    Raises:
        ConfigError: They are not.
    """
    require("topics", topics, lambda value: "must not be empty" if value == () else _names(value))
    for topic in topics:
        check_topic("topics", topic)
    return tuple(topics)


def subject_name(topic: str, priority: str) -> str:
    """Return the subject of the notifications of a priority."""
    return f"notifications.{topic}.{priority}"


def queue_spec(options: NotificationOptions, topic: str, priority: str, pool: str | None = None) -> QueueSpec:
    """Return the queue of the listeners of a pool; None is the group of all listeners without a pool."""
    return QueueSpec(
        f"{QUEUES}{topic}.{priority}" + (f".@{pool}" if pool else ""),
        kind="events",
        durable=options.durable,
        max_bytes=options.max_bytes,
        at_limit=options.at_limit,
        ttl=options.ttl,
        topics=(subject_name(topic, priority),),
    )


def pack(payloads: Payloads, notification: Notification, compress: bool) -> Envelope:
    """Put a notification into an envelope."""
    it = notification
    headers = dict(it.headers) or None
    return pack_fields(
        payloads, it.payload, compress, headers, it.id, it.publisher, it.event, it.priority, it.timestamp
    )


def pack_fields(
    payloads: Payloads, payload: Any, compress: bool, headers: dict[str, Any] | None, *fields: str | float
) -> Envelope:
    """Put a payload, with id, publisher, event, priority and timestamp, into an envelope, as `pack` does."""
    meta: dict[str, Any] = dict(zip(_FIELDS, fields, strict=True))
    envelope = payloads.pack(payload, meta, headers)
    if not compress or len(envelope.body) <= _SMALL:
        return envelope
    packer = zlib.compressobj(wbits=_GZIP)
    body = packer.compress(envelope.body) + packer.flush()
    return envelope._replace(body=body, meta={**meta, _PACKED: True}) if len(body) < len(envelope.body) else envelope


def unpack(payloads: Payloads, envelope: Envelope, attempt: int, limit: int) -> Notification:
    """Read the notification in an envelope.

    Args:
        payloads: The serializers.
        envelope: The envelope.
        attempt: The number of the attempt.
        limit: The most bytes that a payload may have when it is not compressed any more.

    Raises:
        BadPayload: It is none, cannot be read, or is larger than the limit.
    """
    meta = envelope.meta or _NOTHING
    if meta.get(_PACKED):
        unpacker = zlib.decompressobj(wbits=_GZIP)
        try:
            body = unpacker.decompress(envelope.body, limit)
        except zlib.error as error:
            raise BadPayload(envelope.content_type, f"cannot be decompressed: {error}") from error
        if not unpacker.eof:
            raise BadPayload(envelope.content_type, f"truncated, or more than {limit} bytes")
        envelope = envelope._replace(body=body)
    match tuple(map(meta.get, _FIELDS)):
        case (str() as id_, str() as publisher, str() as event, str() as priority, int() | float() as time) if (
            priority in PRIORITIES
        ):
            return Notification(
                event=event,
                payload=payloads.unpack(envelope),
                publisher=publisher,
                priority=priority,
                id=id_,
                timestamp=time,
                headers=envelope.headers or _NOTHING,
                attempt=attempt,
            )
    raise BadPayload(envelope.content_type, "not a notification")
