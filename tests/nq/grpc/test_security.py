"""Encryption by gRPC's own credentials."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from redpoll import Message, Node, NotSent, TLSError, nq
from redpoll.address import Address
from redpoll.errors import ConfigError, DialFailed
from redpoll.nq.grpc.carrier import GrpcCarrier
from redpoll.nq.grpc.security import client_credentials, failure, server_credentials, system_roots
from redpoll.testing.certificates import Certificates
from tests.node.support import within
from tests.nq.grpc.support import echo, make

HERE = Address("tcp", "127.0.0.1", 7)


def secured(**files: Path | None) -> nq.CommunicatorOptions:
    """Options with files of TLS."""
    return nq.CommunicatorOptions(security=nq.SecurityOptions(**files))


def server(certificate: Path, host: str = "127.0.0.1") -> Node[bytes]:
    """A node that shows a certificate, which stands in one file with its key."""
    return make(echo, host=host, carrier=GrpcCarrier(secured(key=certificate, cert=certificate), server=True))


def client(ca: Path | None) -> Node[bytes]:
    """A node that trusts a CA."""
    return make(listen=False, dial="once", carrier=GrpcCarrier(secured(cert=ca)))


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_encrypted(redpoll_pki: Certificates, host: str) -> None:
    """Who trusts the CA reaches a server by each name that its certificate has."""
    async with server(redpoll_pki.issue(), host) as there, client(redpoll_pki.ca) as node:
        address = Address("tcp", host, there.address.port)
        body = bytes(5_000_000)
        assert (await within(node.request(Message(body, address)))).data == body


@pytest.mark.asyncio
async def test_who_is_not_meant(redpoll_pki: Certificates) -> None:
    """Another CA, another name, no TLS: each is told as what it is, and not dialled again."""
    async with server(redpoll_pki.issue()) as there:
        for ca in (redpoll_pki.another().ca, None):
            async with client(ca) as node:
                with pytest.raises(NotSent, match="signed by no CA that is trusted") as failed:
                    await within(node.send(Message(b"", there.address), dial="retry", timeout=None))
                assert isinstance(failed.value.__cause__, TLSError)
        async with make(listen=False, dial="once") as node:
            with pytest.raises(NotSent, match="the peer uses TLS, and this end sends plaintext"):
                await within(node.send(Message(b"", there.address)))
    async with server(redpoll_pki.issue(names=["elsewhere"])) as there, client(redpoll_pki.ca) as node:
        with pytest.raises(NotSent, match="not for the name that was dialled"):
            await within(node.send(Message(b"", there.address)))
    async with make(echo) as there, client(redpoll_pki.ca) as node:
        with pytest.raises(NotSent, match="speaks no TLS"):
            await within(node.send(Message(b"", there.address)))


@pytest.mark.asyncio
async def test_the_system_is_trusted_without_a_ca(redpoll_pki: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what Python trusts: the variables of OpenSSL count."""
    monkeypatch.setenv("SSL_CERT_FILE", str(redpoll_pki.ca))
    async with server(redpoll_pki.issue()) as there, client(None) as node:
        assert (await within(node.request(Message(b"x", there.address)))).data == b"x"


def test_what_the_system_trusts(redpoll_pki: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file, a folder of files by their hashes, or nothing."""
    ca = redpoll_pki.ca.read_bytes()
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    assert system_roots() is None
    (tmp_path / "0123abcd.0").write_bytes(ca)
    (tmp_path / "README").write_text("no certificate")
    assert system_roots() == ca
    monkeypatch.setenv("SSL_CERT_FILE", str(redpoll_pki.ca))
    found = system_roots()
    assert found is not None
    assert found.count(b"BEGIN CERTIFICATE") == 2


def test_files_that_cannot_be_used(redpoll_pki: Certificates, tmp_path: Path) -> None:
    """The error names the option and the file."""
    good, other = redpoll_pki.issue(), redpoll_pki.issue()
    missing = tmp_path / "missing.pem"
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    for key, certificate in ((good, None), (good, missing), (good, text), (_only_key(other), good)):
        with pytest.raises(ConfigError) as failed:
            server_credentials(key, certificate)
        assert failed.value.field in {"certificate", "key"}
    for file in (missing, text):
        with pytest.raises(ConfigError, match=r"\.pem") as failed:
            client_credentials(file)
        assert failed.value.field == "certificate"


def test_a_server_without_a_key_is_not_made() -> None:
    """The error names the missing file."""
    with pytest.raises(ConfigError, match="needs a key"):
        GrpcCarrier(secured(), server=True)


def test_files_are_read_when_the_carrier_is_made(tmp_path: Path) -> None:
    """Whoever makes it learns at once that one is missing."""
    missing = tmp_path / "missing"
    for server in (False, True):
        with pytest.raises(ConfigError, match="missing"):
            GrpcCarrier(secured(key=missing, cert=missing), server=server)


def test_the_words_of_grpc() -> None:
    """What the system said is found in them; what means that trying again is in vain is another error."""
    refused = failure(HERE, "x; last error: UNKNOWN: ipv4:127.0.0.1:7: Failed to connect to remote host: refused")
    assert isinstance(refused, DialFailed)
    assert refused.reason == "refused"
    closed = failure(HERE, "x; last error: UNAVAILABLE: ipv6:%5B::1%5D:7: Socket closed")
    assert isinstance(closed, DialFailed)
    assert closed.reason == "Socket closed"
    assert "it ended the stream" in str(failure(HERE, ""))
    assert isinstance(failure(HERE, "CERTIFICATE_VERIFY_FAILED"), TLSError)
    for problem, told in (("has expired", "has expired"), ("is not yet valid", "is not valid yet")):
        late = failure(
            HERE, f"error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate {problem}"
        )
        assert f"its certificate {told}" in str(late)


def _only_key(file: Path) -> Path:
    """A file with the private key of another alone."""
    text = file.read_text()
    alone = file.with_name("key.pem")
    alone.write_text(text[text.index("-----BEGIN PRIVATE KEY") :])
    assert ssl.PEM_HEADER not in alone.read_text()
    return alone
