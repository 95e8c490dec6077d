"""Ctrl-C at any moment, once and in bursts: no task is lost, nothing waits for ever, and the bus goes on."""

from __future__ import annotations

import pytest

from tests.bus.threads.stormy import SCRIPTS
from tests.storms import storm


@pytest.mark.parametrize("script", list(SCRIPTS))
def test_storms(script: str) -> None:
    """Interrupted wherever it is, a bus for threads gives back what was held, and whatever waits on it ends."""
    storm("tests.bus.threads.stormy", script, 1)
