"""What the core asks of the node around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from redpoll.errors import RedpollError

if TYPE_CHECKING:
    from redpoll.wire.link import Link
    from redpoll.wire.peer import Peer

__all__ = ["Owner"]


class Owner(Protocol):
    """What a peer needs of the node that it belongs to. All are plain calls that return at once."""

    def wake(self, link: Link) -> None:
        """There is output on a link, made outside of `received()` and `tick()`."""

    def need_link(self, peer: Peer) -> None:
        """Something waits in the queue and there is no link."""

    def arm(self, peer: Peer, deadline: float) -> None:
        """Call `peer.expire()` at `deadline`, the next one."""

    def met(self, peer: Peer, link: Link, renewed: bool) -> None:
        """The other end of a peer's link announced itself, and nothing was sent to it as to a redpoll node.

        Args:
            peer: Whose it is.
            link: Its link.
            renewed: Whether the peer's node was started again since the last one.
        """

    def close(self, link: Link, error: RedpollError) -> None:
        """Close a link because of an error."""
