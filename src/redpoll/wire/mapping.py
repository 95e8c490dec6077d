"""Memory of very large bodies: it grows without being copied, and its pages are made shortly before bytes go there."""

from __future__ import annotations

import mmap
import sys
from typing import Self

__all__ = ["AHEAD", "MAPS", "Mapping"]

#: Whether there is such memory here: elsewhere a mapping cannot grow.
MAPS = sys.platform == "linux"

#: Bytes whose pages are made at once. One by one, each as it is written to, they cost nearly twice as much; very many
#: at once hold up the loop.
AHEAD = 256 * 1024

# Linux 5.14 and newer; mmap has no name for it.
_MADV_POPULATE_WRITE = 23


class Mapping(mmap.mmap):
    """Anonymous memory, all zeros; what is never written to is never there.

    It has the length that it was given, and behind that addresses to grow into: what is there of it moves each time they
    are used up, which costs time by the page. A view of it reaches over all of them.

    Attributes:
        made: Bytes from its beginning whose pages are there.
    """

    __slots__ = ("_length", "_most", "made")

    made: int
    _length: int
    _most: int

    def __new__(cls, length: int, most: int) -> Self:
        """Map `length` bytes, at least one, that may grow to `most`."""
        self = super().__new__(cls, -1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.made = 0
        self._length = length
        self._most = most
        return self

    def __len__(self) -> int:
        """Bytes that it was given."""
        return self._length

    def grow(self, length: int) -> None:
        """Have `length` bytes, no fewer than now and at most `most`. No view of it may be alive."""
        addresses = super().__len__()
        if length > addresses:
            self.resize(min(self._most, max(length, 2 * addresses)))
        self._length = length

    def make(self, filled: int) -> None:
        """Make the pages of the bytes behind those that are filled, if they are not there; page faults do it otherwise."""
        if filled < self.made:
            return
        start = filled - filled % mmap.PAGESIZE
        stop = min(start + AHEAD, self._length)
        try:
            self.madvise(_MADV_POPULATE_WRITE, start, stop - start)
        except OSError:
            # An older system, or one without room: the next byte that is written will tell.
            self.made = sys.maxsize
        else:
            self.made = stop
