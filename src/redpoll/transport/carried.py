"""A transport without a socket of its own: another component, the carrier, moves its bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

__all__ = ["CarriedTransport"]

#: Default high-water mark of the write buffer, in bytes.
_HIGH_WATER = 256 * 1024


class CarriedTransport(asyncio.Transport):
    """One end of a link: the carrier takes written bytes with `take`, and delivers received ones with `feed`.

    Written buffers are referenced, not copied, until they are taken.

    Attributes:
        unread: Received bytes that wait because reading is paused.
        aborted: Whether it has to end at once, even if taken bytes are not sent yet.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BufferedProtocol,
        wake: Callable[[], object],
        eased: Callable[[], object],
        extra: dict[str, object] | None = None,
    ) -> None:
        """Open the transport; `begin` notifies the protocol.

        Args:
            loop: The event loop of both.
            protocol: The protocol of the link.
            wake: Called when the carrier has something to do: bytes to `take` where there were none, or `is_closing`.
            eased: Called when `unread` drops to 0.
            extra: The values of `get_extra_info`, as "peername".
        """
        super().__init__(extra)
        self._loop = loop
        self._protocol = protocol
        self._wake = wake
        self._eased = eased
        self._outgoing: deque[memoryview] = deque()
        self._size = 0
        self._high = _HIGH_WATER
        self._low = _HIGH_WATER // 2
        self._paused = False
        self._reading = True
        self._incoming: deque[memoryview] = deque()
        self.unread = 0
        self._closing = False
        self.aborted = False
        self._lost = False

    # For the protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Buffer bytes to be sent."""
        if self._lost or self._closing or not len(data):
            return
        first = not self._size
        self._outgoing.append(memoryview(data))
        self._size += len(data)
        self._wrote(first)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Buffer bytes in several parts to be sent."""
        if self._lost or self._closing:
            return
        first = not self._size
        for data in list_of_data:
            if len(data):
                self._outgoing.append(memoryview(data))
                self._size += len(data)
        if self._size:
            self._wrote(first)

    def _wrote(self, first: bool) -> None:
        self._check_marks()
        if first:
            self._wake()

    def _check_marks(self) -> None:
        if self._size > self._high and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks in bytes: writing pauses above `high` and resumes at `low` (default: half of it)."""
        self._high = _HIGH_WATER if high is None else high
        self._low = self._high // 2 if low is None else low
        self._check_marks()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that were written and not taken."""
        return self._size

    def pause_reading(self) -> None:
        """Stop delivering received bytes."""
        self._reading = False

    def resume_reading(self) -> None:
        """Resume delivering received bytes."""
        if not self._reading:
            self._reading = True
            if self.unread:
                self._loop.call_soon(self._deliver)

    def is_closing(self) -> bool:
        """Return True if it is closed or closing: the carrier ends it once nothing is left to take."""
        return self._closing

    def close(self) -> None:
        """Close once all written bytes are taken."""
        if not self._closing:
            self._closing = True
            self._wake()

    def abort(self) -> None:
        """Close now: bytes that were not taken are lost."""
        self._closing = self.aborted = True
        self._outgoing.clear()
        self._size = 0
        self._wake()

    # For the carrier

    def begin(self) -> None:
        """Notify the protocol that it is connected."""
        self._protocol.connection_made(self)

    def take(self, limit: int) -> list[memoryview]:
        """Take at most `limit` of the written bytes."""
        parts = []
        room = limit
        outgoing = self._outgoing
        while outgoing and room:
            part = outgoing[0]
            if len(part) <= room:
                outgoing.popleft()
            else:
                outgoing[0] = part[room:]
                part = part[:room]
            parts.append(part)
            room -= len(part)
        self._took(limit - room)
        return parts

    def take_piece(self, small: int, chunk: int) -> list[memoryview]:
        """Take written bytes up to and including the next part larger than `small`, or `chunk` bytes of that part.

        Where a large part is cut depends on its own size only: links that sent the same body return the same pieces of
        it, each as the last one here. Small parts count up to `chunk` bytes in all.
        """
        parts = []
        taken = 0
        outgoing = self._outgoing
        while outgoing and taken < chunk:
            part = outgoing[0]
            large = len(part) > small
            if large and len(part) > chunk:
                outgoing[0] = part[chunk:]
                part = part[:chunk]
            elif not large and taken and taken + len(part) > chunk:
                break
            else:
                outgoing.popleft()
            parts.append(part)
            taken += len(part)
            if large:
                break
        self._took(taken)
        return parts

    def _took(self, size: int) -> None:
        self._size -= size
        if self._paused and self._size <= self._low and not self._closing:
            self._paused = False
            # Later: the protocol will write, and what is taken is not sent yet.
            self._loop.call_soon(self._resume_writing)

    def _resume_writing(self) -> None:
        if not self._lost and not self._closing:
            self._protocol.resume_writing()

    def feed(self, data: bytes | memoryview) -> None:
        """Deliver received bytes; they wait here while reading is paused, and are dropped after the end."""
        if self._closing or not len(data):
            return
        self._incoming.append(memoryview(data))
        self.unread += len(data)
        self._deliver()

    def _deliver(self) -> None:
        incoming = self._incoming
        before = self.unread
        while incoming and self._reading and not self._closing:
            view = incoming[0]
            room = self._protocol.get_buffer(-1)
            count = min(len(view), len(room))  # type: ignore[arg-type]
            room[:count] = view[:count]  # type: ignore[index]
            if count == len(view):
                incoming.popleft()
            else:
                incoming[0] = view[count:]
            self.unread -= count
            del room
            self._protocol.buffer_updated(count)
        if self._closing:
            incoming.clear()
            self.unread = 0
        if before and not self.unread:
            self._eased()

    def end(self, error: Exception | None) -> None:
        """End the link; the protocol is notified in a later turn of the loop, with the error, or None if clean."""
        if not self._lost:
            self._lost = self._closing = True
            self._outgoing.clear()
            self._size = 0
            self._loop.call_soon(self._protocol.connection_lost, error)
