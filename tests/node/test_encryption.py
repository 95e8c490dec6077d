"""Nodes and TLS: who talks to whom, what goes wrong and who is told, and certificates that change under live links."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from redpoll import (
    TLS,
    BatchError,
    ConfigError,
    Expired,
    Message,
    NotConfirmed,
    NotSent,
    PeerLost,
    SendError,
    TLSError,
)
from redpoll.pki import inspect
from redpoll.testing import Faults
from redpoll.testing.certificates import Certificates
from redpoll.testing.plugin import FaultsFactory
from tests.interop.raw import RawLink, handshake, raw_listener
from tests.node.encrypted import Make, encrypted, failure, is_encrypted
from tests.node.support import Inbox, Proxy, announcement, make, to, until, within
from tests.transport.test_listen import resolving

pytestmark = pytest.mark.asyncio

# What works


async def test_everything_over_tls(issued: Make) -> None:
    """Messages, requests, large bodies, streams and answers go over an encrypted link as over a plain one."""
    inbox = Inbox(answer=b"yes")
    async with encrypted(inbox, tls=issued()) as server, encrypted(tls=issued(), listen=False) as client:
        await within(client.send(to(server, b"first")))
        assert is_encrypted(client)
        assert is_encrypted(server)
        assert (await within(client.request(to(server, b"second")))).data == b"yes"
        large = bytes(range(256)) * 40_000
        await within(client.send(to(server, large)))
        await within(client.send(to(server, large), acknowledge=False))
        assert await within(client.send_many(to(server, b"%d" % i) for i in range(500))) == 500
        assert await within(client.send_many((to(server, bytes(3)) for _ in range(500)), acknowledge=False)) == 500
        await inbox.holds(1004)
        assert inbox.begun[:4] == [b"first", b"second", large, large]
        assert inbox.begun[4:504] == [b"%d" % i for i in range(500)]
        assert (client.stats().connections, client.stats().errors) == (1, 0)


async def test_both_ways(issued: Make) -> None:
    """Nodes that both listen send to one another over one link, whoever dialled."""
    one, two = Inbox(), Inbox()
    async with encrypted(one, tls=issued()) as first, encrypted(two, tls=issued()) as second:
        for _ in range(3):
            await within(asyncio.gather(first.send(to(second)), second.send(to(first))))
        await until(lambda: first.stats().connections == 1, "one link")
        assert (len(one.begun), len(two.begun)) == (3, 3)
        assert first.stats().conflicts == second.stats().conflicts == 0


async def test_a_large_body_that_nobody_reads_slows_its_sender(issued: Make) -> None:
    """A receiver that takes nothing holds up its sender, which goes on when it does."""
    inbox = Inbox(hold=True)
    options: dict[str, Any] = {"window": 2, "timeout": None}
    async with encrypted(inbox, tls=issued(), **options) as server, encrypted(tls=issued(), listen=False) as client:
        futures = [client.send(to(server, bytes(3_000_000)), timeout=None) for _ in range(6)]
        await inbox.holds(1)
        assert not any(future.done() for future in futures)
        inbox.gate.set()
        await within(asyncio.gather(*futures))
        assert inbox.most == 1


async def test_libchirps_rule(issued: Make, tmp_path: Path) -> None:
    """With "auto", 127.0.0.1 and ::1 are plain, and so are unix and inproc whatever is said."""
    tls = issued()
    for options in ({"host": "127.0.0.1"}, {"host": "::1"}):
        async with make(Inbox(), tls=tls, **options) as server, make(tls=tls, listen=False) as client:
            await within(client.send(to(server)))
            assert not is_encrypted(client)
    for host in (f"unix:{tmp_path / 's'}", "inproc:name"):
        async with encrypted(Inbox(), tls=tls, host=host) as server, encrypted(tls=tls, listen=False) as client:
            await within(client.send(to(server)))
            assert not is_encrypted(client)


async def test_off_loopback(issued: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """With "auto", what listens elsewhere takes certificates, and what is dialled elsewhere has to have some."""
    async with make(Inbox(), tls=issued(), host="127.0.0.2") as server, make(tls=issued(), listen=False) as client:
        # It comes from 127.0.0.1, which the acceptor takes for plaintext: libchirp's rule, and told at once.
        assert "the peer sends plaintext, and this node expects TLS" in str(await failure(client, server.address))
    resolving(monkeypatch, "127.0.0.2")
    with pytest.raises(ConfigError, match="requires TLS, but there are no certificates"):
        await make(host="some-name").start()


async def test_server_alone_has_a_certificate(redpoll_pki: Certificates, issued: Make) -> None:
    """A client without a certificate checks the server's, and the name or address that it dialled."""
    inbox = Inbox()
    async with encrypted(inbox, tls=issued(client_certificate="none")) as server:
        async with encrypted(tls=TLS(ca=redpoll_pki.ca), listen=False) as client:
            for host in ("127.0.0.1", "localhost"):
                await within(client.send(Message(b"x", f"{host}:{server.address.port}")))
    assert inbox.begun == [b"x"] * 2


async def test_contexts_of_ones_own(redpoll_pki: Certificates) -> None:
    """Two SSLContexts do as well as a record."""
    pem = redpoll_pki.issue()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.load_cert_chain(pem)
        context.load_verify_locations(pem)
    async with encrypted(Inbox(), tls=(server, client)) as node:
        async with encrypted(tls=(server, client), listen=False) as other:
            await within(other.send(to(node)))
            assert is_encrypted(other)


# What does not


async def test_plain_against_tls(issued: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Both ends say that one of them encrypts and the other does not."""
    async with encrypted(Inbox(), tls=issued()) as server, make(listen=False) as client:
        assert "the peer uses TLS, and this node sends plaintext (set tls=" in str(
            await failure(client, server.address)
        )
        await until(lambda: server.stats().connections == 0, "the end of the links")
    (record,) = caplog.records
    assert (record.levelno, record.name) == (logging.WARNING, "redpoll.node")
    assert "the peer sends plaintext, and this node expects TLS" in record.getMessage()


async def test_tls_against_plain(issued: Make, caplog: pytest.LogCaptureFixture) -> None:
    """The same the other way round."""
    async with make(Inbox()) as server, encrypted(tls=issued(), listen=False) as client:
        assert "the peer sends plaintext, and this node expects TLS (" in str(await failure(client, server.address))
        await until(lambda: server.stats().connections == 0, "the end of the links")
    assert "the peer uses TLS, and this node sends plaintext" in caplog.records[0].getMessage()


@pytest.mark.parametrize("ours", [True, False])
async def test_wrong_ca(redpoll_pki: Certificates, issued: Make, ours: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Who does not trust the other names its file of CAs; who is not trusted is told."""
    stranger = TLS(certificate=redpoll_pki.another().issue(), ca=redpoll_pki.ca)
    async with encrypted(Inbox(), tls=issued() if ours else stranger) as server:
        async with encrypted(tls=stranger if ours else issued(), listen=False) as client:
            error = await failure(client, server.address)
            await until(lambda: server.stats().connections == 0, "the end of the links")
    seen, told = "its certificate is not signed by a CA in", "does not trust the CA of this node's certificate"
    assert (told if ours else seen) in str(error)
    assert (seen if ours else told) in caplog.records[0].getMessage()


async def test_no_certificate(redpoll_pki: Certificates, issued: Make) -> None:
    """A client that has none is told that one is wanted."""
    async with encrypted(Inbox(), tls=issued()) as server:
        async with encrypted(tls=TLS(ca=redpoll_pki.ca), listen=False) as client:
            assert "the other end requires a certificate, and this node has none" in str(
                await failure(client, server.address)
            )


async def test_expired_while_it_ran(redpoll_pki: Certificates, issued: Make) -> None:
    """A certificate that has expired since its node started is refused by who dials it, with the remedy."""
    server_context, client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server_context.load_cert_chain(redpoll_pki.issue("old", expired=True))
    async with encrypted(Inbox(), tls=(server_context, client_context)) as server:
        async with encrypted(tls=issued(), listen=False) as client:
            error = await failure(client, server.address)
            assert "its certificate has expired (renew it at the other end: `redpoll pki renew`)" in str(error)


async def test_a_stream_fails_at_its_first_message(issued: Make) -> None:
    """`send_many` tells it of its first message."""
    async with encrypted(Inbox(), tls=issued()) as server, make(listen=False) as client:
        with pytest.raises(BatchError) as caught:
            await within(client.send_many([to(server)] * 3))
        assert caught.value.index == 0
        assert isinstance(caught.value.error.__cause__, TLSError)


# Files


async def test_files_are_read_at_the_start(redpoll_pki: Certificates, tmp_path: Path) -> None:
    """What cannot be used is told when the node starts, which may be tried again; with encryption=False nothing is read."""
    file = tmp_path / "node.pem"
    node = make(tls=TLS(certificate=file))
    with pytest.raises(ConfigError, match=r"certificate='.*node\.pem': cannot read"):
        await node.start()
    file.write_bytes(redpoll_pki.issue("old", expired=True).read_bytes())
    with pytest.raises(ConfigError, match="the certificate of the node expired on"):
        await node.start()
    async with make(tls=TLS(certificate=file), encryption=False):
        pass
    file.write_bytes(redpoll_pki.issue().read_bytes())
    async with node:
        assert node.listening


async def test_listening_takes_a_certificate(redpoll_pki: Certificates) -> None:
    """A node without one cannot listen where links are encrypted, and can where they are not."""
    tls = TLS(ca=redpoll_pki.ca)
    with pytest.raises(ConfigError, match=r"listening at 127\.0\.0\.1:\d+ requires a certificate"):
        await encrypted(tls=tls).start()
    async with make(Inbox(), tls=tls) as node:
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            # Nobody comes from elsewhere to where it listens but from another address of the loopback.
            sock.bind(("127.0.0.2", 0))
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", node.address.port))
            assert len(await within(loop.sock_recv(sock, 18))) == 18
        await until(lambda: node.stats().connections == 0, "the end of the link")


async def test_stopped_while_it_reads(issued: Make) -> None:
    """A node that is stopped while it reads its files is not started."""
    node = encrypted(tls=issued())
    start = asyncio.create_task(node.start())
    await asyncio.sleep(0)
    await node.stop()
    with pytest.raises(Exception, match="the node is not running"):
        await within(start)


# Pins


async def test_pinned_certificates(redpoll_pki: Certificates, issued: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Of all that the CA signed only those that are pinned are accepted, in both roles."""
    known, unknown = redpoll_pki.issue(), redpoll_pki.issue()
    pinning = issued(pins=(inspect(known).fingerprint,))
    async with encrypted(Inbox(), tls=pinning) as server:
        async with encrypted(tls=TLS(certificate=known), listen=False) as client:
            await within(client.send(to(server)))
        async with encrypted(tls=TLS(certificate=unknown), listen=False) as client:
            with pytest.raises(Expired) as caught:
                await within(client.send(to(server), timeout=0.2))
            assert "it may not accept this node's certificate" in str(caught.value.__cause__)
    assert f"{inspect(unknown).fingerprint} is not one of the pins" in caplog.records[0].getMessage()
    async with encrypted(Inbox(), tls=TLS(certificate=unknown)) as server:
        async with encrypted(tls=pinning, listen=False) as client:
            assert "is not one of the pins (add it to TLS.pins" in str(await failure(client, server.address))


async def test_pinned_identities(issued: Make) -> None:
    """Only nodes of the identities that are pinned are accepted, in both roles."""
    known, unknown = b"k" * 16, b"u" * 16
    pinning = issued(pins=(f"identity:{known.hex()}",))
    async with encrypted(Inbox(), tls=pinning) as server:
        async with encrypted(tls=issued(), listen=False, identity=known) as client:
            await within(client.send(to(server)))
        async with encrypted(tls=issued(), listen=False, identity=unknown, dial="once", timeout=1.0) as client:
            with pytest.raises(SendError):
                await within(client.send(to(server)))
    async with encrypted(Inbox(), tls=issued(), identity=unknown) as server:
        async with encrypted(tls=pinning, listen=False) as client:
            assert f"identity:{unknown.hex()} is not one of the pins" in str(await failure(client, server.address))


# Faults and bounds


async def test_cut_in_the_middle(issued: Make) -> None:
    """A link that is cut fails what was on it as not confirmed, and a new one is made for the next."""
    inbox = Inbox(hold=True)
    async with encrypted(inbox, tls=issued()) as server, Proxy(server.address) as proxy:
        async with encrypted(tls=issued(), listen=False) as client:
            future = client.send(Message(b"x", proxy.address))
            await inbox.holds(1)
            await proxy.cut()
            with pytest.raises(NotConfirmed) as caught:
                await within(future)
            assert isinstance(caught.value.__cause__, PeerLost)
            inbox.gate.set()
            await within(client.send(Message(b"y", proxy.address)))


async def test_cut_in_the_handshake(issued: Make) -> None:
    """What waits for a link is sent over the next one when a handshake broke off."""
    async with encrypted(Inbox(), tls=issued()) as server, Proxy(server.address) as proxy:
        async with encrypted(tls=issued(), listen=False) as client:
            proxy.answers.clear()
            future = client.send(Message(b"x", proxy.address))
            await until(lambda: server.stats().connections == 1, "the link")
            await proxy.cut()
            proxy.answers.set()
            await within(future)


async def test_bytes_in_any_pieces(issued: Make, redpoll_faults: FaultsFactory) -> None:
    """However the network splits what goes over it, everything arrives."""
    inbox = Inbox(answer=b"yes")
    async with (
        encrypted(inbox, tls=issued()) as server,
        redpoll_faults(server, faults=Faults(pieces=range(1, 200))) as proxy,
    ):
        async with encrypted(tls=issued(), listen=False) as client:
            large = bytes(range(256)) * 100
            assert (await within(client.request(Message(large, proxy.address)))).data == b"yes"
            assert inbox.begun == [large]


async def test_handshake_timeout_covers_tls(issued: Make) -> None:
    """A stranger that says nothing, or only the beginning, is closed in time, and holds nobody up."""
    async with encrypted(Inbox(), tls=issued(), handshake_timeout=0.2) as server:
        links = [await RawLink.dial("127.0.0.1", server.address.port) for _ in range(4)]
        links[1].write(b"\x16\x03\x01")
        async with encrypted(tls=issued(), listen=False) as client:
            await within(client.send(to(server)))
        for link in links:
            assert await within(link.read_all()) == b""
            link.close()
        await until(lambda: server.stats().connections == 0, "the end of the links")


async def test_a_listener_that_says_nothing(issued: Make) -> None:
    """Who dialled gives up in time too; the cause says what was waited for."""
    async with raw_listener() as listener, encrypted(tls=issued(), handshake_timeout=0.1, listen=False) as client:
        with pytest.raises(NotSent) as caught:
            await within(client.send(Message(b"x", f"127.0.0.1:{listener.port}"), dial="once"))
        assert "no handshake within 0.1 s" in str(caught.value.__cause__)
        link = await listener.accept()
        link.close()


async def test_strangers_in_their_handshake_count(issued: Make) -> None:
    """Links in their TLS handshake count against the limits, and are turned away before it."""
    options: dict[str, Any] = {"max_connections_per_host": 2, "tls": issued()}
    async with encrypted(Inbox(), **options) as server:
        links = [await RawLink.dial("127.0.0.1", server.address.port) for _ in range(2)]
        await until(lambda: server.stats().connections == 2, "the links")
        third = await RawLink.dial("127.0.0.1", server.address.port)
        assert await within(third.read_all()) == b""
        for link in (*links, third):
            link.close()
        await until(lambda: server.stats().connections == 0, "the end of the links")
        async with encrypted(tls=issued(), listen=False) as client:
            await within(client.send(to(server)))


async def test_stopping_ends_handshakes(issued: Make) -> None:
    """A node that stops does not wait for strangers in their handshake, nor for those that it dials."""
    server = encrypted(Inbox(), tls=issued())
    await server.start()
    link = await RawLink.dial("127.0.0.1", server.address.port)
    await until(lambda: server.stats().connections == 1, "the link")
    await within(server.stop())
    assert await within(link.read_all()) == b""
    link.close()
    async with raw_listener() as listener:
        client = encrypted(tls=issued(), listen=False)
        await client.start()
        future = client.send(Message(b"x", f"127.0.0.1:{listener.port}"), timeout=None)
        accepted = await listener.accept()
        await within(client.stop(0))
        with pytest.raises(NotSent):
            await future
        accepted.close()


@pytest.mark.parametrize("port", [0x1603, 0x1503])
async def test_ports_that_look_like_tls(port: int) -> None:
    """A plain handshake may begin with any port, and whoever says one is no TLS for it."""
    async with make(Inbox()) as node:
        link = await RawLink.dial("127.0.0.1", node.address.port)
        link.write(handshake(port, b"\x01\x00\x02\x01\x00\x00\xfe" + b"i" * 9) + announcement().encode())
        await until(lambda: node.peers, "the peer")
        link.close()


async def test_the_log_is_not_flooded(issued: Make, caplog: pytest.LogCaptureFixture) -> None:
    """However many strangers speak plaintext, the log has a line a second."""
    async with encrypted(Inbox(), tls=issued()) as server:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.address.port)) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        await until(lambda: caplog.records, "a line")
        await until(lambda: server.stats().connections == 0, "the end of the links")
    assert 1 <= len(caplog.records) <= 3
