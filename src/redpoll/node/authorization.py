"""The results of the user's `authorize`: one call per link, and any failure is a refusal."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from redpoll.errors import NotAuthorized
from redpoll.node.reports import LogLimit

if TYPE_CHECKING:
    from redpoll.node.hooks import PeerInfo
    from redpoll.transport.connection import Connection

__all__ = ["Authorization"]

_logger = logging.getLogger("redpoll.node")


@dataclass(eq=False)
class Authorization:
    """Calls `authorize` for the links of one node and keeps the results.

    Args:
        authorize: As in `Config.authorize`.
        loop: The event loop of the node.
        timeout: Time in seconds for each call.
        decided: Called with a connection whose result came late.
    """

    _authorize: Callable[[Any], Any]
    _loop: asyncio.AbstractEventLoop
    _timeout: float
    _on_decided: Callable[[Connection], object]

    def __post_init__(self) -> None:
        #: True: allowed, None: pending, else the error of the refusal.
        self._results: dict[Connection, NotAuthorized | Literal[True] | None] = {}
        #: The pending calls, and the timers of their timeouts.
        self._tasks: dict[Connection, asyncio.Task[Any]] = {}
        self._timers: dict[Connection, asyncio.TimerHandle] = {}
        self._errors = LogLimit(self._loop)

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
            try:
                result = self._authorize(info())
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # a function of the user's
                self._failed(connection, error)
            else:
                if inspect.isawaitable(result):
                    task = self._loop.create_task(_wait(result), name="redpoll authorize")
                    self._tasks[connection] = task
                    self._timers[connection] = self._loop.call_later(self._timeout, self._timed_out, connection)
                    task.add_done_callback(partial(self._ended, connection, result))
                else:
                    self._decide(connection, result)
        return self._results[connection]

    def _ended(self, connection: Connection, result: Awaitable[Any], task: asyncio.Task[Any]) -> None:
        del self._tasks[connection]
        if inspect.iscoroutine(result):
            # It may not have started.
            result.close()
        if task.cancelled():
            self._refuse(connection, "authorize was cancelled")
        elif (error := task.exception()) is not None:
            self._failed(connection, error)
        else:
            self._decide(connection, task.result())
        if not task.cancelling():
            # Otherwise the canceller handles the connection.
            self._on_decided(connection)

    def _timed_out(self, connection: Connection) -> None:
        """Refuse a connection whose call timed out, even if `authorize` suppresses its cancellation."""
        self._refuse(connection, f"authorize timed out after {self._timeout:g} s")
        self._tasks[connection].cancel()
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
        else:
            self._settle(connection, True)

    def _failed(self, connection: Connection, error: BaseException) -> None:
        if self._errors.may_log():
            _logger.error("authorize raised, so the link is rejected", exc_info=error)
        self._refuse(connection, f"authorize raised {type(error).__name__}", error)

    def _refuse(self, connection: Connection, detail: str, cause: BaseException | None = None) -> None:
        error = NotAuthorized(detail, connection.name)
        error.__cause__ = cause
        if self._settle(connection, error):
            connection.link.memory.tally.unauthorized += 1

    def _settle(self, connection: Connection, result: NotAuthorized | Literal[True]) -> bool:
        """Set the result of a connection; return False if it is decided already, or lost."""
        if self._results.get(connection, True) is not None:
            return False
        self._results[connection] = result
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        return True

    def forget(self, connection: Connection) -> None:
        """Forget a connection that was lost."""
        self._results.pop(connection, None)
        if connection in self._timers:
            self._timers.pop(connection).cancel()
        if connection in self._tasks:
            self._tasks[connection].cancel()

    def stop(self) -> list[Connection]:
        """Refuse the accepted connections that are pending, because the node stops; return them."""
        waiting = [each for each in self._tasks if not each.link.dialled]
        for connection in waiting:
            self._settle(connection, NotAuthorized("the node is stopping", connection.name))
            self._tasks[connection].cancel()
        return waiting

    async def close(self) -> None:
        """Cancel the pending calls and wait for their end."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait(result: Awaitable[Any]) -> Any:
    return await result
