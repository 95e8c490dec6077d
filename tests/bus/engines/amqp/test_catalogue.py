"""What the list of queues keeps while it cannot be written, and what it makes of records."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, cast

import pytest

from redpoll.bus import QueueSpec
from redpoll.bus.engines.amqp.catalogue import Catalogue
from redpoll.bus.engines.amqp.wire import Content, Properties


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


def content(body: bytes) -> Content:
    """Return a record as the stream has it."""
    return Content(1, "basic.deliver", ("catalogue", 1, 0, "", ""), Properties("application/json"), body)


def record(change: str, name: Any, spec: Any) -> bytes:
    """Return the body of a record."""
    return json.dumps({"change": change, "name": name, "spec": spec}).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"{}",
        record("new", "a", None),
        record("new", "a", {"name": "a", "priorities": "many"}),
        record("new", ["a"], {"name": "a"}),
        record("delete", {}, None),
    ],
)
@pytest.mark.parametrize("reading", [{}, None])
@pytest.mark.asyncio
async def test_a_record_that_cannot_be_read(
    body: bytes, reading: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A record that no program of redpoll wrote is logged, and changes nothing, first and later."""
    nobody = cast("Any", None)
    catalogue = Catalogue(nobody, nobody, lambda *_: None)
    catalogue._reading = reading
    catalogue._came(content(body))
    assert "a record in the list of queues cannot be read" in caplog.text
    assert (catalogue.specs, catalogue._reading) == ({}, reading)


@pytest.mark.asyncio
async def test_an_error_of_the_engine_is_no_unreadable_record(caplog: pytest.LogCaptureFixture) -> None:
    """What the engine raises as it applies a record is raised, and not taken for a fault of the record."""

    def changed(name: str, spec: QueueSpec | None) -> None:
        raise LookupError(f"{name} {spec}")

    nobody = cast("Any", None)
    catalogue = Catalogue(nobody, nobody, changed)
    with pytest.raises(LookupError, match=r"^a QueueSpec"):
        catalogue._came(content(record("new", "a", asdict(QueueSpec("a")))))
    assert not caplog.records
