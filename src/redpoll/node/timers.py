"""When something that was sent to a peer is late: one timer for each peer, and what is done when it rings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redpoll.wire.peer import Peer

if TYPE_CHECKING:
    from redpoll.node.peers import Peers

__all__ = ["Timers"]

#: A timer that rings this much late, seconds, says that this process was busy: what it waits for may be there unread.
_LAG = 0.05


class Timers:
    """The timers of one node's peers."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._loop = peers.loop
        self._timers: dict[Peer, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def arm(self, peer: Peer, deadline: float) -> None:
        """Ring at a deadline."""
        timer = self._timers.get(peer)
        if timer is not None:
            timer.cancel()
        peer.armed = deadline
        self._timers[peer] = self._loop.call_at(deadline, self._ring, peer, False)

    def _ring(self, peer: Peer, waited: bool) -> None:
        now = self._loop.time()
        if not waited and peer.armed is not None and now - peer.armed > _LAG:
            # This process did not run when it should have: read what came meanwhile before anything is called late.
            self._timers[peer] = self._loop.call_later(_LAG / 5, self._ring, peer, True)
            return
        peer.armed = None
        for link in peer.links:
            link.owner.outflow.look(now)
        peer.expire(now)
        following = peer.deadlines.next()
        if following is not None:
            self.arm(peer, following)
        if peer.queued:
            peer.pump(now)
        self._peers.wake_links(peer)
        if not peer.links:
            self._peers.forget_if_idle(peer)

    def forget(self, peer: Peer) -> None:
        """A peer is known no longer."""
        timer = self._timers.pop(peer, None)
        if timer is not None:
            timer.cancel()
        # It may be back, with a send that is to be watched.
        peer.armed = None

    def close(self) -> None:
        """Ring no more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
