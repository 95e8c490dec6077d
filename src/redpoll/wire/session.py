"""The session of a peer: what outlives its links, and what of it fails when its node or its time is over.

With `resume` a lost link ends nothing: acknowledged messages that were in flight go back to the front of the queue, and the
rest waits behind them. It lasts until a link is there again, the peer's node said that it stops, another run of it
announces itself, or the owner's clock ends it. Who dialled shows a secret besides, by which a peer is known again. (Wire
format, section 5.6.)
"""

from __future__ import annotations

from hmac import compare_digest
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from redpoll.errors import Closed, Fenced, NotAuthorized, NotSent, PeerLost, RedpollError
from redpoll.wire.frames import Goodbye, Kind
from redpoll.wire.outgoing import Stage
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    from redpoll.wire.link import Link
    from redpoll.wire.outgoing import Outgoing
    from redpoll.wire.peer import Peer

__all__ = [
    "FENCED",
    "MAX_FORMER",
    "SECRET_SIZE",
    "SHOWN",
    "STARTED_AGAIN",
    "Session",
    "Shown",
    "end",
    "fail_former",
    "is_former",
    "lost",
    "met",
    "note",
    "of",
    "over",
    "put_back",
    "shows_secret_of",
    "survives",
]

#: What a session frame begins with that says how long the sender's session lasts, and shows its secret.
SHOWN = b"\x04"

#: A session frame that says to a run of a node that a later one took its place.
FENCED = b"\x05"

SECRET_SIZE = 16

#: Runs of a node that lost their place to a later one, and are told so when they come back.
MAX_FORMER = 16

#: Why what was for a former run of a node fails.
STARTED_AGAIN = "its node was started again"

_LAYOUT = Struct("!cBI")
_VERSION = 1
_RETRY = int(Kind.RETRY)
_FOR_GOOD = frozenset((Goodbye.UP_TO, Goodbye.NONE))

#: With these a link ends because one of its ends wants nothing more of the other.
_FINAL = (Closed, NotAuthorized, Fenced)


class Shown(NamedTuple):
    """What one end of a link tells of its session.

    Attributes:
        seconds: How long its messages may wait for a link; 0 is no session.
        secret: Only of who dialled; empty if there is none.
    """

    seconds: int
    secret: bytes = b""

    def encode(self) -> bytes:
        """Return the body of the session frame."""
        return _LAYOUT.pack(SHOWN, _VERSION, self.seconds) + self.secret

    @classmethod
    def decode(cls, body: bytes) -> Shown | None:
        """Read the body of a session frame that begins with `SHOWN`, less what a later version adds; None if it is none."""
        if len(body) < _LAYOUT.size:
            return None
        _, version, seconds = _LAYOUT.unpack_from(body)
        secret = body[_LAYOUT.size : _LAYOUT.size + SECRET_SIZE]
        whole = len(body) in (_LAYOUT.size, _LAYOUT.size + SECRET_SIZE)
        if version < _VERSION or not (whole or (version > _VERSION and len(secret) == SECRET_SIZE)):
            return None
        return cls(seconds, secret)


class Session:
    """What is known of a peer's session, and of this node's with it.

    Attributes:
        away: Whether the last link was lost and messages wait for the next one.
        redials: Whether this end had dialled that link, and is to dial again though nothing may wait.
        again: Serials of what was in flight when a link was lost, until it goes out over another one of the same run.
        seconds: How long the other end's session lasts, as it said.
        secret: What the peer showed first.
        former: Epochs of runs of its node that lost their place, the latest last.
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
        """Whether a secret is the one that was shown first, found in a time that says nothing of how much of it is right."""
        return self.secret is not None and compare_digest(self.secret, secret)

    def fence(self, epoch: int) -> None:
        """A run of the peer's node has lost its place to a later one."""
        self.former = [*self.former, epoch][-MAX_FORMER:]


def of(peer: Peer) -> Session:
    """The session of a peer, made if there is none."""
    if peer.session is None:
        peer.session = Session()
    return peer.session


def note(peer: Peer, link: Link) -> None:
    """Note what the other end of a peer's link told of its session."""
    shown = link.shown
    if shown is None:
        return
    session = of(peer)
    session.seconds = shown.seconds
    if not shown.secret or link.dialled:
        # Who was dialled has nothing to prove: it is where it was looked for.
        return
    if session.secret is None:
        session.secret = shown.secret
    elif not session.knows(shown.secret):
        link.memory.tally.sessions_refused += 1


def shows_secret_of(peer: Peer, link: Link) -> bool:
    """Whether a link showed what a peer is known by; True too where it is known by nothing."""
    session = peer.session
    if session is None or session.secret is None:
        return True
    return link.shown is not None and session.knows(link.shown.secret)


def survives(peer: Peer, link: Link, error: RedpollError) -> bool:
    """Whether this node's session with a peer goes on without a link that is about to be given up, because of `error`."""
    session = peer.session
    if peer.settings.resume is None or session is None or isinstance(error, _FINAL):
        return False
    if session.away or is_former(peer, link):
        # The link never said whose run it is of; or it is of a run that is over, and says nothing of the one there now.
        return True
    if link.announced is None or link.goodbye in _FOR_GOOD:
        return False
    return link.state is not LinkState.PARTING or bool(link.in_flight or link.transfers or session.again)


def is_former(peer: Peer, link: Link) -> bool:
    """Whether a link is of a run of the peer's node after which another one announced itself over another link."""
    announced = link.announced
    return announced is not None and peer.epoch is not None and announced.epoch != peer.epoch


def put_back(session: Session, out: Outgoing) -> None:
    """A message that was in flight over a lost link is to be sent again."""
    session.again.add(out.serial)
    # It had its one dialling.
    out.once = False


def lost(peer: Peer, link: Link) -> None:
    """The last link of a peer is gone, and the session goes on without."""
    session = of(peer)
    if not session.away:
        session.away = True
        session.redials = link.dialled


def met(peer: Peer, renewed: bool) -> None:
    """A link to a peer is there, of the run that it was in, or of another one: `renewed`.

    What was in flight to a former run may have been handled there, and what was only for that run will not be.
    """
    session = peer.session
    if session is None or peer.settings.resume is None:
        return
    # It may have to wait behind a large message, and that link may be lost as well.
    open_ones = [out for each in peer.links for out in each.transfers.unbegun()]
    if renewed:
        fail_former(peer, PeerLost(peer.address, STARTED_AGAIN))
    else:
        peer.counters.resumed += session.away
        # Or for a place in the window.
        open_ones += peer.queue
    still = session.again.intersection(out.serial for out in open_ones if out.stage != Stage.ENDED)
    over(peer)
    session.again = still


def fail_former(peer: Peer, error: RedpollError, waiting: list[Outgoing] | None = None) -> None:
    """Of what waits in the queue fail what was in flight to a run of the peer's node that is over, or is for that alone.

    Args:
        peer: Whose run it was.
        error: Why it is over.
        waiting: What is looked at; None is all that waits.
    """
    session = peer.session
    failing = []
    for out in peer.queue if waiting is None else waiting:
        if out.stage != Stage.QUEUED:
            continue
        again = session is not None and out.kind & _RETRY and out.serial in session.again
        if again and out.retry > 0 and not out.pinned:
            # The caller allowed it to be done twice.
            out.retry -= 1
        elif again or out.pinned:
            failing.append(out)
    peer.deadlines.remove(failing)
    for out in failing:
        out.deadline = None
        peer.fail_waiting(out, NotSent(out.message, str(error), peer.address), error)


def end(peer: Peer, error: RedpollError) -> None:
    """The session is over: nothing waits any longer."""
    over(peer)
    peer.fail_queue(error)


def over(peer: Peer) -> None:
    """Nothing waits for a link of the same run any more, or the link is there."""
    session = peer.session
    if session is not None:
        session.away = session.redials = False
        session.again.clear()
