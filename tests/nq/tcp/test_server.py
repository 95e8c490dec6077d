"""Servers over TCP."""

from __future__ import annotations

import socket

import pytest

from redpoll import nq
from tests.nq.support import options


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_it_listens(host: str) -> None:
    """It listens at its place, at IPv6 as well."""
    with nq.new("tcp", "server", options(nq.NetworkLocation(host, 0))) as server:
        assert isinstance(server, nq.Communicator)
        assert (server.protocol, server.purpose) == ("tcp", "server")
        socket.create_connection((host, server.netloc.port)).close()
