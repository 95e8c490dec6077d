"""The class of servers over TCP."""

from __future__ import annotations

import socket

import pytest

from redpoll import nq
from redpoll.nq.tcp.server import Communicator
from tests.nq.support import options


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_it_listens(host: str) -> None:
    """Made by itself it is what `new` makes: it listens at its place, at IPv6 as well."""
    with Communicator(options(nq.NetworkLocation(host, 0))) as server:
        assert isinstance(server, nq.Communicator)
        assert (server.protocol, server.purpose) == ("tcp", "server")
        socket.create_connection((host, server.netloc.port)).close()
