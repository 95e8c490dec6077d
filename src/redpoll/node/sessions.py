"""The sessions of one node: what it announces of its own, the wait for lost peers, and the queues of replaced ones.

What a session keeps, and what fails with it, is decided in `redpoll.wire.link_lifecycle`; this module adds the clock, the
bound, and the notifications of the rest of the node.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from math import ceil
from typing import TYPE_CHECKING, Protocol

from redpoll.errors import Fenced, NotSent, PeerLost, RedpollError
from redpoll.node.claims import key_of
from redpoll.node.connection_limits import LostPeers
from redpoll.node.sending import Queued
from redpoll.wire import link_lifecycle as core
from redpoll.wire.capabilities import SHOWS_SESSION
from redpoll.wire.frames import RETRY, Control
from redpoll.wire.identity import proves
from redpoll.wire.outgoing import Outgoing
from redpoll.wire.session import FENCED, FORGOTTEN, RESTARTED, SECRET_SIZE, Shown, forgotten
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    import asyncio

    from redpoll.address import Address
    from redpoll.config import Config
    from redpoll.transport.connection import Connection
    from redpoll.wire.link import Link
    from redpoll.wire.memory import Memory
    from redpoll.wire.peer import Peer
    from redpoll.wire.routes import Routes

__all__ = ["MAX_FENCED", "Layer", "Sessions"]

#: Maximum addresses remembered at which another run of this node took over.
MAX_FENCED = 1024

_LIVE = (LinkState.OPEN, LinkState.LEAVING)


class _Owner(Protocol):
    """The peers of a node, as the sessions use them."""

    stopping: bool
    closing: RedpollError | None

    def need_link(self, peer: Peer) -> None:
        """Dial a peer."""

    def forget_if_idle(self, peer: Peer) -> None:
        """Forget a peer that nothing is kept for."""


class Layer(Protocol):
    """Events of sessions at a node; a layer overrides it."""

    def _session_began(self, peer: Peer, renewed: bool) -> None:
        """Handle a peer that has a first link."""

    def _session_resumed(self, peer: Peer) -> None:
        """Handle a peer that has a link again in a session that survived its links."""

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        """Handle a peer that has no link, and for which nothing waits."""


class Sessions:
    """Keeps the sessions of one node, those of peers without a link included."""

    def __init__(
        self,
        owner: _Owner,
        layer: Layer,
        config: Config,
        routes: Routes,
        memory: Memory,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._owner = owner
        self._layer = layer
        self._routes = routes
        self._memory = memory
        self._resume = config.resume
        self._secret = config.secret
        if self._secret is None and self._resume is not None:
            self._secret = os.urandom(SECRET_SIZE)
        #: Peers without a link, until their sessions end.
        self._lost = LostPeers(loop, config, self._expired)
        self._fenced: dict[Address, Fenced] = {}

    def __len__(self) -> int:
        """Return the number of peers without a link that are waited for."""
        return len(self._lost)

    # The frames of a session

    @property
    def flags(self) -> int:
        """The announcement's flags about the session, for a link that this node dials."""
        return 0 if self._secret is None else SHOWS_SESSION

    def introduce(self, link: Link, *, beside: bool) -> None:
        """Tell the remote node the duration of this node's session, and show it the secret if this node dialled.

        On a link `beside` another one that this node dialled, the duration is 0: the other link is not lost. Each
        remote node is shown a secret of its own, so that none can impersonate this node at another.
        """
        secret = b""
        if link.dialled and self._secret is not None:
            secret = blake2b(link.remote_identity or b"", key=self._secret, digest_size=SECRET_SIZE).digest()
        if secret or self._resume is not None:
            link.control(Control.SESSION, body=Shown(0 if beside else ceil(self._resume or 0), secret).encode())

    def replace(self, peer: Peer, link: Link, *, fence: bool) -> None:
        """Close the links of a peer that a new one replaces.

        Those of the same run must have been lost by its node: what they may still deliver was resent over the new link.
        Those of a former run are dead; with `fence` that run is remembered as replaced, and told so.
        """
        same_run = link.epoch is not None and link.epoch == peer.epoch
        if fence and peer.epoch is not None:
            peer.session.fence(peer.epoch)
        for each in list(peer.links):
            if fence:
                each.control(Control.SESSION, body=FENCED)
                each.connection.expel(PeerLost(peer.address, RESTARTED))
            elif not same_run:
                each.connection.give_up(PeerLost(peer.address, RESTARTED))
            elif each.state in _LIVE:
                each.connection.give_up(PeerLost(peer.address, "a newer link of its node replaced it"))

    def bound(self, connection: Connection, peer: Peer) -> None:
        """Keep the secret of a link with a matching certificate, which proves more than a secret shown before."""
        shown = connection.link.shown
        if shown is not None and shown.secret and proves(peer, key_of(connection)):
            peer.session.secret = shown.secret

    # Peers without a link

    def met(self, peer: Peer, link: Link, renewed: bool) -> None:
        """Handle a peer's link whose run is known."""
        beside = any(each.dialled and each.sending for each in peer.links if each is not link)
        self.introduce(link, beside=link.dialled and (beside or self._routes.twin(peer)[1]))
        waited = self._lost.remove(peer)
        if peer.links != [link]:
            return
        if waited and not renewed:
            self._layer._session_resumed(peer)
        else:
            self._layer._session_began(peer, renewed)

    def lost(self, peer: Peer, error: RedpollError) -> None:
        """Handle the loss of a peer's last link: wait for the next one, if the session continues."""
        closing = self._owner.closing
        if closing is not None:
            core.end(peer, closing)
        if not peer.resuming or self._resume is None:
            self._lost.remove(peer)
            self._ended(peer, error)
            return
        if peer not in self._lost:
            self._lost.add(peer, self._resume)
        if peer.session.redials and not self._owner.stopping:
            self._owner.need_link(peer)

    def _expired(self, peer: Peer, evicted: bool) -> None:
        self._memory.tally.sessions_ended += evicted
        why = f"its link was lost, and no other was made within {self._resume:g} s"
        self._end(peer, PeerLost(peer.address, "too many sessions wait for a link" if evicted else why))

    def end(self, peer: Peer, error: RedpollError) -> None:
        """End a session without a link; do nothing if it has ended."""
        if self._lost.remove(peer):
            self._end(peer, error)
        else:
            core.end(peer, error)

    def _end(self, peer: Peer, error: RedpollError) -> None:
        core.end(peer, error)
        self._ended(peer, error)
        peer.wake_waiters()
        self._routes.unlinked(peer)
        self._owner.forget_if_idle(peer)

    def _ended(self, peer: Peer, error: RedpollError) -> None:
        if peer.epoch is not None:
            self._layer._session_ended(peer, error)

    def close(self, error: RedpollError) -> None:
        """End all sessions: the node closes."""
        for peer in self._lost:
            self.end(peer, error)

    # The queues of peers, when another node turns out to be at an address

    def adopt(self, peer: Peer, known: Peer, now: float, *, proven: bool) -> None:
        """Move the queue of a dialled peer to the linked peer that it turned out to be.

        Messages in flight move too, if the remote node has the record of them; pinned messages move if it is `proven`
        that both are one node.
        """
        self._routes.replace(peer, known)
        core.hand_over(peer, known)
        if proven:
            _move(peer.take_queue(pinned=True), known, now)
        self.requeue(peer, known, now)
        known.wake_links()

    def requeue(self, target: Peer, peer: Peer, now: float) -> None:
        """Move the queue of a dialled peer to the peer that was found there; its pinned messages fail."""
        if target is peer:
            return
        error = PeerLost(target.address, "another node is at its address now")
        core.fail_former(target, error)
        _move(target.take_queue(), peer, now)
        self.end(target, error)
        target.wake_waiters()
        self._owner.forget_if_idle(target)

    def readdress(self, peer: Peer, now: float) -> None:
        """Requeue the messages of a peer without a link by their addresses: a name may resolve to another node now."""
        others = set(self._routes.unlinked(peer))
        if not any(out.message.address in others for out in peer.queue if not out.pinned):
            return
        for out in peer.take_queue():
            address = out.message.address
            there = self._routes.at(address) if address in others else peer
            _move([out], there, now)
            if there is not peer:
                # The message may have failed at a bound.
                self._owner.forget_if_idle(there)

    # Fencing of this run

    def fenced_by_peer(self, connection: Connection) -> None:
        """Handle the news that another run of this node took over at a remote node, which is not dialled again."""
        error = Fenced(connection.name)
        if connection.link.dialled:
            dialled = None if connection.target is None else connection.target.address
            for address in dict.fromkeys((connection.remote, connection.name, dialled or connection.remote)):
                self._fenced.pop(address, None)
                while len(self._fenced) >= MAX_FENCED:
                    del self._fenced[next(iter(self._fenced))]
                self._fenced[address] = error
        connection.fail(error)

    def fenced(self, address: Address) -> Fenced | None:
        """Return the error if an address must not be dialled, because another run of this node took over there."""
        return self._fenced.get(address)


def _move(messages: list[Outgoing], peer: Peer, now: float) -> None:
    for out in messages:
        if isinstance(out, Queued):
            out.peer = peer
        link = peer.link
        if link is not None and out.kind & RETRY and forgotten(out, link.remote_run):
            # It was sent over links of another record, and could be sent at once.
            peer.fail_unsent(out, NotSent(out.message, FORGOTTEN, peer.address))
        elif out.kind & RETRY:
            peer.submit_resent(out, now)
        else:
            peer.submit(out, now)
