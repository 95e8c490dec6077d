"""The output of `listen`: a file, or standard output."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from functools import partial
from types import TracebackType
from typing import Self

from redpoll.errors import UsageError

from .output import printable
from .worker import Worker

__all__ = ["Sink"]


class Sink:
    """Writes bytes to a file or standard output, with `async with`: written bytes have been passed to the system.

    Files are not synced to disk: written bytes survive this process, not a power failure.

    Args:
        path: The file, which is emptied on entering; None is standard output.

    Raises:
        UsageError: The file cannot be opened for writing, or standard output is closed.
    """

    def __init__(self, path: str | None) -> None:
        self._owned = path is not None
        self.name = "standard output" if path is None else printable(path)
        if path is not None:
            try:
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else error
                raise UsageError(f"cannot write {self.name}: {why}") from error
        elif sys.stdout is None:
            raise UsageError("standard output is closed", hint="write to a file with --output")
        else:
            self._descriptor = sys.stdout.fileno()
        self._regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        self._worker = None if self._regular else Worker("redpoll-output")

    async def write(self, data: bytes) -> None:
        """Write all of `data`, in a thread if that may take long (a terminal, a pipe).

        Only one caller at a time. A cancelled write continues.

        Raises:
            OSError: It was not written; to a regular file, no part of it.
        """
        if self._worker is None:
            self._write(data)
        else:
            await self._worker.call(partial(self._write, data))

    async def __aenter__(self) -> Self:
        """Empty the file, and return the sink."""
        if self._owned and self._regular:
            os.ftruncate(self._descriptor, 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file; standard output stays open."""
        if self._worker is not None:
            self._worker.close()
        if self._owned:
            os.close(self._descriptor)

    def _write(self, data: bytes) -> None:
        written = 0
        view = memoryview(data)
        try:
            while written < len(data):
                written += os.write(self._descriptor, view[written:])
        except OSError:
            if written and self._regular:
                with contextlib.suppress(OSError):
                    end = os.lseek(self._descriptor, -written, os.SEEK_CUR)
                    os.ftruncate(self._descriptor, end)
            raise
