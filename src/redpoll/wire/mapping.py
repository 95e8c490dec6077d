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

    Attributes:
        made: Bytes from its beginning whose pages are there.
    """

    __slots__ = ("made",)

    made: int

    def __new__(cls, size: int) -> Self:
        """Map `size` bytes, at least one."""
        self = super().__new__(cls, -1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.made = 0
        return self

    def make(self, filled: int) -> None:
        """Make the pages of the bytes behind those that are filled, if they are not there; page faults do it otherwise."""
        if filled < self.made:
            return
        start = filled - filled % mmap.PAGESIZE
        stop = min(start + AHEAD, len(self))
        try:
            self.madvise(_MADV_POPULATE_WRITE, start, stop - start)
        except OSError:
            # An older system, or one without room: the next byte that is written will tell.
            self.made = sys.maxsize
        else:
            self.made = stop
