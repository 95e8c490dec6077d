"""These tests need libchirp: without it they fail, and say how to install it."""

from __future__ import annotations

import pytest

from tests.interop.libchirp_node import INSTALL, find_libchirp


@pytest.fixture(autouse=True)
def _libchirp_is_there() -> None:
    if find_libchirp() is None:
        pytest.fail(INSTALL, pytrace=False)
