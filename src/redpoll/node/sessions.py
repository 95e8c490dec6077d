"""The sessions of one node: what it tells of its own, whose link a secret shows, and how long a peer without a link waits.

What a session keeps, and what fails with it, is decided in `redpoll.wire.session`; here are its clock, its bound, and what
the rest of the node is told.
"""

from __future__ import annotations

import os
from collections import Counter
from hashlib import blake2b
from math import ceil
from typing import TYPE_CHECKING

from redpoll.errors import Fenced, PeerLost, RedpollError
from redpoll.node.routes import may_be, proves
from redpoll.wire import session as core
from redpoll.wire.capabilities import SHOWS_SESSION
from redpoll.wire.frames import Control
from redpoll.wire.session import FENCED, SECRET_SIZE, STARTED_AGAIN, Shown
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    import asyncio

    from redpoll.address import Address
    from redpoll.node.peers import Peers
    from redpoll.transport.connection import Connection
    from redpoll.wire.link import Link
    from redpoll.wire.peer import Peer

__all__ = ["MAX_FENCED", "Sessions"]

#: So many addresses are remembered at which another run of this node took its place.
MAX_FENCED = 1024

_LIVE = (LinkState.OPEN, LinkState.LEAVING)


class Sessions:
    """Keeps the sessions of one node: those of peers whose last link was lost wait here."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        config = peers.config
        self._resume = config.resume
        self._secret = config.secret
        if self._secret is None and self._resume is not None:
            self._secret = os.urandom(SECRET_SIZE)
        self._limit = config.max_connections
        self._limit_of_host = config.max_connections_per_host
        #: Peers without a link, in the order in which they lost it: when each ends, and the host that it came in from.
        self._away: dict[Peer, tuple[asyncio.TimerHandle, str | None]] = {}
        self._hosts: Counter[str] = Counter()
        self._fenced: dict[Address, Fenced] = {}

    def __len__(self) -> int:
        """How many peers without a link are waited for."""
        return len(self._away)

    # What a link tells

    @property
    def flags(self) -> int:
        """What the announcement says of a session, over a link that this node dials."""
        return 0 if self._secret is None else SHOWS_SESSION

    def introduce(self, link: Link) -> None:
        """Tell the other end of a link how long this node's session lasts; who was dialled by it is shown its secret.

        Each node is shown a secret of its own, so that none can pass for this one at another.
        """
        secret = b""
        if link.dialled and self._secret is not None:
            secret = blake2b(link.remote_identity or b"", key=self._secret, digest_size=SECRET_SIZE).digest()
        if secret or self._resume is not None:
            link.control(Control.SESSION, body=Shown(ceil(self._resume or 0), secret).encode())

    @staticmethod
    def awaits(link: Link) -> bool:
        """Whether a link that came in has still to show its secret: it stands before all messages."""
        announced = link.announced
        return (
            not link.dialled
            and link.shown is None
            and announced is not None
            and announced.flags & SHOWS_SESSION != 0
            and not link.arrived
        )

    # Whose link it is

    def find(self, connection: Connection) -> Peer | None:
        """The peer that a link which came in belongs to by the secret that it shows, with no link that is in its way.

        A link of another run takes over from those of the run before, which is fenced: it is told, and closed. One of the
        same run takes over from those that its node must have lost, if it says that it sends again what was in flight. A
        certificate goes before that: whoever had one shows the same key.

        Raises:
            Fenced: It is of a run that lost its place already.
        """
        link = connection.link
        shown, announced = link.shown, link.announced
        if link.dialled or announced is None or shown is None or not shown.secret:
            return None
        for peer in self._peers.routes.of_identity(link.remote_identity):
            session = peer.session
            if session is None or not session.knows(shown.secret) or not may_be(peer, connection.certificate):
                continue
            if announced.epoch in session.former:
                raise Fenced(None)
            if peer.epoch == announced.epoch:
                if shown.seconds and not any(each.dialled for each in peer.links):
                    self._end_lost(peer)
                elif peer.links:
                    # Of two links that both ends made at once both may live: it proves its own as others do.
                    return None
            else:
                self._fence(peer)
            if peer not in self._peers.routes:
                # It had nothing but those links.
                self._peers.routes.add(peer)
            self._peers.routes.know_again(peer, link, connection.remote)
            return peer
        return None

    def _end_lost(self, peer: Peer) -> None:
        """What a link of before still brings was sent again over the new one."""
        for link in list(peer.links):
            if link.state in _LIVE:
                link.owner.give_up(PeerLost(peer.address, "its node made a newer link"))

    def _fence(self, peer: Peer) -> None:
        if peer.epoch is not None:
            core.of(peer).fence(peer.epoch)
        for link in list(peer.links):
            self._peers.expel(link.owner, FENCED, PeerLost(peer.address, STARTED_AGAIN))

    def bound(self, connection: Connection, peer: Peer) -> None:
        """A link is about to be a peer's: a certificate proves more than a secret that was shown before."""
        shown = connection.link.shown
        if shown is not None and shown.secret and proves(peer, connection.certificate):
            core.of(peer).secret = shown.secret

    # A peer without a link

    def met(self, peer: Peer, link: Link, renewed: bool) -> None:
        """A link to a peer is there, and it is known of which run."""
        self.introduce(link)
        self._forget(peer)
        if peer.links == [link]:
            self._peers.node._session_began(peer, renewed)

    def lost(self, peer: Peer, connection: Connection, error: RedpollError) -> None:
        """The last link of a peer is gone: wait for the next one, if the session goes on."""
        closing = self._peers.closing
        if closing is not None:
            core.end(peer, closing)
        if not peer.resuming or self._resume is None:
            self._forget(peer)
            self._ended(peer, error)
            return
        if peer not in self._away:
            host = None if connection.link.dialled else connection.remote.host
            self._make_room(host)
            self._away[peer] = self._peers.loop.call_later(self._resume, self._expire, peer), host
            if host is not None:
                self._hosts[host] += 1
        if peer.session is not None and peer.session.redials and not self._peers.stopping:
            self._peers.dialler.need(peer)

    def _make_room(self, host: str | None) -> None:
        """End the session that waits for longest, of its own host where that has too many."""
        same = (peer for peer, (_, from_) in self._away.items() if from_ == host)
        oldest = None
        if host is not None and self._hosts[host] >= self._limit_of_host:
            oldest = next(same)
        elif len(self._away) >= self._limit:
            oldest = next(iter(self._away))
        if oldest is not None:
            self._peers.memory.tally.sessions_ended += 1
            self.end(oldest, PeerLost(oldest.address, "too many sessions wait for a link"))

    def _expire(self, peer: Peer) -> None:
        self.end(peer, PeerLost(peer.address, f"its link was lost, and there was no other for {self._resume:g} s"))

    def end(self, peer: Peer, error: RedpollError) -> None:
        """A session without a link is over; nothing happens twice."""
        waited = self._forget(peer)
        core.end(peer, error)
        if waited:
            self._ended(peer, error)
            self._peers.room(peer)
            self._peers.routes.unlinked(peer)
            self._peers.forget_if_idle(peer)

    def _ended(self, peer: Peer, error: RedpollError) -> None:
        if peer.epoch is not None:
            self._peers.node._session_ended(peer, error)

    def _forget(self, peer: Peer) -> bool:
        timer, host = self._away.pop(peer, (None, None))
        if host is not None:
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]
        if timer is not None:
            timer.cancel()
        return timer is not None

    def close(self, error: RedpollError) -> None:
        """The node closes: no session goes on."""
        for peer in list(self._away):
            self.end(peer, error)

    # Where this run has lost its place

    def fenced_there(self, connection: Connection) -> None:
        """The other end of a link says that another run of this node took its place: it is dialled no more."""
        error = Fenced(connection.name)
        if connection.link.dialled:
            dialled = getattr(connection.target, "address", None)
            for address in dict.fromkeys((connection.remote, connection.name, dialled or connection.remote)):
                self._fenced.pop(address, None)
                while len(self._fenced) >= MAX_FENCED:
                    del self._fenced[next(iter(self._fenced))]
                self._fenced[address] = error
        connection.fail(error)

    def fenced(self, address: Address) -> Fenced | None:
        """Why an address is not to be dialled: another run of this node took its place there."""
        return self._fenced.get(address)
