"""Requeueing: moves the queue of one peer to another, when another node turns out to be at its address."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from redpoll.errors import NotSent, PeerLost
from redpoll.node.sending import Queued
from redpoll.wire.frames import RETRY
from redpoll.wire.link_lifecycle import fail_former, hand_over
from redpoll.wire.outgoing import Outgoing, Stage
from redpoll.wire.send_errors import unsent_error
from redpoll.wire.session import FORGOTTEN, forgotten

if TYPE_CHECKING:
    from redpoll.node.sessions import Sessions
    from redpoll.wire.identity import Routes
    from redpoll.wire.peer import Peer

__all__ = ["Requeue"]


class _Owner(Protocol):
    """What moving a queue does to the peers of a node."""

    def room(self, peer: Peer) -> None:
        """Wake the tasks that wait for room at a peer."""

    def wake_links(self, peer: Peer) -> None:
        """Schedule the output of all links of a peer."""

    def forget_if_idle(self, peer: Peer) -> None:
        """Forget a peer that nothing is kept for."""


@dataclass(eq=False)
class Requeue:
    """Moves messages between the queues of one node's peers."""

    _owner: _Owner
    _routes: Routes
    _sessions: Sessions
    _loop: asyncio.AbstractEventLoop

    def adopt(self, peer: Peer, known: Peer, *, proven: bool = False) -> None:
        """Move the queue of a dialled peer to the linked peer that it turned out to be.

        Messages in flight move too, if the remote node has the record of them; pinned messages move if it is `proven`
        that both are one node.
        """
        now = self._loop.time()
        self._routes.replace(peer, known)
        hand_over(peer, known)
        if proven:
            _move(peer.take_queue(pinned=True), known, now)
        self.replace(peer, known, now)
        self._owner.wake_links(known)

    def replace(self, target: Peer, peer: Peer, now: float) -> None:
        """Move the queue of a dialled peer to the peer that was found there; its pinned messages fail."""
        if target is peer:
            return
        error = PeerLost(target.address, "another node is at its address now")
        fail_former(target, error)
        _move(target.take_queue(), peer, now)
        self._sessions.end(target, error)
        self._owner.room(target)
        self._owner.forget_if_idle(target)

    def readdress(self, peer: Peer, now: float) -> None:
        """Requeue the messages of a peer without a link by their addresses: a name may resolve to another node now."""
        others = set(self._routes.unlinked(peer))
        if not any(out.message.address in others for out in peer.queue if out.stage != Stage.ENDED and not out.pinned):
            return
        for out in peer.take_queue():
            address = out.message.address
            there = self._routes.at(address) if address in others else peer
            _move([out], there, now)
            if there is not peer:
                # The message may have failed at a bound.
                self._owner.forget_if_idle(there)


def _move(messages: list[Outgoing], peer: Peer, now: float) -> None:
    for out in messages:
        if isinstance(out, Queued):
            out.peer = peer
        link = peer.link
        if link is not None and out.kind & RETRY and forgotten(out, link.remote_run):
            # It was sent over links of another record, and could be sent at once.
            peer.fail(out, unsent_error(out, NotSent(out.message, FORGOTTEN, peer.address), peer.address))
        else:
            peer.submit(out, now)
