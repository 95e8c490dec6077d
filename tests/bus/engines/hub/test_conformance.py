"""The behaviours of every engine, over a hub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redpoll.testing import conformance
from tests.bus.engines.hub.support import Running, running


@pytest.fixture(scope="module")
def hub() -> Iterator[Running]:
    """One hub for all of them."""
    with running() as hub:
        yield hub


@pytest.mark.parametrize("behaviour", conformance.behaviours(), ids=str)
def test_behaviours(behaviour: conformance.Behaviour, hub: Running) -> None:
    """What each engine does."""
    behaviour.run(conformance.Setting(hub.url))
