"""The behaviours of every engine, over a hub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redpoll.testing import conformance
from tests.bus.engines.hub.support import Running, running
from tests.testing.conformance.test_table import HUB_COLUMNS, on_page


@pytest.fixture(scope="module")
def hub() -> Iterator[Running]:
    """One hub for all of them."""
    with running() as hub:
        yield hub


@pytest.mark.parametrize("title", HUB_COLUMNS)
@pytest.mark.parametrize("behaviour", conformance.behaviours(), ids=str)
def test_behaviours(behaviour: conformance.Behaviour, title: str, hub: Running) -> None:
    """What each engine does, a hub does as the page of conformance says, for asyncio and for threads."""
    setting = conformance.Setting(hub.url, face=HUB_COLUMNS[title])
    assert conformance.observe(setting, [behaviour])[behaviour.id] == on_page()[title][behaviour.id]
