"""Processes that stand still in the midst of a script, for a moment or for too long."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nq.survival.conftest import LITTLE, Yard
from tests.nq.survival.programs import Running
from tests.nq.survival.test_brokers import still

COUNT = 200


def _begin(yard: Yard, **given: Any) -> tuple[Running, Running]:
    server = yard.start("serve", **given).wait_ready()
    client = yard.start("both", count=COUNT, **given)
    client.until(lambda: client.logged("got"), "the first that comes back")
    return server, client


@pytest.mark.parametrize("who", ["server", "client", "both"])
def test_for_a_moment(yard: Yard, who: str) -> None:
    """Within `resume` nothing is lost, and all is as if nothing had been."""
    server, client = _begin(yard, connection={"resume": 20.0, "keepalive": 0.2})
    frozen = [each for name, each in (("server", server), ("client", client)) if who in {name, "both"}]
    for each in frozen:
        each.freeze()
    for each in (server, client):
        still(each)
    for each in frozen:
        each.thaw()
    assert client.ended() == []
    assert yard.start("finish").ended() == []
    assert server.ended() == []


def test_a_client_for_too_long(yard: Yard) -> None:
    """The server gives it up and serves others; when it goes on, it is served again, as one that comes anew."""
    given: dict[str, Any] = {"connection": {"resume": 0.5, "keepalive": 0.2}}
    server = yard.start("serve", **given).wait_ready()
    client = yard.start("both", count=COUNT, persists=True, **given)
    client.until(lambda: client.logged("got"), "the first that comes back")
    client.freeze()
    # The hello of another is answered to all, which the frozen one does not confirm.
    assert yard.start("greet", **given).ended() == []
    assert server.computed(0.3) < LITTLE
    client.thaw()
    assert client.ended() == []
    assert yard.start("finish").ended() == []
    assert server.ended() == []


def test_a_server_for_too_long(yard: Yard) -> None:
    """Its client is told, and ends; when it goes on, it serves those that come."""
    server, client = _begin(yard, connection={"resume": 0.5, "keepalive": 0.2})
    server.freeze()
    assert client.ended() in ([], ["ConnectionResetError"])
    server.thaw()
    assert yard.start("finish").ended() == []
    assert server.ended() == []
