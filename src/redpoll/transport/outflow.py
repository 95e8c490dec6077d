"""What of a connection's output the other end takes, and how much may wait for one that does not read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redpoll.errors import PeerLost

if TYPE_CHECKING:
    from redpoll.transport.connection import Connection

__all__ = ["BACKED_UP", "UNREAD_LIMIT", "Outflow"]

#: Bytes in the transport, and of answers and acknowledgements that wait for it, above which no message of the peer is
#: begun, since its answer would be one more.
BACKED_UP = 4 * 1024 * 1024

#: A link is closed once so many bytes were added to a transport that was full already, less what the other end took
#: meanwhile: acknowledgements and the like, which nothing else holds up.
UNREAD_LIMIT = 64 * 1024 * 1024


class Outflow:
    """Looks at what waits for the other end of one connection.

    Attributes:
        handed: Bytes that were with the system when that was last looked at; kept by the connection too.
        left: Bytes in the transport when it was last seen to be full; kept by the connection too.
    """

    __slots__ = ("_connection", "_unread", "handed", "left")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        #: Bytes that were written to a transport that was full, less what it got rid of.
        self._unread = 0
        self.handed = 0
        self.left = 0

    @property
    def backed_up(self) -> bool:
        """Whether the other end has not taken so much that no more is to be made for it."""
        link = self._connection.link
        transport = self._connection.transport
        if link.writable or transport is None:
            return False
        # Of what waits for the transport one answer may be of any size.
        waiting = link.out_bytes + link.transfers.answered
        return transport.get_write_buffer_size() + waiting > BACKED_UP

    def look(self, now: float) -> None:
        """Before anything is called late: what the system took since it was written, or last looked at, is progress."""
        link = self._connection.link
        transport = self._connection.transport
        if transport is None or not (link.transfers or link.last_large):
            return
        before, self.handed = self.handed, link.bytes_sent - transport.get_write_buffer_size()
        if self.handed > before:
            link.moved(before, now)

    def eased(self, now: float) -> None:
        """The transport was full and takes more: nothing heaps up in it any longer."""
        link = self._connection.link
        self.look(now)
        self._unread = 0
        if link.memory.unread:
            link.memory.heaps_up(link, 0)

    def count(self) -> None:
        """Look at what the other end took of what was added to a full transport."""
        transport = self._connection.transport
        if transport is not None:
            self.admits(transport, 0)

    def charge(self) -> None:
        """Charge the node's memory with what waits because the other end does not take it."""
        link = self._connection.link
        link.memory.heaps_up(link, self._unread + link.out_bytes + link.transfers.owed)
        self._connection.keeper.backed_up()

    def admits(self, transport: asyncio.Transport, size: int) -> bool:
        """Count what is added to a full transport; False if the other end takes too little of it, and the link is closed."""
        connection = self._connection
        link = connection.link
        self.left, taken = transport.get_write_buffer_size(), self.left - transport.get_write_buffer_size()
        self._unread = max(0, self._unread - taken) + size
        # Behind a message of libchirp's that is half written nothing was given to the transport.
        waiting = self._unread + link.out_bytes
        self.charge()
        if waiting <= UNREAD_LIMIT:
            return True
        if connection.error is None:
            link.memory.tally.slow_readers += 1
        connection.fail(PeerLost(connection.name, f"it does not read: {waiting} bytes more than it takes wait for it"))
        return False
