"""The metadata block: redpoll's fields of a message, so that the header is the user's alone (wire format, section 7).

A block is its length in 16 bits, then fields of a key of 8 bits, a length of 16 bits and a value each. Unknown keys are
skipped. A block with a deadline alone, which every send with a timeout has, is one struct.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

from redpoll.errors import ProtocolError

__all__ = ["DEADLINE", "DEADLINE_BLOCK", "DEADLINE_PREFIX", "MAX_METADATA", "Field", "decode_metadata", "millis"]

_FIELD = Struct("!BH")

#: Maximum metadata of one message, in bytes.
MAX_METADATA = 4096


class Field(IntEnum):
    """Keys of the fields."""

    #: Time left to begin the work, in milliseconds, 32 bits, counted from receipt.
    DEADLINE = 1
    #: W3C trace context, text.
    TRACE = 2
    #: Media type of the body, text.
    CONTENT_TYPE = 3
    #: Number by which an upper layer counts messages, 64 bits.
    SEQUENCE = 4
    #: Name of the upper layer that the message is for, text.
    LAYER = 5


#: A block with a deadline alone: block length, key, value length, milliseconds.
DEADLINE_BLOCK = Struct("!HBHI")
#: Beginning of such a block.
DEADLINE_PREFIX = DEADLINE_BLOCK.pack(DEADLINE_BLOCK.size - 2, Field.DEADLINE, 4, 0)[:5]
#: The same block, as its beginning and the milliseconds.
DEADLINE = Struct("!5sI")


def millis(seconds: float) -> int:
    """Return seconds as the milliseconds of a deadline field: at least 0, at most 49 days."""
    return min(max(int(seconds * 1000.0), 0), 0xFFFFFFFF)


def decode_metadata(block: bytes | memoryview) -> dict[int, bytes]:
    """Decode the fields of a block, given without its length.

    Raises:
        ProtocolError: A field exceeds the block.
    """
    fields: dict[int, bytes] = {}
    position, end = 0, len(block)
    while position < end:
        if end - position < _FIELD.size:
            raise ProtocolError("metadata block ends inside a field")
        key, size = _FIELD.unpack_from(block, position)
        position += _FIELD.size
        if size > end - position:
            raise ProtocolError("metadata field exceeds its block")
        fields[key] = bytes(block[position : position + size])
        position += size
    return fields
