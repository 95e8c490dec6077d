"""What tests of MQTT get by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nq.mqtt.support import Mosquitto


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker that runs, and lets everybody in."""
    broker = Mosquitto(tmp_path)
    broker.start()
    yield broker
    broker.kill()
