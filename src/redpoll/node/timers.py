"""The timers of peers: one for each peer, which fires when something that was sent to it is late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from redpoll.wire.peer import Peer

__all__ = ["Timers"]

#: Time in seconds: if a timer fires this late, this process was busy, and what it waits for may have arrived unread.
_LAG = 0.05


class Timers:
    """The timers of one node's peers.

    Args:
        loop: The event loop of the node.
        wake_links: Schedules the output of a peer's links.
        forget_if_idle: Forgets a peer that nothing is kept for.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wake_links: Callable[[Peer], object],
        forget_if_idle: Callable[[Peer], object],
    ) -> None:
        self._loop = loop
        self._wake_links = wake_links
        self._forget_if_idle = forget_if_idle
        self._timers: dict[Peer, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def arm(self, peer: Peer, deadline: float) -> None:
        """Set the timer of a peer."""
        timer = self._timers.get(peer)
        if timer is not None:
            timer.cancel()
        peer.armed = deadline
        self._timers[peer] = self._loop.call_at(deadline, self._fire, peer, False)

    def _fire(self, peer: Peer, waited: bool) -> None:
        now = self._loop.time()
        if not waited and peer.armed is not None and now - peer.armed > _LAG:
            # The timer fired late: read what arrived meanwhile before anything expires.
            self._timers[peer] = self._loop.call_later(_LAG / 5, self._fire, peer, True)
            return
        peer.armed = None
        for link in peer.links:
            link.connection.backpressure.note_progress(now)
        peer.expire(now)
        following = peer.deadlines.next()
        if following is not None:
            self.arm(peer, following)
        if peer.queued:
            peer.pump(now)
        self._wake_links(peer)
        if not peer.links:
            self._forget_if_idle(peer)

    def forget(self, peer: Peer) -> None:
        """Cancel the timer of a forgotten peer."""
        timer = self._timers.pop(peer, None)
        if timer is not None:
            timer.cancel()
        # The peer may return, with a send that has a deadline.
        peer.armed = None

    def close(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
