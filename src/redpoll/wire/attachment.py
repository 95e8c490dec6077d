"""What becomes of a peer's messages as its links come and go: who fails when one is lost, and what is sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redpoll.errors import NoAnswer, NotConfirmed, PeerLost, RedpollError
from redpoll.wire import session
from redpoll.wire.choice import link_to_use, links_too_many
from redpoll.wire.frames import Goodbye, Kind
from redpoll.wire.inbound import Inbound
from redpoll.wire.outgoing import DONE_OR_ENDED, Outgoing, Stage
from redpoll.wire.verdicts import because

if TYPE_CHECKING:
    from redpoll.wire.link import Link
    from redpoll.wire.peer import Peer

__all__ = ["attach", "detach", "left", "met"]

_REQ_ACK = int(Kind.REQ_ACK)
_RETRY = int(Kind.RETRY)
_ENDED = int(Stage.ENDED)


def attach(peer: Peer, link: Link, now: float) -> None:
    """A link was found to be this peer's."""
    link.peer = peer
    link.claimed()
    peer.links.append(link)
    session.note(peer, link)
    peer.trouble = None
    if link.announced is not None:
        met(peer, link)
    peer.pump(now)


def met(peer: Peer, link: Link) -> None:
    """The other end of a link of this peer announced itself: in its first bytes, or late, behind some messages."""
    epoch = link.announced.epoch if link.announced is not None else None
    renewed = peer.epoch is not None and peer.epoch != epoch
    if renewed:
        peer.slots.forget_all()
    peer.epoch = epoch
    # First what it is to know of this end.
    peer.owner.met(peer, link, renewed)
    session.met(peer, renewed)
    for out in link.in_flight.values():
        # A request that was noted as one to libchirp is answered by its serial now.
        peer.requests.forget(out)
    # What went out before the announcement was confirmed one at a time; from now on the window counts it.
    peer.unconfirmed -= len(link.in_flight)
    peer.unconfirmed -= sum(1 for out in link.transfers.unbegun() if out.kind & _REQ_ACK)
    link.arrived[:] = [message for message in link.arrived if not _is_known(peer, message)]
    for serial, hard in link.early_cancels:
        peer.cancelled(link, serial, hard=hard)
    link.early_cancels.clear()
    link.reannounce(*peer.window)
    former = [each for each in peer.links if session.is_former(peer, each)]
    if peer.link in former:
        # What goes to another run has no order to keep with what went to this one.
        peer.link = link
    present = [each for each in peer.links if each not in former]
    for each in (*former, *links_too_many(present, peer.settings.identity, peer.identity)):
        each.leave(take_all=True)
        peer.owner.wake(each)


def _is_known(peer: Peer, message: Inbound[Any]) -> bool:
    """Whether a message that came before its link had a peer was here before; if not, it is noted."""
    if message.kind & _REQ_ACK:
        if message.kind & _RETRY and peer.slots.resent(message):
            return True
        peer.held[message.serial] = message
    return False


def left(peer: Peer, link: Link, said: Goodbye, last: int) -> None:
    """The peer said goodbye on a link: what it will not handle is sent again, first, over another one."""
    late = [out for out in link.left(said, last) if out.stage != _ENDED]
    for out in reversed(late):
        peer.requeue(out)
    if session.is_former(peer, link):
        session.fail_former(peer, PeerLost(peer.address, session.STARTED_AGAIN), late)


def detach(peer: Peer, link: Link, error: RedpollError, now: float) -> None:
    """A link is lost: what was in flight on it fails as not confirmed, or is sent again.

    The latter if the session goes on, or if that was asked for of the message; and if the link was not of a former run of
    the peer's node, what was for which fails.
    """
    former = session.is_former(peer, link)
    survives = session.survives(peer, link, error)
    link.lost()
    if link not in peer.links:
        return
    peer.links.remove(link)
    if peer.link is link:
        peer.link = link_to_use(peer.links, link)
    peer.counters.bytes_sent += link.bytes_sent
    peer.counters.bytes_received += link.bytes_received
    for message in link.arrived:
        # It came before the bytes that broke the link, and nobody took it: as if it had not come.
        if peer.held.get(message.serial) is message:
            del peer.held[message.serial]
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
            peer.fail(out, because(NoAnswer(out.message, out.timeout, peer.address), error))
    if not peer.links and survives:
        session.lost(peer, link)
    elif not peer.links:
        session.fail_former(peer, error)
        session.over(peer)
    peer.pump(now)


def _open_on(peer: Peer, link: Link, error: RedpollError, survives: bool) -> list[Outgoing]:
    """Take everything off a lost link and fail it, but for what is to be sent again or was not begun: that, in order."""
    transfers = link.transfers
    unbegun = transfers.unbegun()
    in_flight = dict.fromkeys(link.in_flight.values())
    in_flight.update(dict.fromkeys(link.written))
    in_flight.update(dict.fromkeys(each.out for each in transfers if each.out not in unbegun))
    if link.announced is None:
        # Not what is still being written and was acknowledged already: that is counted no longer.
        peer.unconfirmed -= len(link.in_flight) + sum(1 for out in unbegun if out.kind & _REQ_ACK)
    link.in_flight.clear()
    link.written.clear()
    transfers.clear()
    again = []
    kept = peer.session if survives and link.announced is not None else None
    for out in in_flight:
        if out.stage == Stage.SENT and out.kind & _REQ_ACK and (kept is not None or out.retry > 0):
            if kept is not None:
                session.put_back(kept, out)
            else:
                out.retry -= 1
            out.kind |= _RETRY
            again.append(out)
        elif out.stage not in DONE_OR_ENDED:
            peer.requests.drop(out)
            peer.fail(out, because(NotConfirmed(out.message, str(error), peer.address), error))
    return again + [out for out in unbegun if out.stage != _ENDED]
