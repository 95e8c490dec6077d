"""The behaviours of every engine, over a hub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import redpoll
import redpoll.blocking
from redpoll.bus.engines.hub.opening import open_store
from redpoll.testing import conformance
from tests.bus.engines.hub.support import Running, running
from tests.testing.conformance.test_table import HUB_COLUMNS, on_page


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One hub for all of them, which keeps no bodies in memory."""
    with running(open_store(tmp_path_factory.mktemp("hub"), reserve=65_536, recent=0)) as hub:
        # The store's thread begins with the first write.
        with redpoll.blocking.connect(hub.url) as bus:
            bus.queues.declare("first")
        yield hub


@pytest.mark.parametrize("title", HUB_COLUMNS)
@pytest.mark.parametrize("behaviour", conformance.behaviours(), ids=str)
def test_behaviours(behaviour: conformance.Behaviour, title: str, hub: Running) -> None:
    """What each engine does, a hub does as the page of conformance says, for asyncio and for threads."""
    setting = conformance.Setting(hub.url, face=HUB_COLUMNS[title])
    assert conformance.observe(setting, [behaviour])[behaviour.id] == on_page()[title][behaviour.id]
