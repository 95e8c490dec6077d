"""The interface that the core requires of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from redpoll.errors import RedpollError

if TYPE_CHECKING:
    from redpoll.wire.link import Link
    from redpoll.wire.peer import Peer

__all__ = ["Owner"]


class Owner(Protocol):
    """What a peer calls on its node. All calls return at once."""

    def wake(self, link: Link) -> None:
        """Write the output of a link, which was produced outside of `received()` and `tick()`."""

    def need_link(self, peer: Peer) -> None:
        """Dial: a message is queued and the peer has no link."""

    def arm(self, peer: Peer, deadline: float) -> None:
        """Call `peer.expire()` at `deadline`, the next one."""

    def on_announcement(self, peer: Peer, link: Link, renewed: bool) -> None:
        """Handle the first announcement on a link of a peer, before any message is sent to it as to a redpoll node.

        Args:
            peer: The peer.
            link: Its link.
            renewed: Whether the peer's node was restarted since the last announcement.
        """

    def close(self, link: Link, error: RedpollError) -> None:
        """Close a link because of an error."""
