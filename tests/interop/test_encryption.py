"""A redpoll node and a libchirp node speak TLS, over an address of this machine that is not on its loopback."""

from __future__ import annotations

import socket

import pytest

from redpoll import TLS, Message, Node, NotSent, TLSError
from redpoll.testing.certificates import Certificates
from tests.interop.libchirp_node import LibchirpError, Mode, libchirp_node
from tests.interop.nodes import Inbox, each_acknowledge, each_mode, port_of, where, within_bound

pytestmark = [pytest.mark.interop, pytest.mark.asyncio]


@pytest.fixture
def host() -> str:
    """An address of this machine at which libchirp encrypts, on both ends."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("203.0.113.1", 9))  # nothing is sent
        except OSError:
            pytest.fail("these tests need a network interface beside the loopback", pytrace=False)
        return str(sock.getsockname()[0])


def record(pki: Certificates, *, rsa: bool = True) -> TLS:
    """What a redpoll node has beside libchirp."""
    return TLS(certificate=pki.issue("redpoll", key="rsa-2048" if rsa else "ec"), dh_params=pki.dh)


def is_encrypted(node: Node[bytes]) -> bool:
    """Whether its only link is."""
    (link,) = node._peers.connections
    assert link.transport is not None
    return link.transport.get_extra_info("ssl_object") is not None


@each_acknowledge
@each_mode
async def test_redpoll_dials(redpoll_pki: Certificates, host: str, mode: Mode, acknowledge: bool) -> None:
    """Messages go both ways over the encrypted connection that redpoll dialled, and over no other."""
    inbox = Inbox()
    chirp_pem = redpoll_pki.issue("chirp", key="rsa-2048")
    async with (
        libchirp_node(mode=mode, host=host, certificate=chirp_pem, dh=redpoll_pki.dh) as chirp,
        Node(inbox, host=host, port=0, acknowledge=acknowledge, tls=record(redpoll_pki)) as node,
    ):
        for data in (b"there", bytes(1_000_000)):
            await within_bound(node.send(Message(data, where(chirp, host))))
            assert (await chirp.received()).data == data
            await chirp.send(host, port_of(node), data)
            assert (await inbox.next()).data == data
        assert node.stats().connections == 1
        assert is_encrypted(node)


@each_mode
async def test_libchirp_dials(redpoll_pki: Certificates, host: str, mode: Mode) -> None:
    """The same over the one that libchirp dialled."""
    inbox = Inbox()
    chirp_pem = redpoll_pki.issue("chirp")
    async with (
        libchirp_node(mode=mode, host=host, certificate=chirp_pem, dh=redpoll_pki.dh) as chirp,
        Node(inbox, host=host, port=0, tls=record(redpoll_pki, rsa=False)) as node,
    ):
        for data in (b"there", bytes(1_000_000)):
            await chirp.send(host, port_of(node), data)
            assert (await inbox.next()).data == data
            await within_bound(node.send(Message(data, where(chirp, host))))
            assert (await chirp.received()).data == data
        assert node.stats().connections == 1
        assert is_encrypted(node)


async def test_plain_on_loopback(redpoll_pki: Certificates) -> None:
    """Both leave 127.0.0.1 plain though they have certificates."""
    chirp_pem = redpoll_pki.issue("chirp")
    async with (
        libchirp_node(certificate=chirp_pem, dh=redpoll_pki.dh) as chirp,
        Node(port=0, tls=record(redpoll_pki, rsa=False)) as node,
    ):
        await within_bound(node.send(Message(b"there", where(chirp))))
        assert not is_encrypted(node)


@pytest.mark.parametrize("dials", ["redpoll", "libchirp"])
async def test_another_ca(redpoll_pki: Certificates, host: str, dials: str) -> None:
    """A redpoll node says at once that it does not trust libchirp's certificate; libchirp's send fails."""
    chirp_pem = redpoll_pki.another().issue("chirp")
    async with (
        libchirp_node(host=host, timeout=1.0, certificate=chirp_pem, dh=redpoll_pki.dh) as chirp,
        Node(Inbox(), host=host, port=0, tls=record(redpoll_pki, rsa=False)) as node,
    ):
        if dials == "libchirp":
            with pytest.raises(LibchirpError):
                await chirp.send(host, port_of(node), b"there")
            return
        with pytest.raises(NotSent) as caught:
            await within_bound(node.send(Message(b"there", where(chirp, host)), timeout=None))
        assert isinstance(caught.value.__cause__, TLSError)


async def test_plain_libchirp(redpoll_pki: Certificates, host: str) -> None:
    """A libchirp that does not encrypt is told from one that does, at once."""
    async with (
        libchirp_node(host=host) as chirp,
        Node(Inbox(), host=host, port=0, tls=record(redpoll_pki, rsa=False)) as node,
    ):
        with pytest.raises(NotSent) as caught:
            await within_bound(node.send(Message(b"there", where(chirp, host)), timeout=None))
        assert "the peer sends plaintext, and this node expects TLS" in str(caught.value.__cause__)
