"""MessagePack from anybody."""

from __future__ import annotations

from redpoll.errors import DecodeError, EncodeError
from redpoll.serializers import MsgpackSerializer, msgpack

__all__ = ["WORDS", "target"]

_ANY_KEY = MsgpackSerializer(strict_map_key=False)

WORDS = (
    *(bytes([each]) for each in (0x80, 0x81, 0x90, 0x91, 0x9F, 0xA0, 0xA1, *range(0xC0, 0xE0), 0xFF)),
    *(
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\x7f\xff\xff\xff",
    ),
    *(b"\xd6\xff\x00\x00\x00\x00", b"\xd7\xff" + bytes(8), b"\xd7\xff" + b"\xff" * 8, b"\xc7\x0c\xff" + b"\x7f" * 12),
    *(b"\xc7\x00\x05", b"\x91" * 600, b"\x81\xa1a" * 600, b"\x81\x01\x02", b"\xa2\xed\xa0", b"\xcb\x7f\xf8" + bytes(6)),
)


def target(data: bytes) -> None:
    """Decodes any bytes, or raises one DecodeError, in memory for their size; what it decodes it encodes the same.

    One EncodeError is for what decoding makes and encoding has not.
    """
    for serializer in (msgpack, _ANY_KEY):
        try:
            value = serializer.decode(data)
        except DecodeError:
            continue
        assert repr(serializer.decode(memoryview(data))) == repr(value)
        try:
            encoded = serializer.encode(value)
        except EncodeError:
            continue
        assert repr(serializer.decode(encoded)) == repr(value)
