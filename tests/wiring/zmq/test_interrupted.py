"""Ctrl-C at any moment, once and in bursts: nothing waits for ever, and nothing that was sent is lost."""

from __future__ import annotations

import pytest

from tests.storms import storm
from tests.wiring.zmq.stormy import SCRIPTS


@pytest.mark.parametrize("script", list(SCRIPTS))
def test_storms(script: str) -> None:
    """Interrupted wherever it is, an object loses and doubles nothing, and whatever waits on it ends."""
    storm("tests.wiring.zmq.stormy", script, 1)
