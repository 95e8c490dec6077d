"""The session of a peer: the state that outlives its links, and which messages fail when its node or its time ends.

With `resume`, a lost link fails nothing: acknowledged messages in flight go back to the front of the queue, and the
rest waits behind them. The session lasts until there is a link again, the peer's node announces that it stops, another
run of it announces itself, or the owner's clock ends it. The dialling end also shows a secret, by which the peer
recognizes it. (Wire format, section 5.6.)
"""

from __future__ import annotations

from hmac import compare_digest
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from redpoll.errors import Closed, Fenced, NotAuthorized, PeerLost, RedpollError
from redpoll.wire.frames import Goodbye, Kind
from redpoll.wire.outgoing import Stage
from redpoll.wire.send_errors import not_sent_errors
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    from redpoll.wire.link import Link
    from redpoll.wire.outgoing import Outgoing
    from redpoll.wire.peer import Peer

__all__ = [
    "FENCED",
    "FORGOTTEN",
    "MAX_FORMER",
    "RECORD",
    "RECORD_SIZE",
    "RESTARTED",
    "SECRET_SIZE",
    "SHOWN",
    "Session",
    "Shown",
    "end",
    "ensure_session",
    "fail_former",
    "forgotten",
    "hand_over",
    "is_former",
    "note_shown",
    "on_announcement",
    "on_links_lost",
    "put_back",
    "reset",
    "shows_secret_of",
    "survives",
]

#: First byte of a session frame with the duration of the sender's session and its secret.
SHOWN = b"\x04"

#: First byte of a session frame with the number of the sender's record of the other end, and size of that in bytes.
RECORD = b"\x06"
RECORD_SIZE = 8

#: A session frame that tells a run of a node that a later run replaced it.
FENCED = b"\x05"

SECRET_SIZE = 16

#: Maximum runs of a node that are remembered as replaced, to be told so when they come back.
MAX_FORMER = 16

#: Why messages in flight fail if the other end has another record of this node.
FORGOTTEN = "the peer no longer knows whether it was handled"

#: Why messages for a former run of a node fail.
RESTARTED = "its node was restarted"

_LAYOUT = Struct("!cBI")
_VERSION = 1
_RETRY = int(Kind.RETRY)
_FOR_GOOD = frozenset((Goodbye.UP_TO, Goodbye.NONE))

#: Errors after which one end wants no further link.
_FINAL = (Closed, NotAuthorized, Fenced)


class Shown(NamedTuple):
    """The session as described by one end of a link.

    Attributes:
        seconds: How long its messages may wait for a link; 0 for no session.
        secret: Secret of the dialling end; empty if there is none.
    """

    seconds: int
    secret: bytes = b""

    def encode(self) -> bytes:
        """Return the body of the session frame."""
        return _LAYOUT.pack(SHOWN, _VERSION, self.seconds) + self.secret

    @classmethod
    def decode(cls, body: bytes) -> Shown | None:
        """Decode the body of a session frame that begins with `SHOWN`, up to this version; return None if invalid."""
        if len(body) < _LAYOUT.size:
            return None
        _, version, seconds = _LAYOUT.unpack_from(body)
        secret = body[_LAYOUT.size : _LAYOUT.size + SECRET_SIZE]
        whole = len(body) in (_LAYOUT.size, _LAYOUT.size + SECRET_SIZE)
        if version < _VERSION or not (whole or (version > _VERSION and len(secret) == SECRET_SIZE)):
            return None
        return cls(seconds, secret)


class Session:
    """Session state of a peer, and of this node with it.

    Attributes:
        away: Whether the last link was lost and messages wait for the next one.
        redials: Whether this end dialled that link, and dials again even if nothing waits.
        again: Serials of messages in flight when a link was lost, until they are resent to the same run.
        seconds: Duration of the other end's session, as it announced it.
        secret: The secret that the peer showed first.
        former: Epochs of replaced runs of its node, the latest last.
    """

    __slots__ = ("again", "away", "former", "redials", "seconds", "secret")

    def __init__(self) -> None:
        self.away = False
        self.redials = False
        self.again: set[int] = set()
        self.seconds = 0
        self.secret: bytes | None = None
        self.former: list[int] = []

    def knows(self, secret: bytes) -> bool:
        """Return True if a secret is the one shown first; compared in constant time."""
        return self.secret is not None and compare_digest(self.secret, secret)

    def fence(self, epoch: int) -> None:
        """Note that a run of the peer's node was replaced by a later one."""
        self.former = [*self.former, epoch][-MAX_FORMER:]


def ensure_session(peer: Peer) -> Session:
    """Return the session of a peer, created if there is none."""
    if peer.session is None:
        peer.session = Session()
    return peer.session


def note_shown(peer: Peer, link: Link) -> None:
    """Apply what the other end of a peer's link announced of its session."""
    shown = link.shown
    if shown is None:
        return
    session = ensure_session(peer)
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
    if session is None or session.secret is None:
        return True
    return link.shown is not None and session.knows(link.shown.secret)


def survives(peer: Peer, link: Link, error: RedpollError) -> bool:
    """Return True if this node's session with a peer survives the loss of a link because of `error`."""
    session = peer.session
    if peer.settings.resume is None or session is None or isinstance(error, _FINAL):
        return False
    if session.away or is_former(peer, link):
        # The link never said which run it is to; or it is to a former run, and says nothing about the present one.
        return True
    if link.announced is None or link.goodbye in _FOR_GOOD:
        return False
    return link.state is not LinkState.PARTING or bool(link.in_flight or link.transfers or session.again)


def is_former(peer: Peer, link: Link) -> bool:
    """Return True if a link is to a run of the peer's node that was followed by another one on another link."""
    announced = link.announced
    return announced is not None and peer.epoch is not None and announced.epoch != peer.epoch


def forgotten(out: Outgoing, link: Link) -> bool:
    """Return True if the other end may have forgotten the outcome of a message to be resent.

    For another run of its node the message is new: `fail_former` decides whether it may be sent there.
    """
    (epoch, record), (epoch_there, record_there) = out.remote_run, link.remote_run
    return epoch == epoch_there and None not in (record, record_there) and record != record_there


def put_back(session: Session, out: Outgoing) -> None:
    """Note that a message in flight over a lost link is to be resent."""
    session.again.add(out.serial)
    # It had its one attempt to dial.
    out.once = False


def on_links_lost(peer: Peer, link: Link) -> None:
    """Note that the last link of a peer is lost and its session continues."""
    session = ensure_session(peer)
    if not session.away:
        session.away = True
        session.redials = link.dialled


def on_announcement(peer: Peer, renewed: bool) -> None:
    """Resume the session over a new link, to the same run of the peer's node or, if `renewed`, to another one.

    Messages in flight to a former run may have been handled there, and those for that run alone will not be.
    """
    session = peer.session
    if session is None or peer.settings.resume is None:
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
    session = peer.session
    failing = []
    for out in peer.queue if waiting is None else waiting:
        if out.stage != Stage.QUEUED:
            continue
        again = session is not None and out.kind & _RETRY and out.serial in session.again
        if again and out.retry > 0 and not out.pinned:
            # The caller allowed it to be handled twice.
            out.retry -= 1
        elif again or out.pinned:
            failing.append(out)
    peer.deadlines.remove(failing)
    for out, failure in zip(failing, not_sent_errors(failing, error, peer.address), strict=True):
        out.deadline = None
        peer.fail_queued(out, failure, error)


def end(peer: Peer, error: RedpollError) -> None:
    """End the session, and fail everything queued."""
    reset(peer)
    peer.fail_queue(error)


def hand_over(peer: Peer, known: Peer) -> None:
    """Move a session's messages in flight to another peer, which is the same run of the same node."""
    if peer.session is not None and peer.session.again:
        ensure_session(known).again |= peer.session.again
        peer.session.again.clear()


def reset(peer: Peer) -> None:
    """Reset the session: there is a link, or no message waits for the same run any more."""
    session = peer.session
    if session is not None:
        session.away = session.redials = False
        session.again.clear()
