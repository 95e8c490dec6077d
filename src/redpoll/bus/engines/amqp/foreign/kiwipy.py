"""The messages of kiwiPy 0.9: its tasks, calls and broadcasts, and the exchanges and queues for them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from redpoll.bus.engines.amqp.foreign.dialect import PAYLOADS, Request, expiration, failure_of, refuse
from redpoll.bus.engines.amqp.foreign.messages import Exchange, Message, Queue
from redpoll.bus.engines.amqp.wire import Properties
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind
from redpoll.bus.failures import Failure
from redpoll.checks import check_function
from redpoll.errors import BadPayload, ConfigError, EncodeError

__all__ = ["Kiwipy"]

#: Milliseconds that messages wait, and that queues are kept without a consumer: arguments of queues cannot be changed.
_TASK_TTL: Final = 604_800_000
_MESSAGE_TTL: Final = 66_000
_QUEUE_EXPIRES: Final = 60_000

_BROADCAST: Final = "[broadcast]"
_PERSISTENT: Final = 2
#: The header with what kiwiPy's messages have no place for: a context, and the number of a try.
_HEADER: Final = "redpoll"
#: The names of the default queue of tasks, and of progress in which a handler returned a future: see `redpoll.bus.tasks`.
_TASKS: Final = "tasks"
_NESTED: Final = "nested"


class Kiwipy:
    """See `Dialect`. Its options are kiwiPy's own.

    Args:
        message_exchange: The exchange of calls and broadcasts.
        task_exchange: The exchange of tasks.
        task_queue: The queue of tasks that name none.
        encoder: Encodes every body, as kiwiPy's of that name. None is YAML of plain values.
        decoder: Decodes every body. None is YAML of plain values and tuples.

    Raises:
        ConfigError: An option cannot be, or PyYAML is not installed.
    """

    name = "kiwipy"

    def __init__(
        self,
        *,
        message_exchange: str = "kiwipy.messages",
        task_exchange: str = "kiwipy.tasks",
        task_queue: str = "kiwipy.tasks",
        encoder: Callable[[Any], Any] | None = None,
        decoder: Callable[[bytes], Any] | None = None,
    ) -> None:
        if encoder is None or decoder is None:
            encode, decode = _yaml()
            encoder, decoder = encoder or encode, decoder or decode
        check_function("encoder", encoder, "it takes a value and returns bytes")
        check_function("decoder", decoder, "it takes bytes and returns a value")
        self._encoder = encoder
        self._decoder = decoder
        self._messages = Exchange(message_exchange)
        self._tasks = Exchange(task_exchange)
        self._task_queue = task_queue

    def queue(self, name: str) -> Queue:
        """Return kiwiPy's queue for a queue of tasks, or for a recipient of calls."""
        prefix, colon, recipient = name.partition(":")
        if not colon:
            key = self._task_queue if name == _TASKS else name
            return Queue(key, ((self._tasks, key),), durable=True, arguments={"x-message-ttl": _TASK_TTL})
        key = self._recipient(prefix, recipient)
        limits = {"x-message-ttl": _MESSAGE_TTL, "x-expires": _QUEUE_EXPIRES}
        return Queue("", ((self._messages, key),), exclusive=True, arguments=limits)

    def events(self, pattern: str) -> Queue | None:
        """Return a queue for broadcasts: all of them, for the receiver to choose."""
        if pattern.partition(".")[0] != "broadcast":
            return None
        binding = (self._messages, _BROADCAST)
        return Queue("", (binding,), exclusive=True, arguments={"x-message-ttl": _MESSAGE_TTL})

    def replies(self, unique: str) -> Queue:
        """Return a queue for replies: of tasks by one exchange, of calls by the other."""
        name = f"{self._messages.name}-reply-{unique}"
        bindings = ((self._messages, name), (self._tasks, name))
        return Queue(name, bindings, durable=True, arguments={"x-expires": _QUEUE_EXPIRES})

    def write(self, target: str, request: Request) -> Message:
        """Translate a task, a call or a broadcast."""
        envelope = request.envelope
        value = PAYLOADS.unpack(envelope)
        meta = dict(envelope.meta or {})
        exchange, key, mode = self._messages, _BROADCAST, None
        if request.subject:
            if not request.subject.startswith("broadcast"):
                raise refuse(self.name, f"messages to {request.subject!r}")
            fields = {name: meta.pop(name, None) for name in ("sender", "subject", "correlation_id")}
            value = {"body": value, **fields}
        else:
            prefix, colon, recipient = target.partition(":")
            if colon:
                key = self._recipient(prefix, recipient)
                if meta:
                    hint = "pass None as the method and a message as the arguments"
                    raise refuse(self.name, "methods and streams", hint)
            else:
                exchange, mode = self._tasks, _PERSISTENT
                key = self._task_queue if target == _TASKS else target
                value = [value, not request.wanted]
        extra = {name: each for name, each in (("meta", meta), ("headers", envelope.headers)) if each}
        properties = Properties(
            delivery_mode=mode,
            correlation_id=request.id or None,
            reply_to=request.reply_to or None,
            expiration=expiration(request.ttl),
            headers={_HEADER: self._encode(extra)} if extra else None,
        )
        return Message(exchange, key, self._encode(value), properties)

    def read(self, target: str, body: bytes, properties: Properties) -> Request:
        """Translate a task, a call or a broadcast."""
        value = self._decode(body)
        wanted, subject, meta = True, "", {}
        if target.startswith("broadcast."):
            if not isinstance(value, dict) or "body" not in value:
                raise BadPayload(self.name, "not a broadcast")
            meta = {
                name: value[name] for name in ("sender", "subject", "correlation_id") if value.get(name) is not None
            }
            named = meta.get("subject")
            subject = f"broadcast.{named}" if isinstance(named, str) else "broadcast"
            value = value["body"]
        elif ":" not in target:
            match value:
                case [task, no_reply]:
                    value, wanted = task, not no_reply
                case _:
                    raise BadPayload(self.name, "not a task")
        extra = (properties.headers or {}).get(_HEADER)
        if isinstance(extra, bytes | bytearray | str):
            extra = self._decode(extra.encode() if isinstance(extra, str) else bytes(extra))
        known = extra if isinstance(extra, dict) else {}
        meta.update(known.get("meta") or {})
        try:
            envelope = PAYLOADS.pack(value, meta or None, known.get("headers"))
        except EncodeError as error:
            raise BadPayload(self.name, error.problem) from error
        reply_to = properties.reply_to or ""
        return Request(envelope, properties.correlation_id or "", reply_to, None, subject, wanted and bool(reply_to))

    def write_reply(self, target: str, request: Request, reply: Outcome | Envelope) -> Message | None:
        """Translate a result, an exception or a cancellation; and a future that a handler returned, which is pending."""
        value: dict[str, Any]
        if isinstance(reply, Envelope):
            if _NESTED not in (reply.meta or {}):
                return None
            value = {"pending": None}
        elif reply.kind is OutcomeKind.RESULT:
            value = {"result": None if reply.envelope is None else PAYLOADS.unpack(reply.envelope)}
        elif reply.kind is OutcomeKind.CANCELLED:
            value = {"cancelled": reply.detail}
        else:
            value = {"exception": failure_of(reply).text}
        exchange = self._messages if ":" in target else self._tasks
        return Message(exchange, request.reply_to, self._encode(value), Properties(correlation_id=request.id))

    def read_reply(self, body: bytes, properties: Properties) -> tuple[str, Outcome | Envelope]:
        """Translate a reply; in the order in which kiwiPy looks at its fields."""
        found = properties.correlation_id or ""
        match self._decode(body):
            case {"cancelled": reason}:
                return found, Outcome(OutcomeKind.CANCELLED, None, str(reason or ""))
            case {"exception": text}:
                return found, Outcome(OutcomeKind.ERROR, Failure("", "RemoteException", str(text)).pack())
            case {"result": value}:
                try:
                    return found, Outcome(OutcomeKind.RESULT, PAYLOADS.pack(value))
                except EncodeError as error:
                    return found, Outcome(OutcomeKind.ERROR, Failure("", "BadPayload", str(error)).pack())
            case {"pending": _}:
                return found, Envelope("", b"", {_NESTED: 1})
        raise BadPayload(self.name, "not a reply")

    def _recipient(self, prefix: str, recipient: str) -> str:
        if prefix != "rpc" or recipient.startswith("/") or ".@" in recipient:
            what = "exchanges and servers of calls" if prefix == "rpc" else f"{prefix} queues"
            raise refuse(self.name, what, "kiwiPy has tasks, recipients of calls, and broadcasts")
        return f"[rpc].{recipient}"

    def _encode(self, value: Any) -> bytes:
        try:
            return bytes(self._encoder(value))
        except Exception as error:
            raise EncodeError(self.name, f"{type(error).__name__}: {error}") from error

    def _decode(self, body: bytes) -> Any:
        try:
            return self._decoder(body)
        except Exception as error:
            raise BadPayload(self.name, f"{type(error).__name__}: {error}") from error


def _yaml() -> tuple[Callable[[Any], Any], Callable[[bytes], Any]]:
    """Return an encoder and a decoder for what kiwiPy writes by default: plain values, and its tuples."""
    try:
        yaml: Any = import_module("yaml")
    except ImportError as error:
        hint = "install redpoll[kiwipy], or pass the encoder and the decoder of the kiwiPy programs"
        raise ConfigError("encoder", None, "is YAML, which needs PyYAML", hint) from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Reads plain values and tuples; builds no objects."""

    Loader.add_constructor(
        "tag:yaml.org,2002:python/tuple", lambda loader, node: tuple(loader.construct_sequence(node, deep=True))
    )
    return (lambda value: yaml.safe_dump(value, encoding="utf-8")), (lambda body: yaml.load(body, Loader=Loader))
