"""Connection limits: how many connections are accepted, given the open ones and what closed ones left behind."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redpoll.config import Config
    from redpoll.wire.peer import Peer
    from redpoll.wire.tally import Tally

__all__ = ["ConnectionLimits"]


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
