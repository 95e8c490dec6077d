"""The common part of all engines: their end, forks, batches of publishes."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Iterable
from typing import Any, Final, Unpack

from redpoll.bus.batch import BatchOptions, publish_all
from redpoll.bus.envelope import Envelope
from redpoll.bus.feed import forked_error
from redpoll.bus.records import Receipt
from redpoll.bus.state import EngineState, Status
from redpoll.errors import Closed, RedpollError
from redpoll.platforms import after_fork

__all__ = ["EngineBase"]


class EngineBase:
    """See `redpoll.bus.engine.Engine`.

    Attributes:
        window: Maximum number of unconfirmed publishes of one `publish_many`.
        loop: Its loop.
        status: Its state.
        max_body: The largest body, in bytes.
        closed: True if it is closed, or was never started.
        forked: True in a child of the process in which it was made.
        unrecorded: Outcomes of tasks that its hub had not recorded when it was closed.
    """

    window = 1
    loop: asyncio.AbstractEventLoop
    status: Status
    max_body: int
    closed = True
    forked = False
    unrecorded = 0
    _closing: asyncio.Future[None] | None = None

    def __init__(self) -> None:
        _made.add(self)

    def refusal(self) -> RedpollError | None:
        """Return the error if it cannot be used, or None."""
        if self.forked:
            return forked_error()
        if not self.closed:
            return None
        return Closed("bus", None if hasattr(self, "loop") else "enter it first: async with redpoll.connect(…) as bus")

    @property
    def clock(self) -> Any:
        """Its time: that of the loop.

        Raises:
            Closed: It was never started.
        """
        loop = getattr(self, "loop", None)
        if loop is None:
            raise self.refusal() or Closed("bus")
        return loop

    async def __aexit__(self, *exc_info: object) -> None:
        """Close."""
        await self.close()

    async def close(self, drain: float | None = 0.0) -> None:
        """Stop."""
        if self.forked:
            return
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return
        if self.closed:
            self.status.change(EngineState.CLOSED)
            return
        self._closing = self.loop.create_future()
        try:
            await self._drain(drain)
        finally:
            try:
                await self._end()
            finally:
                self._closing.set_result(None)

    async def _drain(self, seconds: float | None) -> None:
        """Take nothing more, and wait until no task is held."""
        raise NotImplementedError

    async def _end(self) -> None:
        """Give all tasks back, and settle everything."""
        raise NotImplementedError

    def publish_many(
        self, envelopes: Iterable[Envelope], *, queue: str, **options: Unpack[BatchOptions]
    ) -> Awaitable[list[Receipt]]:
        """Put many tasks into a queue, in order."""
        engine: Any = self
        return publish_all(engine, envelopes, self.window, self.max_body, queue=queue, **options)


_made: Final[weakref.WeakSet[EngineBase]] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in _made:
        engine.forked = engine.closed = True


after_fork(_after_fork)
