"""Ctrl-C at any moment, once and in bursts: nothing waits for ever, and nothing that was confirmed is lost."""

from __future__ import annotations

import pytest

from tests.nq.survival.stormy import SCRIPTS
from tests.storms import storm


@pytest.mark.parametrize("script", list(SCRIPTS))
def test_storms(script: str) -> None:
    """Interrupted wherever it is, a communicator loses and doubles nothing, and whatever waits on one that closed ends."""
    storm("tests.nq.survival.stormy", script, 1)
