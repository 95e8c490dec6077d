"""Streams of memoryviews: bytes in the order in which they were written, none of them copied."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Self

from redpoll.errors import EncodeError
from redpoll.serializers.flat import flatten

__all__ = ["Stream", "byteview"]

_NOTHING = memoryview(b"")


def byteview(buffer: Any) -> memoryview:
    """Return the memory of an object as bytes, not copied.

    Args:
        buffer: Anything with the buffer protocol, in one piece (C-contiguous).

    Raises:
        TypeError: It has no buffer, or not in one piece.
    """
    if type(buffer) is memoryview and buffer.format == "B" and buffer.ndim == 1 and buffer.c_contiguous:
        return buffer
    try:
        return memoryview(flatten("stream", buffer))
    except EncodeError as error:
        raise TypeError(f"{error.problem} ({error.hint})" if error.hint else error.problem) from error


class Stream(io.BufferedIOBase):
    """A queue of bytes in views of memory, which serializers write and read.

    What is written stays where it is, and must not change while the stream refers to it; what is read leaves the stream,
    and is a view of the same memory where it is in one piece there. Reading never waits: where too little is there, that
    is what it gives, an empty view in the end.

    It is a file as well, so ``pickle.load(stream)`` and the like read from it; but it always stands at 0, since what was
    read is gone. Its length, and what it contains by number, is counted in views, of which none is empty; it is true if
    there is anything to read. Not for several threads at once. Closed, it holds nothing, and raises ValueError.

    The names of net-queue 2.4 are there as well: ``chunk`` for ``view``, ``frombytes`` for ``frombuffer``.
    """

    __slots__ = ("_held", "_nbytes", "_views")

    def __init__(self) -> None:
        """Make an empty stream."""
        self._views: deque[memoryview] = deque()
        self._nbytes = 0
        # Bytes of the views whose memory is the serializer's own, not the program's.
        self._held = 0

    @classmethod
    def frombuffer(cls, buffer: Any, /) -> Self:
        """Return a stream of the memory of one object, not copied.

        Args:
            buffer: Anything with the buffer protocol, in one piece.

        Raises:
            TypeError: As for `byteview`.
        """
        stream = cls()
        stream.writeview(buffer)
        return stream

    @property
    def nbytes(self) -> int:
        """Number of bytes in the stream."""
        return self._nbytes

    @property
    def views(self) -> Iterator[memoryview]:
        """The views in the stream, in order; they stay in it."""
        return iter(tuple(self._views))

    def __len__(self) -> int:
        return len(self._views)

    def __bool__(self) -> bool:
        return self._nbytes > 0

    def __getitem__(self, index: int) -> memoryview:
        """Return a view by its number, negative from the end; it stays in the stream."""
        return self._views[index]

    def __bytes__(self) -> bytes:
        """Return the content as bytes, a copy; it is removed from the stream."""
        self._check_open()
        return b"".join(self.readviews())

    def __repr__(self) -> str:
        count = len(self._views)
        state = " closed" if self.closed else f" {count} view{'' if count == 1 else 's'}, {self._nbytes} bytes"
        return f"<{type(self).__name__}{state}>"

    # ---- Whole views

    def readview(self) -> memoryview:
        """Remove and return the first view; an empty one if there is none."""
        self._check_open()
        if not self._views:
            return _NOTHING
        view = self._views.popleft()
        self._nbytes -= view.nbytes
        return view

    def readviews(self) -> Iterator[memoryview]:
        """Remove and yield all views, one by one."""
        while self._views:
            yield self.readview()

    def unreadview(self, view: Any, /) -> int:
        """Put a view in front of all others; return its number of bytes."""
        self._check_open()
        view = byteview(view)
        if view.nbytes:
            self._views.appendleft(view)
            self._nbytes += view.nbytes
        return int(view.nbytes)

    def writeview(self, view: Any, /) -> int:
        """Append a view; return its number of bytes."""
        self._check_open()
        view = byteview(view)
        if view.nbytes:
            self._views.append(view)
            self._nbytes += view.nbytes
        return int(view.nbytes)

    def writeviews(self, views: Iterable[Any], /) -> int:
        """Append views; return their number of bytes."""
        return sum(map(self.writeview, views))

    def unwriteview(self) -> memoryview:
        """Remove and return the last view; an empty one if there is none."""
        self._check_open()
        if not self._views:
            return _NOTHING
        view = self._views.pop()
        self._nbytes -= view.nbytes
        return view

    def toview(self) -> memoryview:
        """Remove and return the content in one view; a writable copy if it was in several."""
        return self.read()

    def copy(self) -> Self:
        """Return another stream of the same memory; reading from one leaves the other unchanged."""
        self._check_open()
        twin = type(self)()
        twin._views.extend(self._views)
        twin._nbytes = self._nbytes
        twin._held = self._held
        return twin

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Self:
        """Return a stream with a copy of the memory."""
        self._check_open()
        twin = type(self)()
        twin.writeviews([bytearray(view) for view in self._views])
        return twin

    # ---- A file

    def readable(self) -> bool:
        """Return True."""
        self._check_open()
        return True

    writable = seekable = readable

    def read1(self, size: int | None = -1, /) -> memoryview:  # type: ignore[override]
        """Read at most `size` bytes of the first view; None and negative: all of it."""
        view = self.readview()
        if size is None or size < 0 or view.nbytes <= size:
            return view
        self._views.appendleft(view[size:])
        self._nbytes += view.nbytes - size
        return view[:size]

    def read(self, size: int | None = -1, /) -> memoryview:  # type: ignore[override]
        """Read at most `size` bytes in one view; None and negative: all.

        It is a copy, and can be written to, if they were in several.
        """
        self._check_open()
        wanted = self._nbytes if size is None or size < 0 else min(size, self._nbytes)
        if not self._views or self._views[0].nbytes >= wanted:
            return self.read1(wanted)
        # bytearray.join does not clear the memory first.
        return memoryview(bytearray().join(self._take(wanted)))

    def readinto1(self, buffer: Any, /) -> int:
        """Copy bytes of the first view into a buffer, as many as fit; return their number."""
        self._check_open()
        return self._fill(memoryview(buffer).cast("B"), once=True)

    def readinto(self, buffer: Any, /) -> int:
        """Copy bytes into a buffer, as many as fit; return their number."""
        self._check_open()
        return self._fill(memoryview(buffer).cast("B"), once=False)

    def readline(self, size: int | None = -1, /) -> memoryview:  # type: ignore[override]
        r"""Read up to and including the next b"\n", or all without one; at most `size` bytes."""
        self._check_open()
        most = self._nbytes if size is None or size < 0 else min(size, self._nbytes)
        at = 0
        for view in self._views:
            if at >= most:
                break
            # A view cannot be searched; its memory can, piece by piece.
            for start in range(0, view.nbytes, io.DEFAULT_BUFFER_SIZE):
                found = bytes(view[start : start + io.DEFAULT_BUFFER_SIZE]).find(b"\n")
                if found >= 0:
                    return self.read(min(at + start + found + 1, most))
            at += view.nbytes
        return self.read(most)

    def readlines(self, hint: int | None = -1, /) -> list[memoryview]:  # type: ignore[override]
        """Read lines, until they have `hint` bytes; None and below 1: all."""
        lines = []
        size = 0
        for line in self:
            lines.append(line)
            size += len(line)
            if hint is not None and 0 < hint <= size:
                break
        return lines  # type: ignore[return-value]

    write = writeview
    """Append the memory of an object, not copied; return its number of bytes."""

    writelines = writeviews  # type: ignore[assignment]
    """Append the memory of objects, not copied; return their number of bytes."""

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Drop `offset` bytes, or all if there are fewer; return their number.

        Raises:
            ValueError: `offset` is negative: what was read is gone.
            io.UnsupportedOperation: `whence` is the end.
        """
        self._check_open()
        if whence not in {os.SEEK_SET, os.SEEK_CUR}:
            raise io.UnsupportedOperation("a Stream stands at 0, and moves forward from there")
        if offset < 0:
            raise ValueError(f"a Stream does not go back, by {offset}: what was read is gone")
        return sum(view.nbytes for view in self._take(min(offset, self._nbytes)))

    def tell(self) -> int:
        """Return 0: bytes that were read are no longer in the stream."""
        self._check_open()
        return 0

    def truncate(self, size: int | None = None, /) -> int:
        """Keep the first `size` bytes, None: no bytes; return the number of bytes left."""
        self._check_open()
        kept = list(self._take(min(size or 0, self._nbytes)))
        self._views.clear()
        self._nbytes = 0
        return self.writeviews(kept)

    def close(self) -> None:
        """Release all memory, as `with` does at its end. Views that were read stay valid."""
        self._views.clear()
        self._nbytes = 0
        super().close()

    # ---- The names of net-queue 2.4

    @classmethod
    def frombytes(cls, buffer: Any, /) -> Self:
        """Same as `frombuffer`."""
        return cls.frombuffer(buffer)

    tobytes = __bytes__
    """Return the content as bytes, a copy; it is removed from the stream."""

    nchunks = property(__len__)
    """The number of views."""

    readchunk = readview
    """Same as `readview`."""

    readchunks = readviews
    """Same as `readviews`."""

    unreadchunk = unreadview
    """Same as `unreadview`."""

    writechunk = writeview
    """Same as `writeview`."""

    writechunks = writeviews
    """Same as `writeviews`."""

    unwritechunk = unwriteview
    """Same as `unwriteview`."""

    def empty(self) -> bool:
        """Return True if there is nothing to read."""
        return not self

    def peekchunk(self) -> memoryview:
        """Return the first view, which stays; an empty one if there is none."""
        self._check_open()
        return self._views[0] if self._views else _NOTHING

    # ---- Within

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on a closed Stream")

    def _take(self, size: int) -> Iterator[memoryview]:
        while size > 0:
            view = self.read1(size)
            size -= view.nbytes
            yield view

    def _fill(self, target: memoryview, *, once: bool) -> int:
        at = 0
        while at < target.nbytes and self._views:
            view = self.read1(target.nbytes - at)
            target[at : at + view.nbytes] = view
            at += view.nbytes
            if once:
                break
        return at
