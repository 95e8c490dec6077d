"""The protocol between wirings: the headers of their messages, and records in MessagePack.

Every message of a wiring's node has a header, whose first byte is its kind; in a small message the header is the beginning
of the body:

    D  data    handle, number of the first, number behind the last that was accepted, count, shape; the body is packed
    C  credit  number of the pipe, number before which all messages were taken
    W  word    the body is a record, {"word": …}, and so is the answer, if one is requested

A data message without messages says that no message before its number follows. Numbers are big-endian.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any

from redpoll import errors
from redpoll.errors import DecodeError, ProtocolError, RedpollError, WiringError
from redpoll.serializers import MsgpackSerializer
from redpoll.serializers.base import Buffer

__all__ = ["CREDIT", "DATA", "MAX_WORD", "VERSION", "WORD", "check_answer", "decode", "encode", "field", "refusal"]

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
    name: getattr(errors, name)
    for name in (
        "WiringError",
        "UnknownName",
        "NameTaken",
        "ScopeError",
        "DirectoryUnavailable",
        "NotAuthorized",
        "UsageError",
        "Closed",
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
