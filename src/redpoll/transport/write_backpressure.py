"""Backpressure of a connection: what the peer reads of its output, and how much may wait for a peer that does not."""

from __future__ import annotations

import asyncio

from redpoll.wire.link import Link

__all__ = ["BACKED_UP", "UNREAD_LIMIT", "WriteBackpressure"]

#: Maximum bytes in the transport, and of answers and acknowledgements that wait for it; above it no message of the peer
#: is begun, since each answer would add to them.
BACKED_UP = 4 * 1024 * 1024

#: Maximum bytes added to a transport that was full already, less what the peer read meanwhile: acknowledgements and
#: other frames that nothing else limits. Above it the link is closed.
UNREAD_LIMIT = 64 * 1024 * 1024


class WriteBackpressure:
    """Watches the output that waits for the peer of one connection.

    Attributes:
        transport: The transport that the output is written to, while there is one; set by the connection.
        flushed: Bytes that the kernel had at the last check; updated by the connection too.
    """

    __slots__ = ("_buffered", "_link", "_unread", "flushed", "transport")

    def __init__(self, link: Link) -> None:
        self._link = link
        self.transport: asyncio.Transport | None = None
        #: Bytes written to a full transport, less those that left it.
        self._unread = 0
        #: Bytes in the transport, those that are being added included, when `_unread` was last counted.
        self._buffered = 0
        self.flushed = 0

    @property
    def backed_up(self) -> bool:
        """True if so much output is unread that no more is to be made."""
        link = self._link
        transport = self.transport
        if link.writable or transport is None:
            return False
        # One answer that waits for the transport may be of any size.
        waiting = link.output_size + link.transfers.waiting_answers
        return transport.get_write_buffer_size() + waiting > BACKED_UP

    def note_progress(self, now: float) -> None:
        """Count what the kernel accepted since the last check as progress, before anything expires."""
        link = self._link
        transport = self.transport
        if transport is None or not (link.transfers or link.last_large):
            return
        before, self.flushed = self.flushed, link.bytes_sent - transport.get_write_buffer_size()
        if self.flushed > before:
            link.output_progressed(before, now)

    def drained(self, now: float) -> None:
        """Reset the counts of a transport that was full and accepts more."""
        link = self._link
        self.note_progress(now)
        self._unread = 0
        if link.memory.unread:
            link.memory.set_unread(link, 0)

    def charge(self) -> None:
        """Charge the node's memory with output that the peer does not read."""
        link = self._link
        link.memory.set_unread(link, self._unread + link.output_size + link.transfers.unwritten_answers)

    def note_read(self) -> None:
        """Count what left a full transport since the last call as read by the peer."""
        if self.transport is None:
            return
        size = self.transport.get_write_buffer_size()
        self._unread = max(0, self._unread - max(0, self._buffered - size))
        self._buffered = size

    def add(self, size: int) -> str | None:
        """Count `size` bytes that will be added to a full transport now.

        Returns:
            Why to close the link, if the peer reads too little.
        """
        link = self._link
        if self.transport is None:
            return None
        self.note_read()
        self._unread += size
        self._buffered += size
        # Behind a half-written message of libchirp's, nothing was given to the transport.
        waiting = self._unread + link.output_size
        self.charge()
        if waiting <= UNREAD_LIMIT:
            return None
        return f"the peer is not reading: {waiting} bytes pending, over the limit of {UNREAD_LIMIT}"
