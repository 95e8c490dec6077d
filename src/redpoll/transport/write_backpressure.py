"""Backpressure of a connection: what the peer reads of its output, and how much may wait for a peer that does not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redpoll.errors import PeerLost

if TYPE_CHECKING:
    from redpoll.transport.connection import Connection

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
        flushed: Bytes that the kernel had at the last check; updated by the connection too.
        buffered: Bytes in the transport when it was last full; updated by the connection too.
    """

    __slots__ = ("_connection", "_unread", "buffered", "flushed")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        #: Bytes written to a full transport, less those that left it.
        self._unread = 0
        self.flushed = 0
        self.buffered = 0

    @property
    def backed_up(self) -> bool:
        """True if so much output is unread that no more is to be made."""
        link = self._connection.link
        transport = self._connection.transport
        if link.writable or transport is None:
            return False
        # One answer that waits for the transport may be of any size.
        waiting = link.output_size + link.transfers.waiting_answers
        return transport.get_write_buffer_size() + waiting > BACKED_UP

    def note_progress(self, now: float) -> None:
        """Count what the kernel accepted since the last check as progress, before anything expires."""
        link = self._connection.link
        transport = self._connection.transport
        if transport is None or not (link.transfers or link.last_large):
            return
        before, self.flushed = self.flushed, link.bytes_sent - transport.get_write_buffer_size()
        if self.flushed > before:
            link.output_progressed(before, now)

    def drained(self, now: float) -> None:
        """Reset the counts of a transport that was full and accepts more."""
        link = self._connection.link
        self.note_progress(now)
        self._unread = 0
        if link.memory.unread:
            link.memory.set_unread(link, 0)

    def check(self) -> None:
        """Update the count of what the peer read of a full transport."""
        transport = self._connection.transport
        if transport is not None:
            self.admits(transport, 0)

    def charge(self) -> None:
        """Charge the node's memory with output that the peer does not read."""
        link = self._connection.link
        link.memory.set_unread(link, self._unread + link.output_size + link.transfers.unwritten_answers)
        self._connection.keeper.backed_up()

    def admits(self, transport: asyncio.Transport, size: int) -> bool:
        """Count `size` bytes added to a full transport; return False if the peer reads too little, and close the link."""
        connection = self._connection
        link = connection.link
        self.buffered, taken = transport.get_write_buffer_size(), self.buffered - transport.get_write_buffer_size()
        self._unread = max(0, self._unread - taken) + size
        # Behind a half-written message of libchirp's, nothing was given to the transport.
        waiting = self._unread + link.output_size
        self.charge()
        if waiting <= UNREAD_LIMIT:
            return True
        if connection.error is None:
            link.memory.tally.slow_readers += 1
        reason = f"the peer is not reading: {waiting} bytes pending, over the limit of {UNREAD_LIMIT}"
        connection.fail(PeerLost(connection.name, reason))
        return False
