"""Certificates that change while nodes run: what that does to links, those that are up and those to come."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from redpoll import (
    TLS,
    ConfigError,
    Message,
    UsageError,
)
from redpoll.pki import CA, inspect
from redpoll.testing.certificates import Certificates
from tests.node.encrypted import Make, encrypted, failure
from tests.node.support import Inbox, make, to, until, within

pytestmark = pytest.mark.asyncio


async def test_reloading(redpoll_pki: Certificates, issued: Make, tmp_path: Path) -> None:
    """New links use what is in the files now; the old one goes on, and loses nothing."""
    file = tmp_path / "node.pem"
    file.write_bytes(redpoll_pki.issue().read_bytes())
    inbox = Inbox(hold=True)
    async with encrypted(inbox, tls=TLS(certificate=file)) as server, encrypted(tls=issued(), listen=False) as first:
        under_way = first.send(to(server, b"under way"))
        await inbox.holds(1)
        file.write_bytes(redpoll_pki.issue().read_bytes())
        await within(server.reload_certificates())
        async with encrypted(tls=issued(pins=(inspect(file).fingerprint,)), listen=False) as second:
            inbox.gate.set()
            await within(second.send(to(server)))
        await within(under_way)
        await within(first.send(to(server)))
        assert (first.stats().reconnects, first.stats().errors) == (0, 0)
        file.write_bytes(b"")
        with pytest.raises(ConfigError, match="there is no certificate in"):
            await within(server.reload_certificates())
        async with encrypted(tls=issued(), listen=False) as third:
            await within(third.send(to(server)))


async def test_reloading_others(redpoll_pki: Certificates, issued: Make) -> None:
    """Another record mends a node that nobody trusts, without a restart."""
    stranger = TLS(certificate=redpoll_pki.another().issue(), ca=redpoll_pki.ca)
    async with encrypted(Inbox(), tls=issued()) as server, encrypted(tls=stranger, listen=False) as client:
        await failure(client, server.address)
        await within(client.reload_certificates(issued()))
        await within(client.send(to(server)))
        with pytest.raises(ConfigError, match=r"must be a redpoll\.TLS"):
            await within(client.reload_certificates("node.pem"))  # type: ignore[arg-type]


async def test_nothing_to_reload(issued: Make) -> None:
    """A node that encrypts nothing says so."""
    nothing: dict[str, Any] = {}
    for options in (nothing, {"tls": issued(), "encryption": False}):
        async with make(**options) as node:
            with pytest.raises(UsageError, match="the node does not encrypt"):
                await node.reload_certificates()


async def test_links_that_are_up_stay(redpoll_pki: Certificates, issued: Make) -> None:
    """Links that would not be made any more stay as they are: what is reloaded holds for those that are made from then on."""
    elsewhere = TLS(certificate=redpoll_pki.issue("node", ["node.example.org"]))
    inbox = Inbox()
    async with (
        encrypted(Inbox(), tls=elsewhere) as server,
        encrypted(inbox, tls=issued()) as node,
        encrypted(tls=issued(), listen=False) as guest,
    ):
        await within(node.send(to(server)))
        await within(guest.send(to(node)))
        await within(
            node.reload_certificates(issued(check_names=True, pins=(f"identity:{b'nobody at all...'.hex()}",)))
        )
        await within(node.send(to(server)))
        await within(guest.send(to(node)))
        assert (node.stats().reconnects, node.stats().errors, len(inbox.begun)) == (0, 0, 2)
        for connection in list(node._peers.connections):
            connection.transport.abort()  # type: ignore[union-attr]
        await until(lambda: node.stats().connections == 0, "the end of the links")
        assert "is not valid for 127.0.0.1" in str(await failure(node, server.address))


@pytest.mark.parametrize("new_key", [True, False])
async def test_two_names_and_a_renewed_certificate(
    redpoll_pki: Certificates, issued: Make, new_key: bool, tmp_path: Path
) -> None:
    """Two names of a node that showed an old and a new certificate do not take the link from each other for ever."""
    file = tmp_path / "node.pem"
    authority = CA.load(redpoll_pki.folder)
    chain = authority.issue("node", ["localhost", "127.0.0.1"])
    chain.save(file)
    inbox = Inbox()
    async with (
        encrypted(inbox, tls=TLS(certificate=file)) as server,
        encrypted(tls=issued(check_names=True), listen=False) as client,
    ):
        port = server.address.port
        await within(client.send(Message(b"x", f"localhost:{port}")))
        authority.renew(chain, new_key=new_key).save(file, force=True)
        await within(server.reload_certificates())
        for _ in range(10):
            for host in ("127.0.0.1", "localhost"):
                await within(client.send(Message(b"x", f"{host}:{port}"), timeout=1))
        assert len(inbox.begun) == 21
        assert server.stats().reconnects <= 3
        assert (len(client.peers), len(server.peers)) == (1, 1)
        assert client.stats().conflicts == server.stats().conflicts == 0


@pytest.mark.parametrize("smaller", [True, False])
async def test_a_new_key_between_two_that_dial_each_other(
    redpoll_pki: Certificates, issued: Make, smaller: bool, tmp_path: Path
) -> None:
    """Nodes that check names and dial each other go on over one link, or two, when one of them was given a new key."""
    file = tmp_path / "node.pem"
    file.write_bytes(redpoll_pki.issue().read_bytes())
    one, two = Inbox(), Inbox()
    identities = (b"a" * 16, b"b" * 16) if smaller else (b"b" * 16, b"a" * 16)
    async with (
        encrypted(one, tls=TLS(certificate=file, check_names=True), identity=identities[0]) as first,
        encrypted(two, tls=issued(check_names=True), identity=identities[1]) as second,
    ):
        await within(first.send(to(second)))
        file.write_bytes(redpoll_pki.issue().read_bytes())
        await within(first.reload_certificates())
        for _ in range(10):
            await within(asyncio.gather(first.send(to(second), timeout=1), second.send(to(first), timeout=1)))
        assert (len(one.begun), len(two.begun)) == (10, 11)
        assert first.stats().reconnects + second.stats().reconnects <= 6
