"""Which of a peer's links its messages go over, where it has several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redpoll.wire.link import Link

__all__ = ["link_to_use", "links_too_many"]


def link_to_use(links: Sequence[Link], present: Link | None) -> Link | None:
    """The link that messages go over from now on, of `links`, oldest first; None if none may carry any.

    libchirp writes to the newest of two; for us any that is open will do, and staying with the present one keeps the
    order.
    """
    usable = [link for link in links if link.sending]
    if not usable:
        return None
    return present if present in usable else usable[-1]


def links_too_many(links: Sequence[Link], ours: bytes, theirs: bytes | None) -> list[Link]:
    """The links to leave, of `links`, oldest first.

    Of two links between redpoll nodes the one dialled by the smaller identity stays, of the same dialler's the newer: a
    node dials only while it has no link, so to whoever dialled again the older one is gone. libchirp's all stay.

    Args:
        links: One peer's.
        ours: This node's identity.
        theirs: The peer's; None while it is not known.
    """
    redpoll = [each for each in links if each.announced is not None and each.sending]
    if len(redpoll) < 2 or theirs is None:
        return []
    keep = next((each for each in reversed(redpoll) if each.dialled == (ours < theirs)), redpoll[-1])
    return [each for each in redpoll if each is not keep]
