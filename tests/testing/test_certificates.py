"""Certificates that tests throw away."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from redpoll.errors import ConfigError, UsageError
from redpoll.pki import CA, inspect
from redpoll.testing.certificates import Certificates
from tests.pki.support import client_context, handshake, server_context


def test_good_ones(redpoll_pki: Certificates) -> None:
    """Both ends of a handshake are proved, by the names of this machine or by those that were asked for."""
    server, client = redpoll_pki.issue("server"), redpoll_pki.issue("client", ["worker.example.org"])
    for host in ("localhost", "127.0.0.1", "::1"):
        handshake(client_context(client), server_context(server), host)
    handshake(client_context(server), server_context(client), "worker.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client_context(server), server_context(client), "localhost")


def test_every_file_is_new(redpoll_pki: Certificates) -> None:
    """The same name is issued again beside the first, with another key."""
    paths = [redpoll_pki.issue("worker") for _ in range(3)]
    assert [path.name for path in paths] == ["worker.pem"] * 3
    assert len({path.read_bytes() for path in paths}) == 3
    assert inspect(redpoll_pki.issue("rsa", key="rsa-2048", days=3)).key == "RSA 2048"


@pytest.mark.parametrize("days", [1, 365, 700])
def test_expired_ones(redpoll_pki: Certificates, days: int) -> None:
    """An expired certificate has ended a day ago, was good until then, and is refused."""
    old, good = redpoll_pki.issue("old", expired=True, days=days), redpoll_pki.issue("good")
    report = inspect(old)
    assert report.days_left in {-1, -2}
    assert len(report.problems) == 1
    assert inspect(old, now=report.end).problems == ()
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(client_context(good), server_context(old), "localhost")


def test_those_of_another_ca(redpoll_pki: Certificates) -> None:
    """What another CA issued is refused, by a client and by a server."""
    own, other = redpoll_pki.issue("node"), redpoll_pki.another().issue("node")
    for client, server in ((own, other), (other, own)):
        with pytest.raises(ssl.SSLError):
            handshake(client_context(client), server_context(server), "localhost")


def test_its_files(tmp_path: Path) -> None:
    """The folder is one that the command takes, and there are DH parameters."""
    certificates = Certificates(tmp_path)
    assert CA.load(certificates.folder).name == "redpoll test CA"
    assert inspect(certificates.ca).problems == ()
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_dh_params(str(certificates.dh))


def test_what_cannot_be_issued(redpoll_pki: Certificates) -> None:
    """Names and times that cannot be are refused as the CA refuses them."""
    with pytest.raises(ConfigError, match="names="):
        redpoll_pki.issue("worker", ["10.0.0.300"])
    with pytest.raises(UsageError, match="is not valid before"):
        redpoll_pki.issue("worker", expired=True, days=800)
