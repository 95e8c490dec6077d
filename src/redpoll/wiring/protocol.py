"""The protocol between wirings: the headers of their messages, and records in MessagePack.

Every message of a wiring's node has a header, whose first byte is its kind; in a small message the header is the beginning
of the body:

    D  data    number of the pipe, number of the first, number behind the last accepted, count, shape; the body is packed
    C  credit  number of the pipe, number before which all messages were taken
    W  word    the body is a record, {"word": …}, and so is the answer, if one is requested

A data message without messages says that no message before its number follows. Numbers are big-endian.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from struct import Struct
from sys import byteorder
from typing import Any

from redpoll import errors
from redpoll.errors import DecodeError, ProtocolError, RedpollError, WiringError
from redpoll.serializers import MsgpackSerializer
from redpoll.serializers.base import Buffer
from redpoll.serializers.parts import APART, Encoded, gather

__all__ = [
    "BATCH_BYTES",
    "BATCH_MESSAGES",
    "CREDIT",
    "DATA",
    "MAX_WORD",
    "MIXED",
    "VERSION",
    "WORD",
    "Batch",
    "check_answer",
    "decode",
    "encode",
    "field",
    "refusal",
    "unpack",
]

#: Version of the protocol; other versions are refused.
VERSION = 1

WORD = b"W"
DATA = Struct("!cIQQII")
CREDIT = Struct("!cIQ")

#: Maximum size of a word, in bytes.
MAX_WORD = 1024 * 1024

_msgpack = MsgpackSerializer(max_containers=65_536)

#: Errors that an answer may name.
_ERRORS: Mapping[str, type[RedpollError]] = {
    kind.__name__: kind
    for kind in (
        *(WiringError, errors.UnknownName, errors.NameTaken, errors.ScopeError, errors.DirectoryUnavailable),
        *(errors.NotAuthorized, errors.UsageError, errors.Closed),
    )
}


def encode(word: Mapping[str, Any]) -> bytes:
    """Return the body of a word, or of its answer."""
    return bytes(_msgpack.encode(dict(word)))


def decode(body: Buffer) -> dict[str, Any]:
    """Decode a word, or its answer.

    Raises:
        ProtocolError: It is malformed.
    """
    if len(body) > MAX_WORD:
        raise ProtocolError(f"a word of {len(body):,} bytes: the limit is {MAX_WORD:,}")
    try:
        word = _msgpack.decode(body)
    except DecodeError as error:
        raise ProtocolError(f"malformed word: {error}") from error
    if not isinstance(word, dict) or not all(isinstance(key, str) for key in word):
        raise ProtocolError("malformed word: not a record")
    return word


def field(word: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    """Return one field of a word.

    Raises:
        ProtocolError: It is missing, or of another type.
    """
    value = word.get(name)
    if type(value) is not kind:
        raise ProtocolError(f"expected the field {name} to be {kind.__name__}, not {type(value).__name__}")
    return value


def refusal(error: RedpollError) -> dict[str, Any]:
    """Return the answer that reports an error."""
    name = next((each.__name__ for each in type(error).__mro__ if each.__name__ in _ERRORS), "WiringError")
    arguments = [value if isinstance(value, str | int | float) else str(value) for value in error.args]
    if name in {"WiringError", "UsageError", "ScopeError"}:
        arguments = [error._text()]
    return {"error": name, "arguments": arguments, "hint": error.hint}


def check_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer; raise the error that it reports.

    Raises:
        WiringError: The answer reports an error, of this class or another that it names.
    """
    name = answer.get("error")
    if name is None:
        return answer
    kind = _ERRORS.get(name, WiringError) if isinstance(name, str) else WiringError
    arguments, hint = answer.get("arguments"), answer.get("hint")
    try:
        error = kind(*(arguments if isinstance(arguments, list) else ()))
        str(error)  # made when it is read, which is to fail here
    except (TypeError, ValueError, AttributeError):
        error = WiringError(str(arguments))
    if isinstance(hint, str):
        error.hint = hint
    raise error


#: Maximum bytes, and messages, packed together; a larger message is sent alone.
BATCH_BYTES = 64 * 1024
BATCH_MESSAGES = 1024

#: Shape of a body in which the messages' sizes come first; any other value is the size that all of them have.
MIXED = 0xFFFFFFFF

_BLOCK = 64


class Batch:
    """Messages sent together, in order; immutable, so that pipes can share it.

    Attributes:
        messages: The messages.
        size: Their total size, in bytes.
    """

    __slots__ = ("_packed", "messages", "size")

    def __init__(self, messages: list[bytes], size: int | None = None) -> None:
        self.messages = messages
        self.size = sum(map(len, messages)) if size is None else size
        self._packed: tuple[int, Encoded] | None = None

    def __len__(self) -> int:
        return len(self.messages)

    def cut(self, start: int, stop: int | None = None) -> Batch:
        """Return some of the messages."""
        return Batch(self.messages[start:stop])

    def packed(self) -> tuple[int, Encoded]:
        """Return the shape and the body, in which large messages are not copied; computed once."""
        packed = self._packed
        if packed is None:
            packed = self._packed = _pack(self.messages)
        return packed


def _pack(messages: list[bytes]) -> tuple[int, Encoded]:
    if len(messages) <= 1:
        # A single message needs no size, and is not copied.
        return 0, b"".join(messages)
    sizes = set(map(len, messages))
    if len(sizes) == 1 and (size := sizes.pop()):
        return size, b"".join(messages) if size <= APART else gather(messages)
    each = array("I", map(len, messages))
    if byteorder == "big":
        each.byteswap()
    return MIXED, gather((each.tobytes(), *messages))


@lru_cache(maxsize=256)
def _block(size: int) -> Struct:
    return Struct(f"{size}s" * _BLOCK)


@lru_cache(maxsize=256)
def _few(size: int, count: int) -> Struct:
    return Struct(f"{size}s" * count)


def unpack(shape: int, count: int, body: Buffer) -> list[bytes]:
    """Return the messages of a batch.

    Args:
        shape: The shape that `Batch.packed` returned.
        count: Number of messages.
        body: The body that `Batch.packed` returned.

    Raises:
        ProtocolError: Shape, count and body do not match.
    """
    if not shape:
        if count != 1:
            raise ProtocolError(f"{count} messages without sizes")
        return [body if type(body) is bytes else bytes(body)]
    if shape == MIXED:
        return _unpack_mixed(count, body)
    if len(body) != shape * count:
        raise ProtocolError(f"{count} messages of {shape} bytes in {len(body)}")
    whole = count // _BLOCK * _BLOCK
    if whole == count:
        return list(chain.from_iterable(_block(shape).iter_unpack(body)))
    if not whole:
        return list(_few(shape, count).unpack(body))
    view = memoryview(body)
    found = list(chain.from_iterable(_block(shape).iter_unpack(view[: whole * shape])))
    found += _few(shape, count - whole).unpack(view[whole * shape :])
    return found


def _unpack_mixed(count: int, body: Buffer) -> list[bytes]:
    if len(body) < 4 * count:
        raise ProtocolError(f"sizes of {count} messages in {len(body)} bytes")
    sizes: array[int] = array("I")
    sizes.frombytes(body[: 4 * count])
    if byteorder == "big":
        sizes.byteswap()
    ends: Sequence[int] = list(accumulate(sizes, initial=4 * count))
    if ends[-1] != len(body):
        raise ProtocolError(f"{count} messages that end at {ends[-1]} of {len(body)} bytes")
    if type(body) is bytes:
        return [body[start:stop] for start, stop in pairwise(ends)]
    view = memoryview(body)
    return [bytes(view[start:stop]) for start, stop in pairwise(ends)]
