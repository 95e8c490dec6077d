"""The file of large bodies, which are written there once: the log of the tables, and then the tables, would have each twice.

A row has the reference of a large body in the place of the body: a text, which says where it is and how long, and has its
checksum: another body at that place, as in an older copy of the file, does not pass for it. A body is on disk before the
transaction that refers to it. No row tells that it lets a body go: from time to time the rows are asked which bodies they
refer to, and the room of all others is free. What is overwritten was let go by an earlier transaction, which is on disk.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left, insort
from pathlib import Path
from typing import Any, Final

from redpoll.bus.engines.hub.tables import LARGE, Database

__all__ = ["Bodies", "File", "references"]

#: Bodies begin at multiples of it, in bytes.
_BLOCK: Final = 4_096
#: The first block, the length and the checksum of a body are 32 bits each, in digits that sort by the block.
_REFERENCE: Final = "{:08x}{:08x}{:08x}"
_MASK: Final = (1 << 32) - 1
#: Bodies from this size on, in bytes.
_LEAST = 64 * 2**10
#: Bytes that are placed until the free room is looked for again: these, or a part of what was there.
_FRESH = 64 * 2**20
_PART: Final = 4
#: Bodies that are moved at a time.
_MOVED: Final = 64
_REFERENCES: Final = "SELECT rowid, body FROM {0} WHERE typeof(body) = 'text'"
_BODIES: Final = "SELECT body FROM {0} WHERE typeof(body) = 'text'"
_DISTINCT: Final = " UNION ".join(map(_BODIES.format, LARGE))
_UP: Final = f"{_DISTINCT} ORDER BY 1"
_DOWN: Final = f"{_DISTINCT} ORDER BY 1 DESC LIMIT {_MOVED}"
_MOVE: Final = "UPDATE {0} SET body = ? WHERE rowid = ?"


class File:
    """A file on a disk, which is there.

    Args:
        path: Its name.
    """

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("r+b", buffering=0)  # noqa: SIM115 - see close

    def write(self, offset: int, data: Any) -> None:
        """Write all of the data."""
        self._file.seek(offset)
        left = memoryview(data).cast("B")
        while left:
            left = left[self._file.write(left) :]

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes; fewer at the end of the file."""
        self._file.seek(offset)
        return self._file.read(size)

    def cut(self, size: int) -> int:
        """Cut what is behind a number of bytes; return the bytes that there were."""
        found = self._file.seek(0, os.SEEK_END)
        if found > size:
            self._file.truncate(size)
        return found

    def sync(self) -> None:
        """Put what was written on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close it."""
        self._file.close()


class Bodies:
    """Large bodies of tasks and outcomes, in a file. `look` is called before anything is placed.

    Args:
        file: The file.
        database: Holds the rows that refer to them.

    Attributes:
        least: Bytes of a large body.
        growing: Whether bodies are taken; those that are not belong into the rows themselves.
        pinned: Backups that read them: while there are any, none is overwritten.
    """

    def __init__(self, file: File, database: Database) -> None:
        self._file = file
        self._database = database
        self.least = _LEAST
        self.growing = True
        self.pinned = 0
        self._new: list[tuple[int, Any]] = []
        self._free: list[tuple[int, int]] = []
        self._end = self._live = self._fresh = 0

    def place(self, body: Any) -> Any:
        """Return what a row is to have: the reference of a body, or the body."""
        length = len(body)
        if not self.least <= length <= _MASK or not self.growing:
            return body
        room = _room(length)
        start = self._take(room)
        self._fresh += room
        self._new.append((start, body))
        return _REFERENCE.format(start, length, zlib.crc32(body))

    def write(self) -> None:
        """Put on disk what was placed."""
        if self._new:
            for start, body in self._new:
                self._file.write(start * _BLOCK, body)
            self._file.sync()

    def written(self) -> None:
        """Note that what was placed is referred to, on disk."""
        self._new.clear()
        if self._fresh * _BLOCK > _FRESH and self._fresh > self._live // _PART and not self.pinned:
            self.look()

    def read(self, reference: str) -> bytes:
        """Read a body.

        Raises:
            ValueError: It is not there as it was written, or cannot be read.
        """
        start, length, checksum = _parts(reference)
        try:
            body = self._file.read(start * _BLOCK, length)
        except OSError as error:
            raise ValueError(f"hub.bodies cannot be read at byte {start * _BLOCK:,}: {error.strerror}") from error
        if len(body) < length or zlib.crc32(body) != checksum:
            raise ValueError(f"what was written to hub.bodies at byte {start * _BLOCK:,} is not there")
        return body

    def look(self) -> None:
        """Look for free room, and cut the file behind its last body.

        Raises:
            ValueError: The file is shorter than that.
        """
        self._free, end, size = [], 0, 0
        self._live = self._fresh = 0
        for (reference,) in self._database.execute(_UP):
            start, length, _ = _parts(reference)
            if start > end:
                self._free.append((start - end, end))
            end = start + _room(length)
            self._live += _room(length)
            size = start * _BLOCK + length
        self._free.sort()
        self._end = end
        if self._file.cut(size) < size:
            raise ValueError(f"hub.bodies ends before byte {size:,}")

    def move(self) -> None:
        """Move bodies from the end of the file to free room before them, and cut it."""
        self.look()
        moved: dict[str, str] = {}
        for (reference,) in tuple(self._database.execute(_DOWN)):
            old, length, checksum = _parts(reference)
            start = self._take(_room(length))
            if start > old:
                break
            try:
                body = self.read(reference)
            except ValueError:
                # It is damaged, and stays where it is until its task ends.
                insort(self._free, (_room(length), start))
                continue
            self._file.write(start * _BLOCK, body)
            moved[reference] = _REFERENCE.format(start, length, checksum)
        if moved:
            self._file.sync()
            self._database.execute("BEGIN")
            for table, row, reference in references(self._database):
                if reference in moved:
                    self._database.execute(_MOVE.format(table), (moved[reference], row))
            self._database.execute("COMMIT")
        self.look()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _take(self, room: int) -> int:
        """Take room for a body: the smallest that is large enough, or behind all others."""
        place = bisect_left(self._free, (room,))
        if place < len(self._free):
            size, start = self._free.pop(place)
            if size > room:
                insort(self._free, (size - room, start + room))
            return start
        self._end += room
        return self._end - room


def references(database: Database) -> list[tuple[str, int, str]]:
    """Return the rows that have a reference: the table, the number of the row, and the reference."""
    return [
        (table, row, reference) for table in LARGE for row, reference in database.execute(_REFERENCES.format(table))
    ]


def _parts(reference: str) -> tuple[int, int, int]:
    """The first block of a body, its length and its checksum."""
    number = int(reference, 16)
    return number >> 64, number >> 32 & _MASK, number & _MASK


def _room(length: int) -> int:
    """The blocks of a body of some bytes."""
    return -(-length // _BLOCK)
