"""How a pickle stands in a body: sizes, the stream, then its large parts where processors like to find them.

    magic 4 | parts, 32 bits | bytes of the stream, 64 bits | bytes of each part, 64 bits | stream | part | part …

Numbers are big-endian. Each part begins at a multiple of `ALIGNMENT`, counted from the beginning of the body; what is
between is zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["ALIGNMENT", "MAGIC", "FrameError", "join", "split"]

#: No pickle, no text and no frame of ours begins so; the last byte is the version.
MAGIC: Final = b"\x93rp\x01"

#: Bytes: a cache line, and what the widest registers load at once.
ALIGNMENT: Final = 64

_HEAD = Struct("!4sIQ")
_SIZE = Struct("!Q")


class FrameError(ValueError):
    """The sizes contradict one another or the body."""


def join(stream: list[Buffer], parts: list[memoryview]) -> Iterator[Buffer]:
    """The pieces of a body, none of them copied."""
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
    """The stream and the parts of a body, as views of it.

    Raises:
        FrameError: It is no such body, is cut short, or has more behind it.
    """
    if body.nbytes < _HEAD.size:
        raise FrameError("the body is too short to be one of pickle's")
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
        raise FrameError(f"{body.nbytes - at} bytes stand behind the last part")
    return stream, parts
