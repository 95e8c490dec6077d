"""AMQP 0-9-1 on the wire: methods, properties and tables to bytes and back. Without input and output.

The section numbers are those of the specification, amqp0-9-1.pdf; the types of tables are RabbitMQ's
(https://www.rabbitmq.com/docs/amqp-0-9-1-errata), since those of the specification are not what anybody sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct, error, unpack_from
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from redpoll.errors import ProtocolError, UsageError

__all__ = [
    "HEADER",
    "HEARTBEAT",
    "NO_PROPERTIES",
    "Content",
    "Frames",
    "Method",
    "Properties",
    "carries",
    "encode",
    "encode_content",
]

HEADER: Final = b"AMQP\x00\x00\x09\x01"
"""The first bytes of a connection."""

HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
"""A heartbeat."""

_FRAME: Final = Struct("!BHI")
_END: Final = 0xCE
#: Beginning of what a server for TLS alone answers: a fatal alert.
_ALERT: Final = b"\x15\x03"
_METHOD, _CONTENT, _BODY, _BEAT = 1, 2, 3, 8
_OCTET, _SHORT, _LONG, _LONGLONG = Struct("!B"), Struct("!H"), Struct("!I"), Struct("!Q")
_SIGNED: Final = Struct("!q")
_DOUBLE: Final = Struct("!d")
_CONTENT_HEAD: Final = Struct("!HHQH")
_ID: Final = Struct("!HH")
_BASIC: Final = 60
#: The deepest nesting of a table.
_DEPTH: Final = 32

#: Class, method and arguments of each method: o, h, l, q are integers of 1, 2, 4 and 8 bytes, s and S short and long
#: strings, T a table. The bits of a method are one octet.
_METHODS: Final[Mapping[str, tuple[int, int, str]]] = MappingProxyType(
    {
        "connection.start": (10, 10, "ooTSS"),
        "connection.start-ok": (10, 11, "TsSs"),
        "connection.tune": (10, 30, "hlh"),
        "connection.tune-ok": (10, 31, "hlh"),
        "connection.open": (10, 40, "sso"),
        "connection.open-ok": (10, 41, "s"),
        "connection.close": (10, 50, "hshh"),
        "connection.close-ok": (10, 51, ""),
        "connection.blocked": (10, 60, "s"),
        "connection.unblocked": (10, 61, ""),
        "channel.open": (20, 10, "s"),
        "channel.open-ok": (20, 11, "S"),
        "channel.flow": (20, 20, "o"),
        "channel.flow-ok": (20, 21, "o"),
        "channel.close": (20, 40, "hshh"),
        "channel.close-ok": (20, 41, ""),
        "exchange.declare": (40, 10, "hssoT"),
        "exchange.declare-ok": (40, 11, ""),
        "exchange.delete": (40, 20, "hso"),
        "exchange.delete-ok": (40, 21, ""),
        "exchange.bind": (40, 30, "hsssoT"),
        "exchange.bind-ok": (40, 31, ""),
        "queue.declare": (50, 10, "hsoT"),
        "queue.declare-ok": (50, 11, "sll"),
        "queue.bind": (50, 20, "hsssoT"),
        "queue.bind-ok": (50, 21, ""),
        "queue.purge": (50, 30, "hso"),
        "queue.purge-ok": (50, 31, "l"),
        "queue.delete": (50, 40, "hso"),
        "queue.delete-ok": (50, 41, "l"),
        "queue.unbind": (50, 50, "hsssT"),
        "queue.unbind-ok": (50, 51, ""),
        "basic.qos": (60, 10, "lho"),
        "basic.qos-ok": (60, 11, ""),
        "basic.consume": (60, 20, "hssoT"),
        "basic.consume-ok": (60, 21, "s"),
        "basic.cancel": (60, 30, "so"),
        "basic.cancel-ok": (60, 31, "s"),
        "basic.publish": (60, 40, "hsso"),
        "basic.return": (60, 50, "hsss"),
        "basic.deliver": (60, 60, "sqoss"),
        "basic.get": (60, 70, "hso"),
        "basic.get-ok": (60, 71, "qossl"),
        "basic.get-empty": (60, 72, "s"),
        "basic.ack": (60, 80, "qo"),
        "basic.nack": (60, 120, "qo"),
        "confirm.select": (85, 10, "o"),
        "confirm.select-ok": (85, 11, ""),
    }
)
_NAMES: Final = {(group << 16) | number: (name, shape) for name, (group, number, shape) in _METHODS.items()}
#: Methods that a message follows.
_WITH_CONTENT: Final = frozenset({"basic.publish", "basic.return", "basic.deliver", "basic.get-ok"})


class Properties(NamedTuple):
    """The properties of a message, in the order of their flags (4.2.6.1)."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Mapping[str, Any] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None


NO_PROPERTIES: Final = Properties()
_SHAPE: Final = "ssToossssqsss"


class Method(NamedTuple):
    """A method that arrived. A heartbeat has the name "heartbeat"."""

    channel: int
    name: str
    arguments: tuple[Any, ...]


class Content(NamedTuple):
    """A method that arrived with its message."""

    channel: int
    name: str
    arguments: tuple[Any, ...]
    properties: Properties
    body: bytes


# -- to bytes


def _short(text: str) -> bytes:
    data = text.encode()
    return _OCTET.pack(len(data)) + data


def _long(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return _LONG.pack(len(data)) + data


def _table(values: Mapping[str, Any]) -> bytes:
    return _long(b"".join([_short(name) + _value(value) for name, value in values.items()]))


def _value(value: Any) -> bytes:
    match value:
        case str():
            return b"S" + _long(value)
        case bool():
            return b"t\x01" if value else b"t\x00"
        case int():
            return b"l" + _SIGNED.pack(value)
        case None:
            return b"V"
        case float():
            return b"d" + _DOUBLE.pack(value)
        case bytes():
            return b"x" + _long(value)
        case dict():
            return b"F" + _table(value)
        case list() | tuple():
            return b"A" + _long(b"".join(map(_value, value)))
    raise TypeError(f"a table carries no {type(value).__name__}")


def carries(value: Any, depth: int = _DEPTH) -> bool:
    """Return True if a table gives a value back as it was; False for what it cannot hold, or holds as something else."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii()) or not any("\ud800" <= each <= "\udfff" for each in value)
    if value is None or kind is bool or kind is float or kind is bytes:
        return True
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    if depth and kind is list:
        return all(carries(each, depth - 1) for each in value)
    if depth and kind is dict:
        return all(
            carries(name) and type(name) is str and len(name.encode()) < 128 and carries(each, depth - 1)
            for name, each in value.items()
        )
    return False


_PACK: Final[Mapping[str, Callable[..., bytes]]] = MappingProxyType(
    {
        "o": _OCTET.pack,
        "h": _SHORT.pack,
        "l": _LONG.pack,
        "q": _LONGLONG.pack,
        "s": _short,
        "S": _long,
        "T": _table,
    }
)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return b"%b%b\xce" % (_FRAME.pack(kind, channel, len(payload)), payload)


#: Errors of packing a value that AMQP cannot carry.
_UNFIT: Final = (AttributeError, RecursionError, TypeError, UnicodeEncodeError, error)
_FITS: Final = (
    "names are texts of at most 255 bytes, a priority is at most 255; tables carry texts, bytes, numbers of 64 bits,"
    " booleans, None, lists and tables"
)


def encode(channel: int, name: str, *arguments: Any) -> bytes:
    """Encode a method.

    Args:
        channel: Number of the channel.
        name: Name of the method, as in the specification: "queue.declare".
        *arguments: All arguments, reserved ones included; the bits together are one.

    Raises:
        UsageError: AMQP cannot carry one of them.
    """
    group, number, shape = _METHODS[name]
    parts = [_ID.pack(group, number)]
    try:
        parts += [_PACK[kind](each) for kind, each in zip(shape, arguments, strict=True)]
    except _UNFIT as problem:
        raise UsageError(f"{name} cannot be sent: {problem}", _FITS) from problem
    return _frame(_METHOD, channel, b"".join(parts))


def encode_content(
    channel: int, exchange: str, key: str, bits: int, properties: Properties, body: bytes | memoryview, frame_max: int
) -> list[bytes | memoryview]:
    """Encode a message to be published, as the parts that are sent one after the other.

    Args:
        channel: Number of the channel.
        exchange: Name of the exchange.
        key: The routing key.
        bits: 1 for mandatory.
        properties: The properties.
        body: The body.
        frame_max: Size of the largest frame, in bytes.

    Raises:
        UsageError: AMQP cannot carry a name or a property.
    """
    flags, bit, packed = 0, 0x8000, []
    try:
        for kind, value in zip(_SHAPE, properties, strict=True):
            if value is not None:
                flags |= bit
                packed.append(_PACK[kind](value))
            bit >>= 1
    except _UNFIT as problem:
        name = Properties._fields[16 - bit.bit_length()]
        raise UsageError(f"a message cannot be sent with this {name}: {problem}", _FITS) from problem
    size = len(body)
    head = _CONTENT_HEAD.pack(_BASIC, 0, size, flags) + b"".join(packed)
    method = encode(channel, "basic.publish", 0, exchange, key, bits)
    limit = frame_max - 8
    if size <= limit:
        content = _frame(_BODY, channel, bytes(body)) if size else b""
        return [method + _frame(_CONTENT, channel, head) + content]
    parts: list[bytes | memoryview] = [method + _frame(_CONTENT, channel, head)]
    view = memoryview(body)
    for start in range(0, size, limit):
        part = view[start : start + limit]
        parts += (_FRAME.pack(_BODY, channel, len(part)), part, b"\xce")
    return parts


# -- from bytes


def _read_short(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    if end > len(data):
        raise IndexError
    return data[at + 1 : end].decode(errors="surrogateescape"), end


def _read_long(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _LONG.unpack_from(data, at)
    end = at + 4 + size
    if end > len(data):
        raise IndexError
    return data[at + 4 : end], end


def _read_text(data: bytes, at: int) -> tuple[str | bytes, int]:
    found, end = _read_long(data, at)
    try:
        return found.decode(), end
    except UnicodeDecodeError:
        return found, end


def _read_table(data: bytes, at: int, depth: int = _DEPTH) -> tuple[dict[str, Any], int]:
    content, end = _read_long(data, at)
    at, found = 0, {}
    while at < len(content):
        name, at = _read_short(content, at)
        found[name], at = _read_value(content, at, depth - 1)
    return found, end


_FIXED: Final = {
    ord(kind): Struct(f"!{code}")
    for kind, code in {
        "b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I", "l": "q", "L": "q", "f": "f", "d": "d", "T": "Q",
    }.items()
}  # fmt: skip


def _read_value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    kind, at = data[at], at + 1
    if depth < 0:
        raise IndexError
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return fixed.unpack_from(data, at)[0], at + fixed.size
    match chr(kind):
        case "S":
            return _read_text(data, at)
        case "t":
            return data[at] != 0, at + 1
        case "V" | "\0":
            return None, at
        case "x":
            return _read_long(data, at)
        case "F":
            return _read_table(data, at, depth)
        case "A":
            content, end = _read_long(data, at)
            at, found = 0, []
            while at < len(content):
                value, at = _read_value(content, at, depth - 1)
                found.append(value)
            return found, end
        case "D":
            (digits,) = unpack_from("!i", data, at + 1)
            return digits / 10 ** data[at], at + 5
    raise IndexError


_READ: Final[Mapping[str, Callable[[bytes, int], tuple[Any, int]]]] = MappingProxyType(
    {
        "o": lambda data, at: (data[at], at + 1),
        "h": lambda data, at: (_SHORT.unpack_from(data, at)[0], at + 2),
        "l": lambda data, at: (_LONG.unpack_from(data, at)[0], at + 4),
        "q": lambda data, at: (_LONGLONG.unpack_from(data, at)[0], at + 8),
        "s": _read_short,
        "S": _read_long,
        "T": _read_table,
    }
)


def _arguments(shape: str, data: bytes, at: int) -> tuple[Any, ...]:
    found = []
    for kind in shape:
        value, at = _READ[kind](data, at)
        found.append(value)
    return tuple(found)


def _properties(data: bytes, at: int, flags: int) -> Properties:
    if not flags:
        return NO_PROPERTIES
    found: list[Any] = []
    bit = 0x8000
    for kind in _SHAPE:
        value = None
        if flags & bit:
            value, at = _READ[kind](data, at)
        found.append(value)
        bit >>= 1
    return Properties._make(found)


class _Pending:
    """A message of which parts have arrived."""

    __slots__ = ("arguments", "left", "name", "parts", "properties")

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name = name
        self.arguments = arguments
        self.properties: Properties | None = None
        self.left = 0
        self.parts: list[bytes] = []


class Frames:
    """Bytes that arrive, to methods and messages.

    Attributes:
        frame_max: Size of the largest frame, in bytes.
    """

    def __init__(self, frame_max: int = 131_072) -> None:
        self.frame_max = frame_max
        self._data = b""
        self._pending: dict[int, _Pending] = {}

    def feed(self, data: bytes) -> list[Method | Content]:
        """Take bytes, and return what they completed.

        Raises:
            ProtocolError: They are no AMQP 0-9-1.
        """
        data = self._data + data if self._data else data
        if data[:2] == _ALERT:
            raise ProtocolError("the server expects TLS at this port: connect to amqps://")
        at, size, found = 0, len(data), []
        try:
            while size - at >= 8:
                kind, channel, length = _FRAME.unpack_from(data, at)
                if kind == 65:  # "AMQP": the server speaks another version
                    raise ProtocolError(f"the server speaks {data[at : at + 8]!r}")
                if length + 8 > self.frame_max:
                    raise ProtocolError(f"a frame of {length + 8} bytes: the limit is {self.frame_max}")
                end = at + 7 + length
                if end >= size:
                    break
                if data[end] != _END:
                    raise ProtocolError("a frame does not end where it has to")
                made = self._frame(kind, channel, data[at + 7 : end])
                if made is not None:
                    found.append(made)
                at = end + 1
        except (IndexError, error) as problem:
            raise ProtocolError("a frame is shorter than its contents") from problem
        self._data = data[at:]
        return found

    def _frame(self, kind: int, channel: int, payload: bytes) -> Method | Content | None:
        if kind == _METHOD:
            name, shape = _NAMES.get(_LONG.unpack_from(payload)[0], ("", ""))
            if not name:
                raise ProtocolError(f"unknown method {payload[:4].hex()}")
            arguments = _arguments(shape, payload, 4)
            if name not in _WITH_CONTENT:
                return Method(channel, name, arguments)
            self._pending[channel] = _Pending(name, arguments)
            return None
        if kind == _BEAT:
            return Method(0, "heartbeat", ())
        pending = self._pending.get(channel)
        if kind == _CONTENT and pending is not None and pending.properties is None:
            _, _, pending.left, flags = _CONTENT_HEAD.unpack_from(payload)
            pending.properties = _properties(payload, _CONTENT_HEAD.size, flags)
        elif kind == _BODY and pending is not None and pending.properties is not None and pending.left >= len(payload):
            pending.left -= len(payload)
            pending.parts.append(payload)
        else:
            raise ProtocolError(f"unexpected frame of type {kind}")
        if pending.left:
            return None
        del self._pending[channel]
        body = pending.parts[0] if len(pending.parts) == 1 else b"".join(pending.parts)
        return Content(channel, pending.name, pending.arguments, pending.properties, body)
