"""Nodes that check the names in certificates: whom an address leads to, and links that turn out to be one node's."""

from __future__ import annotations

import asyncio

import pytest

from redpoll import (
    TLS,
    Message,
)
from redpoll.testing.certificates import Certificates
from tests.node.encrypted import Make, encrypted, failure
from tests.node.support import Inbox, Proxy, to, until, within

pytestmark = pytest.mark.asyncio


async def test_wrong_name(redpoll_pki: Certificates, issued: Make) -> None:
    """A certificate for another name is refused where names are checked, and taken where they are not."""
    elsewhere = TLS(certificate=redpoll_pki.issue("node", ["node.example.org"]))
    async with encrypted(Inbox(), tls=elsewhere) as server:
        async with encrypted(tls=issued(check_names=True), listen=False) as client:
            port = server.address.port
            assert "is not valid for 127.0.0.1" in str(await failure(client, f"127.0.0.1:{port}"))
            assert "is not valid for localhost" in str(await failure(client, f"localhost:{port}"))
        async with encrypted(tls=issued(), listen=False) as client:
            await within(client.send(to(server)))


async def test_names_and_who_dialled_us(redpoll_pki: Certificates, issued: Make) -> None:
    """Where names are checked, who dialled and says that it is at an address is not sent what goes there."""
    impostor = TLS(certificate=redpoll_pki.issue("node", ["node.example.org"]))
    inbox = Inbox()
    async with encrypted(Inbox(), tls=issued(check_names=True)) as node, encrypted(inbox, tls=impostor) as other:
        await within(other.send(to(node)))
        error = await failure(node, other.address)
        assert "is not valid for 127.0.0.1" in str(error)
        assert not inbox.begun


async def test_names_of_one_place(redpoll_pki: Certificates, issued: Make) -> None:
    """A link to one name does not lead another name, or the IP address behind it, past the check of the certificate."""
    inbox = Inbox()
    local = TLS(certificate=redpoll_pki.issue("node", ["localhost"]))
    async with encrypted(inbox, tls=local) as server, encrypted(tls=issued(check_names=True)) as node:
        port = server.address.port
        await within(node.send(Message(b"x", f"localhost:{port}")))
        error = await failure(node, f"127.0.0.1:{port}")
        assert "is not valid for 127.0.0.1" in str(error)
        await within(node.send(Message(b"y", f"localhost:{port}")))
    assert inbox.begun == [b"x", b"y"]


async def test_a_certificate_of_both_names(issued: Make) -> None:
    """Two names of one node are one peer, where its certificate is valid for both."""
    inbox = Inbox()
    async with encrypted(inbox, tls=issued()) as server, encrypted(tls=issued(check_names=True), listen=False) as node:
        port = server.address.port
        for _ in range(3):
            await within(node.send(Message(b"x", f"localhost:{port}")))
            await within(node.send(Message(b"x", f"127.0.0.1:{port}")))
        assert len(node.peers) == 1
        assert len(server.peers) == 1
    assert len(inbox.begun) == 6


async def test_both_check_names(issued: Make) -> None:
    """Two nodes that both check names and dial each other find that they are one peer each, and go on over one link."""
    one, two = Inbox(), Inbox()
    tls = issued(check_names=True)
    async with encrypted(one, tls=tls) as first, encrypted(two, tls=tls) as second:
        for _ in range(5):
            await within(first.send(to(second), timeout=1))
            await within(second.send(to(first), timeout=1))
        await until(lambda: first.stats().connections == second.stats().connections == 1, "one link")
        for _ in range(5):
            await within(asyncio.gather(first.send(to(second)), second.send(to(first))))
        assert (first.stats().reconnects, second.stats().reconnects) == (1, 1)
        assert (len(first.peers), len(second.peers)) == (1, 1)
        assert first.stats().conflicts == second.stats().conflicts == 0
    assert (len(one.begun), len(two.begun)) == (10, 10)


@pytest.mark.parametrize("smaller", [True, False])
async def test_one_checks_names(issued: Make, smaller: bool) -> None:
    """Where one of two nodes checks names, neither closes the link that the other one goes on using."""
    one, two = Inbox(), Inbox()
    identities = (b"a" * 16, b"b" * 16) if smaller else (b"b" * 16, b"a" * 16)
    async with (
        encrypted(one, tls=issued(check_names=True), identity=identities[0]) as first,
        encrypted(two, tls=issued(), identity=identities[1]) as second,
    ):
        for _ in range(10):
            await within(asyncio.gather(first.send(to(second), timeout=1), second.send(to(first), timeout=1)))
        await until(lambda: first.stats().connections == second.stats().connections == 1, "one link")
        assert (first.stats().reconnects, second.stats().reconnects) == (1, 1)
    assert (len(one.begun), len(two.begun)) == (10, 10)


async def test_names_and_who_says_to_be_another(redpoll_pki: Certificates, issued: Make) -> None:
    """Who claims the identity of a node at its place, but shows another certificate, is not sent what goes to that node."""
    local = TLS(certificate=redpoll_pki.issue("node", ["localhost"]))
    meant, wrong = Inbox(), Inbox()
    async with (
        encrypted(meant, tls=issued(), identity=b"i" * 16) as server,
        encrypted(wrong, tls=local, identity=b"i" * 16) as impostor,
        Proxy(server.address) as proxy,
        encrypted(tls=issued(check_names=True), listen=False) as node,
    ):
        await within(node.send(Message(b"x", proxy.address)))
        proxy._target = impostor.address
        await within(node.send(Message(b"y", f"localhost:{proxy.address.port}")))
        await within(server.stop())
        assert "is not valid for 127.0.0.1" in str(await failure(node, proxy.address))
    assert (meant.begun, wrong.begun) == ([b"x"], [b"y"])
