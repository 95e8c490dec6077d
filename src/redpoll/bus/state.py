"""The state of an engine, its reason, and waiting for another one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from redpoll.checks import check_function

__all__ = ["EngineState", "Status"]

_log = logging.getLogger("redpoll.bus")


class EngineState(Enum):
    """The state of an engine, which `Bus.healthy` reads."""

    #: Not yet there.
    CONNECTING = "connecting"
    #: Everything that was asked for is in place: consumers, subscriptions, queues.
    READY = "ready"
    #: Connected, and something is not answered or could not be restored; `Status.reason` says what.
    DEGRADED = "degraded"
    #: The connection was lost; it is made again.
    RECONNECTING = "reconnecting"
    #: Closed by its owner, or for good.
    CLOSED = "closed"


Watch = Callable[[EngineState, str], object]


class Status:
    """The state of an engine, which its owner can watch and await. For use on the engine's loop."""

    def __init__(self, state: EngineState = EngineState.CONNECTING) -> None:
        self._state = state
        self._reason = ""
        self._watches: list[Watch] = []

    @property
    def state(self) -> EngineState:
        """The state of the engine."""
        return self._state

    @property
    def reason(self) -> str:
        """The reason for the state, or ""."""
        return self._reason

    def change(self, state: EngineState, reason: str = "") -> None:
        """Note a state and tell the watches; for the engine alone. An equal one is not told again."""
        if (state, reason) == (self._state, self._reason):
            return
        self._state, self._reason = state, reason
        for watch in tuple(self._watches):
            try:
                watch(state, reason)
            except (Exception, asyncio.CancelledError):  # noqa: BLE001  # a callback may raise anything
                _log.exception("a watch of the engine's state failed")

    def watch(self, callback: Watch) -> Callable[[], None]:
        """Call a function with (state, reason) at each change.

        Returns:
            A function that ends this.

        Raises:
            ConfigError: It is no function.
        """
        check_function("callback", callback, "a watch is a plain function of two arguments, the state and the reason")
        self._watches.append(callback)

        def end() -> None:
            with suppress(ValueError):
                self._watches.remove(callback)

        return end

    async def wait_for(self, *states: EngineState) -> EngineState:
        """Wait until the engine is in one of some states.

        Returns:
            That state.

        Cancelling it ends the wait and nothing else.
        """
        if self._state in states:
            return self._state
        reached: asyncio.Future[EngineState] = asyncio.get_running_loop().create_future()

        def look(state: EngineState, _: str) -> None:
            if state in states and not reached.done():
                reached.set_result(state)

        end = self.watch(look)
        try:
            return await reached
        finally:
            end()
