"""The class of servers over gRPC."""

from __future__ import annotations

import socket

from redpoll import nq
from redpoll.nq.grpc.server import Communicator
from tests.nq.support import options


def test_it_listens() -> None:
    """Made by itself it is what `new` makes: it listens at its place."""
    with Communicator(options(nq.NetworkLocation("127.0.0.1", 0))) as server:
        assert isinstance(server, nq.Communicator)
        assert (server.protocol, server.purpose) == ("grpc", "server")
        socket.create_connection(("127.0.0.1", server.netloc.port)).close()
