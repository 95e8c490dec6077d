"""Unclaimed messages: those that nothing pulls from a node are refused after a time, so that their senders know."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redpoll.errors import NoHandler
from redpoll.wire.peer import Peer

__all__ = ["Unclaimed"]

#: Share of the timeout within which arrivals of one peer are noted as one: the maximum delay of a refusal.
_SHARE = 1 / 64

_Key = tuple[Any, ...]

_TEXT = "the node has neither a handler nor a consumer"

_logger = logging.getLogger("redpoll.node")


@dataclass(eq=False)
class Unclaimed:
    """Refuses unclaimed messages. It does not keep the messages, only the last one that had arrived by a time.

    Args:
        loop: The event loop of the node.
        timeout: Time in seconds after which a message is refused.
        in_use: Returns True while a consumer waits for a message or handles one.
        refuse: Refuses a waiting message with a code and a text; returns False if it waits no longer.
        settle: Called with a peer some of whose messages were refused.

    Attributes:
        last_request: Time at which a consumer last requested a message, by the clock of the loop.
    """

    _loop: asyncio.AbstractEventLoop
    _timeout: float
    _in_use: Callable[[], bool]
    _refuse_waiting: Callable[[Any, int, str], bool]
    _settle: Callable[[Peer], object]

    def __post_init__(self) -> None:
        self.last_request = float("-inf")
        self._span = self._timeout * _SHARE
        #: The last message of a peer (identity and serial) that arrived by the end of a time span, in order of time.
        self._noted: dict[tuple[int, Peer], _Key] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, peer: Peer, now: float) -> None:
        """Note the arrival of messages of a peer."""
        inbox = peer.slots.inbox
        if inbox:
            self._noted[int(now / self._span), peer] = inbox[-1].frame[:2]
        if self._timer is None and self._noted and not self._loop.is_closed():
            self._timer = self._loop.call_later(self._timeout, self._fire)

    def close(self) -> None:
        """Stop: the node stopped."""
        if self._timer is not None:
            self._timer.cancel()
        self._noted.clear()

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        self._prune(now)
        if self._in_use():
            # A consumer waits or handles a message, and will request the next.
            self.last_request = now
        if self.last_request + self._timeout <= now:
            self._refuse(now)
        if self._noted:
            span, _ = next(iter(self._noted))
            self._timer = self._loop.call_at(max(self._due(span), self.last_request + self._timeout), self._fire)

    def _prune(self, now: float) -> None:
        """Forget messages that were taken or withdrawn, but no peer with waiting messages."""
        waiting: dict[Peer, set[_Key]] = {}
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
        """Refuse the messages that have waited for the whole timeout."""
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
            count += sum(self._refuse_waiting(message, NoHandler.code, _TEXT) for message in due)
            self._settle(peer)
        if count:
            _logger.warning(
                "refused %d messages that were not taken within %g s: the node has neither a handler nor a consumer",
                count,
                self._timeout,
            )
