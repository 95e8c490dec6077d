"""What the list of queues keeps while it cannot be written."""

from __future__ import annotations

from typing import Any, cast

import pytest

from redpoll.bus import QueueSpec
from redpoll.bus.engines.amqp.catalogue import Catalogue


def noted(catalogue: Catalogue) -> list[tuple[str, str]]:
    """Return the records that wait, as change and name."""
    return [(record["change"], record["name"]) for record in catalogue._unwritten.values()]


@pytest.mark.asyncio
async def test_records_that_wait(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A change takes the place of those of its queue; beyond the bound the oldest record is forgotten, with a warning."""
    monkeypatch.setattr("redpoll.bus.engines.amqp.catalogue._UNWRITTEN", 4)
    nobody = cast("Any", None)
    catalogue = Catalogue(nobody, nobody, lambda *_: None)
    catalogue._note("new", "a", QueueSpec("a"))
    catalogue._note("new", "b", QueueSpec("b"))
    catalogue._note("update", "a", QueueSpec("a"))
    assert noted(catalogue) == [("new", "b"), ("update", "a")]
    for _ in range(5):
        catalogue._note("new", "c", QueueSpec("c"))
        catalogue._note("delete", "c", None)
    assert noted(catalogue) == [("new", "b"), ("update", "a"), ("delete", "c")]
    assert not caplog.records
    for name in "de":
        catalogue._note("new", name, QueueSpec(name))
    assert noted(catalogue) == [("update", "a"), ("delete", "c"), ("new", "d"), ("new", "e")]
    assert "that of 'b' is not written" in caplog.text
