"""The class of clients by way of a broker."""

from __future__ import annotations

from redpoll import nq
from redpoll.nq.mqtt.client import Communicator
from tests.nq.mqtt.support import Mosquitto
from tests.nq.support import options


def test_it_waits_for_a_server(mosquitto: Mosquitto) -> None:
    """Made by itself it is what `new` makes; the broker alone is no server."""
    with Communicator(options(nq.NetworkLocation("127.0.0.1", mosquitto.address.port))) as client:
        assert isinstance(client, nq.Communicator)
        assert (client.protocol, client.purpose) == ("mqtt", "client")
        assert not client._house.station.ready
        client.close(0)
