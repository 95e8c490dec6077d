"""Which tests of queues need a broker: `-m broker` runs them, and nox in a session of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent

#: Fixtures that start a broker.
BROKERS = {"broker", "encrypted", "encrypted_broker", "mosquitto"}


def _needs_a_broker(item: Any) -> bool:
    """Return True for what goes through MQTT, and for all tests of a file on MQTT that starts brokers itself."""
    callspec = getattr(item, "callspec", None)
    through = callspec is not None and callspec.params.get("protocol") == "mqtt"
    itself = item.path.parent == FOLDER / "mqtt" and "Mosquitto" in vars(item.module)
    return through or itself or not BROKERS.isdisjoint(item.fixturenames)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them."""
    for item in items:
        if item.path.is_relative_to(FOLDER) and isinstance(item, pytest.Function) and _needs_a_broker(item):
            item.add_marker(pytest.mark.broker)
