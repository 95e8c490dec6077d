"""The actions of a node at its `memory_limit`: links wait or continue, messages are refused, links are closed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redpoll.errors import PeerLost

if TYPE_CHECKING:
    from redpoll.transport.connection import Connection
    from redpoll.wire.memory import Holder, Memory
    from redpoll.wire.routes import Routes

__all__ = ["CHECK_EVERY", "Pressure"]

#: Interval in seconds between two checks at the limit.
CHECK_EVERY = 0.25

#: Time in seconds: if a check is this late, this process did not run, and that time is no evidence against a link.
_LAG = 0.5

#: Minimum interval in seconds between two recounts of the inboxes on behalf of a send.
_COUNT_EVERY = 0.1


class Pressure:
    """Manages the links of one node that wait for memory; wire/memory.py decides.

    Args:
        loop: The event loop of the node.
        memory: Its memory, which asks for recounts from now on.
        routes: Its peers, whose inboxes are recounted.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: Memory, routes: Routes) -> None:
        self._loop = loop
        self._memory = memory
        self._routes = routes
        self._memory.recount = self._recount
        self._timer: asyncio.Handle | None = None
        self._due = 0.0
        self._counted = float("-inf")

    def memory_blocked(self, connection: Connection, now: float) -> None:
        """Let a link wait for memory; whether there is any is checked once what waits was counted."""
        self._memory.pause(connection.link, now)
        self._check_in(0.0)

    def eased(self) -> None:
        """Check the waiting links: memory may have been freed."""
        memory = self._memory
        if memory.paused and not memory.full:
            self._check_in(0.0)

    def backed_up(self) -> None:
        """Check a link that does not read what is written to it."""
        if self._timer is None and self._memory.full:
            self._check_in(CHECK_EVERY)

    def close(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_in(self, delay: float) -> None:
        due = self._loop.time() + delay
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_later(delay, self._check) if delay else self._loop.call_soon(self._check)

    def _recount(self) -> None:
        now = self._loop.time()
        if now - self._counted >= _COUNT_EVERY:
            self._counted = now
            for peer in self._routes:
                peer.slots.inbox.recount()

    def _check(self) -> None:
        self._timer = None
        memory = self._memory
        now = self._loop.time()
        if now - self._due > _LAG:
            memory.restart_timers(now)
        self._recount()
        for link in list(memory.paused):
            if link.connection.reader.can_resume:
                self._read_on(link)
        for link in list(memory.unread):
            link.connection.admits_unread()
        stalled = memory.find_stalled(now) if memory.full else None
        if stalled is not None:
            self._close(stalled, "this node is at its memory_limit, and the transfers of the link made no progress")
        for link in memory.overdue(now):
            if link.connection.reader.reject_waiting():
                self._read_on(link)
            else:
                self._close(link, "this node is at its memory_limit, and the peer cannot be told otherwise")
        if not memory.full:
            memory.restart_timers(now)
        if memory.paused or (memory.full and (memory.unfinished or memory.unread)):
            self._check_in(CHECK_EVERY)

    def _read_on(self, link: Holder) -> None:
        self._memory.paused.pop(link, None)
        link.connection.read_on()

    def _close(self, link: Holder, reason: str) -> None:
        self._memory.tally.memory_closed += 1
        connection = link.connection
        connection.fail(PeerLost(connection.name, reason))
        # Its memory is freed once it is lost, in the next turn of the loop.
        self._memory.paused.pop(link, None)
