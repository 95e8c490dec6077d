"""Servers over gRPC."""

from __future__ import annotations

import socket

from redpoll import nq
from tests.nq.support import options


def test_it_listens() -> None:
    """It listens at its place."""
    with nq.new("grpc", "server", options(nq.NetworkLocation("127.0.0.1", 0))) as server:
        assert isinstance(server, nq.Communicator)
        assert (server.protocol, server.purpose) == ("grpc", "server")
        socket.create_connection(("127.0.0.1", server.netloc.port)).close()
