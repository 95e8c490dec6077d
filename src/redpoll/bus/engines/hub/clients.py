"""Clients of a hub, and the records sent to each of them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from redpoll.bus.broker.permissions import Permissions
from redpoll.bus.broker.queue import Consumer, Parked, Subscription
from redpoll.bus.broker.queue import Peer as BrokerPeer
from redpoll.bus.engines.hub import protocol as p
from redpoll.errors import BusError, RedpollError
from redpoll.node import Received
from redpoll.node.door import Batch, LayerNode, Peer

__all__ = ["Client", "Watch", "ended"]

_log = logging.getLogger("redpoll.bus")

#: Records that wait for one client, beyond which those that may be lost are, and its requests wait to be released.
_WAITING: Final = 10_000
_MAY_BE_LOST: Final = frozenset({p.EVENTS, p.PROGRESSED, p.NOTE})


@dataclass(frozen=True, slots=True)
class Watch:
    """A watcher of a client, by the number of the request that made it."""

    request: int
    durable: bool


class Client:
    """A client in one session.

    Args:
        node: The hub's node.
        peer: The node's.
        member: The broker's.
        rights: What it may do; None is everything.
        token: The digest of the token that it showed; b"" is none.

    Attributes:
        peer: The node's.
        member: The broker's.
        rights: What it may do; None is everything.
        token: The digest of its token.
        consumers: The broker's consumers by the client's numbers.
        subscriptions: The subscriptions likewise.
        parked: Publishes that wait for room, by request.
        recorded: Tokens of reclaimed deliveries whose outcomes are recorded; it presents them again.
        observes: Whether it wants notes.
        open: Whether anything is said to it still.
    """

    def __init__(
        self, node: LayerNode, peer: Peer, member: BrokerPeer, rights: Permissions | None, token: bytes
    ) -> None:
        self._node = node
        self.peer = peer
        self.member = member
        self.rights = rights
        self.token = token
        self.consumers: dict[int, Consumer] = {}
        self.subscriptions: dict[int, Subscription] = {}
        self.parked: dict[int, Parked] = {}
        self.recorded: set[int] = set()
        self.observes = False
        self.open = True
        self._waiting: deque[list[Any]] = deque()
        # Among these are deliveries that wait for their bodies, and all behind them.
        self._gaps = 0
        self._held: list[Received[Any]] = []
        self._scheduled = False

    def say(self, *record: Any) -> None:
        """Send a record in this turn of the loop, behind those before."""
        waiting = self._waiting
        if not self.open or (len(waiting) >= _WAITING and record[0] in _MAY_BE_LOST):
            return
        waiting.append(list(record))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def deliver(self, record: list[Any]) -> None:
        """Send a delivery, whose body is filled in later."""
        if self.open:
            self._gaps += 1
            self._waiting.append(record)

    def filled(self) -> None:
        """Note that a delivery has its body."""
        if self.open:
            self._gaps -= 1
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self.flush)

    def _complete(self) -> int:
        """Return the number of queued records before the first that waits for its body."""
        for number, record in enumerate(self._waiting):
            if record[0] == p.DELIVER and record[-1] is None:
                return number
        return len(self._waiting)

    def reply(self, request: int, value: Any = None) -> None:
        """Answer a request, unless it wants no answer."""
        if request:
            self.say(p.REPLY, request, value)

    def fail(self, request: int, error: RedpollError) -> None:
        """Answer a request with an error."""
        if request:
            self.say(p.FAILED, request, p.pack_error(error))

    def fail_by_defect(self, request: int, what: object) -> None:
        """Log the exception that is being handled, a defect of the hub, and answer the request with an internal error."""
        _log.exception("request %r of client %s failed by a defect of the hub", what, self.member.name)
        self.fail(request, BusError(f"internal error of the hub at {what!r}: its log has the traceback"))

    def flush(self) -> None:
        """Send queued records, as far as there is room."""
        self._scheduled = False
        node = self._node
        waiting = self._waiting
        left = self._complete() if self._gaps else len(waiting)
        while left and self.open:
            if node.room(self.peer) <= 0:
                self._scheduled = True
                node.when_room(self.peer, self.flush)
                break
            part = [waiting.popleft() for _ in range(min(left, 1024))]
            left -= len(part)
            node.send_batch(self.peer, [(b"", body) for body, _ in p.pack(part)], ended)
        if self._held and (len(waiting) < _WAITING or not self.open):
            held, self._held = self._held, []
            for message in held:
                message.release()

    def release(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Return the messages that may be released now: none while too many answers to the client are unread."""
        if len(self._waiting) < _WAITING or not self.open:
            return messages
        self._held += messages
        return []

    def end(self) -> None:
        """Send nothing more to it."""
        self.open = False
        self.flush()


def ended(batch: Batch) -> None:
    """Do nothing: unsent records are lost with the session, whose end the node reports."""
