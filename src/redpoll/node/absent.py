"""Peers whose link was lost, remembered for a time: what they send again when they are back is not done again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redpoll.config import MAX_RESUME

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from redpoll.wire.peer import Peer

__all__ = ["MAX_OUTCOMES", "MAX_PEERS", "REMEMBERED_FOR", "Absent"]

#: Seconds that a peer is remembered: much longer than dialling takes, however soon idle links are closed. So much longer
#: one is whose session lasts a time, up to `config.MAX_RESUME`.
REMEMBERED_FOR = 30.0

#: So many peers are remembered, and so many outcomes of their messages in all; the longest absent is forgotten first.
MAX_PEERS = 1_000
MAX_OUTCOMES = 262_144


class Absent:
    """Remembers peers until they are back, their time is over, or there are too many."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, forget: Callable[[Peer], object]) -> None:
        """Remember none yet.

        Args:
            loop: The node's.
            seconds: How long each is remembered, beyond the time of its session.
            forget: Called with one that is remembered no longer.
        """
        self._loop = loop
        self._seconds = seconds
        self._forget = forget
        #: In the order in which they went, with how many outcomes each has.
        self._peers: dict[Peer, tuple[int, asyncio.TimerHandle]] = {}
        self._outcomes = 0

    def __contains__(self, peer: object) -> bool:
        return peer in self._peers

    def __len__(self) -> int:
        return len(self._peers)

    def add(self, peer: Peer) -> None:
        """Remember a peer that went without a goodbye, if it has outcomes that it may ask for again."""
        outcomes = peer.slots.remembered
        if not outcomes:
            return
        self.remove(peer)
        session = peer.session
        longer = 0.0 if session is None else min(session.seconds, MAX_RESUME)
        self._peers[peer] = outcomes, self._loop.call_later(self._seconds + longer, self._drop, peer)
        self._outcomes += outcomes
        while len(self._peers) > MAX_PEERS or self._outcomes > MAX_OUTCOMES:
            self._drop(next(iter(self._peers)))

    def remove(self, peer: Peer) -> None:
        """Stop counting a peer's time: it is back, or was not absent."""
        outcomes, timer = self._peers.pop(peer, (0, None))
        self._outcomes -= outcomes
        if timer is not None:
            timer.cancel()

    def clear(self) -> None:
        """Stop counting for all."""
        for peer in list(self._peers):
            self.remove(peer)

    def _drop(self, peer: Peer) -> None:
        self.remove(peer)
        self._forget(peer)
