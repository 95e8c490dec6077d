"""Envelopes and the properties of RabbitMQ's messages, so that its pages and other programs can read them.

The user's headers are headers; those of redpoll begin with ``redpoll-``. What a table of AMQP does not hold exactly, and what
a header of its name means to RabbitMQ, travels as MessagePack in a header of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from redpoll import serializers
from redpoll.bus.engines.amqp.wire import Properties, carries
from redpoll.bus.envelope import MAX_HEAD, Envelope, Outcome, OutcomeKind, printable
from redpoll.errors import DecodeError, PayloadTooLarge

__all__ = [
    "ATTEMPTS",
    "CANCEL",
    "DEADLINE",
    "EXCLUDED",
    "EXPIRES",
    "HERE",
    "LOST",
    "OUTCOME",
    "PROGRESS",
    "RECORDED",
    "TASK",
    "TELL",
    "death",
    "envelope_of",
    "headers_of",
    "outcome_of",
    "outcome_properties",
    "properties_of",
]

#: The types of messages (the property ``type``).
TASK: Final = "redpoll.task"
OUTCOME: Final = "redpoll.outcome"
PROGRESS: Final = "redpoll.progress"
TELL: Final = "redpoll.tell"
CANCEL: Final = "redpoll.cancel"
#: A worker's answer to what was said to all consumers of a queue.
HERE: Final = "redpoll.here"
#: The rest of a task that was accepted, once its worker is gone.
LOST: Final = "redpoll.lost"

#: Hand-outs before it was published anew.
ATTEMPTS: Final = "redpoll-attempts"
#: Seconds that it may take, from when it is published.
DEADLINE: Final = "redpoll-deadline"
#: The second after which it is not begun, of one that was delayed: in seconds of the epoch.
EXPIRES: Final = "redpoll-expires"
#: Consumers that rejected it.
EXCLUDED: Final = "redpoll-excluded"
#: The queue of a task that has a record at a hub.
RECORDED: Final = "redpoll-recorded"
_META: Final = "redpoll-meta"
_HEADERS: Final = "redpoll-headers"
_KIND: Final = "redpoll-outcome"
_DETAIL: Final = "redpoll-detail"
#: Headers that mean something to RabbitMQ.
_SPECIAL: Final = ("redpoll-", "x-", "CC", "BCC")

_TYPES: Final = {
    "msgpack": "application/msgpack",
    "json": "application/json",
    "raw": "application/octet-stream",
    "buffer": "application/x-redpoll-buffer",
}
_NAMES: Final = {kind: name for name, kind in _TYPES.items()}

_packed: Final = serializers.get("msgpack")


def headers_of(envelope: Envelope) -> dict[str, Any]:
    """Return the headers for the meta and the headers of an envelope.

    Raises:
        PayloadTooLarge: They have more than `MAX_HEAD` bytes.
        EncodeError: They hold what MessagePack does not carry.
    """
    _, _, meta, headers = envelope
    found: dict[str, Any] = {}
    if headers is not None:
        if headers and carries(headers) and not any(name.startswith(_SPECIAL) for name in headers):
            found.update(headers)
        else:
            found[_HEADERS] = bytes(_packed.encode(headers))
    if meta is not None:
        found[_META] = meta if carries(meta) else bytes(_packed.encode(meta))
    if found:
        size = sum(map(_size, found.values()))
        if size > MAX_HEAD:
            raise PayloadTooLarge(size, MAX_HEAD)
    return found


def _size(value: Any) -> int:
    match value:
        case str() | bytes():
            return len(value)
        case dict():
            return sum(len(name) + _size(each) for name, each in value.items())
        case list():
            return sum(map(_size, value))
    return 8


def properties_of(envelope: Envelope, extra: Mapping[str, Any], **fields: Any) -> Properties:
    """Return the properties of a message.

    Args:
        envelope: The envelope.
        extra: More headers.
        **fields: Other properties.
    """
    content_type, _, meta, headers = envelope
    if meta is None and headers is None:
        table: Mapping[str, Any] = extra
    else:
        table = {**headers_of(envelope), **extra}
    return Properties(_TYPES.get(content_type, content_type), None, table or None, **fields)


def _unpacked(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, dict):
        return value
    found = _packed.decode(value) if isinstance(value, bytes) else None
    return found if isinstance(found, dict) else None


def envelope_of(properties: Properties, body: bytes) -> Envelope:
    """Return the envelope of a message, of another program's too.

    Raises:
        DecodeError: Its meta or headers cannot be read.
    """
    kind = properties.content_type
    name = "raw" if kind is None else _NAMES.get(kind, kind)
    table = properties.headers
    if not table:
        return Envelope(name, body)
    meta, packed = table.get(_META), table.get(_HEADERS)
    others = {key: value for key, value in table.items() if not key.startswith(_SPECIAL)}
    return Envelope(
        name,
        body,
        None if meta is None else _unpacked(meta),
        (others or None) if packed is None else _unpacked(packed),
    )


def outcome_properties(outcome: Outcome, task: str, worker: str) -> tuple[Properties, bytes | memoryview]:
    """Return the properties and the body of the message that tells an outcome.

    Args:
        outcome: The outcome.
        task: The task's id.
        worker: The inbox of the worker; "" is none.
    """
    kind, envelope, detail = outcome
    extra: dict[str, Any] = {_KIND: int(kind)}
    if detail:
        extra[_DETAIL] = printable(detail)
    fields: dict[str, Any] = {
        "delivery_mode": 1,
        "correlation_id": task,
        "reply_to": worker or None,
        "type": OUTCOME,
    }
    if envelope is None:
        return Properties(None, None, extra, **fields), b""
    return properties_of(envelope, extra, **fields), envelope.body


def outcome_of(properties: Properties, body: bytes) -> Outcome:
    """Return the outcome that a message tells; a reply of another program is a result.

    Raises:
        DecodeError: It cannot be read.
    """
    table = properties.headers or {}
    try:
        kind = OutcomeKind(table.get(_KIND, 0))
    except ValueError as error:
        raise DecodeError("outcome", f"unknown kind {table.get(_KIND)!r}") from error
    empty = properties.content_type is None and not body and _KIND in table
    return Outcome(kind, None if empty else envelope_of(properties, body), str(table.get(_DETAIL, "")))


_DEATHS: Final[Mapping[str, Outcome]] = {
    "expired": Outcome(OutcomeKind.EXPIRED, None, "it was not begun in time"),
    "maxlen": Outcome(OutcomeKind.DEAD, None, "it was dropped for a newer one at the queue's limit"),
    "delivery_limit": Outcome(OutcomeKind.DEAD, None, "it was handed out too often"),
}


def death(properties: Properties) -> Outcome | None:
    """Return the outcome of a task that left its queue otherwise than by a worker; None if it did not."""
    table = properties.headers or {}
    deaths = table.get("x-death")
    if not isinstance(deaths, list) or not deaths or not isinstance(deaths[0], dict):
        return None
    reason = str(deaths[0].get("reason"))
    return _DEATHS.get(reason) or Outcome(OutcomeKind.DEAD, None, f"it became a dead letter: {reason}")
