"""Ctrl-C at any moment, once and in bursts: nothing waits for ever, and nothing that was confirmed is lost."""

from __future__ import annotations

import pytest

from tests.blocking.stormy import SCRIPTS
from tests.storms import storm


@pytest.mark.parametrize("script", list(SCRIPTS))
def test_storms(script: str) -> None:
    """Interrupted wherever it is, a node for threads loses nothing that it confirmed, and whatever waits on it ends."""
    storm("tests.blocking.stormy", script, 1)
