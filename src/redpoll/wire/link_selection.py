"""Selection of the link for a peer's messages if it has several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redpoll.wire.link import Link

__all__ = ["redundant_links", "select_link"]


def select_link(links: Sequence[Link], present: Link | None) -> Link | None:
    """Return the link to send over from now on, or None. `links` are oldest first.

    libchirp uses the newest of two. Any open link will do for us, and the present one keeps the order.
    """
    usable = [link for link in links if link.sending]
    if not usable:
        return None
    return present if present in usable else usable[-1]


def redundant_links(links: Sequence[Link], ours: bytes, theirs: bytes | None) -> list[Link]:
    """Return the links to leave. `links` are oldest first.

    Of two links between redpoll nodes, the one dialled by the smaller identity is kept; of two with the same dialler,
    the newer: a node dials only while it has no link, so for the end that dialled again the older one is lost. All
    links to libchirp are kept.

    Args:
        links: Links of one peer.
        ours: Identity of this node.
        theirs: Identity of the peer; None if unknown.
    """
    redpoll = [each for each in links if each.announced is not None and each.sending]
    if len(redpoll) < 2 or theirs is None:
        return []
    keep = next((each for each in reversed(redpoll) if each.dialled == (ours < theirs)), redpoll[-1])
    return [each for each in redpoll if each is not keep]
