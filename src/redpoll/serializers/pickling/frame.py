"""Layout of a pickle in a body: sizes, the stream, then its large parts, aligned.

    magic 4 | parts, 32 bits | bytes of the stream, 64 bits | bytes of each part, 64 bits | stream | part | part …

Numbers are big-endian. Each part begins at a multiple of `ALIGNMENT` from the beginning of the body; the bytes between
are zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["ALIGNMENT", "MAGIC", "FrameError", "join", "split"]

#: No pickle, no text and no frame of the wire begins with it; the last byte is the version.
MAGIC: Final = b"\x93rp\x01"

#: Alignment in bytes: a cache line, and the widest load of a register.
ALIGNMENT: Final = 64

_HEAD = Struct("!4sIQ")
_SIZE = Struct("!Q")


class FrameError(ValueError):
    """The sizes contradict each other or the body."""


def join(stream: list[Buffer], parts: list[memoryview]) -> Iterator[Buffer]:
    """Yield the pieces of a body, not copied."""
    size = sum(map(len, stream))
    head = _HEAD.pack(MAGIC, len(parts), size) + b"".join([_SIZE.pack(part.nbytes) for part in parts])
    yield head
    yield from stream
    at = len(head) + size
    for part in parts:
        gap = -at % ALIGNMENT
        if gap:
            yield bytes(gap)
        yield part
        at += gap + part.nbytes


def split(body: memoryview) -> tuple[memoryview, list[memoryview]]:
    """Return the stream and the parts of a body, as views of it.

    Raises:
        FrameError: The body is invalid, truncated, or has trailing bytes.
    """
    if body.nbytes < _HEAD.size:
        raise FrameError("the body is too short for a pickle")
    magic, count, size = _HEAD.unpack_from(body)
    if magic != MAGIC:
        raise FrameError("the body was not written by this serializer")
    start = _HEAD.size + count * _SIZE.size
    if start + size > body.nbytes:
        raise FrameError(f"a stream of {size} bytes and {count} parts do not fit a body of {body.nbytes}")
    stream = body[start : start + size]
    at = start + size
    parts = []
    for index in range(count):
        (length,) = _SIZE.unpack_from(body, _HEAD.size + index * _SIZE.size)
        at += -at % ALIGNMENT
        if at + length > body.nbytes:
            raise FrameError(f"part {index} of {length} bytes does not fit a body of {body.nbytes}")
        parts.append(body[at : at + length])
        at += length
    if at != body.nbytes:
        raise FrameError(f"{body.nbytes - at} bytes after the last part")
    return stream, parts
