"""Binding: one exchange wired to one queue, for as long as somebody wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

from redpoll.errors import RedpollError

if TYPE_CHECKING:
    from redpoll.wiring.pipe import Join
    from redpoll.wiring.trunk import Trunk

__all__ = ["Binding"]


def _nobody(_: RedpollError) -> None:
    pass


class Binding:
    """One exchange wired to one queue. It lasts until it is unbound, or the wiring that made it is closed.

    Attributes:
        trouble: Why it is not up; None while it is.
    """

    def __init__(self, exchange: str, queue: str, unbind: Callable[[Binding], Awaitable[None]]) -> None:
        self._exchange = exchange
        self._queue = queue
        self._unbind = unbind
        self._was_up = False
        self.trouble: RedpollError | None = None
        #: The other end that it depends on, while it is up.
        self.trunk: Trunk | None = None
        #: What that is to call when it is lost.
        self.watcher: Callable[[RedpollError], object] = _nobody
        #: At the exchange's end.
        self.join: Join | None = None
        self.ended = False
        #: What wires it; None while it is up.
        self.task: asyncio.Task[None] | None = None
        #: Set when it may be worth trying again.
        self.kicked = asyncio.Event()
        #: Done with the next attempt: whether that has wired it.
        self.attempts: list[asyncio.Future[None]] = []
        #: Who wants it: this wiring (None), and others that asked for it.
        self.holders: set[Trunk | None] = set()
        #: Of these, who waits for it to be up, as often as they do.
        self.asking: list[Trunk | None] = []
        #: What ends its watches in the directory.
        self.watches: list[Callable[[], object]] = []

    @property
    def exchange(self) -> str:
        """The name of the exchange."""
        return self._exchange

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._queue

    @property
    def state(self) -> Literal["connecting", "up", "lost"]:
        """Whether messages flow: "up"; "connecting" before they first did, "lost" when an owner is gone."""
        return "up" if self.trunk is not None else "lost" if self._was_up else "connecting"

    @property
    def peer(self) -> str | None:
        """Where the other end is, as text; None while it is not up."""
        return None if self.trunk is None else self.trunk.place

    async def unbind(self) -> None:
        """End it: what was sent before still arrives, nothing after. Does nothing if it has ended."""
        await self._unbind(self)

    def wired(self, trunk: Trunk) -> None:
        """It is up."""
        self.trunk = trunk
        self.trouble = None
        self._was_up = True

    def attempted(self) -> None:
        """An attempt to wire it has ended."""
        attempts, self.attempts = self.attempts, []
        for attempt in attempts:
            if not attempt.done():
                attempt.set_result(None)

    def __repr__(self) -> str:
        return f"<Binding {self._exchange!r} -> {self._queue!r} {self.state}>"
