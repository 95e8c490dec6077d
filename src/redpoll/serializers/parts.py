"""Bytes in several pieces, which are sent as one body without being joined."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["APART", "JOINED", "Encoded", "Parts", "gather"]

#: Pieces of more bytes than this stay where they are; smaller neighbours are joined, which is a copy.
APART: Final = 32 * 1024

#: Up to this many bytes in all the pieces are joined: a body of that size is joined with its frame as well.
JOINED: Final = 64 * 1024


class Parts:
    """What `gather` makes of pieces that are worth keeping apart; a body like any other to whoever sends it.

    Attributes:
        pieces: The bytes, in order; none is empty.
        held: How many of them belong to the library: the rest is the memory of what the application sent.
    """

    __slots__ = ("_size", "held", "pieces")

    def __init__(self, pieces: tuple[Buffer, ...], size: int, held: int) -> None:
        self.pieces = pieces
        self.held = held
        self._size = size

    def __len__(self) -> int:
        """Bytes in all."""
        return self._size

    def __bytes__(self) -> bytes:
        """All of them in one piece, which is a copy."""
        return b"".join(self.pieces)

    def cut(self, start: int, stop: int) -> list[Buffer]:
        """Views of the bytes from `start` to `stop`, not copied."""
        found: list[Buffer] = []
        at = 0
        for piece in self.pieces:
            end = at + len(piece)
            if end > start and at < stop:
                found.append(memoryview(piece)[max(start - at, 0) : stop - at])
            at = end
            if at >= stop:
                break
        return found


Encoded: TypeAlias = bytes | bytearray | memoryview | Parts
"""What `Serializer.encode` returns: bytes in one piece, or what `gather` made of several."""


def gather(pieces: Iterable[Buffer], *, held: int = 0) -> Encoded:
    """One body of several pieces: what a serializer returns that has large binary parts. The large ones are not copied.

    Args:
        pieces: Bytes, bytearrays, and memoryviews of bytes that are C-contiguous. Those that are not bytes must not
            change until the message was sent.
        held: Bytes of views of memory that the serializer made for this message, not the application: queues count
            those, as they do bytes.
    """
    whole: list[Buffer] = []
    small: list[Buffer] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if len(piece) <= APART:
            if len(piece):
                small.append(piece)
            continue
        if small:
            whole.append(b"".join(small))
            small = []
        whole.append(piece)
    if small:
        whole.append(b"".join(small))
    if size <= JOINED:
        return whole[0] if len(whole) == 1 else b"".join(whole)
    if len(whole) == 1 and type(whole[0]) is bytes:
        return whole[0]
    return Parts(tuple(whole), size, held + sum(len(piece) for piece in whole if type(piece) is bytes))
