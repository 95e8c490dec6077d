"""What waits for one peer and goes to another: who is where it was addressed turned out to be somebody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redpoll.errors import PeerLost
from redpoll.node.sending import Queued
from redpoll.wire.outgoing import Outgoing, Stage
from redpoll.wire.session import fail_former

if TYPE_CHECKING:
    from redpoll.node.peers import Peers
    from redpoll.wire.peer import Peer

__all__ = ["Moves"]


class Moves:
    """Moves the queues of one node's peers."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def adopt(self, peer: Peer, known: Peer) -> None:
        """A peer that was to be dialled turns out to be one that has a link: what waits goes there."""
        self._peers.routes.replace(peer, known)
        self.replace(peer, known, self._peers.loop.time())
        self._peers.wake_links(known)

    def replace(self, target: Peer, peer: Peer, now: float) -> None:
        """What waits for whoever is where a peer was dialled goes to the one that is; what is for it alone fails."""
        if target is peer:
            return
        error = PeerLost(target.address, "another node is there now")
        fail_former(target, error)
        self._move(target, peer, now)
        self._peers.sessions.end(target, error)
        self._peers.room(target)
        self._peers.forget_if_idle(target)

    def part_ways(self, peer: Peer, now: float) -> None:
        """What waits for a peer whose last link is gone goes to where it is addressed: names may lead elsewhere by now."""
        others = set(self._peers.routes.unlinked(peer))
        if not any(out.message.address in others for out in peer.queue if out.stage != Stage.ENDED and not out.pinned):
            return
        for out in peer.take_queue():
            address = out.message.address
            _submit(out, self._peers.at(address) if address in others else peer, now)

    @staticmethod
    def _move(source: Peer, peer: Peer, now: float) -> None:
        for out in source.take_queue():
            _submit(out, peer, now)


def _submit(out: Outgoing, peer: Peer, now: float) -> None:
    if isinstance(out, Queued):
        out.peer = peer
    peer.submit(out, now)
