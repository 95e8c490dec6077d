"""Servers over MQTT."""

from __future__ import annotations

import pytest

from redpoll import ConfigError, nq
from redpoll.nq.mqtt.payloads import Kind, pack
from tests.nq.mqtt.support import Mosquitto, tapping
from tests.nq.support import options
from tests.ports import free_port


def test_it_is_reached_by_way_of_a_broker(mosquitto: Mosquitto) -> None:
    """A client finds it at the broker."""
    place = nq.NetworkLocation("127.0.0.1", mosquitto.address.port)
    with nq.new("mqtt", "server", options(place)) as server, nq.new("mqtt", "client", options(place)) as client:
        assert isinstance(server, nq.Communicator)
        assert (server.protocol, server.purpose) == ("mqtt", "server")
        client.ready(10)
        client.close()


def test_another_one_in_its_place(mosquitto: Mosquitto) -> None:
    """Who stands by a higher claim takes its place: `ready`, `get` and puts tell, and what came can still be got."""
    place = nq.NetworkLocation("127.0.0.1", mosquitto.address.port)
    server = nq.new("mqtt", "server", options(place))
    client = nq.new("mqtt", "client", options(place, resume=0.1))
    client.put("before").result(10)
    waiting = server.put("unheard", client.id)
    with tapping(mosquitto.address) as tap:
        claim = pack(Kind.CLAIM, b"a server", 7)

        def given_up() -> bool:
            tap.publish("redpoll/server", claim)
            return server._resident.endpoint.refused is not None

        tap.until(given_up)
    assert server.get(timeout=0).data == "before"
    for told in (
        lambda: server.ready(1),
        lambda: server.get(timeout=1),
        server.put("x").result,
        server.put("x", client.id).result,
    ):
        with pytest.raises(ConnectionAbortedError) as caught:
            told()
        assert caught.value.args == (server.id,)
        assert isinstance(caught.value.__cause__, ConfigError)
        assert "another server serves it at this MQTT broker" in str(caught.value.__cause__)
    assert waiting.done()
    server.close()
    client.close(0)


def test_without_a_broker_it_is_refused() -> None:
    """The error is an `OSError`, as of a port that cannot be listened at, and names the broker."""
    port = free_port()
    with pytest.raises(OSError, match=str(port)):
        nq.new("mqtt", "server", options(nq.NetworkLocation("127.0.0.1", port)))
