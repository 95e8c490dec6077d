"""The state of an engine can be watched and awaited."""

from __future__ import annotations

import asyncio

import pytest

from redpoll.bus import EngineState, Status
from redpoll.errors import ConfigError


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


def test_a_watch_is_a_function() -> None:
    """A watch that is no function is an error that says what it is to be."""
    with pytest.raises(ConfigError, match="must be a function, not int") as raised:
        Status().watch(3)  # type: ignore[arg-type]
    assert "a plain function of two arguments" in str(raised.value.hint)
