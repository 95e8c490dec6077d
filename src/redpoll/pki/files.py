"""Files of certificates and keys: written whole or not at all, private ones readable by their owner alone."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from redpoll.errors import UsageError

__all__ = ["SIZE_LIMIT", "File", "make_folder", "read_file", "write_files"]

#: Bytes that a file of certificates may have; thousands of them have less.
SIZE_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class File:
    """A file to write."""

    path: Path
    data: bytes = field(repr=False)
    private: bool = True
    """Whether only the owner may read it (mode 0600); others may read the rest (0644, less what the umask takes)."""


def make_folder(folder: Path) -> None:
    """Make a folder that only its owner may enter (mode 0700); one that is there stays as it is.

    Raises:
        UsageError: There is something else of that name.
        OSError: The system does not allow it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{folder} cannot be a folder: {error.strerror}", "choose another folder") from error


def read_file(path: Path, hint: str) -> bytes:
    """Return what is in a file.

    Args:
        path: The file.
        hint: What to do if there is none.

    Raises:
        UsageError: It does not exist, is a folder, or is too large to be a file of certificates.
        OSError: The system does not allow it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from error
    if len(data) > SIZE_LIMIT:
        raise UsageError(f"{path} is no file of certificates: it has more than {SIZE_LIMIT} bytes", hint)
    return data


def write_files(files: Sequence[File], *, force: bool = False) -> None:
    """Write files so that each has its new content or its old one, whenever the process or the machine stops.

    What belongs in them is on the disk before the first of them has its name, and the names follow each other at once.
    If one cannot be written, those before it that were new are taken back.

    Args:
        files: The files, the one that makes the others valid last.
        force: Whether files that are there are overwritten.

    Raises:
        UsageError: One is there already, and not `force`.
        OSError: The system does not allow it.
    """
    with contextlib.ExitStack() as undo:
        ready = [(undo.enter_context(_temporary(file)), file.path) for file in files]
        made: list[Path] = []
        try:
            for temporary, path in ready:
                if force:
                    temporary.replace(path)
                else:
                    _link(temporary, path)
                    made.append(path)
        except BaseException:
            for path in made:
                path.unlink(missing_ok=True)
            raise
    for folder in {file.path.parent for file in files}:
        _sync(folder)


def _link(temporary: Path, path: Path) -> None:
    # A link, unlike a rename, fails if the name is taken: there is no moment between the look and the deed.
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "`force` overwrites it") from error


@contextlib.contextmanager
def _temporary(file: File) -> Iterator[Path]:
    path = file.path.with_name(f".{file.path.name}.{secrets.token_hex(8)}")
    # The mode is there before the first byte: nobody can have opened the file meanwhile.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if file.private else 0o644)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(file.data)
            stream.flush()
            os.fsync(descriptor)
        yield path
    finally:
        path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    # Windows has no descriptors of folders.
    with contextlib.suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
