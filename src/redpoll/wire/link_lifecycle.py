"""Effects of gaining and losing links on a peer's messages: which fail, and which are resent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redpoll.errors import NoAnswer, NotConfirmed, PeerLost, RedpollError
from redpoll.wire import session
from redpoll.wire.frames import Goodbye, Kind
from redpoll.wire.inbound import Inbound
from redpoll.wire.link_selection import redundant_links, select_link
from redpoll.wire.outgoing import DONE_OR_ENDED, Outgoing, Stage
from redpoll.wire.send_errors import with_cause

if TYPE_CHECKING:
    from redpoll.wire.link import Link
    from redpoll.wire.peer import Peer

__all__ = ["attach", "detach", "on_announcement", "on_goodbye"]

_REQ_ACK = int(Kind.REQ_ACK)
_RETRY = int(Kind.RETRY)
_ANSWER = int(Kind.ANSWER)
_ENDED = int(Stage.ENDED)


def attach(peer: Peer, link: Link, now: float) -> None:
    """Add a link to the peer that it was found to belong to."""
    link.peer = peer
    link.release_early()
    peer.links.append(link)
    session.note_shown(peer, link)
    peer.last_error = None
    if link.announced is not None:
        on_announcement(peer, link)
    peer.pump(now)


def on_announcement(peer: Peer, link: Link) -> None:
    """Apply the first announcement on a link of this peer, which comes with the handshake, or late, behind messages."""
    epoch = link.announced.epoch if link.announced is not None else None
    renewed = peer.epoch is not None and peer.epoch != epoch
    if renewed:
        peer.forget_all()
    peer.epoch = epoch
    # What the other end needs to know of this one comes first.
    peer.owner.on_announcement(peer, link, renewed)
    peer.record_sent = link.send_record(peer.record) or peer.record_sent
    session.on_announcement(peer, renewed)
    for out in link.in_flight.values():
        # The request was keyed by identity, as to libchirp; from now on its serial is used.
        peer.requests.forget(out)
    # Messages sent before the announcement were confirmed one at a time; from now on the window counts them.
    peer.unconfirmed -= len(link.in_flight)
    peer.unconfirmed -= sum(1 for out in link.transfers.unbegun() if out.kind & _REQ_ACK)
    link.arrived[:] = [message for message in link.arrived if not _is_known(peer, message)]
    for serial, hard in link.early_cancels:
        peer.cancelled(link, serial, hard=hard)
    link.early_cancels.clear()
    link.reannounce(*peer.window)
    former = [each for each in peer.links if session.is_former(peer, each)]
    if peer.link in former:
        # Messages to another run need no order relative to those sent to this one.
        peer.link = link
    present = [each for each in peer.links if each not in former]
    for each in (*former, *redundant_links(present, peer.settings.identity, peer.identity)):
        each.leave(accept_all=True)
        peer.owner.wake(each)


def _is_known(peer: Peer, message: Inbound[Any]) -> bool:
    """Return True if a message received before its link had a peer is a duplicate or an answer; otherwise note it."""
    if message.kind & _ANSWER:
        peer.answered(message)
        return True
    if message.kind & _REQ_ACK:
        if message.kind & _RETRY and peer.slots.resent(message):
            return True
        peer.unacked[message.serial] = message
    return False


def on_goodbye(peer: Peer, link: Link, said: Goodbye, last: int) -> None:
    """Apply the peer's goodbye on a link: messages that it will not handle are resent first, over another link."""
    late = [out for out in link.goodbye_received(said, last) if out.stage != _ENDED]
    for out in reversed(late):
        peer.requeue(out)
    if session.is_former(peer, link):
        session.fail_former(peer, PeerLost(peer.address, session.RESTARTED), late)


def detach(peer: Peer, link: Link, error: RedpollError, now: float) -> None:
    """Remove a lost link: messages in flight on it fail as not confirmed, or are resent.

    They are resent if the session continues, or if their sender allowed a retry. If the link was to a former run of the
    peer's node, the messages for that run fail.
    """
    former = session.is_former(peer, link)
    survives = session.survives(peer, link, error)
    link.connection_lost()
    if link not in peer.links:
        return
    peer.links.remove(link)
    if peer.link is link:
        peer.link = select_link(peer.links, link)
    peer.counters.bytes_sent += link.bytes_sent
    peer.counters.bytes_received += link.bytes_received
    peer.slots.drop_withdrawn(link)
    for message in link.arrived:
        # It arrived before the bytes that broke the link, and was not taken: as if it had not arrived.
        if peer.unacked.get(message.serial) is message:
            del peer.unacked[message.serial]
    link.arrived.clear()
    peer.slots.carry(link)
    again = _open_on(peer, link, error, survives and not former)
    for out in reversed(again):
        peer.requests.drop(out)
        peer.requeue(out)
    if former:
        session.fail_former(peer, error, again)
    for out in peer.requests.over(link):
        if out.stage != _ENDED:
            peer.requests.drop(out)
            gone = NoAnswer(out.message, out.timeout, peer.address, "its answer cannot come any more")
            peer.fail(out, with_cause(gone, error))
    if not peer.links and survives:
        session.on_links_lost(peer, link)
    elif not peer.links:
        session.fail_former(peer, error)
        session.reset(peer)
    peer.pump(now)


def _open_on(peer: Peer, link: Link, error: RedpollError, survives: bool) -> list[Outgoing]:
    """Take all messages off a lost link and fail them, except those to resend and those not begun: return these, in order."""
    transfers = link.transfers
    unbegun = transfers.unbegun()
    for each in transfers:
        if each.answer:
            peer.slots.renew_outcome(each.out.serial)
    in_flight = dict.fromkeys(link.in_flight.values())
    in_flight.update(dict.fromkeys(link.written))
    in_flight.update(dict.fromkeys(each.out for each in transfers if each.out not in unbegun))
    if link.announced is None:
        # Messages still being written that were acknowledged already are no longer counted.
        peer.unconfirmed -= len(link.in_flight) + sum(1 for out in unbegun if out.kind & _REQ_ACK)
    link.in_flight.clear()
    link.written.clear()
    transfers.clear()
    again = []
    kept = peer.session if survives and link.announced is not None else None
    why = error._reason(peer.address) if in_flight else ""
    for out in in_flight:
        if out.stage == Stage.SENT and out.kind & _REQ_ACK and (kept is not None or out.retry > 0):
            if kept is not None:
                session.put_back(kept, out)
            else:
                out.retry -= 1
            out.kind |= _RETRY
            out.remote_run = link.remote_run
            again.append(out)
        elif out.stage not in DONE_OR_ENDED:
            peer.requests.drop(out)
            peer.fail(out, with_cause(NotConfirmed(out.message, why, peer.address), error))
    return again + [out for out in unbegun if out.stage != _ENDED]
