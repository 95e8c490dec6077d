"""The class of servers over gRPC."""

from __future__ import annotations

from redpoll import nq
from redpoll.nq.grpc.client import Communicator as Client
from redpoll.nq.grpc.server import Communicator
from tests.blocking.support import PATIENCE
from tests.nq.support import options


def test_it_listens() -> None:
    """Made by itself it is what `new` makes: it listens at its place, at the port that it says."""
    with Communicator(options(nq.NetworkLocation("127.0.0.1", 0))) as server:
        assert isinstance(server, nq.Communicator)
        assert (server.protocol, server.purpose) == ("grpc", "server")
        with Client(options(server.netloc)) as client:
            client.ready(PATIENCE)
