"""Helpers of the tests of a peer and its links."""

from __future__ import annotations

from redpoll.errors import PeerLost
from redpoll.wire.link import Link
from redpoll.wire.link_lifecycle import detach
from redpoll.wire.outgoing import Body
from redpoll.wire.peer import Peer
from tests.wire.support import (
    ACK,
    REQ_ACK,
    THERE,
    Sent,
    add_link,
    feed,
    frame,
    peer_of,
    sent,
)

LOST = PeerLost(THERE, "cut")


def submit(peer: Peer, *sendings: Sent, now: float = 0.0) -> None:
    for out in sendings:
        peer.submit(out, now)


def lose(link: Link[Peer], *, now: float = 0.0) -> None:
    detach(peer_of(link), link, LOST, now)


def sent_again(peer: Peer) -> tuple[Link[Peer], Sent]:
    """Lose the link that a message went out over; return the next one, which it is sent over again, and the message."""
    first = add_link(peer)
    submit(peer, out := Sent(retry=1))
    lose(first)
    return add_link(peer), out


def acknowledge(link: Link[Peer], *sendings: Sent) -> None:
    for out in sendings:
        feed(link, frame(ACK, out.serial, identity=out.identity))


def kinds(link: Link[Peer]) -> list[tuple[int, int]]:
    """Kind and serial of all output."""
    return [(kind & ~0x40, serial) for kind, serial, *_ in sent(link)]


def transmit(
    link: Link[Peer], body: Body = b"body", kind: int = REQ_ACK, *, header: bytes = b"", **options: float
) -> Sent:
    """Write a message to a link that admits it."""
    out = Sent(body, kind, header=header, timeout=options.get("timeout"))
    assert link.admits(out)
    link.transmit(out, peer_of(link), 0.0)
    return out
