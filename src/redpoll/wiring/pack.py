"""Packing of many messages into the body of one message of a node, and back, at the speed of C."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from struct import Struct
from sys import byteorder

from redpoll.errors import ProtocolError
from redpoll.serializers.base import Buffer
from redpoll.serializers.parts import APART, Encoded, gather

__all__ = ["BATCH_BYTES", "BATCH_MESSAGES", "MIXED", "Batch", "unpack"]

#: Maximum bytes, and messages, packed together; a larger message is sent alone.
BATCH_BYTES = 64 * 1024
BATCH_MESSAGES = 1024

#: Shape of a body in which the messages' sizes come first; any other value is the size that all of them have.
MIXED = 0xFFFFFFFF

_BLOCK = 64


class Batch:
    """Messages sent together, in order; immutable, so that pipes can share it.

    Attributes:
        messages: The messages.
        size: Their total size, in bytes.
    """

    __slots__ = ("_packed", "messages", "size")

    def __init__(self, messages: list[bytes], size: int | None = None) -> None:
        self.messages = messages
        self.size = sum(map(len, messages)) if size is None else size
        self._packed: tuple[int, Encoded] | None = None

    def __len__(self) -> int:
        return len(self.messages)

    def cut(self, start: int, stop: int | None = None) -> Batch:
        """Return some of the messages."""
        return Batch(self.messages[start:stop])

    def packed(self) -> tuple[int, Encoded]:
        """Return the shape and the body, in which large messages are not copied; computed once."""
        packed = self._packed
        if packed is None:
            packed = self._packed = _pack(self.messages)
        return packed


def _pack(messages: list[bytes]) -> tuple[int, Encoded]:
    if len(messages) == 1:
        # A single message needs no size, and is not copied.
        return 0, messages[0]
    sizes = set(map(len, messages))
    if len(sizes) == 1 and (size := sizes.pop()):
        return size, b"".join(messages) if size <= APART else gather(messages)
    each = array("I", map(len, messages))
    if byteorder == "big":
        each.byteswap()
    return MIXED, gather((each.tobytes(), *messages))


@lru_cache(maxsize=256)
def _block(size: int) -> Struct:
    return Struct(f"{size}s" * _BLOCK)


@lru_cache(maxsize=256)
def _few(size: int, count: int) -> Struct:
    return Struct(f"{size}s" * count)


def unpack(shape: int, count: int, body: Buffer) -> list[bytes]:
    """Return the messages of a batch.

    Args:
        shape: The shape that `Batch.packed` returned.
        count: Number of messages.
        body: The body that `Batch.packed` returned.

    Raises:
        ProtocolError: Shape, count and body do not match.
    """
    if not shape:
        if count != 1:
            raise ProtocolError(f"{count} messages without sizes")
        return [body if type(body) is bytes else bytes(body)]
    if shape == MIXED:
        return _unpack_mixed(count, body)
    if len(body) != shape * count:
        raise ProtocolError(f"{count} messages of {shape} bytes in {len(body)}")
    whole = count // _BLOCK * _BLOCK
    if whole == count:
        return list(chain.from_iterable(_block(shape).iter_unpack(body)))
    if not whole:
        return list(_few(shape, count).unpack(body))
    view = memoryview(body)
    found = list(chain.from_iterable(_block(shape).iter_unpack(view[: whole * shape])))
    found += _few(shape, count - whole).unpack(view[whole * shape :])
    return found


def _unpack_mixed(count: int, body: Buffer) -> list[bytes]:
    if len(body) < 4 * count:
        raise ProtocolError(f"sizes of {count} messages in {len(body)} bytes")
    sizes: array[int] = array("I")
    sizes.frombytes(body[: 4 * count])
    if byteorder == "big":
        sizes.byteswap()
    ends: Sequence[int] = list(accumulate(sizes, initial=4 * count))
    if ends[-1] != len(body):
        raise ProtocolError(f"{count} messages that end at {ends[-1]} of {len(body)} bytes")
    if type(body) is bytes:
        return [body[start:stop] for start, stop in pairwise(ends)]
    view = memoryview(body)
    return [bytes(view[start:stop]) for start, stop in pairwise(ends)]
