"""Every decoder test of the core runs three ways."""

from __future__ import annotations

import pytest

from tests.wire.support import Feeding


@pytest.fixture(params=list(Feeding), ids=lambda feeding: feeding.name.lower())
def feeding(request: pytest.FixtureRequest) -> Feeding:
    """How the bytes of this test arrive: whole, byte by byte, with more behind them."""
    feeding: Feeding = request.param
    return feeding
