"""The state of an engine, its reason, and waiting for another one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from redpoll.checks import check_function
from redpoll.errors import Closed, UsageError
from redpoll.platforms import forks

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
        self._fork = forks.number

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
            except (Exception, asyncio.CancelledError, GeneratorExit):  # noqa: BLE001  # a callback may raise anything
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

        Raises:
            Closed: The engine is closed, which is none of them: it stays so.
            UsageError: This is a forked child, in which the state does not change.

        Cancelling it ends the wait and nothing else.
        """
        if self._fork != forks.number:
            raise UsageError(
                "this bus belongs to the process that forked this one", "make a bus of its own in the child"
            )
        if self._state in states:
            return self._state
        if self._state is EngineState.CLOSED:
            raise Closed("bus")
        reached: asyncio.Future[EngineState] = asyncio.get_running_loop().create_future()

        def look(state: EngineState, _: str) -> None:
            if reached.done():
                return
            if state in states:
                reached.set_result(state)
            elif state is EngineState.CLOSED:
                reached.set_exception(Closed("bus"))

        end = self.watch(look)
        try:
            return await reached
        finally:
            end()
