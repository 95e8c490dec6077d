"""Proof that a link comes from the node that another link already belongs to.

An identity is only a claim. When a link comes in that claims the identity of a peer with a live link, this node sends a
random number over the link that it trusts; whoever is there returns it over the new one, if that is a link that it
dialled itself. So two nodes that dial each other at the same time find that they are one peer with two links, and a
stranger stays a stranger. A number goes only where the certificate is that of who asked: else whoever is dialled, and
claims to be that node, could pass it on. (Wire format, section 5.6.)
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

__all__ = ["CLAIM_TIMEOUT", "DOUBT_TIMEOUT", "TURNED_AWAY", "Claims", "OpenClaim"]

#: Seconds that a link has to prove its claim; after that it is a peer of its own.
CLAIM_TIMEOUT = 1.0

#: Seconds that it has if who was asked does not answer the ping behind the question: as long as a peer whose link was lost
#: is remembered, and longer than it takes to find a dead link.
DOUBT_TIMEOUT = 30.0

_NUMBER_SIZE = 16
_PROVE = b"\x01"
_PROOF = b"\x02"

#: What a session frame says to who is not let in.
TURNED_AWAY = b"\x03"


class OpenClaim(NamedTuple):
    """A claim that waits for its proof.

    Attributes:
        connection: Who claims.
        peer: Whose identity.
        received: How many bytes each link of that peer had brought when it was asked.
        ping: The number of the ping behind the question.
        asked: When it was asked, on the loop's clock, seconds.
    """

    connection: Connection
    peer: Peer
    received: dict[Link, int]
    ping: int
    asked: float

    @property
    def same_run(self) -> bool:
        """Whether the peer and who claims say that they are the same run of a node."""
        announced = self.connection.link.announced
        return announced is not None and announced.epoch == self.peer.epoch

    @property
    def holder_lives(self) -> bool:
        """Whether the peer was heard since it was asked: its link is not one that is dead and looks alive."""
        return any(link.bytes_received > self.received.get(link, 0) for link in self.peer.links)

    def in_doubt(self, now: float) -> bool:
        """Whether the peer may be the same run of the same node and has not read the question yet.

        Its link may be dead without anybody knowing, or bring what was under way when its other end gave it up: it is lost
        soon then, and the new one its successor. After `DOUBT_TIMEOUT` there is no doubt any more.
        """
        if not self.same_run or now >= self.asked + DOUBT_TIMEOUT:
            return False
        return any(self.ping in link.pings for link in self.peer.links)


class Claims:
    """The links of one node whose claim is not proven yet, and the proofs that it owes for its own."""

    def __init__(self) -> None:
        self._open: dict[bytes, OpenClaim] = {}
        #: By the connection that it is owed over: the number, and where it was asked for.
        self._owed: dict[Connection, tuple[bytes, Connection]] = {}

    def of_connection(self, connection: Connection) -> bytes | None:
        """The number of the claim that is open for a connection."""
        return next((number for number, claim in self._open.items() if claim.connection is connection), None)

    @property
    def open(self) -> list[bytes]:
        """The numbers of all claims that are open."""
        return list(self._open)

    def of_peer(self, peer: Peer) -> list[bytes]:
        """The numbers of the claims that are open for a peer."""
        return [number for number, claim in self._open.items() if claim.peer is peer]

    def ask(self, connection: Connection, peer: Peer, now: float) -> bytes:
        """Ask a peer, over its own link, to prove that a new connection is its own too; return the number.

        A ping goes along, which whoever lives answers, also if there is nothing to prove.
        """
        number = os.urandom(_NUMBER_SIZE)
        ping = int.from_bytes(number[:4], "big") | 1
        received = {link: link.bytes_received for link in peer.links}
        self._open[number] = OpenClaim(connection, peer, received, ping, now)
        asked = peer.link or next(iter(peer.links), None)
        if asked is not None:
            asked.control(Control.SESSION, body=_PROVE + number)
            asked.control(Control.PING, ping)
            asked.pings.add(ping)
        return number

    def in_doubt(self, number: bytes, now: float) -> bool:
        """Whether a claim is open and cannot be decided yet."""
        claim = self._open.get(number)
        return claim is not None and claim.in_doubt(now)

    def drop(self, number: bytes) -> OpenClaim | None:
        """Stop waiting for a proof; return the claim if it was still open."""
        claim = self._open.pop(number, None)
        if claim is not None:
            for link in claim.peer.links:
                link.pings.discard(claim.ping)
        return claim

    def take(self, connection: Connection, body: bytes, dialled: Iterable[Connection]) -> bytes | None:
        """Take a session frame that came over a connection.

        Args:
            connection: Where it came in.
            body: What it says.
            dialled: The connections that this node dialled.

        Returns:
            The number of a claim that is proven by it, or None.
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
        """A connection heard its other end's announcement: pay what is owed there."""
        owed = self._owed.pop(connection, None)
        if owed is not None:
            self._prove(connection, *owed)

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self._owed.pop(connection, None)
        number = self.of_connection(connection)
        if number is not None:
            self.drop(number)

    @staticmethod
    def _prove(dialled: Connection, number: bytes, asking: Connection) -> None:
        """Return a number over a connection that this node dialled, if it leads to who asked."""
        if dialled.link.remote_identity == asking.link.remote_identity and _key(dialled) == _key(asking):
            dialled.link.control(Control.SESSION, body=_PROOF + number)
            dialled.wake()


def _key(connection: Connection) -> str | None:
    return None if connection.certificate is None else connection.certificate.public_key


def _may_lead_to(dialled: Connection, link: Link) -> bool:
    """Whether a dialled connection, whose handshake is not here, may lead to the node at the other end of a link."""
    identity = dialled.link.remote_identity
    if identity is not None:
        return identity == link.remote_identity
    return link.peer is not None and dialled.remote == link.peer.address
