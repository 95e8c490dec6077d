"""Who came in and never became a peer, or broke the format: counted, and told of in the log."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from redpoll.errors import Closed, NotAuthorized, PeerLost, ProtocolError, RedpollError, TLSError
from redpoll.node.once_a_second import OnceASecond
from redpoll.wire.tally import Tally

if TYPE_CHECKING:
    from redpoll.transport.connection import Connection

__all__ = ["Strangers"]

_logger = logging.getLogger("redpoll.node")


class Strangers:
    """What one node says of the ends of its connections that were no good ones.

    Args:
        tally: Where they are counted.
        loop: The node's.
    """

    def __init__(self, tally: Tally, loop: asyncio.AbstractEventLoop) -> None:
        self._tally = tally
        self._lines = OnceASecond(loop)

    def ended(self, connection: Connection, error: RedpollError) -> None:
        """Count what the end of a connection says of its other end."""
        link = connection.link
        if isinstance(error, ProtocolError):
            self._tally.protocol_errors += 1
        elif link.handshake is None and not link.dialled and not isinstance(error, Closed):
            if connection.error is error and isinstance(error, PeerLost):
                self._tally.handshakes_late += 1
            else:
                self._tally.handshakes_failed += 1

    def tell(self, connection: Connection, error: RedpollError) -> None:
        """Log why who came in was turned away: it is no peer to tell of, and may not know it."""
        if connection.link.dialled or not isinstance(error, TLSError | NotAuthorized):
            return
        if self._lines.may_tell():
            _logger.warning("turned a stranger away: %s", error)
