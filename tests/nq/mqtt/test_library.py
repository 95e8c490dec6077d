"""What is said where paho-mqtt is not installed."""

from __future__ import annotations

import sys

import pytest

from redpoll import nq
from redpoll.errors import UsageError
from redpoll.nq.mqtt.broker import make_client
from tests.nq.support import options


@pytest.mark.parametrize("purpose", ["server", "client"])
def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, purpose: str) -> None:
    """It is told when a communicator is made, not when it dials, by a thread that nobody looks at."""
    for name in ("paho.mqtt.client", "paho.mqtt.enums"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"redpoll\[mqtt\]"):
        nq.new("mqtt", purpose, options(nq.NetworkLocation("127.0.0.1", 1)))


def test_a_client_has_its_name() -> None:
    """The MQTT client id is what was asked for."""
    assert make_client("somebody")._client_id == b"somebody"
