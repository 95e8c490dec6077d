"""Wirings of one process that meet as those of several do."""

from __future__ import annotations

import pytest

from redpoll.wiring.inprocess import Neighbour


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wiring sees the names of another in this process: they meet over the network, by a directory."""
    monkeypatch.setattr(Neighbour, "find", lambda *_, **__: None)
    monkeypatch.setattr(Neighbour, "claim", lambda *_: None)
