"""Rejected connections: accepted ones that never became a peer's, or broke the protocol, are counted and logged."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from redpoll.errors import Closed, NotAuthorized, PeerLost, ProtocolError, RedpollError, TLSError
from redpoll.node.log_limit import LogLimit
from redpoll.wire.tally import Tally

if TYPE_CHECKING:
    from redpoll.transport.connection import Connection

__all__ = ["Rejected"]

_logger = logging.getLogger("redpoll.node")


class Rejected:
    """Counts and logs the rejected connections of one node.

    Args:
        tally: The counters.
        loop: The event loop of the node.
    """

    def __init__(self, tally: Tally, loop: asyncio.AbstractEventLoop) -> None:
        self._tally = tally
        self._lines = LogLimit(loop)

    def count(self, connection: Connection, error: RedpollError) -> None:
        """Count the end of a connection, if it is an error of the remote node."""
        link = connection.link
        if isinstance(error, ProtocolError):
            self._tally.protocol_errors += 1
        elif link.handshake is None and not link.dialled and not isinstance(error, Closed):
            if connection.error is error and isinstance(error, PeerLost):
                self._tally.handshakes_late += 1
            else:
                self._tally.handshakes_failed += 1

    def log(self, connection: Connection, error: RedpollError) -> None:
        """Log why an accepted connection was rejected: it has no peer to tell, and the remote node may not know why."""
        if connection.link.dialled or not isinstance(error, TLSError | NotAuthorized):
            return
        if self._lines.may_log():
            _logger.warning("rejected a connection: %s", error)
