"""Memory of very large bodies: anonymous maps that grow without a copy and whose pages are populated just before use."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from typing import Final, Self

from redpoll.platforms import GROWING_MAPS

__all__ = ["AHEAD", "MappedMemory", "map_memory"]

#: Number of bytes whose pages are populated at once. Faulted in one by one, as they are written, pages cost nearly twice
#: as much; very many at once block the loop.
AHEAD = 256 * 1024

# Linux 5.14 and newer; the mmap module has no name for it.
_MADV_POPULATE_WRITE = 23


class MappedMemory(mmap.mmap):
    """Anonymous memory, all zeros; pages that are never written are never allocated.

    It has the given length and, behind that, address space to grow into. When the address space is used up, the map is
    moved, which costs time per page. A view reaches over the whole address space.

    Attributes:
        populated: Number of bytes from the beginning whose pages exist.
    """

    __slots__ = ("_length", "_limit", "populated")

    populated: int
    _length: int
    _limit: int

    def __new__(cls, length: int, limit: int) -> Self:
        """Map `length` bytes, at least one, that may grow to `limit`."""
        self = super().__new__(cls, -1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.populated = 0
        self._length = length
        self._limit = limit
        return self

    def __len__(self) -> int:
        """Length in bytes, without the address space behind it."""
        return self._length

    def grow(self, length: int) -> None:
        """Set the length, to no less than it is and at most the limit. No view of the memory may exist."""
        addresses = super().__len__()
        if length > addresses:
            self.resize(min(self._limit, max(length, 2 * addresses)))
        self._length = length

    def populate(self, filled: int) -> None:
        """Populate the pages behind the first `filled` bytes if they do not exist; otherwise page faults do."""
        if filled < self.populated:
            return
        start = filled - filled % mmap.PAGESIZE
        stop = min(start + AHEAD, self._length)
        try:
            self.madvise(_MADV_POPULATE_WRITE, start, stop - start)
        except OSError:
            # An older kernel, or no memory left: then the next byte written fails.
            self.populated = sys.maxsize
        else:
            self.populated = stop


#: Return memory of so many bytes that may grow to the second number; None where a map cannot grow.
map_memory: Final[Callable[[int, int], MappedMemory] | None] = MappedMemory if GROWING_MAPS else None
