"""The behaviours of every engine, over a hub."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import redpoll
import redpoll.blocking
from redpoll.bus.engines.hub.opening import open_store
from redpoll.testing import conformance
from tests.bus.engines.hub.support import Running, running
from tests.ports import free_port
from tests.testing.conformance.test_table import HUB_COLUMNS, Restarting, on_page

#: The behaviour that restarts the hub, for which it has one of its own.
RESTARTS = "KX-02"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One hub for all of them, which keeps no bodies in memory."""
    with running(open_store(tmp_path_factory.mktemp("hub"), reserve=65_536, recent=0)) as hub:
        # The store's thread begins with the first write.
        with redpoll.blocking.connect(hub.url) as bus:
            bus.queues.declare("first")
        yield hub


@pytest.mark.parametrize("title", HUB_COLUMNS)
@pytest.mark.parametrize("behaviour", [each for each in conformance.behaviours() if each.id != RESTARTS], ids=str)
def test_behaviours(behaviour: conformance.Behaviour, title: str, hub: Running) -> None:
    """What each engine does, a hub does as the page of conformance says, for asyncio and for threads."""
    setting = conformance.Setting(hub.url, face=HUB_COLUMNS[title])
    assert conformance.observe(setting, [behaviour])[behaviour.id] == on_page()[title][behaviour.id]


@pytest.mark.parametrize("title", HUB_COLUMNS)
def test_a_restart(title: str, tmp_path: Path) -> None:
    """What outlives a restart of each engine's server, outlives one of a hub, as the page says."""
    reopen = partial(open_store, tmp_path, reserve=65_536)
    (behaviour,) = (each for each in conformance.behaviours() if each.id == RESTARTS)
    with running(reopen(), port=free_port()) as hub:
        again = partial(asyncio.to_thread, hub.restart, reopen)
        setting = Restarting(hub.url, face=HUB_COLUMNS[title], again=again)
        assert conformance.observe(setting, [behaviour])[RESTARTS] == on_page()[title][RESTARTS] == "yes"
