"""What the user's `authorize` says of links: it is asked once about each, and whatever goes wrong is a no."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from redpoll.errors import NotAuthorized
from redpoll.node.once_a_second import OnceASecond

if TYPE_CHECKING:
    from redpoll.node.hooks import PeerInfo
    from redpoll.transport.connection import Connection

__all__ = ["TURNED_AWAY_FOR", "Authorization"]

#: Seconds that who is turned away has to read it and hang up.
TURNED_AWAY_FOR = 1.0

_logger = logging.getLogger("redpoll.node")


class Authorization:
    """What was said of the links of one node.

    Args:
        authorize: As in `Config.authorize`.
        loop: The node's.
        timeout: Seconds that it has.
        decided: Called with a connection when it was not decided at once and is now.
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
        self._tell_decided = decided
        #: True: allowed, None: not known yet, else why not.
        self._verdicts: dict[Connection, NotAuthorized | Literal[True] | None] = {}
        self._tasks: dict[Connection, asyncio.Task[None]] = {}
        #: When an answer is too late; after a no, when the other end has had its time to read it.
        self._timers: dict[Connection, asyncio.TimerHandle] = {}
        self._tracebacks = OnceASecond(loop)

    def allowed(self, connection: Connection) -> bool:
        """Whether a connection was let in."""
        return self._verdicts.get(connection) is True

    def verdict(self, connection: Connection, info: Callable[[], PeerInfo]) -> NotAuthorized | Literal[True] | None:
        """What is said of a connection, which is asked about if it was not before.

        Args:
            connection: It has its handshake.
            info: Makes what is known of who is there.

        Returns:
            True: it is let in. An error: it is not. None: that is decided later, and `decided` called.
        """
        if connection not in self._verdicts:
            self._verdicts[connection] = None
            self._ask(connection, info())
        return self._verdicts[connection]

    def _ask(self, connection: Connection, peer: PeerInfo) -> None:
        try:
            said = self._authorize(peer)
        except Exception as error:  # noqa: BLE001  # a function of the user's
            self._failed(connection, error)
            return
        if not inspect.isawaitable(said):
            self._decide(connection, said)
            return
        task = self._loop.create_task(self._wait(connection, said), name="redpoll authorize")
        if task.done():
            # It began at once.
            self._over(connection, task)
            return
        self._tasks[connection] = task
        self._timers[connection] = self._loop.call_later(self._timeout, self._late, connection)
        task.add_done_callback(partial(self._ended, connection, said))

    def _ended(self, connection: Connection, said: Awaitable[Any], task: asyncio.Task[None]) -> None:
        del self._tasks[connection]
        if inspect.iscoroutine(said):
            # It may not have been begun.
            said.close()
        self._over(connection, task)
        if not task.cancelling():
            # Else who cancelled it sees to the connection.
            self._tell_decided(connection)

    def _over(self, connection: Connection, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._refuse(connection, "authorize was cancelled")

    async def _wait(self, connection: Connection, said: Awaitable[Any]) -> None:
        try:
            verdict = await said
        except Exception as error:  # noqa: BLE001  # a function of the user's
            self._failed(connection, error)
        else:
            self._decide(connection, verdict)

    def _late(self, connection: Connection) -> None:
        """It is waited for no longer, whatever `authorize` makes of its cancellation."""
        self._refuse(connection, f"authorize took longer than {self._timeout:g} s")
        self._cancel(connection)
        self._tell_decided(connection)

    def _decide(self, connection: Connection, said: Any) -> None:
        if not said:
            self._refuse(connection, "authorize does not let it in")
        elif self._is_open(connection):
            self._disarm(connection)
            self._verdicts[connection] = True

    def _is_open(self, connection: Connection) -> bool:
        """Whether nothing is decided: it is not gone, nor was it told something else meanwhile."""
        return self._verdicts.get(connection, True) is None

    def _failed(self, connection: Connection, error: Exception) -> None:
        if self._tracebacks.may_tell():
            _logger.error("authorize raised, so the link is not let in", exc_info=error)
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
        self._verdicts[connection] = error
        self._timers[connection] = self._loop.call_later(TURNED_AWAY_FOR, connection.fail, error)

    def _disarm(self, connection: Connection) -> None:
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _cancel(self, connection: Connection) -> None:
        task = self._tasks.get(connection)
        if task is not None:
            task.cancel()

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self._verdicts.pop(connection, None)
        self._disarm(connection)
        self._cancel(connection)

    def stop(self) -> list[Connection]:
        """Wait for no word about those that came in: the node stops. Return them; nothing is taken from them."""
        waiting = [each for each in self._tasks if not each.link.dialled]
        for connection in waiting:
            self._refuse(connection, "the node stops", counts=False)
            self._tasks[connection].cancel()
        return waiting

    async def close(self) -> None:
        """Cancel what is still asked, and wait for its end."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for timer in self._timers.values():
            timer.cancel()
