"""Envelopes of bus messages, their encoding, and outcomes of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple

from redpoll import serializers
from redpoll.errors import BadPayload, ConfigError, DecodeError, EncodeError, PayloadTooLarge
from redpoll.serializers.base import Buffer, Serializer
from redpoll.serializers.parts import Encoded, gather

__all__ = [
    "KINDS",
    "MAX_HEAD",
    "Envelope",
    "Outcome",
    "OutcomeKind",
    "Payloads",
    "check_carried",
    "decode",
    "encode",
    "printable",
]

MAX_HEAD: Final = 65_536
"""Bytes that content type, meta and headers of an envelope may have together."""

_VERSION: Final = 1
# The version, and the length of the head; the head is MessagePack, the body is what stands behind it.
_PREFIX: Final = Struct("!BI")
# A larger body stays a view of the bytes that were received.
_COPIED: Final = 65_536

_head = serializers.get("msgpack")
_new: Final = tuple.__new__

#: The serializers of every receiver: all of them build plain values alone.
_COMMON: Final = ("msgpack", "json", "raw", "buffer")


class Envelope(NamedTuple):
    """A message on the bus, immutable.

    Engines carry it and look into none of it.

    Attributes:
        content_type: Name of the serializer that wrote the body.
        body: The payload.
        meta: The pattern's own fields (a method's name, a try's number), as MessagePack carries it.
            None is none. It is not for users.
        headers: The user's context, as MessagePack carries it; it travels along, through nested calls too.
    """

    content_type: str
    body: bytes | memoryview
    meta: Mapping[str, Any] | None = None
    headers: Mapping[str, Any] | None = None


class OutcomeKind(IntEnum):
    """The kinds of outcomes. The numbers are stored and sent."""

    #: The handler returned: the envelope holds its result.
    RESULT = 0
    #: The handler raised: the envelope holds the error.
    ERROR = 1
    #: It was cancelled, purged, or its queue was deleted.
    CANCELLED = 2
    #: It became a dead letter: attempts were used up, or a worker gave it up.
    DEAD = 3
    #: Its ttl ended before it was begun, or its deadline before it was done.
    EXPIRED = 4
    #: Its handler exceeded its time limit.
    TIME_LIMIT = 5
    #: It was accepted to be done at most once, and its worker is gone.
    LOST = 6


KINDS: Final = {int(each): each for each in OutcomeKind}
"""The kinds by their numbers: calling the enum is two calls in Python."""


class Outcome(NamedTuple):
    """The outcome of a task or a call; it has exactly one.

    Attributes:
        kind: Its kind.
        envelope: The result or the error; None where the kind says all.
        detail: The reason in a few words, where there is no envelope.
    """

    kind: OutcomeKind
    envelope: Envelope | None = None
    detail: str = ""


def printable(text: object) -> str:
    """Return a text that can be sent: one for people to read, as the name of a file may be that is no text."""
    try:
        shown = str(text)
    except Exception:  # noqa: BLE001  # it may be anybody's exception
        shown = "<its text cannot be had>"
    return shown.encode(errors="backslashreplace").decode()


def encode(envelope: Envelope) -> Encoded:
    """Encode an envelope; a large body is not copied.

    Raises:
        PayloadTooLarge: Content type, meta and headers have more than `MAX_HEAD` bytes.
        EncodeError: Meta or headers hold what MessagePack does not carry.
    """
    content_type, body, meta, headers = envelope
    start = _STARTS.get(content_type) if meta is None and headers is None else None
    if start is None:
        head = bytes(_head.encode((content_type, meta, headers)))
        if len(head) > MAX_HEAD:
            raise PayloadTooLarge(len(head), MAX_HEAD)
        start = _PREFIX.pack(_VERSION, len(head)) + head
    return start + body if len(body) <= _COPIED else gather([start, body])


#: The bytes before the body of envelopes without meta and headers, as most answers and tasks are, by content type; and
#: the types by these.
_STARTS: Final[dict[str, bytes]] = {}
_STARTS.update({name: bytes(encode(Envelope(name, b""))) for name in _COMMON})
_TYPES: Final = {start: name for name, start in _STARTS.items()}


def check_carried(field: str, value: object) -> None:
    """Check a value that a program wants in the head of an envelope.

    Raises:
        ConfigError: MessagePack does not carry it, or nobody could read it.
    """
    try:
        _head.decode(bytes(_head.encode(value)))
    except (EncodeError, DecodeError) as error:
        raise ConfigError(field, value, f"cannot be sent: {error.problem}", error.hint) from error


def decode(data: Buffer) -> Envelope:
    """Decode an envelope.

    Returns:
        The envelope; a body of more than 64 KiB is a view of `data`.

    Raises:
        DecodeError: They are none, or those of another version.
    """
    if len(data) < _PREFIX.size:
        raise DecodeError("envelope", f"{len(data)} bytes are too few, at least {_PREFIX.size} are expected")
    version, size = _PREFIX.unpack_from(data)
    end = _PREFIX.size + size
    if version != _VERSION or size > MAX_HEAD or end > len(data):
        raise DecodeError(
            "envelope",
            f"version {version}, head of {size} bytes: expected version {_VERSION}, a complete head",
        )
    body = memoryview(data)[end:] if len(data) - end > _COPIED else bytes(data[end:])
    content_type = _TYPES.get(bytes(data[:end]))
    if content_type is not None:
        return _new(Envelope, (content_type, body, None, None))
    head = _head.decode(data[_PREFIX.size : end])
    if type(head) is list and len(head) == 3 and type(head[0]) is str:
        content_type, meta, headers = head
        if (meta is None or type(meta) is dict) and (headers is None or type(headers) is dict):
            return _new(Envelope, (content_type, body, meta, headers))
    raise DecodeError("envelope", "expected a head of content type, meta and headers")


class Payloads:
    """The serializers of a bus: it writes with one, and reads what any of them wrote.

    Every receiver reads msgpack, json, raw and buffer. Others, pickle among them, are read only where they were given.

    Args:
        serializer: The one that writes: a name, or a `Serializer`.
        also: Others that are read.

    Raises:
        ConfigError: There is no serializer of that name, or two of one name.
    """

    def __init__(
        self, serializer: str | Serializer[Any] = "msgpack", also: Iterable[str | Serializer[Any]] = ()
    ) -> None:
        writer = serializers.get(serializer)
        self._name, self._encode = writer.name, writer.encode
        self._readers = {name: serializers.SERIALIZERS[name] for name in _COMMON}
        given = {writer.name: writer}
        for each in map(serializers.get, also):
            if given.setdefault(each.name, each) is not each:
                raise ConfigError("also", each.name, "is the name of two serializers")
        self._readers |= given

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it, for a child process: serializers that everybody has by their names."""

        def own(each: Serializer[Any]) -> str | Serializer[Any]:
            return each.name if serializers.SERIALIZERS.get(each.name) is each else each

        return Payloads, (own(self._readers[self._name]), tuple(map(own, self._readers.values())))

    @property
    def writer(self) -> str:
        """Name of the serializer that writes."""
        return self._name

    @property
    def names(self) -> tuple[str, ...]:
        """The content types that can be read."""
        return tuple(self._readers)

    def pack(
        self, value: Any, meta: Mapping[str, Any] | None = None, headers: Mapping[str, Any] | None = None
    ) -> Envelope:
        """Encode a value as an envelope.

        The body is a copy where the serializer refers to memory of the value.

        Raises:
            EncodeError: The serializer cannot carry the value.
        """
        body = self._encode(value)
        # As Envelope(...), without its function in Python: this is on the way of every message, twice.
        return _new(Envelope, (self._name, body if type(body) is bytes else bytes(body), meta, headers))

    def unpack(self, envelope: Envelope) -> Any:
        """Decode the value in an envelope.

        Raises:
            BadPayload: There is no serializer for its content type here, or it cannot read the body.
        """
        reader = self._readers.get(envelope.content_type)
        if reader is None:
            raise BadPayload(
                envelope.content_type,
                f"the receiver has no such serializer, only {', '.join(self._readers)}",
                "give it to connect() on this side too",
            )
        try:
            return reader.decode(envelope.body)
        except DecodeError as error:
            raise BadPayload(envelope.content_type, error.problem) from error
