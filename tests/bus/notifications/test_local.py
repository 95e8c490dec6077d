"""The notifier that writes to a log."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from redpoll.bus.notifications import PRIORITIES, LogNotifier, Route, RoutingNotifier
from redpoll.bus.notifications.local import masked
from redpoll.errors import ConfigError

pytestmark = pytest.mark.asyncio


async def test_notifications_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A notification is a record of its priority's level, with all that it says; rules choose it as any other notifier."""
    log = LogNotifier("compute.1")
    notifier = RoutingNotifier(Route(log, events=("disk.*",)))
    with caplog.at_level(logging.DEBUG):
        for priority in PRIORITIES:
            await notifier.notify(priority, "disk.full", {"id": 7})
        await notifier.info("cpu.hot", {"id": 8})
        await log.notify("info", "disk.odd", {"object": object(), 3: {1}})
    levels = ["DEBUG", "INFO", "INFO", "WARNING", "ERROR", "CRITICAL", "INFO"]
    records = [record for record in caplog.records if record.name == "redpoll.notifications"]
    assert [record.levelname for record in records] == [*levels, "INFO"]
    assert [json.loads(record.getMessage()) for record in records[:-1]] == [
        {"publisher": "compute.1", "event": "disk.full", "priority": each, "payload": {"id": 7}} for each in PRIORITIES
    ]
    assert json.loads(records[-1].getMessage())["payload"]["3"] == [1]
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        await log.info("disk.full")
    assert not caplog.records
    with pytest.raises(ConfigError, match="priority"):
        await log.notify("loud", "e")  # type: ignore[arg-type]
    assert repr(log) == "<LogNotifier 'compute.1' to redpoll.notifications>"


async def test_passwords_are_masked(caplog: pytest.LogCaptureFixture) -> None:
    """What a key calls a password or a token is not in the log, at any depth and in texts; the payload stays as it is."""
    payload: dict[str, Any] = {
        "admin_pass": "s3cret",
        "user": {"Password": "s3cret", "name": "ada", "keys": [{"auth_token": "s3cret"}, {"api-key": 3}]},
        "command": 'login --password=s3cret --user ada; token: \'s3cret\', and "secret": "s3cret"',
        "url": "amqp://ada:s3cret@host/vhost",
        "count": 3,
    }
    logger = logging.getLogger("tests.masked")
    with caplog.at_level(logging.INFO):
        await LogNotifier("p", logger).info("e", payload)
    (record,) = caplog.records
    text = record.getMessage()
    assert "s3cret" not in text
    assert json.loads(text)["payload"] == {
        "admin_pass": "***",
        "user": {"Password": "***", "name": "ada", "keys": [{"auth_token": "***"}, {"api-key": "***"}]},
        "command": 'login --password=*** --user ada; token: ***, and "secret": ***',
        "url": "amqp://ada:***@host/vhost",
        "count": 3,
    }
    assert payload["admin_pass"] == "s3cret"


async def test_what_is_too_deep_is_left_out() -> None:
    """A payload that holds itself can be logged."""
    loop: list[Any] = []
    loop.append(loop)
    assert json.dumps(masked(loop)).count("[") == 20
