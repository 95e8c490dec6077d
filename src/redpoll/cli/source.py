"""The input of `send`: arguments, files, or their lines, read as needed."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path

from redpoll.address import Address
from redpoll.errors import MessageTooLarge, UsageError
from redpoll.message import Message

from .output import printable
from .runtime import Stop
from .worker import Worker

__all__ = ["NO_NEWLINE", "STANDARD_INPUT", "InputError", "LineSplitter", "Source"]

#: File name that means standard input.
STANDARD_INPUT = "-"

#: Bytes per read.
_CHUNK = 1 << 16


#: Header of a line that ended without a newline, so that the receiver adds none.
NO_NEWLINE = b"redpoll:no-newline"


class InputError(Exception):
    """An input could not be read to its end."""


class _StopError(Exception):
    """A stop arrived while waiting for input."""


class LineSplitter:
    r"""Splits a stream of bytes at each newline (`b"\n"`), which is removed; all other bytes are kept.

    It holds the unfinished line: check `held` to bound the memory.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of the unfinished line."""
        return self._held

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes, in order."""
        *lines, rest = chunk.split(b"\n")
        if lines and self._parts:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts.clear()
            self._held = 0
        if rest:
            self._parts.append(rest)
            self._held += len(rest)
        return lines

    def end(self) -> bytes | None:
        """Return the bytes after the last newline, or None if there are none."""
        if not self._parts:
            return None
        rest = b"".join(self._parts)
        self._parts.clear()
        self._held = 0
        return rest


class Source:
    """The messages to send, in order: first the arguments, then the files.

    One pass only. Files are read as messages are requested: at most 64 KiB ahead with `lines`.

    Args:
        words: Messages from the command line.
        files: Paths; `STANDARD_INPUT` is standard input.
        lines: Each line of the files is a message, without its newline; otherwise each file is one.
        limit: Maximum bytes of a message.
        stop: Ends the messages early.

    Attributes:
        total: Total bytes, or None while unknown.
        bytes: Bytes yielded so far, newlines included.
        messages: Messages yielded so far.
        finished: Whether all messages have been yielded.
        error: The error that ended the messages early; None after a stop.

    Raises:
        UsageError: A file cannot be opened for reading, or standard input is closed.
    """

    def __init__(self, words: Sequence[str], files: Sequence[str], *, lines: bool, limit: int, stop: Stop) -> None:
        self._words = [os.fsencode(word) for word in words]
        self._files = list(files)
        self._lines = lines
        self._limit = limit
        self._stop = stop
        # The number of the first line and the name of each file begun; before it are whole messages.
        self._begun: list[tuple[int, str]] = []
        self.total = self._measure()
        self.bytes = 0
        self.messages = 0
        self.finished = False
        self.error: Exception | None = None

    def place(self, index: int) -> str:
        """Return the origin of the message with this index (from 0): "line 17 of some.log"."""
        if index < len(self._words):
            return f"message {index + 1:,}"
        begun = (each for each in reversed(self._begun) if each[0] <= index)
        first, name = next(begun, (len(self._words), self._files[0]))
        known = name != STANDARD_INPUT
        if not self._lines:
            return f"file {printable(name)}" if known else "standard input"
        return f"line {index - first + 1:,}" + (f" of {printable(name)}" if known else "")

    async def read(self, address: Address) -> AsyncGenerator[Message[bytes], None]:
        """Yield the messages with their address; end at a stop, and at an error, which is then in `error`."""
        try:
            async with aclosing(self._parts()) as parts:
                async for data, header in parts:
                    newline = 1 if self._lines and not header else 0
                    for each in data:
                        if self._stop.is_set():
                            return
                        self.messages += 1
                        self.bytes += len(each) + newline
                        yield Message(each, address, header=header)
            self.finished = True
        except (InputError, MessageTooLarge) as error:
            self.error = error
        except _StopError:
            pass

    async def _parts(self) -> AsyncGenerator[tuple[list[bytes], bytes], None]:
        # Batches of messages, and the header of all in a batch.
        yield self._words, b""
        for name in self._files:
            self._begun.append((self.messages, name))
            async with aclosing(self._read_lines(name) if self._lines else self._read_whole(name)) as parts:
                async for part in parts:
                    yield part

    async def _read_lines(self, name: str) -> AsyncGenerator[tuple[list[bytes], bytes], None]:
        splitter = LineSplitter()
        async with aclosing(self._chunks(name)) as chunks:
            async for chunk in chunks:
                yield splitter.feed(chunk), b""
                if splitter.held > self._limit:
                    raise MessageTooLarge("line", splitter.held, self._limit)
        if (rest := splitter.end()) is not None:
            yield [rest], NO_NEWLINE

    async def _read_whole(self, name: str) -> AsyncGenerator[tuple[list[bytes], bytes], None]:
        parts: list[bytes] = []
        held = 0
        async with aclosing(self._chunks(name)) as chunks:
            async for chunk in chunks:
                parts.append(chunk)
                held += len(chunk)
                if held > self._limit:
                    raise MessageTooLarge("file", held, self._limit)
        yield [b"".join(parts)], b""

    async def _chunks(self, name: str) -> AsyncGenerator[bytes, None]:
        # Ends at the end of the file; an earlier stop raises, so that a partial line is not taken for the last one.
        try:
            descriptor = sys.stdin.fileno() if name == STANDARD_INPUT else os.open(name, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"cannot read {printable(name)}: {error.strerror}") from error
        worker = None if stat.S_ISREG(os.fstat(descriptor).st_mode) else Worker("redpoll-input")
        read = partial(os.read, descriptor, _CHUNK)
        try:
            while chunk := read() if worker is None else await self._stop.unless(worker.call(read)):
                yield chunk
            if chunk is None:
                raise _StopError
        except OSError as error:
            raise InputError(f"cannot read {printable(name)}: {error.strerror}") from error
        finally:
            if worker is not None:
                worker.close()
            if name != STANDARD_INPUT:
                os.close(descriptor)

    def _measure(self) -> int | None:
        total = sum(map(len, self._words))
        known = True
        for name in self._files:
            if name == STANDARD_INPUT:
                if sys.stdin is None:
                    raise UsageError("standard input is closed")
                status = os.fstat(sys.stdin.fileno())
                done = os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR) if stat.S_ISREG(status.st_mode) else 0
            else:
                status, done = _status(name), 0
            known = known and stat.S_ISREG(status.st_mode)
            total += max(0, status.st_size - done)
        return total if known else None


def _status(name: str) -> os.stat_result:
    try:
        status = Path(name).stat()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {printable(name)}: {getattr(error, 'strerror', error)}") from error
    if stat.S_ISDIR(status.st_mode):
        raise UsageError(f"cannot read {printable(name)}: it is a directory")
    if not os.access(name, os.R_OK):
        raise UsageError(f"cannot read {printable(name)}: permission denied")
    return status
