"""The class of servers by way of a broker."""

from __future__ import annotations

import pytest

from redpoll import nq
from redpoll.nq.mqtt.client import Communicator as Client
from redpoll.nq.mqtt.server import Communicator
from tests.blocking.support import PATIENCE
from tests.nq.mqtt.support import Mosquitto
from tests.nq.support import options
from tests.ports import free_port


def test_it_serves_at_a_broker(mosquitto: Mosquitto) -> None:
    """Made by itself it is what `new` makes: clients find it at the broker, by its prefix."""
    place = nq.NetworkLocation("127.0.0.1", mosquitto.address.port)
    with Communicator(options(place, prefix="site/7")) as server:
        assert isinstance(server, nq.Communicator)
        assert (server.protocol, server.purpose) == ("mqtt", "server")
        with Client(options(place, prefix="site/7")) as client:
            client.ready(PATIENCE)
            with Client(options(place, prefix="site/8", resume=0.01)) as other:
                with pytest.raises(TimeoutError):
                    other.ready(0.05)


def test_it_needs_a_broker() -> None:
    """Without one it cannot be made, and the error is the system's."""
    with pytest.raises(OSError, match="no MQTT broker"):
        Communicator(options(nq.NetworkLocation("127.0.0.1", free_port())))
