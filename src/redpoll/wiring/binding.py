"""Binding: one exchange bound to one queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from redpoll.errors import RedpollError
from redpoll.wiring.connection import Connection, Subscription
from redpoll.wiring.waiting import Waiters

__all__ = ["Binding"]


class Binding:
    """One exchange bound to one queue. It lasts until `unbind`, or until its wiring closes.

    Attributes:
        exchange: The name of the exchange.
        queue: The name of the queue.
        last_error: Why it is not up; None while it is up.
    """

    def __init__(self, exchange: str, queue: str, unbind: Callable[[Binding], Awaitable[None]]) -> None:
        self.exchange = exchange
        self.queue = queue
        self._unbind = unbind
        self._was_up = False
        self.last_error: RedpollError | None = None
        #: The other end that it depends on, while it is up.
        self.connection: Connection | None = None
        #: The queue's subscription to the exchange, at the exchange's end.
        self.subscription: Subscription | None = None
        self.ended = False
        #: The task that establishes it; None while it is up.
        self.task: asyncio.Task[None] | None = None
        #: Why it was lost while it was being established; None if it was not.
        self.undone: RedpollError | None = None
        #: Number of the attempt to establish it, among those of all bindings.
        self.number = 0
        #: The connection over which the owner of the exchange was asked last to establish it; None if none was asked yet.
        self.asked: Connection | None = None
        #: Set when a retry may succeed.
        self.retry_now = asyncio.Event()
        #: Calls that wait for the end of the next attempt.
        self.attempts = Waiters()
        #: Identity of the queue's owner, if both names are of other wirings.
        self.queue_owner: bytes | None = None
        #: Number of calls that wait for it to be up.
        self.callers = 0
        #: Functions that end its watches in the directory.
        self.watches: list[Callable[[], object]] = []

    @property
    def state(self) -> Literal["connecting", "up", "lost"]:
        """The state: "connecting" before messages first flow, "up" while they do, "lost" when an owner is lost."""
        return "up" if self.connection is not None else "lost" if self._was_up else "connecting"

    @property
    def peer(self) -> str | None:
        """The address of the other end, as text; None while it is not up."""
        return None if self.connection is None else self.connection.place

    async def unbind(self) -> None:
        """End it: earlier messages still arrive, later ones do not. Does nothing if it has ended."""
        await self._unbind(self)

    def attempt(self, number: int) -> None:
        """Note that an attempt to establish it begins."""
        self.number = number
        self.retry_now.clear()
        self.undone = None

    def wired(self, connection: Connection) -> None:
        """Note that it is up."""
        self.connection = connection
        self.last_error = None
        self._was_up = True

    def __repr__(self) -> str:
        return f"<Binding {self.exchange!r} -> {self.queue!r} {self.state}>"
