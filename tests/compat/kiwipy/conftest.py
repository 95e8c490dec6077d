"""Engines for the tests of `redpoll.compat.kiwipy`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from redpoll.bus.engines.hub.opening import open_store
from tests.bus.engines.hub.support import running

_numbers = itertools.count(1)


@pytest.fixture(params=["memory", "hub", pytest.param("rabbitmq", marks=pytest.mark.nightly)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an engine of this test alone."""
    if request.param == "hub":
        with running(open_store(tmp_path / "hub", reserve=65_536)) as hub:
            yield hub.url
    elif request.param == "rabbitmq":
        yield request.getfixturevalue("rabbitmq").url
    else:
        yield f"memory://kiwipy{next(_numbers)}"
