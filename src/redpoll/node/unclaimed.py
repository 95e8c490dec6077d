"""What waits at a node that nobody pulls from is refused after a time, so that its senders learn of it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from redpoll.errors import NoHandler
from redpoll.wire.peer import Peer

if TYPE_CHECKING:
    from redpoll.node.peers import Peers
    from redpoll.node.pulling import Consumers

__all__ = ["Unclaimed"]

#: Arrivals of one peer within this share of the timeout are noted as one: they are refused that much late at most.
_SHARE = 1 / 64

_Mark = tuple[Any, ...]

_TEXT = "the node has neither a handler nor a consumer"

_logger = logging.getLogger("redpoll.node")


class Unclaimed:
    """Refuses what nobody claims; messages themselves are not kept here, only which had come by when.

    Attributes:
        taken: When somebody last asked for a message, on the loop's clock.
    """

    def __init__(self, consumers: Consumers, peers: Peers, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self.taken = float("-inf")
        self._consumers = consumers
        self._peers = peers
        self._loop = loop
        self._timeout = timeout
        self._span = timeout * _SHARE
        #: The last message that a peer had sent by the end of a span of time (its identity and serial), in order of time.
        self._noted: dict[tuple[int, Peer], _Mark] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, peer: Peer, now: float) -> None:
        """Messages of a peer arrived."""
        inbox = peer.slots.inbox
        if inbox:
            self._noted[int(now / self._span), peer] = inbox[-1].frame[:2]
        if self._timer is None and self._noted and not self._loop.is_closed():
            self._timer = self._loop.call_later(self._timeout, self._ring)

    def close(self) -> None:
        """The node stopped."""
        if self._timer is not None:
            self._timer.cancel()
        self._noted.clear()

    def _ring(self) -> None:
        self._timer = None
        now = self._loop.time()
        self._look(now)
        if self._consumers.claiming or self._peers.pool.used:
            # Somebody waits or is at work on a message, and will ask for the next.
            self.taken = now
        if self.taken + self._timeout <= now:
            self._refuse(now)
        if self._noted:
            span, _ = next(iter(self._noted))
            self._timer = self._loop.call_at(max(self._due(span), self.taken + self._timeout), self._ring)

    def _look(self, now: float) -> None:
        """Forget what was taken or withdrawn, but no peer of which anything waits."""
        waiting: dict[Peer, set[_Mark]] = {}
        for _, peer in self._noted:
            if peer not in waiting:
                waiting[peer] = {message.frame[:2] for message in peer.slots.inbox}
        self._noted = {key: mark for key, mark in self._noted.items() if mark in waiting[key[1]]}
        marks = set(self._noted.values())
        for peer in waiting:
            inbox = peer.slots.inbox
            if inbox and inbox[-1].frame[:2] not in marks:
                self._noted[int(now / self._span), peer] = inbox[-1].frame[:2]

    def _due(self, span: int) -> float:
        return (span + 1) * self._span + self._timeout

    def _refuse(self, now: float) -> None:
        """Refuse what has waited for the whole time."""
        count = 0
        for key, mark in list(self._noted.items()):
            span, peer = key
            if self._due(span) > now:
                break
            del self._noted[key]
            due: list[Any] = []
            for message in peer.slots.inbox:
                due.append(message)
                if message.frame[:2] == mark:
                    break
            count += sum(self._peers.ends.refuse_waiting(message, NoHandler.code, _TEXT) for message in due)
            self._peers.after_dispatch(peer)
        if count:
            _logger.warning(
                "refused %d messages that nobody took within %g s: the node has no handler and nobody pulls from it",
                count,
                self._timeout,
            )
