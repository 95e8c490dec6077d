"""Pickles written by hand, one opcode after the other."""

from __future__ import annotations

from collections.abc import Iterable

from redpoll.serializers.pickling.frame import join
from redpoll.serializers.pickling.names import MODULE


def body(*opcodes: bytes, parts: Iterable[bytes] = ()) -> bytes:
    """A body of the serializer with these opcodes in it, and these parts."""
    return raw(b"\x80\x05" + b"".join(opcodes) + b".", parts)


def raw(stream: bytes, parts: Iterable[bytes] = ()) -> bytes:
    """A body with any stream."""
    return b"".join(join([stream], [memoryview(part) for part in parts]))


def text(value: str) -> bytes:
    """Push a text."""
    data = value.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def data(value: bytes) -> bytes:
    """Push bytes."""
    return b"B" + len(value).to_bytes(4, "little") + value


def number(value: int) -> bytes:
    """Push a number."""
    size = value.bit_length() // 8 + 1
    return b"\x8a" + bytes((size,)) + value.to_bytes(size, "little", signed=True)


def named(module: str, name: str) -> bytes:
    """Push what has this name."""
    return text(module) + text(name) + b"\x93"


def call(function: bytes, *arguments: bytes) -> bytes:
    """Push what it returns."""
    return function + b"(" + b"".join(arguments) + b"t" + b"R"


def ours(name: str, *arguments: bytes) -> bytes:
    """Push a value of the table."""
    return call(named(MODULE, name), *arguments)


def some(*items: bytes) -> bytes:
    """Push a tuple."""
    return b"(" + b"".join(items) + b"t"
