"""The hooks of a wiring."""

from __future__ import annotations

import pytest

from redpoll.errors import UsageError
from redpoll.wiring.events import WiringEvents


def test_tell() -> None:
    """A hook is called with what there is to tell; none is no harm."""
    events = WiringEvents()
    events.tell("directory_back")
    told: list[str] = []
    events.directory_back = lambda: told.append("back")
    events.tell("directory_back")
    assert told == ["back"]


@pytest.mark.asyncio
async def test_raises(caplog: pytest.LogCaptureFixture) -> None:
    """A hook that raises is logged, at once and then once a second with their number, and does no harm."""
    events = WiringEvents()
    events.directory_lost = lambda error: 1 / 0
    for _ in range(1_000):
        events.tell("directory_lost", ValueError())
    assert caplog.messages == ["the hook directory_lost raised"]
    events.close()
    assert caplog.messages[1:] == ["the hook directory_lost raised 999 times, the last time"]


def test_unknown() -> None:
    """There are no other hooks."""
    with pytest.raises(UsageError, match="there is no hook 'gone'"):
        WiringEvents().tell("gone")
    with pytest.raises(AttributeError):
        WiringEvents().gone = print  # type: ignore[attr-defined]
