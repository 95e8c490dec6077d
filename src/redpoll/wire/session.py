"""The session of a peer: the state that outlives its links. What gaining and losing links does to it is in link_lifecycle.py.

With `resume`, a lost link fails nothing: acknowledged messages in flight go back to the front of the queue, and the
rest waits behind them. The session lasts until there is a link again, the peer's node announces that it stops, another
run of it announces itself, or the owner's clock ends it. The dialling end also shows a secret, by which the peer
recognizes it. (Wire format, section 5.6.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hmac import compare_digest
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from redpoll.wire.outgoing import Outgoing

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
    "forgotten",
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


@dataclass(slots=True, eq=False)
class Session:
    """Session state of a peer, and of this node with it."""

    #: Whether the last link was lost and messages wait for the next one.
    away: bool = False
    #: Whether this end dialled that link, and dials again even if nothing waits.
    redials: bool = False
    #: Serials of messages in flight when a link was lost, until they are resent to the same run.
    again: set[int] = field(default_factory=set)
    #: Duration of the other end's session, as it announced it.
    seconds: int = 0
    #: The secret that the peer showed first.
    secret: bytes | None = None
    #: Epochs of replaced runs of its node, the latest last.
    former: list[int] = field(default_factory=list)

    def knows(self, secret: bytes) -> bool:
        """Return True if a secret is the one shown first; compared in constant time."""
        return self.secret is not None and compare_digest(self.secret, secret)

    def fence(self, epoch: int) -> None:
        """Note that a run of the peer's node was replaced by a later one."""
        self.former = [*self.former, epoch][-MAX_FORMER:]

    def lost(self, *, redials: bool) -> None:
        """Note that the last link was lost and the session continues; whether this end dials again is decided once."""
        if not self.away:
            self.away = True
            self.redials = redials

    def put_back(self, out: Outgoing) -> None:
        """Note that a message in flight over a lost link is to be resent."""
        self.again.add(out.serial)
        # It had its one attempt to dial.
        out.once = False


def forgotten(out: Outgoing, run: tuple[int | None, bytes | None]) -> bool:
    """Return True if the other end, as the `Link.remote_run` says, may have forgotten the outcome of a message to be resent.

    For another run of its node the message is new: `fail_former` decides whether it may be sent there.
    """
    (epoch, record), (epoch_there, record_there) = out.remote_run, run
    return epoch == epoch_there and None not in (record, record_there) and record != record_there
