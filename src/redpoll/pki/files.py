"""Files of certificates and keys: written atomically, private ones readable by their owner alone."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from redpoll.errors import UsageError

__all__ = ["SIZE_LIMIT", "File", "make_folder", "read_file", "write_files"]

#: Maximum size of a file of certificates, in bytes; thousands of them have less.
SIZE_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class File:
    """A file to write."""

    path: Path
    data: bytes = field(repr=False)
    private: bool = True
    """Whether only the owner may read it (mode 0600); other files are readable by all (0644, minus the umask)."""


def make_folder(folder: Path) -> None:
    """Create a folder that only its owner may enter (mode 0700); an existing one is left as it is.

    Raises:
        UsageError: There is a file of that name.
        OSError: The system does not allow it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{folder} cannot be a folder: {error.strerror}", "choose another folder") from error


def read_file(path: Path, hint: str) -> bytes:
    """Return the content of a file.

    Args:
        path: The file.
        hint: Remedy if it does not exist.

    Raises:
        UsageError: It does not exist, is a folder, or is too large for a file of certificates.
        OSError: The system does not allow it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from error
    if len(data) > SIZE_LIMIT:
        raise UsageError(f"{path} is not a file of certificates: it has more than {SIZE_LIMIT} bytes", hint)
    return data


def write_files(files: Sequence[File], *, force: bool = False) -> None:
    """Write files so that each has its new content or its old one, even if the process or the machine stops.

    All contents are on disk before the first file gets its name, and the names are set in a row. If one cannot be
    written, the new ones before it are removed.

    Args:
        files: The files; last, the one that makes the others valid.
        force: Whether to overwrite existing files.

    Raises:
        UsageError: One exists, without `force`.
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
    # Unlike a rename, a link fails if the name exists: there is no race between check and creation.
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "`force` overwrites it") from error


@contextlib.contextmanager
def _temporary(file: File) -> Iterator[Path]:
    path = file.path.with_name(f".{file.path.name}.{secrets.token_hex(8)}")
    # The mode is set before the first byte is written, so that no other process can have opened it.
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
    # Windows has no descriptors for folders.
    with contextlib.suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
