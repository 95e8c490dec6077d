"""Answers of a peer that announced itself: the requests that they end, or keep from timing out."""

from __future__ import annotations

from typing import Any

from redpoll.errors import NoAnswer
from redpoll.wire.frames import ACK, WANTED
from redpoll.wire.inbound import Inbound
from redpoll.wire.link import Link
from redpoll.wire.outgoing import Outgoing, Stage
from redpoll.wire.peer import Peer

__all__ = ["answer_progressed", "discard_answer", "is_awaited", "take_answer"]


def take_answer(peer: Peer, message: Inbound[Any]) -> None:
    """Apply an answer; with the ACK bit it is the acknowledgement too."""
    frame = message.frame
    link: Link = message.link
    message.phase = 1
    out = _find_request(peer, link, frame[0], frame[1])
    if out is None:
        peer.counters.late += 1
        return
    if frame[4] & ACK:
        link.ended(out)
    if out.stage == Stage.ENDED or not out.kind & WANTED:
        peer.counters.late += 1
        if frame[4] & ACK:
            peer.confirmed(out)
        return
    if peer.requests:
        _stop_resending(out)
        peer.drop(out)
    peer.answer(out, message)


def discard_answer(peer: Peer, link: Link, identity: bytes, serial: int, kind: int) -> None:
    """Apply an answer that was discarded since no request waited for it: it completes none."""
    out = _find_request(peer, link, identity, serial)
    peer.counters.late += 1
    if out is None:
        return
    if kind & ACK:
        link.ended(out)
    if out.kind & WANTED:
        _stop_resending(out)
        peer.fail(out, NoAnswer(out.message, out.timeout, peer.address))
    elif kind & ACK:
        peer.confirmed(out)


def is_awaited(peer: Peer, link: Link, identity: bytes, serial: int) -> bool:
    """Return True if a request waits for an answer over a link."""
    out = _find_request(peer, link, identity, serial)
    return out is not None and out.stage != Stage.ENDED and out.kind & WANTED != 0


def answer_progressed(peer: Peer, link: Link, identity: bytes, serial: int, now: float) -> None:
    """Extend the deadline of a request: a piece of its large answer arrived."""
    out = _find_request(peer, link, identity, serial)
    if out is not None and out.kind & WANTED:
        out.progress(now)


def _find_request(peer: Peer, link: Link, identity: bytes, serial: int) -> Outgoing | None:
    """Return the request that an answer is for."""
    waiting = peer.requests.get(serial)
    out = waiting[0] if waiting else link.in_flight.get(serial)
    if out is None and len(peer.links) > 1:
        # The peer lost the link that the request went over, and this end has not noticed yet.
        out = next((each.in_flight[serial] for each in peer.links if serial in each.in_flight), None)
    return out if out is not None and out.identity == identity else None


def _stop_resending(out: Outgoing) -> None:
    """Take a request that was answered before it was resent off the link that was to write it."""
    link: Link | None = out.link
    if link is not None and out in link.transfers.unbegun():
        link.forget(out)
