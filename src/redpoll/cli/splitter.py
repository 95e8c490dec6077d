"""Splitting chunks of bytes into lines."""

from __future__ import annotations

__all__ = ["NO_NEWLINE", "LineSplitter"]

#: Header of a line that ended without a newline, so that the receiver adds none.
NO_NEWLINE = b"redpoll:no-newline"


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
