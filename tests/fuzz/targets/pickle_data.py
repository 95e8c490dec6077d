"""Pickles from anybody, with the default list of what they may name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np  # noqa: F401  # arrays are read where it is

from redpoll.errors import DecodeError, EncodeError
from redpoll.serializers import pickle
from redpoll.serializers.pickling import alone
from redpoll.serializers.pickling.frame import MAGIC, join
from redpoll.serializers.pickling.names import MODULE
from redpoll.serializers.pickling.values import BY_NAME

__all__ = ["FRAMED", "STREAM", "WORDS", "body_of", "idle", "target"]

#: What the first byte of an input says of the rest: it is a body, or a stream to put into one, without parts.
FRAMED, STREAM = 0, 1

_ARRAYS = ("numpy_ndarray", "numpy_scalar", "numpy_objects", "numpy_dtype")


def _text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


WORDS = (
    MAGIC,
    alone.MAGIC,
    *(alone.MAGIC + each for each in (b"A\x03\x01<i8", b"S", b"I", b"D", b"B")),
    *(bytes([each]) for each in range(0x80, 0x99)),
    *(bytes([each]) for each in b"NKMJGXBCh})](tuseaR.0129cibod\x8c"),
    *(
        b"\x8c\x08builtins\x8c\x04eval\x93",
        b"\x8c\x02os\x8c\x06system\x93",
        b"cos\nsystem\n",
        b"\x8c\x08datetime\x8c\x04date\x93",
    ),
    *(_text(MODULE) + _text(name) + b"\x93" for name in (*BY_NAME, *_ARRAYS, "memoryview", "state")),
    *(_text(each) for each in ("<f8", "<U1", "|V0", "part", "record", "C", "F")),
    *(
        b"\x95" + bytes(8),
        b"\x95" + b"\xff" * 8,
        b"X\xff\xff\xff\xff",
        b"\x8e" + b"\xff" * 8,
        b"j\xff\xff\xff\x7f",
        b"h\x00",
    ),
    *(b"(" * 400, b"]" * 400, b"\x85" * 400, b"K\x01\x85\x94h\x00\x86"),
)

# What a pickle that gets out would do first, as the interpreter tells its auditors.
_DEEDS = ("compile", "exec", "ctypes.", "open", "os.", "shutil.", "socket.", "subprocess.", "sys._")
# Has an entry while a pickle is read.
_reading: list[bool] = []


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _reading and event.startswith(_DEEDS):
        raise AssertionError(f"a pickle did {event} with {args!r:.200}")


sys.addaudithook(_audit)


def target(data: bytes) -> None:
    """Decodes any bytes, or raises one DecodeError, and does nothing else; what it decodes it encodes and decodes alike.

    One EncodeError is for what decoding makes and encoding has not.
    """
    body = body_of(data)
    try:
        value = _decode(body)
    except DecodeError:
        return
    try:
        encoded = bytes(pickle.encode(value))
    except EncodeError:
        return
    again = _decode(encoded)
    assert type(again) is type(value)
    assert len(pickle.encode(again)) == len(encoded)


def body_of(data: bytes) -> bytes:
    """The body that an input stands for."""
    return data[1:] if data[:1] == bytes([FRAMED]) else b"".join(join([data[1:]], []))


@contextmanager
def idle() -> Iterator[None]:
    """Meanwhile a pickle is read: if anything else is done, an AssertionError is raised where it is."""
    _reading.append(True)
    try:
        yield
    finally:
        _reading.clear()


def _decode(body: bytes) -> Any:
    with idle():
        return pickle.decode(bytearray(body))
