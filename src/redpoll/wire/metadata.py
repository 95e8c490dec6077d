"""The metadata block: what redpoll says of a message, so that the header stays the user's alone (wire format, section 7).

A block is its length in 16 bits and a row of fields, each a key of 8 bits, a length of 16 bits and a value. Unknown
keys are skipped. A block that holds nothing but a deadline, which every send with a timeout has, is one struct.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

from redpoll.errors import ProtocolError

__all__ = ["DEADLINE_BLOCK", "DEADLINE_PREFIX", "Field", "decode_metadata", "millis"]

_FIELD = Struct("!BH")


class Field(IntEnum):
    """The keys of the fields."""

    #: Time left to begin the work, in milliseconds, 32 bits, counted from the arrival.
    DEADLINE = 1
    #: W3C trace context, text.
    TRACE = 2
    #: The media type of the body, text.
    CONTENT_TYPE = 3
    #: A number that a layer above counts messages with, 64 bits.
    SEQUENCE = 4
    #: Which layer above the message is for, text.
    LAYER = 5


#: A block with a deadline alone: block length, key, value length, milliseconds.
DEADLINE_BLOCK = Struct("!HBHI")
#: What such a block begins with.
DEADLINE_PREFIX = DEADLINE_BLOCK.pack(DEADLINE_BLOCK.size - 2, Field.DEADLINE, 4, 0)[:5]


def millis(seconds: float) -> int:
    """Seconds left as the milliseconds of a deadline field: at least 0, at most 49 days."""
    return min(max(int(seconds * 1000.0), 0), 0xFFFFFFFF)


def decode_metadata(block: bytes | memoryview) -> dict[int, bytes]:
    """Decode the fields of a block, its length taken off.

    Raises:
        ProtocolError: A field reaches beyond the block.
    """
    fields: dict[int, bytes] = {}
    position, end = 0, len(block)
    while position < end:
        if end - position < _FIELD.size:
            raise ProtocolError("a metadata block ends inside a field")
        key, size = _FIELD.unpack_from(block, position)
        position += _FIELD.size
        if size > end - position:
            raise ProtocolError("a metadata field reaches beyond its block")
        fields[key] = bytes(block[position : position + size])
        position += size
    return fields
