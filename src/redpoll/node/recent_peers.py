"""Recently lost peers: the order in which they left, how many are kept, and how long their outcomes are remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redpoll.config import MAX_RESUME

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from redpoll.config import Config
    from redpoll.wire.peer import Peer

__all__ = ["PEER_SIZE", "REMEMBERED_FOR", "EvictionOrder", "RecentPeers"]

#: Time in seconds that a peer without a link is remembered: much longer than dialling takes, even where idle links are
#: closed soon. The time of its session, up to `config.MAX_RESUME`, is added.
REMEMBERED_FOR = 30.0

#: Bytes that a remembered peer is charged with, apart from the outcomes of its messages.
PEER_SIZE = 8 * 1024

#: Share of `memory_limit`, in addition to it, that remembered peers may use; and their bytes where there is no limit.
_SHARE = 4
_NO_LIMIT = 256 * 1024 * 1024


class EvictionOrder:
    """Peers in the order in which they lost their last link, bounded by the connection limits, in all and per host.

    At the bound, peers with neither a session nor queued messages are evicted first, so that strangers cannot evict a
    peer that has either.
    """

    def __init__(self, config: Config) -> None:
        self._limit = config.max_connections
        self._limit_of_host = config.max_connections_per_host
        #: The host that each peer connected from, None where this node dialled, and whether it has a session.
        self._peers: dict[Peer, tuple[str | None, bool]] = {}
        #: The peers without a session and those with one, in all and per host.
        self._ranks: tuple[dict[Peer, None], dict[Peer, None]] = {}, {}
        self._hosts: dict[str, tuple[dict[Peer, None], dict[Peer, None]]] = {}

    def __contains__(self, peer: object) -> bool:
        return peer in self._peers

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._peers))

    def __len__(self) -> int:
        return len(self._peers)

    def add(self, peer: Peer) -> None:
        """Add a peer as the last one that left."""
        host, session = peer.host, peer.session
        lasts = peer.queued > 0 or (session is not None and session.seconds > 0)
        self.remove(peer)
        self._peers[peer] = host, lasts
        self._ranks[lasts][peer] = None
        if host is not None:
            self._hosts.setdefault(host, ({}, {}))[lasts][peer] = None

    def remove(self, peer: Peer) -> None:
        """Remove a peer; do nothing if it is not here."""
        host, lasts = self._peers.pop(peer, (None, False))
        self._ranks[lasts].pop(peer, None)
        if host is not None:
            same = self._hosts[host]
            del same[lasts][peer]
            if not any(same):
                del self._hosts[host]

    def to_evict(self, host: str | None) -> Peer | None:
        """Return the peer to evict after one from `host` was added, of that host if it is over its bound, or None."""
        same = self._hosts.get(host, ({}, {})) if host is not None else ({}, {})
        if sum(map(len, same)) > self._limit_of_host:
            return _first(same)
        return self.first if len(self._peers) > self._limit else None

    @property
    def first(self) -> Peer:
        """The peer to evict first."""
        return _first(self._ranks)


def _first(ranks: tuple[dict[Peer, None], dict[Peer, None]]) -> Peer:
    strangers, others = ranks
    return next(iter(strangers or others))


class RecentPeers:
    """Remembers the outcomes of peers without a link until they return, their time is over, or a bound is reached.

    Args:
        loop: The event loop of the node.
        config: The limits.
        seconds: Time that each peer is remembered, in addition to the time of its session.
        forget: Called with each peer that is remembered no longer.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, config: Config, seconds: float, forget: Callable[[Peer], object]
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._forget = forget
        self._limit = _NO_LIMIT if config.memory_limit is None else config.memory_limit // _SHARE
        self._gone = EvictionOrder(config)
        self._timers: dict[Peer, tuple[asyncio.TimerHandle, int]] = {}
        #: Bytes charged for the remembered peers.
        self.size = 0

    def __contains__(self, peer: object) -> bool:
        return peer in self._timers

    def __len__(self) -> int:
        return len(self._timers)

    def add(self, peer: Peer) -> None:
        """Remember a peer that left without a goodbye, if it may resend something."""
        if not (peer.slots.remembered or peer.record_sent):
            return
        self.remove(peer)
        session = peer.session
        longer = 0.0 if session is None else min(session.seconds, MAX_RESUME)
        size = PEER_SIZE + peer.slots.trim_outcomes()
        self._gone.add(peer)
        self._timers[peer] = self._loop.call_later(self._seconds + longer, self._drop, peer), size
        self.size += size
        while (other := self._gone.to_evict(peer.host)) is not None:
            self._drop(other)
        while self.size > self._limit and len(self._gone) > 1:
            self._drop(self._gone.first)

    def remove(self, peer: Peer) -> None:
        """Stop remembering a peer, which is back or was not absent."""
        timer, size = self._timers.pop(peer, (None, 0))
        if timer is not None:
            timer.cancel()
            self._gone.remove(peer)
            self.size -= size

    def clear(self) -> None:
        """Stop remembering all peers."""
        for peer in list(self._timers):
            self.remove(peer)

    def _drop(self, peer: Peer) -> None:
        self.remove(peer)
        self._forget(peer)
