"""Bodies in several pieces, which are sent without being joined."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

__all__ = ["APART", "JOINED", "Buffer", "Encoded", "Parts", "gather"]

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes: what a serializer returns and decodes. A memoryview has to be C-contiguous, of bytes."""

#: Pieces of more bytes are not copied; smaller neighbours are joined.
APART: Final = 32 * 1024

#: Maximum total size at which all pieces are joined, in bytes: such a body is joined with its frame as well.
JOINED: Final = 64 * 1024


class Parts:
    """A body in several pieces, returned by `gather`.

    Attributes:
        pieces: The bytes, in order; none is empty.
        held: Bytes of these that belong to the library; the rest is the memory of the application's object.
    """

    __slots__ = ("_size", "held", "pieces")

    def __init__(self, pieces: tuple[Buffer, ...], size: int, held: int) -> None:
        self.pieces = pieces
        self.held = held
        self._size = size

    def __len__(self) -> int:
        """Size of the body in bytes."""
        return self._size

    def __bytes__(self) -> bytes:
        """Return the body as one piece, which is a copy."""
        return b"".join(self.pieces)

    def cut(self, start: int, stop: int) -> list[Buffer]:
        """Return views of the bytes from `start` to `stop`, not copied."""
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
"""Result of `Serializer.encode`: contiguous bytes, or pieces from `gather`."""


def gather(pieces: Iterable[Buffer], *, held: int = 0) -> Encoded:
    """Return one body of several pieces, for serializers with large binary parts. Large pieces are not copied.

    Args:
        pieces: Bytes, bytearrays, and memoryviews of bytes that are C-contiguous. Those that are not bytes must not
            change until the message is sent.
        held: Bytes of views of memory that the serializer allocated for this message; queues count these, as they count
            bytes objects.
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
