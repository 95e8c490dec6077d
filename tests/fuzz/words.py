"""What formats are made of: constants that a mutation writes where chance would not."""

from __future__ import annotations

import struct

__all__ = ["FRAMES", "METADATA"]

_NUMBERS = (0, 1, 2, 4, 0x7FFF, 0x8000, 0xFFFF)

#: Metadata: fields, and a block with a deadline alone.
METADATA = (
    b"\x00\x07\x01\x00\x04\x00\x00\x03\xe8",
    b"\x01\x00\x04\x00\x00\x00\x00",
    b"\x01\x00\x08\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x01\x00\x00",
    b"\x02\x00\x01x",
    b"\x05\x00\x03bus",
    b"\xff\x00\x00",
    b"\x00\x00",
)


def _preamble(kind: int, serial: int = 1, size: int = 0, header: int = 0, identity: bytes = bytes(range(16))) -> bytes:
    return struct.pack("!16sIIHB", identity, serial, size, header, kind)


#: Preambles of each type, the opening, and the numbers that frames hold.
FRAMES = (
    *(_preamble(kind) for kind in (0x00, 0x01, 0x11, 0x09, 0x41, 0x81, 0xC1, 0x21)),
    *(_preamble(kind, serial, identity=bytes([serial]) * 16) for kind in (0x02, 0x0A, 0x22, 0xA2) for serial in (2, 4)),
    *(_preamble(kind, 1, size) for kind in (0x00, 0x01) for size in (1, 16, 0x10001, 0x40000)),
    *(_preamble(0x04 | number << 3, 1) for number in range(12)),
    _preamble(0x34, 1, 1) + b"x",
    _preamble(0x81, 1, 9) + struct.pack("!Q", 2) + b"x",
    _preamble(0x1C, 0, 1) + b"\x02",
    _preamble(0x24, 0, 16) + struct.pack("!IQ4x", 1, 4),
    _preamble(0x2C, 1, 1) + b"\x01",
    _preamble(0x04, 7, identity=b"\xf2r" + struct.pack("!BBHIHI", 1, 0, 1, 64, 64, 102_400)),
    struct.pack("!H", 4000) + bytes(range(0x10, 0x20)),
    *METADATA,
    *(struct.pack("!H", number) for number in _NUMBERS),
    *(struct.pack("!I", number) for number in (*_NUMBERS, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF)),
    *(struct.pack("!Q", number) for number in (0, 1, 0x10001, 1 << 32, (1 << 64) - 1)),
)
