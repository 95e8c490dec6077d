"""A disk that loses power: what was written since a file was synced may be gone, torn, or out of order."""

# ruff: noqa: N802 - the names of the methods are SQLite's.

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import apsw

from redpoll.bus.engines.hub.bodies import File

__all__ = ["Disk"]

_names = count()
_SECTOR = 512


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._contents = disk.file(Path(name.filename() if hasattr(name, "filename") else name))
        self._disk = disk

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._contents.pending.append((offset, bytes(data)))
        self._disk.happened()

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._contents.pending.append((newsize, None))
        self._disk.happened()

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._disk.happened()
        self._contents.sync()
        self._disk.happened()


class _Bodies(File):
    """The file of large bodies on it."""

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__(path)
        self._contents = disk.file(Path(path))
        self._disk = disk

    def write(self, offset: int, data: Any) -> None:
        super().write(offset, data)
        self._contents.pending.append((offset, bytes(data)))
        self._disk.happened()

    def cut(self, size: int) -> int:
        found = super().cut(size)
        self._contents.pending.append((size, None))
        return found

    def sync(self) -> None:
        super().sync()
        self._disk.happened()
        self._contents.sync()
        self._disk.happened()


class _Contents:
    """What a file is sure to hold, and what was written since."""

    def __init__(self) -> None:
        self.synced: bytes | None = None
        self.pending: list[tuple[int, bytes | None]] = []

    def sync(self) -> None:
        self.synced = self.left(lambda data: data)
        self.pending.clear()

    def left(self, lose: Callable[[bytes | None], bytes | None]) -> bytes:
        """What is left, with some of what is not synced."""
        found = bytearray(self.synced or b"")
        for offset, data in self.pending:
            kept = lose(data)
            if data is None:
                del found[offset:]
            elif kept:
                found += bytes(max(0, offset - len(found)))
                found[offset : offset + len(kept)] = kept
        return bytes(found)


class Disk(apsw.VFS):
    """Files on a disk that may lose power at any time.

    Args:
        seed: Of what is lost.
        happened: Called after each change.
    """

    def __init__(self, seed: int, happened: Callable[[], object]) -> None:
        self.name = f"lossy{next(_names)}"
        super().__init__(self.name, "")
        self.happened = happened
        self._random = random.Random(seed)
        self._files: dict[Path, _Contents] = {}

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._files.pop(Path(filename), None)

    def file(self, path: Path) -> _Contents:
        """The contents of a file."""
        return self._files.setdefault(path, _Contents())

    def connect(self, path: str) -> apsw.Connection:
        """Connect to a database on it."""
        return apsw.Connection(path, vfs=self.name)

    def open_bodies(self, path: str) -> File:
        """Open the file of large bodies on it."""
        return _Bodies(self, path)

    def lose_power(self, torn: bool) -> dict[str, bytes]:
        """The files by their names, after a loss of power; where nothing is torn all that is not synced is gone."""

        def lose(data: bytes | None) -> bytes | None:
            if data is None or not torn:
                return None
            sectors = self._random.choice(
                (0, 1, 1 + len(data) // _SECTOR, self._random.randrange(1 + len(data) // _SECTOR))
            )
            return data[: sectors * _SECTOR]

        # A file that was never synced may have no name yet.
        found = {path: each for path, each in self._files.items() if each.synced is not None}
        return {path.name: each.left(lose) if torn else each.synced or b"" for path, each in found.items()}
