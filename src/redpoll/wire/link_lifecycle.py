"""Effects of gaining and losing links on a peer: which messages fail, which are resent, and whether its session continues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redpoll.errors import Closed, Fenced, NoAnswer, NotAuthorized, NotConfirmed, PeerLost, RedpollError, Withdrawn
from redpoll.wire.answers import take_answer
from redpoll.wire.frames import ANSWER, REQ_ACK, RETRY, Goodbye
from redpoll.wire.inbound import Inbound
from redpoll.wire.link import Link
from redpoll.wire.outgoing import DONE_OR_ENDED, Outgoing, Stage
from redpoll.wire.peer import Peer, select_link
from redpoll.wire.send_errors import not_sent_errors, with_cause
from redpoll.wire.session import RESTARTED
from redpoll.wire.states import LinkState

__all__ = [
    "attach",
    "detach",
    "end",
    "fail_former",
    "hand_over",
    "note_shown",
    "on_announcement",
    "on_cancel",
    "on_goodbye",
    "redundant_links",
    "reset",
    "shows_secret_of",
]

_FOR_GOOD = frozenset((Goodbye.UP_TO, Goodbye.NONE))

#: Errors after which one end wants no further link.
_FINAL = (Closed, NotAuthorized, Fenced)


def attach(peer: Peer, link: Link[Peer], now: float) -> None:
    """Add a link to the peer that it was found to belong to."""
    link.peer = peer
    link.release_early()
    peer.links.append(link)
    note_shown(peer, link)
    peer.last_error = None
    if not link.libchirp:
        on_announcement(peer, link)
    peer.pump(now)


def on_announcement(peer: Peer, link: Link[Peer]) -> None:
    """Apply the first announcement on a link of this peer, which comes with the handshake, or late, behind messages."""
    renewed = peer.epoch is not None and peer.epoch != link.epoch
    if renewed:
        peer.forget_all()
    peer.epoch = link.epoch
    # Messages for a former run fail before the owner sends anything to this one.
    _resume(peer, renewed)
    for out in link.in_flight.values():
        # The request was keyed by identity, as to libchirp; from now on its serial is used.
        peer.requests.forget(out)
    # News of this end that the other one needs comes first; the owner may send messages.
    peer.owner.on_announcement(peer, link, renewed)
    peer.record_sent = link.send_record(peer.record) or peer.record_sent
    link.arrived.messages[:] = [message for message in link.arrived.messages if not _is_known(peer, message)]
    for serial, hard in link.arrived.cancels:
        on_cancel(peer, link, serial, hard)
    link.arrived.cancels.clear()
    link.reannounce(*peer.slots.window)
    former = [each for each in peer.links if _is_former(peer, each)]
    if peer.link in former:
        # Messages to another run need no order relative to those sent to this one.
        peer.link = link
    present = [each for each in peer.links if each not in former]
    for each in (*former, *redundant_links(present, peer.settings.identity, peer.identity)):
        each.leave(accept_all=True)
        peer.owner.wake(each)


def _is_known(peer: Peer, message: Inbound[Any]) -> bool:
    """Return True if a message received before its link had a peer is a duplicate or an answer; otherwise note it."""
    if message.kind & ANSWER:
        take_answer(peer, message)
        return True
    if message.kind & REQ_ACK:
        if message.kind & RETRY and peer.slots.resent(message):
            return True
        peer.unacked[message.serial] = message
    return False


def on_cancel(peer: Peer, link: Link, serial: int, hard: bool) -> None:
    """Apply a cancel frame of the peer for one of its messages."""
    part = link.incoming.drop(serial)
    if part is None or part.discarded:
        peer.slots.withdraw(serial, hard)
    elif part.kind & REQ_ACK:
        link.refuse(part, Withdrawn.code, "withdrawn by its sender before it was complete")
    else:
        link.credit(1, part.size)


def on_goodbye(peer: Peer, link: Link, said: Goodbye, last: int) -> None:
    """Apply the peer's goodbye on a link: messages that it will not handle are resent first, over another link."""
    late = [out for out in link.goodbye_received(said, last, peer.serial) if out.stage != Stage.ENDED]
    for out in reversed(late):
        peer.requeue(out)
    if _is_former(peer, link):
        fail_former(peer, PeerLost(peer.address, RESTARTED), late)


def detach(peer: Peer, link: Link[Peer], error: RedpollError, now: float) -> None:
    """Remove a lost link: messages in flight on it fail as not confirmed, or are resent.

    They are resent if the session continues, or if their sender allowed a retry. If the link was to a former run of the
    peer's node, the messages for that run fail.
    """
    former = _is_former(peer, link)
    resumes = _survives(peer, link, error)
    link.connection_lost()
    if link not in peer.links:
        return
    peer.links.remove(link)
    peer.last_heard = max(peer.last_heard, link.liveness.last_received)
    if peer.link is link:
        peer.link = select_link(peer.links, link)
    peer.counters.bytes_sent += link.bytes_sent
    peer.counters.bytes_received += link.bytes_received
    peer.slots.drop_withdrawn(link)
    for message in link.arrived.messages:
        # It arrived before the bytes that broke the link, and was not taken: as if it had not arrived.
        if peer.unacked.get(message.serial) is message:
            del peer.unacked[message.serial]
    link.arrived.messages.clear()
    peer.slots.carry(link)
    again = _open_on(peer, link, error, resumes and not former)
    for out in reversed(again):
        peer.requests.drop(out)
        peer.requeue(out)
    if former:
        fail_former(peer, error, again)
    for out in peer.requests.over(link):
        gone = NoAnswer(out.message, out.timeout, peer.address, "its answer cannot come any more")
        peer.fail(out, with_cause(gone, error))
    if not peer.links and resumes:
        peer.session.lost(redials=link.dialled)
    elif not peer.links:
        fail_former(peer, error)
        reset(peer)
    peer.pump(now)


def _open_on(peer: Peer, link: Link, error: RedpollError, resumes: bool) -> list[Outgoing]:
    """Take all messages off a lost link and fail them, except those to resend and those not begun: return these, in order."""
    transfers = link.transfers
    unbegun = transfers.unbegun()
    for each in transfers:
        if each.answer:
            peer.slots.renew_outcome(each.out.serial)
    in_flight = dict.fromkeys(link.in_flight.values())
    in_flight.update(dict.fromkeys(link.written))
    in_flight.update(dict.fromkeys(each.out for each in transfers if each.out not in unbegun))
    link.in_flight.clear()
    link.written.clear()
    transfers.clear()
    again = []
    kept = peer.session if resumes and not link.libchirp else None
    why = error._reason(peer.address) if in_flight else ""
    for out in in_flight:
        if out.stage == Stage.SENT and out.kind & REQ_ACK and (kept is not None or out.retry > 0):
            if kept is not None:
                kept.put_back(out)
            else:
                out.retry -= 1
            out.kind |= RETRY
            if type(out.body) is not bytes:
                # The peer may remember the end of it, and say so while the rest is being written: the buffer is the
                # caller's again then.
                out.body = bytes(out.body)
            out.remote_run = link.remote_run
            again.append(out)
        elif out.stage not in DONE_OR_ENDED:
            peer.fail(out, with_cause(NotConfirmed(out.message, why, peer.address), error))
    return again + [out for out in unbegun if out.stage != Stage.ENDED]


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
    redpoll = [each for each in links if not each.libchirp and each.sending]
    if len(redpoll) < 2 or theirs is None:
        return []
    keep = next((each for each in reversed(redpoll) if each.dialled == (ours < theirs)), redpoll[-1])
    return [each for each in redpoll if each is not keep]


# The session


def note_shown(peer: Peer, link: Link) -> None:
    """Apply what the other end of a peer's link announced of its session."""
    shown = link.shown
    if shown is None:
        return
    session = peer.session
    if shown.seconds or len(peer.links) == 1:
        # None is announced on a link beside another one.
        session.seconds = shown.seconds
    if not shown.secret or link.dialled:
        # The end that was dialled has nothing to prove: it is where it was looked up.
        return
    if session.secret is None:
        session.secret = shown.secret
    elif not session.knows(shown.secret):
        link.memory.tally.sessions_refused += 1


def shows_secret_of(peer: Peer, link: Link) -> bool:
    """Return True if a link showed the secret of a peer, or the peer has none."""
    session = peer.session
    return session.secret is None or (link.shown is not None and session.knows(link.shown.secret))


def _survives(peer: Peer, link: Link, error: RedpollError) -> bool:
    """Return True if this node's session with a peer survives the loss of a link because of `error`."""
    session = peer.session
    if peer.settings.resume is None or isinstance(error, _FINAL):
        return False
    if session.away or _is_former(peer, link):
        # The link never said which run it is to; or it is to a former run, and says nothing about the present one.
        return True
    if link.libchirp or link.goodbye in _FOR_GOOD:
        return False
    return link.state is not LinkState.PARTING or bool(link.in_flight or link.transfers or session.again)


def _is_former(peer: Peer, link: Link) -> bool:
    """Return True if a link is to a run of the peer's node that was followed by another one on another link."""
    return link.epoch is not None and peer.epoch is not None and link.epoch != peer.epoch


def _resume(peer: Peer, renewed: bool) -> None:
    """Resume the session over a new link, to the same run of the peer's node or, if `renewed`, to another one.

    Messages in flight to a former run may have been handled there, and those for that run alone will not be.
    """
    session = peer.session
    if peer.settings.resume is None:
        return
    # It may have to wait behind a large message, and that link may be lost as well.
    open_ones = [out for each in peer.links for out in each.transfers.unbegun()]
    if renewed:
        fail_former(peer, PeerLost(peer.address, RESTARTED))
    else:
        peer.counters.resumed += session.away
        # Or for a place in the window.
        open_ones += peer.queue
    still = session.again.intersection(out.serial for out in open_ones if out.stage != Stage.ENDED)
    reset(peer)
    session.again = still


def fail_former(peer: Peer, error: RedpollError, waiting: list[Outgoing] | None = None) -> None:
    """Fail those queued messages that were in flight to a former run of the peer's node, or are for that run alone.

    Args:
        peer: The peer.
        error: Why the run is over.
        waiting: The messages to consider; None for all that are queued.
    """
    failing = []
    for out in list(peer.queue) if waiting is None else waiting:
        if out.stage != Stage.QUEUED:
            continue
        again = out.kind & RETRY and out.serial in peer.session.again
        if again and out.retry > 0 and not out.pinned:
            # The caller allowed it to be handled twice.
            out.retry -= 1
        elif again or out.pinned:
            failing.append(out)
    for out, failure in zip(failing, not_sent_errors(failing, error, peer.address), strict=True):
        peer.fail_unsent(out, failure, error)


def end(peer: Peer, error: RedpollError) -> None:
    """End the session, and fail everything queued."""
    reset(peer)
    peer.fail_queue(error)


def hand_over(peer: Peer, known: Peer) -> None:
    """Move a session's messages in flight to another peer, which is the same run of the same node."""
    known.session.again |= peer.session.again
    peer.session.again.clear()


def reset(peer: Peer) -> None:
    """Reset the session: there is a link, or no message waits for the same run any more."""
    session = peer.session
    session.away = session.redials = False
    session.again.clear()
