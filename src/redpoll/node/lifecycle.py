"""The end of a node: first what was begun ends, then everything closes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redpoll.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Callable

    from redpoll.node.peers import Peers
    from redpoll.transport.listen import Listener

__all__ = ["CLOSING_GRACE", "Shutdown"]

#: Seconds that the other ends have, twice at most: to answer a goodbye, and to take the last bytes.
CLOSING_GRACE = 0.25

#: Seconds between two looks at what rings no bell: sends and links.
_LOOK_AGAIN = 0.01


class Shutdown:
    """One node's stop, in a task of its own, so that it comes to its end whoever waits for it and gives up waiting."""

    def __init__(
        self, peers: Peers, listener: Listener | None, drain: float | None, stopped: Callable[[], None]
    ) -> None:
        """Begin.

        Args:
            peers: The node's, which take no more messages from now on.
            listener: The node's, which is closed.
            drain: Seconds; None is no limit.
            stopped: Called at the end.
        """
        self._peers = peers
        self._stopped = stopped
        self._listener = listener
        #: Those that wait for the end; a handler among them is not waited for.
        self._waiting: set[asyncio.Task[Any] | None] = {asyncio.current_task()}
        self._changed = asyncio.Event()
        self._draining = True
        if listener is not None:
            listener.close()
        peers.stopping = True
        peers.changed = self._changed.set
        peers.leave(self._waiting)
        self._task = peers.loop.create_task(self._run(drain), name="redpoll stop")

    async def wait(self) -> None:
        """Wait for the end. Cancelled, it ends the draining and waits for the rest; cancelled again, it does not."""
        current = asyncio.current_task()
        self._waiting.add(current)
        self._changed.set()
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._draining:
                self._draining = False
                self._changed.set()
                await asyncio.shield(self._task)
            raise
        finally:
            self._waiting.discard(current)

    async def _run(self, drain: float | None) -> None:
        try:
            await self._drain(drain)
        finally:
            self._draining = False
            self._peers.abort(Closed("node"))
            try:
                await self._end_handlers()
            finally:
                try:
                    await self._close()
                finally:
                    self._stopped()

    async def _drain(self, seconds: float | None) -> None:
        peers = self._peers
        if seconds is None or seconds > 0:
            await self._until(
                lambda: not self._draining or not peers.busy(self._waiting),
                seconds,
                lambda: peers.leave(self._waiting),
            )

    async def _until(self, condition: Callable[[], bool], seconds: float | None, between: Callable[[], None]) -> None:
        """Wait until something is so, at most so long."""
        loop = self._peers.loop
        end = None if seconds is None else loop.time() + seconds
        while not condition() and (end is None or loop.time() < end):
            self._changed.clear()
            try:
                async with asyncio.timeout(_LOOK_AGAIN):
                    await self._changed.wait()
            except TimeoutError:
                pass
            between()

    async def _end_handlers(self) -> None:
        dispatcher = self._peers.dispatcher
        if dispatcher is None:
            return
        handlers: list[asyncio.Task[Any]] = [task for task in dispatcher.tasks if task not in self._waiting]
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)

    async def _close(self) -> None:
        peers = self._peers
        await peers.dialler.stop()
        if self._listener is not None:
            await self._listener.wait_closed()
        try:
            await self._until(lambda: peers.parted, CLOSING_GRACE, _nothing)
            peers.close_all()
            await self._until(lambda: not peers.connections, CLOSING_GRACE, _nothing)
        finally:
            peers.end_all()


def _nothing() -> None:
    pass
