"""The limits of connections, in all and per host: how many links are accepted, and how many lost peers are kept."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from redpoll.config import MAX_RESUME

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from redpoll.config import Config
    from redpoll.wire.peer import Peer
    from redpoll.wire.tally import Tally

__all__ = ["PEER_SIZE", "REMEMBERED_FOR", "ConnectionLimits", "LostPeers", "RecentPeers"]

#: Time in seconds that a peer without a link is remembered: much longer than dialling takes, even where idle links are
#: closed soon. The time of its session, up to `config.MAX_RESUME`, is added.
REMEMBERED_FOR = 30.0

#: Bytes that a remembered peer is charged with, apart from the outcomes of its messages.
PEER_SIZE = 8 * 1024

#: Share of `memory_limit`, in addition to it, that remembered peers may use; and their bytes where there is no limit.
_SHARE = 4
_NO_LIMIT = 256 * 1024 * 1024


class ConnectionLimits:
    """Counts the accepted links of one node, and the lost peers whose messages still wait or run.

    Without the second count these would accumulate, a window of messages per stranger that connects and leaves. As many
    peers as there may be links can be lost at once and return; beyond that, no connection is accepted until some end.
    """

    def __init__(self, config: Config, tally: Tally) -> None:
        self._tally = tally
        self._limit = config.max_connections
        self._limit_of_host = config.max_connections_per_host
        self._hosts: Counter[str] = Counter()
        #: Lost peers with messages left here, and the hosts that they connected from.
        self._lost: dict[Peer, str] = {}
        self._lost_hosts: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._hosts.total() + len(self._lost)

    def admits(self, host: str, links: int) -> bool:
        """Return True if one more link from `host` may be accepted, given the number of links; count a rejection."""
        if links >= self._limit or len(self._lost) > self._limit:
            self._tally.connections += 1
        elif self._hosts[host] >= self._limit_of_host or self._lost_hosts[host] > self._limit_of_host:
            self._tally.connections_of_host += 1
        else:
            return True
        return False

    def add(self, host: str) -> None:
        """Count an accepted link."""
        self._hosts[host] += 1

    def remove(self, host: str) -> None:
        """Count the end of an accepted link."""
        _subtract(self._hosts, host)

    def lost(self, peer: Peer, host: str) -> None:
        """Count a lost peer, whose last link was accepted from `host`, while messages of it are left."""
        if peer.slots.busy and peer not in self._lost:
            self._lost[peer] = host
            self._lost_hosts[host] += 1

    def settle(self, peer: Peer) -> None:
        """Stop counting a peer that has a link again, or no messages left."""
        host = self._lost.pop(peer, None)
        if host is not None:
            _subtract(self._lost_hosts, host)


def _subtract(counter: Counter[str], host: str) -> None:
    counter[host] -= 1
    if not counter[host]:
        del counter[host]


class _Entry(NamedTuple):
    """A lost peer: the host that it connected from, None where this node dialled; whether it has a session or a queue."""

    host: str | None
    lasts: bool
    size: int
    timer: asyncio.TimerHandle


class LostPeers:
    """Peers without a link, each kept for a time, in the order in which they lost it.

    As many are kept as there may be links, in all and of each host. At a bound, peers with neither a session nor queued
    messages are dropped first, so that strangers cannot evict a peer that has either.

    Args:
        loop: The event loop of the node.
        config: The limits.
        drop: Called with a peer that is kept no longer, and with True if a bound was reached before its time was over.
        size_limit: Bytes that they may be charged with; one peer is always kept.

    Attributes:
        size: Bytes that they are charged with.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: Config,
        drop: Callable[[Peer, bool], object],
        size_limit: float = float("inf"),
    ) -> None:
        self._loop = loop
        self._limit = config.max_connections
        self._limit_of_host = config.max_connections_per_host
        self._on_drop = drop
        self._size_limit = size_limit
        self._entries: dict[Peer, _Entry] = {}
        #: By host, and with None of all: the peers without a session, and those with one.
        self._ranks: dict[str | None, tuple[dict[Peer, None], dict[Peer, None]]] = {}
        self.size = 0

    def __contains__(self, peer: object) -> bool:
        return peer in self._entries

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, peer: Peer, seconds: float, size: int = 0) -> None:
        """Keep a peer, as the last one that was lost, for a time, and drop those that are too many now."""
        self.remove(peer)
        host = peer.host
        lasts = bool(peer.queue) or peer.session.seconds > 0
        timer = self._loop.call_later(seconds, self._drop, peer, False)
        self._entries[peer] = _Entry(host, lasts, size, timer)
        for key in {None, host}:
            self._ranks.setdefault(key, ({}, {}))[lasts][peer] = None
        self.size += size
        while (other := self._to_evict(host)) is not None:
            self._drop(other, True)

    def remove(self, peer: Peer) -> bool:
        """Stop keeping a peer; return True if it was kept."""
        entry = self._entries.pop(peer, None)
        if entry is None:
            return False
        entry.timer.cancel()
        for key in {None, entry.host}:
            ranks = self._ranks[key]
            del ranks[entry.lasts][peer]
            if not any(ranks):
                del self._ranks[key]
        self.size -= entry.size
        return True

    def clear(self) -> None:
        """Stop keeping all peers."""
        for peer in self:
            self.remove(peer)

    def _to_evict(self, host: str | None) -> Peer | None:
        """Return the peer to drop after one from `host` was added, of that host if it is over its bound, or None."""
        strangers, others = self._ranks.get(host, ({}, {}))
        if host is None or len(strangers) + len(others) <= self._limit_of_host:
            oversized = self.size > self._size_limit and len(self) > 1
            if len(self) <= self._limit and not oversized:
                return None
            strangers, others = self._ranks[None]
        return next(iter(strangers or others))

    def _drop(self, peer: Peer, evicted: bool) -> None:
        self.remove(peer)
        self._on_drop(peer, evicted)


class RecentPeers(LostPeers):
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
        limit = _NO_LIMIT if config.memory_limit is None else config.memory_limit // _SHARE
        super().__init__(loop, config, lambda peer, _: forget(peer), limit)
        self._seconds = seconds

    def remember(self, peer: Peer) -> None:
        """Remember a peer that left without a goodbye, if it may resend something."""
        if peer.slots.remembered or peer.record_sent:
            longer = min(peer.session.seconds, MAX_RESUME)
            self.add(peer, self._seconds + longer, PEER_SIZE + peer.slots.trim_outcomes())
