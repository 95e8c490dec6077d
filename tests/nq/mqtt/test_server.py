"""The class of servers over MQTT."""

from __future__ import annotations

import pytest

from redpoll import nq
from redpoll.nq.mqtt.server import Communicator
from tests.nq.mqtt.support import Mosquitto
from tests.nq.support import options
from tests.ports import free_port


def test_it_is_reached_by_way_of_a_broker(mosquitto: Mosquitto) -> None:
    """Made by itself it is what `new` makes: a client finds it at the broker."""
    place = nq.NetworkLocation("127.0.0.1", mosquitto.address.port)
    with Communicator(options(place)) as server, nq.new("mqtt", "client", options(place)) as client:
        assert isinstance(server, nq.Communicator)
        assert (server.protocol, server.purpose) == ("mqtt", "server")
        client.ready(10)
        client.close()


def test_without_a_broker_it_is_refused() -> None:
    """The error is an `OSError`, as of a port that cannot be listened at, and names the broker."""
    port = free_port()
    with pytest.raises(OSError, match=str(port)):
        Communicator(options(nq.NetworkLocation("127.0.0.1", port)))
