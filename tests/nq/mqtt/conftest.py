"""What tests of MQTT get by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from redpoll.testing.certificates import Certificates
from tests.nq.mqtt.support import Mosquitto


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker that runs, and lets everybody in."""
    broker = Mosquitto(tmp_path)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def encrypted(tmp_path: Path, redpoll_pki: Certificates) -> Iterator[Mosquitto]:
    """A broker that speaks TLS, with a certificate for 127.0.0.1."""
    pem = redpoll_pki.issue("broker", ["127.0.0.1"])
    options = [f"certfile {pem}", f"keyfile {pem}", "allow_anonymous true"]
    broker = Mosquitto(tmp_path, *options)
    broker.start()
    yield broker
    broker.kill()
