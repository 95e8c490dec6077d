"""The results of the user's `authorize`: one call per link, and any failure is a refusal."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from redpoll.errors import NotAuthorized
from redpoll.node.reports import LogLimit

if TYPE_CHECKING:
    from redpoll.node.hooks import PeerInfo
    from redpoll.transport.connection import Connection

__all__ = ["REJECTION_TIME", "Authorization"]

#: Time in seconds that a rejected node has to read the refusal and close.
REJECTION_TIME = 1.0

_logger = logging.getLogger("redpoll.node")


class Authorization:
    """Calls `authorize` for the links of one node and keeps the results.

    Args:
        authorize: As in `Config.authorize`.
        loop: The event loop of the node.
        timeout: Time in seconds for each call.
        decided: Called with a connection whose result came late.
    """

    def __init__(
        self,
        authorize: Callable[[Any], Any],
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        decided: Callable[[Connection], object],
    ) -> None:
        self._authorize = authorize
        self._loop = loop
        self._timeout = timeout
        self._on_decided = decided
        #: True: allowed, None: pending, else the error of the refusal.
        self._results: dict[Connection, NotAuthorized | Literal[True] | None] = {}
        self._tasks: dict[Connection, asyncio.Task[None]] = {}
        #: The timeout of a pending call; after a refusal, the time to read it.
        self._timers: dict[Connection, asyncio.TimerHandle] = {}
        self._errors = LogLimit(loop)

    def allowed(self, connection: Connection) -> bool:
        """Return True if a connection was allowed."""
        return self._results.get(connection) is True

    def result(self, connection: Connection, info: Callable[[], PeerInfo]) -> NotAuthorized | Literal[True] | None:
        """Return the result for a connection, and call `authorize` if it was not called yet.

        Args:
            connection: A connection with its handshake.
            info: Returns what is known of the remote node.

        Returns:
            True: allowed. An error: refused. None: pending; `decided` is called later.
        """
        if connection not in self._results:
            self._results[connection] = None
            self._ask(connection, info())
        return self._results[connection]

    def _ask(self, connection: Connection, peer: PeerInfo) -> None:
        try:
            result = self._authorize(peer)
        except Exception as error:  # noqa: BLE001  # a function of the user's
            self._failed(connection, error)
            return
        if not inspect.isawaitable(result):
            self._decide(connection, result)
            return
        task = self._loop.create_task(self._wait(connection, result), name="redpoll authorize")
        if task.done():
            # It finished eagerly.
            self._over(connection, task)
            return
        self._tasks[connection] = task
        self._timers[connection] = self._loop.call_later(self._timeout, self._timed_out, connection)
        task.add_done_callback(partial(self._ended, connection, result))

    def _ended(self, connection: Connection, result: Awaitable[Any], task: asyncio.Task[None]) -> None:
        del self._tasks[connection]
        if inspect.iscoroutine(result):
            # It may not have started.
            result.close()
        self._over(connection, task)
        if not task.cancelling():
            # Otherwise the canceller handles the connection.
            self._on_decided(connection)

    def _over(self, connection: Connection, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._refuse(connection, "authorize was cancelled")

    async def _wait(self, connection: Connection, result: Awaitable[Any]) -> None:
        try:
            value = await result
        except Exception as error:  # noqa: BLE001  # a function of the user's
            self._failed(connection, error)
        else:
            self._decide(connection, value)

    def _timed_out(self, connection: Connection) -> None:
        """Refuse a connection whose call timed out, even if `authorize` suppresses its cancellation."""
        self._refuse(connection, f"authorize timed out after {self._timeout:g} s")
        self._cancel(connection)
        self._on_decided(connection)

    def _decide(self, connection: Connection, result: Any) -> None:
        if result is False:
            self._refuse(connection, "authorize returned False")
        elif result is not True:
            # A record or a reason in words is truthy too, and may mean a refusal.
            problem = f"authorize returned {type(result).__name__}: only True admits a peer"
            if self._errors.may_log():
                _logger.error("%s", problem)
            self._refuse(connection, problem)
        elif self._is_open(connection):
            self._disarm(connection)
            self._results[connection] = True

    def _is_open(self, connection: Connection) -> bool:
        """Return True if a connection is pending: neither decided nor lost."""
        return self._results.get(connection, True) is None

    def _failed(self, connection: Connection, error: Exception) -> None:
        if self._errors.may_log():
            _logger.error("authorize raised, so the link is rejected", exc_info=error)
        self._refuse(connection, f"authorize raised {type(error).__name__}", error)

    def _refuse(
        self, connection: Connection, detail: str, cause: Exception | None = None, *, counts: bool = True
    ) -> None:
        if not self._is_open(connection):
            return
        self._disarm(connection)
        connection.link.memory.tally.unauthorized += counts
        error = NotAuthorized(detail, connection.name)
        error.__cause__ = cause
        self._results[connection] = error
        self._timers[connection] = self._loop.call_later(REJECTION_TIME, connection.fail, error)

    def _disarm(self, connection: Connection) -> None:
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _cancel(self, connection: Connection) -> None:
        task = self._tasks.get(connection)
        if task is not None:
            task.cancel()

    def forget(self, connection: Connection) -> None:
        """Forget a connection that was lost."""
        self._results.pop(connection, None)
        self._disarm(connection)
        self._cancel(connection)

    def stop(self) -> list[Connection]:
        """Refuse the accepted connections that are pending, because the node stops; return them."""
        waiting = [each for each in self._tasks if not each.link.dialled]
        for connection in waiting:
            self._refuse(connection, "the node is stopping", counts=False)
            self._tasks[connection].cancel()
        return waiting

    async def close(self) -> None:
        """Cancel the pending calls and wait for their end."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for timer in self._timers.values():
            timer.cancel()
