"""Clients and a server that meet: what is put the moment it can be arrives, whatever it crosses."""

from __future__ import annotations

from uuid import UUID

from redpoll import nq
from tests.nq.support import World


def test_what_a_server_puts_for_who_just_came(world: World) -> None:
    """A put made the moment a client comes goes out with the answer to its hello, and arrives, and first."""

    def welcome(peer: UUID) -> None:
        server.put("welcome", peer)
        server.put("all of you")

    server = world.server(events=nq.EventOptions(ini=welcome))
    for _ in range(60):
        client = world.client()
        assert client.get().data == "welcome"
        assert client.get().data == "all of you"
        client.close()
