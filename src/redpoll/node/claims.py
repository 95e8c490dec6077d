"""Proof that a link comes from the node that another link already belongs to.

An identity is only a claim. When an accepted link claims the identity of a peer with a live link, this node sends a
random number over the trusted link; the peer returns it over the new link, if it dialled that link itself. So two nodes
that dial each other at the same time find that they are one peer with two links, and a stranger cannot pass for a peer.
In the same way a node that dialled another one learns whether an accepted link belongs to that node too: the remote
node then sees two links of one peer and leaves the dialled one. A number is returned only to a node with the
certificate of the one that asked: otherwise a dialled node that claims to be the asking one could relay it. (Wire
format, section 5.6.)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from redpoll.wire.frames import Control
from redpoll.wire.link import Link
from redpoll.wire.peer import Peer

if TYPE_CHECKING:
    from redpoll.transport.connection import Connection

__all__ = ["CLAIM_TIMEOUT", "DOUBT_TIMEOUT", "REJECTED", "Claims", "OpenClaim", "key_of"]

#: Time in seconds that a link has to prove its claim; after that it becomes a peer of its own.
CLAIM_TIMEOUT = 1.0

#: Time in seconds that it has if the asked peer does not answer the ping behind the question: as long as a lost peer is
#: remembered, and longer than it takes to detect a dead link.
DOUBT_TIMEOUT = 30.0

_NUMBER_SIZE = 16
_PROVE = b"\x01"
_PROOF = b"\x02"

#: The body of the session frame that tells a node that it is rejected.
REJECTED = b"\x03"


class OpenClaim(NamedTuple):
    """A claim that waits for its proof.

    Attributes:
        connection: The connection that claims the identity.
        peer: The holder of the identity.
        number: The number that proves it.
        received: Bytes received over each link of that peer when it was asked.
        asked: Time of the question, by the clock of the loop.
    """

    connection: Connection
    peer: Peer
    number: bytes
    received: dict[Link[Peer], int]
    asked: float

    @property
    def ping(self) -> int:
        """The number of the ping behind the question."""
        return int.from_bytes(self.number[:4], "big") | 1

    @property
    def holder_lives(self) -> bool:
        """True if the peer sent something since it was asked: its links are not dead."""
        return any(link.bytes_received > self.received.get(link, 0) for link in self.peer.links)

    def in_doubt(self, now: float) -> bool:
        """Return True if the peer may be the same run of the same node and has not read the question yet.

        Its link may be dead but not closed, or still deliver what was under way when the remote node closed it: it is
        lost soon then, and the new link succeeds it. After `DOUBT_TIMEOUT` there is no doubt any more.
        """
        epoch = self.connection.link.epoch
        if epoch is None or epoch != self.peer.epoch or now >= self.asked + DOUBT_TIMEOUT:
            return False
        return any(self.ping in link.pings for link in self.peer.links)


class Claims:
    """The links of one node whose claims are not proven yet, and the proofs that this node owes."""

    def __init__(self) -> None:
        self._open: dict[Connection, OpenClaim] = {}
        #: Proofs by the connection that carries them: their number, and the connection on which they were requested.
        self._owed: dict[Connection, tuple[bytes, Connection]] = {}
        #: Dialled connections asked whether an accepted link is of the same node: the number, and the peer of that
        #: link.
        self._twins: dict[Connection, tuple[bytes, Peer]] = {}
        #: The connections that this node dialled: those without a peer, and the others by the identity of the remote
        #: node.
        self._dialled: dict[bytes | None, dict[Connection, None]] = {}

    def get(self, connection: Connection) -> OpenClaim | None:
        """Return the open claim of a connection, or None."""
        return self._open.get(connection)

    @property
    def open(self) -> list[OpenClaim]:
        """All open claims."""
        return list(self._open.values())

    def of_peer(self, peer: Peer) -> list[OpenClaim]:
        """Return the open claims to a peer."""
        return [claim for claim in self._open.values() if claim.peer is peer]

    def ask(self, connection: Connection, peer: Peer, now: float) -> OpenClaim:
        """Ask a peer, over its own link, to prove that a new connection is its own too.

        A ping follows, which a live peer answers even if it has nothing to prove.
        """
        received = {link: link.bytes_received for link in peer.links}
        claim = self._open[connection] = OpenClaim(connection, peer, os.urandom(_NUMBER_SIZE), received, now)
        asked = peer.link or next(iter(peer.links), None)
        if asked is not None:
            asked.control(Control.SESSION, body=_PROVE + claim.number)
            asked.control(Control.PING, claim.ping)
            asked.pings[claim.ping] = None
        return claim

    def ask_twin(self, connection: Connection, known: Peer) -> None:
        """Ask the remote node of a dialled connection to prove that the accepted links of another peer are its own."""
        number = os.urandom(_NUMBER_SIZE)
        self._twins[connection] = number, known
        connection.link.control(Control.SESSION, body=_PROVE + number)

    def drop(self, claim: OpenClaim) -> bool:
        """Stop waiting for a proof; return True if the claim was still open."""
        if self._open.get(claim.connection) is not claim:
            return False
        del self._open[claim.connection]
        for link in claim.peer.links:
            link.pings.pop(claim.ping, None)
        return True

    def take(self, connection: Connection, body: bytes) -> OpenClaim | Connection | None:
        """Handle a session frame that arrived on a connection.

        Returns:
            The claim that it proves; or the dialled connection whose remote node proves that this link is its own, too;
            or None.
        """
        kind, number = body[:1], body[1:]
        if len(number) != _NUMBER_SIZE:
            return None
        link = connection.link
        if kind == _PROOF:
            claim = self._open.get(connection)
            if claim is not None and claim.number == number:
                return claim
            proof = number, link.peer
            return None if link.dialled else next((each for each, asked in self._twins.items() if asked == proof), None)
        if kind == _PROVE:
            for other in (*self._dialled.get(link.remote_identity, ()), *self._dialled.get(None, ())):
                if other is connection:
                    continue
                if not other.link.libchirp:
                    _prove(other, number, connection)
                elif _may_lead_to(other, link):
                    self._owed[other] = number, connection
        return None

    def opened(self, connection: Connection) -> None:
        """Register a connection that this node dialled."""
        self._dialled.setdefault(None, {})[connection] = None

    def bound(self, connection: Connection) -> None:
        """Note that a connection has its peer."""
        if connection.link.dialled:
            self._dialled.get(None, {}).pop(connection, None)
            self._dialled.setdefault(connection.link.remote_identity, {})[connection] = None

    def settle(self, connection: Connection) -> None:
        """Send the proof that is owed over a connection whose announcement arrived."""
        owed = self._owed.pop(connection, None)
        if owed is not None:
            _prove(connection, *owed)

    def forget(self, connection: Connection) -> None:
        """Forget a connection that was lost."""
        self._owed.pop(connection, None)
        self._twins.pop(connection, None)
        for identity in {None, connection.link.remote_identity}:
            same = self._dialled.get(identity, {})
            same.pop(connection, None)
            if not same:
                self._dialled.pop(identity, None)
        claim = self._open.get(connection)
        if claim is not None:
            self.drop(claim)


def _prove(dialled: Connection, number: bytes, asking: Connection) -> None:
    """Return a number over a dialled connection, if it leads to the node that asked."""
    if dialled.link.remote_identity == asking.link.remote_identity and key_of(dialled) == key_of(asking):
        dialled.link.control(Control.SESSION, body=_PROOF + number)
        dialled.wake()


def key_of(connection: Connection) -> str | None:
    """Return the public key in the certificate of a remote node; None without one."""
    return None if connection.certificate is None else connection.certificate.public_key


def _may_lead_to(dialled: Connection, link: Link) -> bool:
    """Return True if a dialled connection without a handshake may lead to the remote node of a link."""
    identity = dialled.link.remote_identity
    if identity is not None:
        return identity == link.remote_identity
    return link.peer is not None and dialled.remote == link.peer.address
