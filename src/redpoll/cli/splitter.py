"""Lines out of chunks of bytes."""

from __future__ import annotations

__all__ = ["NO_NEWLINE", "LineSplitter"]

#: The header of a line that ended without a newline, so that who writes it down adds none.
NO_NEWLINE = b"redpoll:no-newline"


class LineSplitter:
    r"""Cuts a stream of bytes at each newline (`b"\n"`), which it takes away; every other byte stays.

    Memory is what the unfinished line has: look at `held` to bound it.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of the line that is not finished yet."""
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
        """Return what follows the last newline, or None if nothing does."""
        if not self._parts:
            return None
        rest = b"".join(self._parts)
        self._parts.clear()
        self._held = 0
        return rest
