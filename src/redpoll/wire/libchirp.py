"""Acknowledgements and answers of libchirp, which names a message by its identity alone, on any of its links."""

from __future__ import annotations

from typing import Any

from redpoll.wire.frames import REQ_ACK, WANTED
from redpoll.wire.inbound import Inbound
from redpoll.wire.outgoing import Outgoing, Stage
from redpoll.wire.peer import Peer

__all__ = ["answered", "confirmed"]


def confirmed(peer: Peer, identity: bytes) -> None:
    """Apply an acknowledgement of a peer that did not announce itself."""
    for link in peer.links:
        for serial, out in link.in_flight.items():
            if out.identity == identity:
                del link.in_flight[serial]
                link.window.free(1, out.size)
                peer.unconfirmed -= link.announced is None
                if link.announced is None and out.kind & WANTED and out.stage != Stage.ENDED:
                    peer.mark_done(out)
                else:
                    # This includes a message sent over another link, on which the peer announced itself.
                    peer.confirmed(out)
                return
    peer.counters.late += 1


def answered(peer: Peer, message: Inbound[Any]) -> bool:
    """Return True if a message of a peer that did not announce itself is an answer; acknowledge it if requested."""
    requests = peer.requests
    out: Outgoing | None = None
    if message.identity in requests:
        out = requests.take(message.identity)
    elif not requests.abandoned or not requests.pop_abandoned(message.identity):
        return False
    message.phase = 1
    if message.kind & REQ_ACK:
        message.link.acknowledge(message)
    if out is None:
        # A late answer is not delivered to the handler.
        peer.counters.late += 1
        return True
    # If the answer overtook the acknowledgement, the link still waits for that, as libchirp's window is one.
    peer.answer(out, message)
    return True
