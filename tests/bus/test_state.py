"""The state of an engine can be watched and awaited."""

from __future__ import annotations

import asyncio
import os

import pytest

from redpoll.bus import EngineState, Status, connect
from redpoll.errors import Closed, ConfigError, UsageError


def test_changes_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each change is told to every watch until that ends; one that fails is logged and stops no other."""
    status = Status()
    told: list[tuple[EngineState, str]] = []
    status.watch(lambda *_: 1 / 0)
    end = status.watch(lambda state, reason: told.append((state, reason)))
    status.change(EngineState.READY)
    status.change(EngineState.READY)
    status.change(EngineState.DEGRADED, "no answer")
    end()
    end()
    status.change(EngineState.CLOSED)
    assert told == [(EngineState.READY, ""), (EngineState.DEGRADED, "no answer")]
    assert (status.state, status.reason) == (EngineState.CLOSED, "")
    assert "a watch of the engine's state failed" in caplog.text


@pytest.mark.asyncio
async def test_a_state_can_be_awaited() -> None:
    """A wait ends when one of its states is reached, at once if it is already, and leaves nothing when cancelled."""
    status = Status()
    wait = asyncio.ensure_future(status.wait_for(EngineState.READY, EngineState.CLOSED))
    await asyncio.sleep(0)
    status.change(EngineState.RECONNECTING)
    assert not wait.done()
    status.change(EngineState.READY)
    status.change(EngineState.CLOSED)
    assert await wait is EngineState.READY
    assert await status.wait_for(EngineState.CLOSED) is EngineState.CLOSED
    cancelled = asyncio.ensure_future(status.wait_for(EngineState.READY))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert not status._watches


@pytest.mark.asyncio
async def test_no_wait_for_a_state_outlives_the_engine() -> None:
    """A wait for another state ends with an error when the engine closes, and so does each that begins later."""
    async with connect("memory://") as bus:
        waits = asyncio.ensure_future(bus.status.wait_for(EngineState.RECONNECTING))
        await asyncio.sleep(0)
    with pytest.raises(Closed, match="the bus is not running"):
        await asyncio.wait_for(waits, 5)
    with pytest.raises(Closed, match="the bus is not running"):
        await asyncio.wait_for(bus.status.wait_for(EngineState.READY), 5)
    assert not bus.status._watches


def test_a_child_waits_for_no_state() -> None:
    """In a forked child, in which the parent's bus does not change, a wait is refused."""
    status = Status(EngineState.RECONNECTING)
    child = os.fork()
    if not child:
        refused = 0
        try:
            with pytest.raises(UsageError, match="forked"):
                asyncio.run(asyncio.wait_for(status.wait_for(EngineState.READY), 5))
            refused = 1
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_watch_is_a_function() -> None:
    """A watch that is no function is an error that says what it is to be."""
    with pytest.raises(ConfigError, match="must be a function, not int") as raised:
        Status().watch(3)  # type: ignore[arg-type]
    assert "a plain function of two arguments" in str(raised.value.hint)
