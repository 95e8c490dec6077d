"""Clients over TCP."""

from __future__ import annotations

import socket

from redpoll import nq
from tests.blocking.support import PATIENCE
from tests.nq.support import options


def test_it_dials() -> None:
    """It connects to its place, and listens nowhere."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = nq.NetworkLocation("127.0.0.1", listener.getsockname()[1])
        with nq.new("tcp", "client", options(place)) as client:
            assert isinstance(client, nq.Communicator)
            assert (client.protocol, client.purpose) == ("tcp", "client")
            listener.settimeout(PATIENCE)
            listener.accept()[0].close()
            assert client._resident.endpoint.node.listening == ()
            client.close(0)
