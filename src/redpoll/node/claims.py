"""Proof that a link comes from the node that another link already belongs to.

An identity is only a claim. When an accepted link claims the identity of a peer with a live link, this node sends a
random number over the trusted link; the peer returns it over the new link, if it dialled that link itself. So two nodes
that dial each other at the same time find that they are one peer with two links, and a stranger cannot pass for a peer.
In the same way a node that dialled another one learns whether an accepted link belongs to that node too: the remote
node then sees two links of one peer and leaves the dialled one. A number is returned only to a node with the
certificate of the one that
asked: otherwise a dialled node that claims to be the asking one could relay it. (Wire format, section 5.6.)
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from redpoll.wire.frames import Control
from redpoll.wire.link import Link
from redpoll.wire.peer import Peer

if TYPE_CHECKING:
    from redpoll.transport.connection import Connection

__all__ = ["CLAIM_TIMEOUT", "DOUBT_TIMEOUT", "REJECTED", "Claims", "OpenClaim"]

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
        received: Bytes received over each link of that peer when it was asked.
        ping: The number of the ping behind the question.
        asked: Time of the question, by the clock of the loop.
    """

    connection: Connection
    peer: Peer
    received: dict[Link, int]
    ping: int
    asked: float

    @property
    def same_run(self) -> bool:
        """True if the peer and the claiming node announce the same run of a node."""
        announced = self.connection.link.announced
        return announced is not None and announced.epoch == self.peer.epoch

    @property
    def holder_lives(self) -> bool:
        """True if the peer sent something since it was asked: its links are not dead."""
        return any(link.bytes_received > self.received.get(link, 0) for link in self.peer.links)

    def in_doubt(self, now: float) -> bool:
        """Return True if the peer may be the same run of the same node and has not read the question yet.

        Its link may be dead but not closed, or still deliver what was under way when the remote node closed it: it is
        lost soon then, and the new link succeeds it. After `DOUBT_TIMEOUT` there is no doubt any more.
        """
        if not self.same_run or now >= self.asked + DOUBT_TIMEOUT:
            return False
        return any(self.ping in link.pings for link in self.peer.links)


class Claims:
    """The links of one node whose claims are not proven yet, and the proofs that this node owes."""

    def __init__(self) -> None:
        self._open: dict[bytes, OpenClaim] = {}
        #: The numbers of open claims, by claiming connection and by holder.
        self._of_connection: dict[Connection, bytes] = {}
        self._of_peer: dict[Peer, dict[bytes, None]] = {}
        #: By the connection to send the proof over: the number, and the connection that it was asked on.
        self._owed: dict[Connection, tuple[bytes, Connection]] = {}
        #: Dialled connections asked whether an accepted link is of the same node: the number, and the peer of that
        #: link.
        self._twins: dict[Connection, tuple[bytes, Peer]] = {}

    def of_connection(self, connection: Connection) -> bytes | None:
        """Return the number of the open claim of a connection, or None."""
        return self._of_connection.get(connection)

    @property
    def open(self) -> list[bytes]:
        """The numbers of all open claims."""
        return list(self._open)

    def of_peer(self, peer: Peer) -> list[bytes]:
        """Return the numbers of the open claims to a peer."""
        return list(self._of_peer.get(peer, ()))

    def ask(self, connection: Connection, peer: Peer, now: float) -> bytes:
        """Ask a peer, over its own link, to prove that a new connection is its own too; return the number.

        A ping follows, which a live peer answers even if it has nothing to prove.
        """
        number = os.urandom(_NUMBER_SIZE)
        ping = int.from_bytes(number[:4], "big") | 1
        received = {link: link.bytes_received for link in peer.links}
        self._open[number] = OpenClaim(connection, peer, received, ping, now)
        self._of_connection[connection] = number
        self._of_peer.setdefault(peer, {})[number] = None
        asked = peer.link or next(iter(peer.links), None)
        if asked is not None:
            asked.control(Control.SESSION, body=_PROVE + number)
            asked.control(Control.PING, ping)
            asked.pings.add(ping)
        return number

    def ask_twin(self, connection: Connection, known: Peer) -> None:
        """Ask the remote node of a dialled connection to prove that the accepted links of another peer are its own."""
        number = os.urandom(_NUMBER_SIZE)
        self._twins[connection] = number, known
        connection.link.control(Control.SESSION, body=_PROVE + number)

    def proven_twin(self, connection: Connection, body: bytes) -> Connection | None:
        """Return the dialled connection whose remote node proves by a frame that an accepted link is its own."""
        if body[:1] != _PROOF or connection.link.dialled:
            return None
        proof = body[1:], connection.link.peer
        return next((dialled for dialled, asked in self._twins.items() if asked == proof), None)

    def in_doubt(self, number: bytes, now: float) -> bool:
        """Return True if a claim is open and cannot be decided yet."""
        claim = self._open.get(number)
        return claim is not None and claim.in_doubt(now)

    def drop(self, number: bytes) -> OpenClaim | None:
        """Stop waiting for a proof; return the claim if it was still open."""
        claim = self._open.pop(number, None)
        if claim is not None:
            del self._of_connection[claim.connection]
            same = self._of_peer[claim.peer]
            del same[number]
            if not same:
                del self._of_peer[claim.peer]
            for link in claim.peer.links:
                link.pings.discard(claim.ping)
        return claim

    def take(self, connection: Connection, body: bytes, dialled: Iterable[Connection]) -> bytes | None:
        """Handle a session frame.

        Args:
            connection: The connection that it arrived on.
            body: The body of the frame.
            dialled: The connections that this node dialled, except those known to lead to another node.

        Returns:
            The number of the claim that it proves, or None.
        """
        kind, number = body[:1], body[1:]
        if len(number) != _NUMBER_SIZE:
            return None
        if kind == _PROOF:
            claim = self._open.get(number)
            return number if claim is not None and claim.connection is connection else None
        if kind == _PROVE:
            for other in dialled:
                if other is connection:
                    continue
                if other.link.announced is not None:
                    self._prove(other, number, connection)
                elif _may_lead_to(other, connection.link):
                    self._owed[other] = number, connection
        return None

    def settle(self, connection: Connection) -> None:
        """Send the proof that is owed over a connection whose announcement arrived."""
        owed = self._owed.pop(connection, None)
        if owed is not None:
            self._prove(connection, *owed)

    def forget(self, connection: Connection) -> None:
        """Forget a connection that was lost."""
        self._owed.pop(connection, None)
        self._twins.pop(connection, None)
        number = self.of_connection(connection)
        if number is not None:
            self.drop(number)

    @staticmethod
    def _prove(dialled: Connection, number: bytes, asking: Connection) -> None:
        """Return a number over a dialled connection, if it leads to the node that asked."""
        if dialled.link.remote_identity == asking.link.remote_identity and _key(dialled) == _key(asking):
            dialled.link.control(Control.SESSION, body=_PROOF + number)
            dialled.wake()


def _key(connection: Connection) -> str | None:
    return None if connection.certificate is None else connection.certificate.public_key


def _may_lead_to(dialled: Connection, link: Link) -> bool:
    """Return True if a dialled connection without a handshake may lead to the remote node of a link."""
    identity = dialled.link.remote_identity
    if identity is not None:
        return identity == link.remote_identity
    return link.peer is not None and dialled.remote == link.peer.address
