"""What a node does at its `memory_limit`: links wait, go on, have something refused, or are closed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redpoll.errors import PeerLost

if TYPE_CHECKING:
    from redpoll.node.peers import Peers
    from redpoll.transport.connection import Connection
    from redpoll.wire.link import Link

__all__ = ["LOOK_EVERY", "Pressure"]

#: Seconds between two looks while the limit is reached.
LOOK_EVERY = 0.25

#: A look that comes so many seconds late says that this process did not run: nobody is judged by that time.
_LAG = 0.5

#: Inboxes are not counted anew more often than each so many seconds where a send asks for that.
_COUNT_EVERY = 0.1


class Pressure:
    """Looks after the links of one node while it has no memory for what they bring; wire/memory.py says what to do."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._loop = peers.loop
        self._memory = peers.memory
        self._memory.recount = self._recount
        self._timer: asyncio.Handle | None = None
        self._due = 0.0
        self._counted = float("-inf")

    def held_up(self, connection: Connection, now: float) -> None:
        """A link has to wait for memory: whether there is none is looked at once what waits was counted."""
        self._memory.wait(connection.link, now)
        self._look_at(0.0)

    def eased(self) -> None:
        """Something may have been let go."""
        memory = self._memory
        if memory.waiting and not memory.full:
            self._look_at(0.0)

    def backed_up(self) -> None:
        """A link does not read what is written to it."""
        if self._timer is None and self._memory.full:
            self._look_at(LOOK_EVERY)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, delay: float) -> None:
        due = self._loop.time() + delay
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_later(delay, self._look) if delay else self._loop.call_soon(self._look)

    def _recount(self) -> None:
        now = self._loop.time()
        if now - self._counted >= _COUNT_EVERY:
            self._counted = now
            for peer in self._peers.routes:
                peer.slots.count()

    def _look(self) -> None:
        self._timer = None
        memory = self._memory
        now = self._loop.time()
        if now - self._due > _LAG:
            memory.begin_again(now)
        self._recount()
        for link in list(memory.waiting):
            if link.reader.may_go_on:
                self._read_on(link)
        for link in list(memory.unread):
            link.owner.outflow.count()
        stalled = memory.stalled(now) if memory.full else None
        if stalled is not None:
            self._close(stalled, "this node is at its memory_limit, and what the link has begun does not move")
        for link in memory.overdue(now):
            if link.reader.turn_away():
                self._read_on(link)
            else:
                self._close(link, "this node is at its memory_limit, and the other end cannot be told so otherwise")
        if not memory.full:
            memory.begin_again(now)
        if memory.waiting or (memory.full and (memory.unfinished or memory.unread)):
            self._look_at(LOOK_EVERY)

    def _read_on(self, link: Link) -> None:
        self._memory.waiting.pop(link, None)
        link.owner.read_on()

    def _close(self, link: Link, reason: str) -> None:
        self._memory.tally.memory_closed += 1
        connection = link.owner
        connection.fail(PeerLost(connection.name, reason))
        # Its memory is free once it is lost, which the loop tells on its next turn.
        self._memory.waiting.pop(link, None)
