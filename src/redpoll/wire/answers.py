"""Answers of an announced peer: the request that each is for, and what ends one that gets none."""

from __future__ import annotations

from typing import Any

from redpoll.errors import NoAnswer, PeerLost
from redpoll.wire.frames import ACK, WANTED
from redpoll.wire.inbound import Inbound
from redpoll.wire.link import Link
from redpoll.wire.outgoing import Outgoing, Stage
from redpoll.wire.peer import Peer
from redpoll.wire.send_errors import with_cause

__all__ = ["answered", "awaits", "discarded", "lost", "progressed", "withheld"]


def withheld(peer: Peer, out: Outgoing) -> None:
    """Fail a request that an announced peer released without an answer."""
    if out.stage != Stage.ENDED:
        why, hint = (
            "the handler there returned None",
            "return a value there, or await message.respond(…), or use send()",
        )
        peer.fail(out, NoAnswer(out.message, out.timeout, peer.address, why, hint))


def lost(peer: Peer, out: Outgoing) -> None:
    """Fail a resent request that was answered over a link now lost."""
    if out.stage != Stage.ENDED:
        why = "its answer was lost with the link"
        error = NoAnswer(
            out.message, out.timeout, peer.address, why, "answers are not kept: ask again if that does no harm"
        )
        peer.fail(out, with_cause(error, PeerLost(peer.address, why)))


def answered(peer: Peer, message: Inbound[Any]) -> None:
    """Apply an answer of an announced peer; with the ACK bit it is the acknowledgement too."""
    frame = message.frame
    serial, kind = frame[1], frame[4]
    link: Link = message.link
    message.phase = 1
    waiting, out = _find_request(peer, link, frame[0], serial)
    if out is None:
        peer.counters.late += 1
        return
    if kind & ACK:
        link.ended(out)
    if out.stage == Stage.ENDED or not out.kind & WANTED:
        peer.counters.late += 1
        if kind & ACK:
            peer.confirmed(out)
        return
    if waiting:
        peer.requests.take(serial)
        if out.stage != Stage.DONE:
            _stop_sending(peer, out)
    peer.answer(out, message)


def discarded(peer: Peer, link: Link, identity: bytes, serial: int, kind: int) -> None:
    """Apply an answer that was discarded since no request waited for it: it completes none."""
    _, out = _find_request(peer, link, identity, serial)
    peer.counters.late += 1
    if out is None:
        return
    if kind & ACK:
        link.ended(out)
    if out.stage != Stage.ENDED and out.kind & WANTED:
        peer.requests.forget(out)
        if out.stage in (Stage.QUEUED, Stage.SENT):
            _stop_sending(peer, out)
        peer.fail(out, NoAnswer(out.message, out.timeout, peer.address))
    elif kind & ACK:
        peer.confirmed(out)


def _stop_sending(peer: Peer, out: Outgoing) -> None:
    """Take a request that was answered before it was resent out of the queue, or off the link that was to write it."""
    if peer.session is not None:
        peer.session.again.discard(out.serial)
    if out.stage == Stage.QUEUED:
        out.stage = Stage.ENDED
        peer.unqueue(out)
    else:
        link: Link | None = out.link
        if link is not None and out in link.transfers.unbegun():
            link.forget(out)


def _find_request(
    peer: Peer, link: Link, identity: bytes, serial: int
) -> tuple[list[Outgoing] | None, Outgoing | None]:
    """Return the request that an answer from an announced peer is for, and its list if it is not in flight."""
    waiting = peer.requests.get(serial)
    out = waiting[0] if waiting else link.in_flight.get(serial)
    if out is None and len(peer.links) > 1:
        # The peer lost the link that the request went over, and this end has not noticed yet.
        out = next((each.in_flight[serial] for each in peer.links if serial in each.in_flight), None)
    return waiting, out if out is not None and out.identity == identity else None


def awaits(peer: Peer, link: Link, identity: bytes, serial: int) -> bool:
    """Return True if a request waits for an answer over a link of an announced peer."""
    _, out = _find_request(peer, link, identity, serial)
    return out is not None and out.stage != Stage.ENDED and out.kind & WANTED != 0


def progressed(peer: Peer, link: Link, identity: bytes, serial: int, now: float) -> None:
    """Extend the deadline of a request: a piece of its large answer arrived."""
    _, out = _find_request(peer, link, identity, serial)
    if out is not None and out.kind & WANTED:
        out.progress(now)
