"""How many strangers a node lets in: by the links that are there, and by what those that are gone left behind."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redpoll.config import Config
    from redpoll.wire.peer import Peer
    from redpoll.wire.tally import Tally

__all__ = ["Places"]


class Places:
    """Counts the links that came in to one node, and the peers that are gone while messages of theirs wait or run.

    Those would add up without end, a window of each stranger that comes and goes. As many as there may be links can
    be gone at once and come back; with one more nobody is let in until some of it has ended.
    """

    def __init__(self, config: Config, tally: Tally) -> None:
        self._tally = tally
        self._limit = config.max_connections
        self._limit_of_host = config.max_connections_per_host
        self._hosts: Counter[str] = Counter()
        #: Peers that left messages behind, and the hosts they came from.
        self._left: dict[Peer, str] = {}
        self._left_hosts: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._hosts.total() + len(self._left)

    def admits(self, host: str, links: int) -> bool:
        """Whether one more link may come in from a host, beside so many in all; who may not is counted."""
        if links >= self._limit or len(self._left) > self._limit:
            self._tally.connections += 1
        elif self._hosts[host] >= self._limit_of_host or self._left_hosts[host] > self._limit_of_host:
            self._tally.connections_of_host += 1
        else:
            return True
        return False

    def take(self, host: str) -> None:
        """A link came in."""
        self._hosts[host] += 1

    def free(self, host: str) -> None:
        """A link that came in is gone."""
        _subtract(self._hosts, host)

    def leave(self, peer: Peer, host: str) -> None:
        """A peer whose last link came in from a host is gone: count it while messages of it are here."""
        if peer.slots.busy and peer not in self._left:
            self._left[peer] = host
            self._left_hosts[host] += 1

    def settle(self, peer: Peer) -> None:
        """A peer has a link again, or nothing of it waits or is handled any more."""
        host = self._left.pop(peer, None)
        if host is not None:
            _subtract(self._left_hosts, host)


def _subtract(counter: Counter[str], host: str) -> None:
    counter[host] -= 1
    if not counter[host]:
        del counter[host]
