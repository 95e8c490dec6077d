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


def test_raises(caplog: pytest.LogCaptureFixture) -> None:
    """A hook that raises is logged, and does no harm."""
    events = WiringEvents()
    events.directory_lost = lambda error: 1 / 0
    events.tell("directory_lost", ValueError())
    assert "the hook directory_lost raised" in caplog.text


def test_unknown() -> None:
    """There are no other hooks."""
    with pytest.raises(UsageError, match="there is no hook 'gone'"):
        WiringEvents().tell("gone")
    with pytest.raises(AttributeError):
        WiringEvents().gone = print  # type: ignore[attr-defined]
