"""What tests of the command share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.prepared import serving
from tests.cli.support import environment


@pytest.fixture(scope="session", autouse=True)
def prepared() -> Iterator[None]:
    """Start what forks the command's processes, once in each process of tests."""
    with serving(environment()):
        yield
