"""Many messages in the body of one message of a node, and back, at the speed of C."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from struct import Struct
from sys import byteorder

from redpoll.errors import ProtocolError

__all__ = ["ALONE", "BATCH_BYTES", "BATCH_MESSAGES", "Batch", "unpack"]

#: A message of more bytes is not packed with others.
ALONE = 16 * 1024

#: Bytes, and messages, that are packed together at most.
BATCH_BYTES = 64 * 1024
BATCH_MESSAGES = 1024

#: Sizes of messages that follow in the body, in front of them; any other value is the one size that all have.
MIXED = 0xFFFFFFFF

_BLOCK = 64


class Batch:
    """Messages that go together, in order; never changed, so that all that carry them share it.

    Attributes:
        messages: The messages.
        size: Their bytes in all.
    """

    __slots__ = ("_packed", "messages", "size")

    def __init__(self, messages: list[bytes], size: int | None = None) -> None:
        self.messages = messages
        self.size = sum(map(len, messages)) if size is None else size
        self._packed: tuple[int, bytes] | None = None

    def __len__(self) -> int:
        return len(self.messages)

    def cut(self, start: int, stop: int | None = None) -> Batch:
        """Some of them."""
        return Batch(self.messages[start:stop])

    def packed(self) -> tuple[int, bytes]:
        """What says their sizes, and the body; made once."""
        packed = self._packed
        if packed is None:
            packed = self._packed = _pack(self.messages)
        return packed


def _pack(messages: list[bytes]) -> tuple[int, bytes]:
    if len(messages) == 1:
        # It has a size of its own, whatever that is, and is not copied.
        return 0, messages[0]
    sizes = set(map(len, messages))
    if len(sizes) == 1 and (size := sizes.pop()):
        return size, b"".join(messages)
    each = array("I", map(len, messages))
    if byteorder == "big":
        each.byteswap()
    return MIXED, b"".join((each.tobytes(), *messages))


@lru_cache(maxsize=256)
def _block(size: int) -> Struct:
    return Struct(f"{size}s" * _BLOCK)


def unpack(shape: int, count: int, body: bytes) -> list[bytes]:
    """The messages of a batch.

    Args:
        shape: What says their sizes: the first of what `Batch.packed` made.
        count: How many they are.
        body: The second.

    Raises:
        ProtocolError: They are not what a batch is packed as.
    """
    if not shape:
        if count != 1:
            raise ProtocolError(f"{count} messages without sizes")
        return [body]
    if shape == MIXED:
        return _unpack_mixed(count, body)
    if len(body) != shape * count:
        raise ProtocolError(f"{count} messages of {shape} bytes in {len(body)}")
    if shape > 1024:
        return [body[at : at + shape] for at in range(0, len(body), shape)]
    whole = count // _BLOCK * _BLOCK * shape
    if not whole:
        return [body[at : at + shape] for at in range(0, len(body), shape)]
    if whole == len(body):
        return list(chain.from_iterable(_block(shape).iter_unpack(body)))
    found = list(chain.from_iterable(_block(shape).iter_unpack(memoryview(body)[:whole])))
    found += [body[at : at + shape] for at in range(whole, len(body), shape)]
    return found


def _unpack_mixed(count: int, body: bytes) -> list[bytes]:
    if len(body) < 4 * count:
        raise ProtocolError(f"sizes of {count} messages in {len(body)} bytes")
    sizes: array[int] = array("I", body[: 4 * count])
    if byteorder == "big":
        sizes.byteswap()
    ends: Sequence[int] = list(accumulate(sizes, initial=4 * count))
    if ends[-1] != len(body):
        raise ProtocolError(f"{count} messages that end at {ends[-1]} of {len(body)} bytes")
    return [body[start:stop] for start, stop in pairwise(ends)]
