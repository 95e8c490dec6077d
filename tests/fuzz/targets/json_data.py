"""JSON from anybody."""

from __future__ import annotations

from redpoll.errors import DecodeError, EncodeError
from redpoll.serializers import json

__all__ = ["WORDS", "target"]

WORDS = (
    *(b"null", b"true", b"false", b"NaN", b"-Infinity", b'"', b"\\u0000", b"\\ud800", b"\\udc00", b"\xed\xa0\x80"),
    *(b"[", b"]", b"{", b"}", b":", b",", b'{"a":', b"[" * 500, b'{"a":' * 500, b"]" * 500),
    *(b"0", b"-0", b"1e999", b"1E-999", b"0.1", b"9" * 400, b"9" * 5000, b"\xef\xbb\xbf", b" ", b"\t\n"),
)


def target(data: bytes) -> None:
    """Decodes any bytes, or raises one DecodeError; what it decodes it encodes and decodes again the same.

    What it cannot encode again is text with half a surrogate pair, and a number too large for a float: one EncodeError.
    """
    try:
        value = json.decode(data)
    except DecodeError:
        for other in (bytearray(data), memoryview(data)):
            _refused(other)
        return
    assert repr(json.decode(memoryview(data))) == repr(value)
    try:
        encoded = json.encode(value)
    except EncodeError:
        return
    assert repr(json.decode(encoded)) == repr(value)
    assert json.encode(json.decode(encoded)) == encoded


def _refused(data: bytearray | memoryview) -> None:
    try:
        json.decode(data)
    except DecodeError:
        return
    raise AssertionError("what was no JSON in bytes is JSON in other memory")
