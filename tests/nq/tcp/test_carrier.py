"""What carries links over TCP."""

from __future__ import annotations

from redpoll import nq
from redpoll.nq.tcp import carrier
from redpoll.transport.carrier import Sockets
from tests.nq.support import options


def test_sockets_carry_them() -> None:
    """The node's own, for both ends, which the node encrypts."""
    given = options(nq.NetworkLocation())
    assert [type(carrier.make(given, server=server, given_up=print)) for server in (True, False)] == [Sockets, Sockets]
    assert carrier.ENCRYPTS is False
