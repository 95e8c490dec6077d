"""Identity: what a link shows of its node, what it claims by that, and whether that can be a known peer.

All of it is decided here and in routes.py, by identity, run, place, key and secret. (Wire format, section 5.6.)
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple, TypeGuard

from redpoll.address import Address
from redpoll.wire.capabilities import NOT_LISTENING, SHOWS_SESSION
from redpoll.wire.link import Link
from redpoll.wire.peer import Peer

__all__ = ["Claim", "Claimant", "can_be_dialled", "claimed", "is_kept", "key_of", "may_be", "proves"]


class Claim(Enum):
    """The claim of a link by the identity in its handshake."""

    #: An identity that no other peer holds, or the peer's own.
    PLAIN = auto()
    #: An identity that a live link holds: the link has to prove that both are one node's.
    TO_PROVE = auto()
    #: An identity that another link holds, or that something is kept for: the link gets a peer of its own.
    CONFLICT = auto()
    #: A peer whose secret the link shows, in the run of its links: these are lost, and the link replaces them.
    REPLACES = auto()
    #: A peer whose secret the link shows, in another run: the former run is fenced.
    FENCES = auto()
    #: A peer whose secret the link shows, in a run that was fenced.
    FENCED = auto()


class Claimant(NamedTuple):
    """A link with its handshake, whose peer is to be found.

    Attributes:
        link: The link.
        remote: The remote address of the socket.
        target: The peer that was dialled, or None for an accepted link.
        key: The public key in the certificate of the remote node; None if it has none, or the link is not encrypted.
        checks_names: Whether certificates are checked for the dialled name: then no other name or place makes a link a
            peer's.
    """

    link: Link
    remote: Address
    target: Peer | None = None
    key: str | None = None
    checks_names: bool = False

    @property
    def identity(self) -> bytes:
        """The identity in the handshake."""
        return self.link.remote_identity or b""

    @property
    def place(self) -> Address | None:
        """The address to dial the node of an accepted link; port 0: none, None: places have no port."""
        link = self.link
        if self.remote.kind != "tcp" or link.handshake is None:
            return None
        listens = not link.announced.flags & NOT_LISTENING
        return Address("tcp", self.remote.host, link.handshake.port if listens else 0)

    @property
    def awaits_secret(self) -> bool:
        """True if an accepted link has still to show its secret, which precedes all messages."""
        link = self.link
        shows = link.announced.flags & SHOWS_SESSION != 0
        return shows and not link.dialled and link.shown is None and not link.arrived.messages

    def is_run_of(self, peer: Peer) -> bool:
        """Return True if a link showed a peer's key and announces the same run of its node."""
        return proves(peer, self.key) and peer.epoch == self.link.epoch


def key_of(peer: Peer) -> str | None:
    """Return the public key that a peer is known by; None without a certificate."""
    return None if peer.certificate is None else peer.certificate.public_key


def may_be(peer: Peer, key: str | None) -> bool:
    """Return True if a link's key does not contradict a peer's: a node that showed a key shows it again.

    The key decides, not the certificate, so that a renewed one matches; its holder has the private key. A peer without
    a certificate matches any.
    """
    return peer.certificate is None or key_of(peer) == key


def proves(peer: Peer, key: str | None) -> bool:
    """Return True if a link showed the key that a peer is known by."""
    return peer.certificate is not None and key_of(peer) == key


def is_kept(peer: Peer) -> bool:
    """Return True if anything is kept for a peer: links, messages, outcomes of messages that it may resend."""
    return not peer.idle or peer.slots.remembered > 0


def claimed(peer: Peer, claimant: Claimant, same_run: bool) -> Claim | None:
    """Return what a link claims that may be a peer's; None if it is not."""
    link, key = claimant.link, claimant.key
    announced = not link.libchirp and peer.epoch is not None
    if not may_be(peer, key):
        # The node may have changed its key since its links were made; only these can tell.
        return Claim.TO_PROVE if key is not None and announced and peer.links else None
    if not peer.links or (peer.epoch is None and link.libchirp):
        # No link holds the identity; or libchirp, which keeps two links and cannot prove anything.
        return Claim.PLAIN
    if same_run and (link.shown is None or not link.shown.seconds):
        return Claim.PLAIN
    # A node that resends what was in flight over a link that is still open here: that link is read to its end first.
    return Claim.TO_PROVE if announced or (key is not None and peer.certificate is not None) else None


def can_be_dialled(address: Address | None) -> TypeGuard[Address]:
    """Return True if a node can be dialled at an address."""
    return address is not None and (address.kind != "tcp" or address.port != 0)
