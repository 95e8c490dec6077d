"""The messages of oslo.messaging's rabbit driver: its calls and notifications, and the exchanges and queues for them."""

from __future__ import annotations

import json
import math
import time
import uuid
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from redpoll.bus.engines.amqp.foreign.dialect import PAYLOADS, Request, expiration, failure_of, refuse
from redpoll.bus.engines.amqp.foreign.messages import DEFAULT, Exchange, Message, Queue
from redpoll.bus.engines.amqp.wire import Properties
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind
from redpoll.bus.failures import Failure
from redpoll.checks import flag, require
from redpoll.errors import BadPayload, EncodeError

__all__ = ["Oslo"]

_VERSION: Final = "oslo.version"
_MESSAGE: Final = "oslo.message"
_CONTEXT: Final = "_context_"
#: Milliseconds that queues of replies and of messages to all servers are kept without a consumer.
_EXPIRES: Final = 1_800_000
_PERSISTENT: Final = 2
#: Maximum bytes of a body that came compressed.
_LARGEST: Final = 64 * 2**20
_GZIP: Final = "application/x-gzip"

# The fields of calls and of streams beside their arguments, and those of notifications: see `redpoll.bus.rpc.server` and
# `redpoll.bus.notifications.records`.
_FIELDS: Final = {"m": "method", "n": "namespace", "v": "version"}
_MONITOR: Final = "b"
#: Errors of the server itself, which oslo.messaging's clients know by their module.
_DISPATCHER: Final = "oslo_messaging.rpc.dispatcher"
_UNKNOWN: Final = frozenset({"NoSuchMethod", "UnsupportedVersion"})
#: The sign of life in a reply that is not the last.
_BEAT: Final = Envelope("raw", b"")


class Oslo:
    """See `Dialect`.

    Args:
        exchange: The exchange of targets that name none: oslo.messaging's `control_exchange`.
        durable: As its `amqp_durable_queues`.
        quorum: As its `rabbit_quorum_queue`, which means durable too.

    Raises:
        ConfigError: An option cannot be.
    """

    name = "oslo"

    def __init__(self, *, exchange: str = "openstack", durable: bool = False, quorum: bool = False) -> None:
        require("durable", durable, flag)
        require("quorum", quorum, flag)
        self._exchange = exchange
        self._durable = durable or quorum
        self._arguments = {"x-queue-type": "quorum"} if quorum else {}

    def queue(self, name: str) -> Queue:
        """Return oslo.messaging's queue for a topic, for one server of it, or for notifications."""
        exchange, key, pool = self._address(name)
        return Queue(pool or key, ((exchange, key),), self._durable, arguments=self._arguments)

    def events(self, pattern: str) -> Queue | None:
        """Return a queue for messages to all servers of a topic."""
        word, _, title = pattern.partition(".")
        if word != "rpc":
            return None
        # Its name is this program's own, and so is the queue.
        return Queue("", ((_fanout(title), ""),), exclusive=True)

    def replies(self, unique: str) -> Queue:
        """Return a queue for replies, which come by the default exchange."""
        return Queue(f"reply_{unique}", durable=True, arguments={"x-expires": _EXPIRES})

    def write(self, target: str, request: Request) -> Message:
        """Translate a call, a cast, a message to all servers, or a notification."""
        envelope = request.envelope
        meta = envelope.meta or {}
        if request.subject.startswith("notifications."):
            exchange, key = self._topic(), request.subject.partition(".")[2]
            message = _notification(envelope, meta)
        else:
            if request.subject:
                word, _, title = request.subject.partition(".")
                if word != "rpc":
                    raise refuse(self.name, "broadcasts", "send to all servers of a topic: bus.rpc.fanout()")
                exchange, key = _fanout(title), ""
            else:
                exchange, key, _ = self._address(target)
            message = _call(self.name, envelope, meta)
            if request.wanted and not request.subject:
                beat = meta.get(_MONITOR)
                message |= {"_msg_id": request.id, "_reply_q": request.reply_to}
                message["_timeout"] = None if beat is None else math.ceil(beat)
        message |= {f"{_CONTEXT}{name}": each for name, each in (envelope.headers or {}).items()}
        return Message(exchange, key, self._pack(message), _properties(request.ttl))

    def read(self, target: str, body: bytes, properties: Properties) -> Request:
        """Translate a call, a cast, a message to all servers, or a notification."""
        message = self._unpack(body, properties)
        headers = {
            name.removeprefix(_CONTEXT): message.pop(name) for name in list(message) if name.startswith(_CONTEXT)
        }
        if "event_type" in message:
            meta, value = _notified(message)
        else:
            method, value = message.get("method"), message.get("args") or {}
            if not isinstance(method, str) or not isinstance(value, dict):
                raise BadPayload(self.name, "not a call")
            meta = {short: message[name] for short, name in _FIELDS.items() if message.get(name) is not None}
            if message.get("_timeout"):
                meta[_MONITOR] = message["_timeout"]
        found, reply_to = (str(message.get(name) or "") for name in ("_msg_id", "_reply_q"))
        envelope = self._envelope(value, meta, headers or None)
        subject = "" if ":" in target else target
        return Request(envelope, found, reply_to, None, subject, bool(found and reply_to))

    def write_reply(self, target: str, request: Request, reply: Outcome | Envelope) -> Message | None:  # noqa: ARG002
        """Translate a result or an exception; and a sign of life."""
        message: dict[str, Any] = {"result": None, "failure": None, "ending": True, "_msg_id": request.id}
        if isinstance(reply, Envelope):
            message["ending"] = False
        elif reply.kind is not OutcomeKind.RESULT:
            message["failure"] = _written(failure_of(reply))
        elif reply.envelope is not None:
            message["result"] = PAYLOADS.unpack(reply.envelope)
        return Message(DEFAULT, request.reply_to, self._pack(message), _properties())

    def read_reply(self, body: bytes, properties: Properties) -> tuple[str, Outcome | Envelope]:
        """Translate a reply, or a sign of life."""
        message = self._unpack(body, properties)
        found = message.get("_msg_id")
        if not isinstance(found, str):
            raise BadPayload(self.name, "not a reply")
        if message.get("failure"):
            return found, Outcome(OutcomeKind.ERROR, _read(message["failure"]).pack())
        if not message.get("ending") and message.get("result") is None:
            return found, _BEAT
        return found, Outcome(OutcomeKind.RESULT, self._envelope(message.get("result")))

    # -- names

    def _topic(self, name: str | None = None) -> Exchange:
        return Exchange(name or self._exchange, "topic", self._durable)

    def _address(self, name: str) -> tuple[Exchange, str, str]:
        """Return the exchange, the routing key and the pool of listeners of a queue."""
        prefix, _, title = name.partition(":")
        scope = None
        if title.startswith("/"):
            scope, _, title = title[1:].partition("/")
        title, _, behind = title.partition(".@")
        if prefix == "rpc":
            return self._topic(scope), f"{title}.{behind}" if behind else title, ""
        if prefix == "notifications":
            return self._topic(), title, behind
        what = f"{prefix} queues" if title else "tasks"
        raise refuse(self.name, what, "oslo.messaging has calls and notifications")

    # -- bodies

    def _pack(self, message: Mapping[str, Any]) -> bytes:
        try:
            text = json.dumps({**message, "_unique_id": uuid.uuid4().hex})
        except (TypeError, ValueError, RecursionError) as error:
            raise EncodeError(self.name, str(error), "oslo.messaging carries what JSON does") from error
        return json.dumps({_VERSION: "2.0", _MESSAGE: text}).encode()

    def _unpack(self, body: bytes, properties: Properties) -> dict[str, Any]:
        if (properties.headers or {}).get("compression") == _GZIP:
            unpacker = zlib.decompressobj()
            try:
                body = unpacker.decompress(body, _LARGEST)
            except zlib.error as error:
                raise BadPayload(self.name, f"cannot be decompressed: {error}") from error
            if not unpacker.eof:
                raise BadPayload(self.name, f"truncated, or more than {_LARGEST} bytes")
        try:
            message = json.loads(body)
            if isinstance(message, dict) and _VERSION in message and _MESSAGE in message:
                if not str(message[_VERSION]).startswith("2."):
                    raise BadPayload(self.name, f"version {message[_VERSION]!r} of its envelope: expected 2.0")
                message = json.loads(message[_MESSAGE])
        except (TypeError, ValueError, RecursionError) as error:
            raise BadPayload(self.name, str(error)) from error
        if not isinstance(message, dict):
            raise BadPayload(self.name, "not a message")
        return message

    def _envelope(
        self, value: Any, meta: Mapping[str, Any] | None = None, headers: Mapping[str, Any] | None = None
    ) -> Envelope:
        try:
            return PAYLOADS.pack(value, meta, headers)
        except EncodeError as error:
            raise BadPayload(self.name, error.problem) from error


def _fanout(title: str) -> Exchange:
    """Return the exchange of messages to all servers of a topic; oslo.messaging's names no exchange of targets."""
    topic = title.rpartition("/")[2]
    return Exchange(f"{topic}_fanout", "fanout", auto_delete=True)


def _properties(ttl: float | None = None) -> Properties:
    # As kombu has them.
    return Properties("application/json", "utf-8", {}, _PERSISTENT, 0, expiration=expiration(ttl))


def _call(library: str, envelope: Envelope, meta: Mapping[str, Any]) -> dict[str, Any]:
    args = PAYLOADS.unpack(envelope)
    if "m" not in meta or not isinstance(args, Mapping):
        raise refuse(library, "messages to functions", "name a method, and pass its keywords")
    if meta.keys() - _FIELDS.keys() - {_MONITOR}:
        raise refuse(library, "streams", "ask for pages by several calls")
    return {"args": args, **{name: meta[short] for short, name in _FIELDS.items() if short in meta}}


def _notification(envelope: Envelope, meta: Mapping[str, Any]) -> dict[str, Any]:
    if meta.get("gzip"):
        envelope = envelope._replace(body=zlib.decompress(envelope.body, 31))
    when = datetime.fromtimestamp(meta.get("time", time.time()), UTC).replace(tzinfo=None)
    return {
        "message_id": meta.get("id"),
        "publisher_id": meta.get("publisher"),
        "event_type": meta.get("event"),
        "priority": str(meta.get("priority")).upper(),
        "payload": PAYLOADS.unpack(envelope),
        "timestamp": str(when),
    }


def _notified(message: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the fields and the payload of a notification."""
    try:
        when = datetime.fromisoformat(str(message.get("timestamp"))).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        when = time.time()
    meta = {
        "id": str(message.get("message_id")),
        "publisher": str(message.get("publisher_id")),
        "event": str(message.get("event_type")),
        "priority": str(message.get("priority")).lower(),
        "time": when,
    }
    return meta, message.get("payload")


def _written(failure: Failure) -> str:
    """Return an exception as oslo.messaging serializes it."""
    text, trace = failure.text, failure.traceback or ""
    fields: dict[str, Any] = {
        "class": failure.kind,
        "module": _DISPATCHER if not failure.module and failure.kind in _UNKNOWN else failure.module,
        "message": text,
        "tb": trace.splitlines(keepends=True),
        "args": [text] if failure.args is None else failure.args,
        "kwargs": {},
    }
    return json.dumps(fields, default=str)


def _read(text: Any) -> Failure:
    """Read an exception as oslo.messaging serializes it."""
    try:
        match json.loads(text):
            case {"class": str() as kind, "message": str() as said, **others}:
                trace, args = others.get("tb"), others.get("args")
                kept = args if isinstance(args, list) and not others.get("kwargs") else None
                shown = "".join(map(str, trace)) if isinstance(trace, list) else None
                return Failure(str(others.get("module") or ""), kind, said, kept, shown or None)
    except (TypeError, ValueError, RecursionError):
        pass
    return Failure("", "unknown", "its failure cannot be read")
