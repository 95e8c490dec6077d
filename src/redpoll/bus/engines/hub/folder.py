"""The folder of a hub's store: one hub at a time, on a disk of this machine, with a reserve for when that is full."""

from __future__ import annotations

import os
import shutil
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from redpoll.errors import StoreError
from redpoll.platforms import after_fork, lock_file, mounted_over_network, unlock_file

__all__ = ["Folder"]

# Lock files of this process. A forked child has them too, and would keep the folder locked behind its parent.
_locks: Final[weakref.WeakSet[Folder]] = weakref.WeakSet()


class Folder:
    """A folder that is locked, until `close`. It is made if it is not there.

    Args:
        path: The folder.
        reserve: Bytes that are set aside for a full disk.

    Raises:
        StoreError: Another hub uses it, it cannot be written, or it is on a network file system.
    """

    def __init__(self, path: str | os.PathLike[str], reserve: int) -> None:
        self._folder = folder = Path(path).absolute()
        self.path = str(folder)
        self.database = str(folder / "hub.db")
        self.bodies = str(folder / "hub.bodies")
        self._reserve = folder / "hub.reserve"
        self._size = reserve
        self.kept: list[Any] = []
        self._files: dict[str, tuple[int, int]] = {}
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)
            network = mounted_over_network(self.path)
            if network is not None:
                raise self.error(
                    f"is on a network file system ({network}), which keeps neither locks nor synced data reliably",
                    "use a disk of this machine",
                )
            self._lock = os.open(folder / "hub.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self._take()
                # Made here, as only its owner is to read it.
                for each in (self.database, self.bodies):
                    os.close(os.open(each, os.O_RDWR | os.O_CREAT, 0o600))
            except BaseException:
                os.close(self._lock)
                raise
        except OSError as error:
            name = str(error.filename or self.path)
            problem = f"{error.strerror}" if name == self.path else f"{name}: {error.strerror}"
            raise self.error(f"cannot be used: {problem}", "the hub must be able to write there") from error
        _locks.add(self)

    def _take(self) -> None:
        if not lock_file(self._lock):
            os.lseek(self._lock, 0, os.SEEK_SET)
            owner = os.read(self._lock, 20).decode("ascii", "replace").strip()
            raise self.error(f"is used by another hub, process {owner or 'unknown'}", "stop that one first")
        os.ftruncate(self._lock, 0)
        os.lseek(self._lock, 0, os.SEEK_SET)
        os.write(self._lock, b"%d\n" % os.getpid())

    def error(self, problem: str, hint: str | None = None) -> StoreError:
        """Make an error about the folder."""
        return StoreError(self.path, problem, hint)

    def remember(self) -> None:
        """Note which files the store consists of, for `check`."""
        found = {name: _which(name) for name in (self.database, f"{self.database}-wal", self.bodies)}
        self._files = {name: which for name, which in found.items() if which is not None}

    def check(self) -> None:
        """See that the files of the store are where the next hub looks for them.

        Raises:
            StoreError: One was removed or replaced, or the folder was: what is written is lost with the process.
        """
        for name, which in self._files.items():
            if _which(name) != which:
                raise self.error(f"{Path(name).name} was removed or replaced while the hub ran")

    def has_room(self, size: int, reserved: bool) -> bool:
        """Return whether so many bytes can be written, also in the place of the reserve if it is there."""
        left = size - (self._size if reserved else 0)
        try:
            return left <= 0 or left <= shutil.disk_usage(self.path).free
        except OSError:
            return True  # the folder is gone: the next write says so

    def make_reserve(self) -> bool:
        """Set the reserve aside; return False if the disk has no room for that, and as much again."""
        if self._reserve.exists():
            return True
        part = self._reserve.with_suffix(".part")
        try:
            if shutil.disk_usage(self.path).free < 2 * self._size:
                return False
            with part.open("wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, self._size)
                else:
                    file.write(bytes(self._size))
            part.replace(self._reserve)
        except OSError:
            part.unlink(missing_ok=True)
            return False
        return True

    def does_without_reserve(self, free: int, full: bool) -> bool:
        """Return whether free bytes in the database serve as the reserve, and the disk has room for its log.

        Args:
            free: These bytes.
            full: Whether they did not before: half of them are enough to continue, so that it does not change with each task.
        """
        return free >= self._size // (1 if full else 2) and shutil.disk_usage(self.path).free >= self._size // 4

    def use_reserve(self) -> bool:
        """Give the reserve up; return False if it was given up before."""
        try:
            self._reserve.unlink()
        except OSError:
            return False
        return True

    def sync(self) -> None:
        """Put the names of the files in it on disk, where folders can be synced."""
        with suppress(PermissionError):
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Let others use it."""
        if self in _locks:
            _locks.discard(self)
            unlock_file(self._lock)

    def forked(self) -> None:
        """Leave it to the parent of this process, which has it."""
        # A connection that ends here would end the log of the parent's: it stays for as long as the process.
        _forked.append(self.kept)
        os.close(self._lock)


def _which(name: str) -> tuple[int, int] | None:
    try:
        found = os.stat(name)  # noqa: PTH116 - once for each commit
    except OSError:
        return None
    return found.st_dev, found.st_ino


_forked: Final[list[Any]] = []


@after_fork
def _leave() -> None:
    for folder in _locks:
        folder.forked()
    _locks.clear()
