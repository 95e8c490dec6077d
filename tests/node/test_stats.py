"""What a node counts and lists: its peers, those that are gone, and what went wrong."""

from __future__ import annotations

import asyncio
from dataclasses import fields

import pytest

from redpoll import Address, Message, Received
from redpoll.node.hooks import PeerInfo
from redpoll.stats import PeerStats
from tests.node.support import (
    Inbox,
    make,
    raw_dialling,
    settle,
    to,
    until,
    within,
)
from tests.ports import free_port

pytestmark = pytest.mark.asyncio


async def test_stats_add_up() -> None:
    """The sums of a node are those of its peers and of the peers that it has forgotten."""
    inbox = Inbox()

    def refuse(message: Received[bytes]) -> None:
        message.refuse("on purpose")

    async with make(inbox) as server, make(refuse) as other, make() as client:
        for _ in range(3):
            async with make(listen=False) as gone:
                await within(gone.send(to(server, b"12345")))
        await until(lambda: not server.peers, "their end")
        await within(asyncio.gather(*(client.send(to(server, b"1234", header=b"56")) for _ in range(10))))
        await settle(*(client.send(to(other)) for _ in range(4)))
        await settle(client.send(Message(b"x", f"127.0.0.1:{free_port()}"), dial="once"))

        stats = client.stats()
        assert (stats.sent, stats.refused_by_peer, stats.connections) == (14, 4, 2)
        assert (stats.in_flight, stats.queued) == (0, 0)
        assert stats.errors == 1, "the one that could not be sent; refusals are no errors"
        for name in (field.name for field in fields(PeerStats)):
            known = sum(getattr(record, name) for record in stats.peers.values())
            assert getattr(stats, name) >= known
            if name != "errors":  # the one of the peer that was not there, and is forgotten
                assert getattr(stats, name) == known

        stats = server.stats()
        assert (stats.received, stats.connections, len(stats.peers)) == (13, 1, 1)
        assert stats.bytes_received >= 3 * 5 + 10 * 6
        assert other.stats().refused == 4


async def test_a_link_lost_without_a_goodbye_is_an_error() -> None:
    """A link that breaks is counted at both ends; one that ends with a goodbye is not."""
    async with make(Inbox()) as server, make() as client:
        await within(client.ready(server.address))
        for connection in server._peers.connections:
            assert connection.transport is not None
            connection.transport.abort()
        await until(lambda: not (client.stats().connections or server.stats().connections), "the end of the link")
        assert (client.stats().errors, server.stats().errors) == (1, 1)
        await within(client.send(to(server)))
        await server.stop()
        await until(lambda: not client.stats().connections, "the end of the other link")
        assert (client.stats().errors, server.stats().errors) == (1, 1)


async def test_libchirp_closes_a_link_in_good_order() -> None:
    """A libchirp node says no goodbye: when it closes its link that is no error, when it breaks it is one."""
    async with make(Inbox()) as server:
        async with raw_dialling(server, port=0, redpoll=False):
            await until(lambda: server.peers, "the peer")
        await until(lambda: not server.stats().connections, "the end of the link")
        assert server.stats().errors == 0


async def test_counts_of_a_forgotten_peer_count_once() -> None:
    """A peer that is forgotten, known again and forgotten again is in the sums once."""
    mine = Inbox()
    async with make(mine) as server:
        async with make(listen=False) as client:
            await within(client.send(to(server)))
        await until(lambda: not server.peers, "its end")
        for _ in range(3):
            await settle(server.send(mine.messages[0].reply(b"x")))
        assert not server.peers
        assert (server.stats().received, server.stats().errors) == (1, 3)


async def test_peers_are_listed() -> None:
    """A node lists the peers that it knows: connected or not yet, redpoll or libchirp."""
    async with make(Inbox()) as server, make() as client:
        await within(client.send(to(server)))
        assert client.peers == (PeerInfo(server.address, server.identity, connected=True, redpoll=True),)
        async with raw_dialling(client, port=4000, redpoll=False):
            await until(lambda: len(client.peers) == 2, "the other peer")
            assert client.peers[-1] == PeerInfo(
                Address("tcp", "127.0.0.1", 4000), b"I" * 16, connected=True, redpoll=False
            )
        address = Address("tcp", "127.0.0.1", free_port())
        future = client.send(Message(b"x", address))
        await until(lambda: len(client.peers) == 2, "the end of the other peer")
        assert client.peers[-1] == PeerInfo(address, None, connected=False, redpoll=False)
        future.cancel()
