"""What the tests of routes share: links whose other end said who it is, and a book to look them up in."""

from __future__ import annotations

import struct
from datetime import UTC, datetime

from redpoll.address import Address
from redpoll.errors import PeerLost
from redpoll.tls.certificate import Certificate
from redpoll.wire.capabilities import NOT_LISTENING
from redpoll.wire.identity import Claim, Claimant
from redpoll.wire.link import Link
from redpoll.wire.link_lifecycle import attach, detach
from redpoll.wire.peer import Peer
from redpoll.wire.routes import Routes
from redpoll.wire.slots import SlotPool
from tests.wire.support import NOOP, Owned, bare_link, feed, frame, handshake, settings

OWN = b"O" * 16
ONE = b"1" * 16
TWO = b"2" * 16
THERE = Address("tcp", "127.0.0.1", 4000)
ELSEWHERE = Address("tcp", "127.0.0.1", 5000)
NAME = Address("tcp", "localhost", 4000)
#: Where the other end of a connection that came in is, as its socket says.
FROM_THERE = Address("tcp", "127.0.0.1", 40_123)
UNIX = Address("unix", "/run/there")
FROM_UNIX = Address("unix", "")


def new_peer(address: Address | None, identity: bytes | None) -> Peer:
    return Peer(address, identity, settings(), SlotPool(10), Owned(), 0)


def link(
    identity: bytes, port: int = 4000, *, dialled: bool = False, epoch: int | None = 7, listens: bool = True
) -> Link[Peer]:
    """A link whose other end said who it is; without an epoch it is libchirp."""
    made = bare_link(dialled=dialled)
    feed(made, handshake(port, identity))
    if epoch is not None:
        flags = 0 if listens else NOT_LISTENING
        feed(made, frame(NOOP, epoch, identity=struct.pack("!2sBBHIHI", b"\xf2r", 1, flags, 1, 64, 64, 102_400)))
    return made


def shown(key: str, fingerprint: str = "f") -> Certificate:
    """What a link showed, of some public key."""
    moment = datetime.now(UTC)
    return Certificate("CN=x", "x", (), "CN=CA", "1", moment, moment, fingerprint, key)


class Book(Routes):
    """Routes, and short ways to ask them."""

    def __init__(self) -> None:
        super().__init__(OWN, new_peer)

    def accept(
        self, made: Link[Peer], remote: Address = FROM_THERE, certificate: Certificate | None = None
    ) -> tuple[Peer, Claim]:
        """Let a link in, and give it to its peer unless that is to be proven."""
        peer, claim = self.identify(Claimant(made, remote, key=certificate.public_key if certificate else None))
        if claim is not Claim.TO_PROVE:
            peer.certificate = certificate
            attach(peer, made, 0.0)
        return peer, claim

    def dial(self, made: Link[Peer], target: Peer, remote: Address = THERE) -> Peer:
        """Give a dialled link to its peer."""
        peer, claim = self.identify(Claimant(made, remote, target))
        assert claim is Claim.PLAIN
        attach(peer, made, 0.0)
        return peer

    def known(self, address: Address | None, identity: bytes | None = None) -> Peer:
        """A peer that is known and has no link."""
        peer = new_peer(address, identity)
        self.add(peer)
        return peer


def lose(peer: Peer) -> None:
    """All links of a peer are gone."""
    for made in list(peer.links):
        detach(peer, made, PeerLost(None, "gone"), 0.0)


def held(peer: Peer) -> None:
    """Something is kept for a peer."""
    peer.slots.running += 1
