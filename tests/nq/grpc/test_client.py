"""Clients over gRPC."""

from __future__ import annotations

from redpoll import nq
from tests.nq.support import options
from tests.ports import free_port


def test_it_waits_for_its_server() -> None:
    """It is there at once, though nobody listens, and closes at once."""
    with nq.new("grpc", "client", options(nq.NetworkLocation("127.0.0.1", free_port()))) as client:
        assert isinstance(client, nq.Communicator)
        assert (client.protocol, client.purpose) == ("grpc", "client")
        assert client._resident.endpoint.node.listening == ()
        client.close(0)
