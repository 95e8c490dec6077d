"""What a connection asks of the node around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from redpoll.errors import RedpollError
from redpoll.wire.peer import Peer

if TYPE_CHECKING:
    from redpoll.transport.connection import Connection

__all__ = ["Keeper"]


class Keeper(Protocol):
    """Who owns connections: the node. All are plain calls that return at once."""

    def opened(self, connection: Connection) -> None:
        """The socket is there; the handshake is not."""

    def identified(self, connection: Connection, now: float) -> None:
        """The handshake is there and the link has no peer yet: find whose it is."""

    def session(self, connection: Connection, now: float) -> None:
        """Session frames arrived, in `link.session`, or were left there."""

    def arrived(self, connection: Connection, now: float) -> None:
        """Messages arrived; everything was copied out of the shared buffer."""

    def drained(self, peer: Peer) -> None:
        """A peer whose messages wait has taken what was written to it."""

    def room(self, peer: Peer) -> None:
        """There is room in a peer's window, and somebody waits for it."""

    def suspect(self, connection: Connection) -> None:
        """A ping was not answered in time."""

    def held_up(self, connection: Connection, now: float) -> None:
        """The node has no memory for what the link brings: it does not read until `Connection.read_on`."""

    def backed_up(self) -> None:
        """The other end of a connection does not read what is written to it."""

    def parting(self, connection: Connection) -> None:
        """A goodbye was said on it."""

    def lost(self, connection: Connection, error: RedpollError) -> None:
        """The connection is gone."""
