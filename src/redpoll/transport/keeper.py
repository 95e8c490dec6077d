"""The interface of a node that its connections call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from redpoll.errors import RedpollError
from redpoll.wire.peer import Peer

if TYPE_CHECKING:
    from redpoll.transport.connection import Connection

__all__ = ["Keeper"]


class Keeper(Protocol):
    """Owns connections: the node. All methods are plain calls that return at once."""

    def opened(self, connection: Connection) -> None:
        """Handle a new socket, before its handshake."""

    def identified(self, connection: Connection, now: float) -> None:
        """Find the peer of a link whose handshake arrived."""

    def session(self, connection: Connection, now: float) -> None:
        """Handle the session frames in `link.session_frames`, which just arrived or were left there."""

    def arrived(self, connection: Connection, now: float) -> None:
        """Handle the messages that arrived; all were copied out of the shared buffer."""

    def drained(self, peer: Peer) -> None:
        """Begin messages of a peer that read what was written to it."""

    def room(self, peer: Peer) -> None:
        """Wake what waits for room in a peer's window."""

    def suspect(self, connection: Connection) -> None:
        """Handle a ping that was not answered in time."""

    def memory_blocked(self, connection: Connection, now: float) -> None:
        """Handle a link that waits for memory: it does not read until `Connection.read_on`."""

    def backed_up(self) -> None:
        """Handle a connection whose peer does not read what is written to it."""

    def parting(self, connection: Connection) -> bool:
        """Handle a goodbye; return True while a handler may still answer a released request over the connection."""

    def lost(self, connection: Connection, error: RedpollError) -> None:
        """Handle the loss of a connection."""
