"""Errors between two ends, explained at both."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from redpoll import TLS, TLSError
from redpoll.testing.certificates import Certificates
from redpoll.tls.contexts import Contexts, make_contexts
from redpoll.tls.failures import explained, not_encrypted, not_pinned
from tests.tls.support import HERE, sessions, shake_hands


def unchecked(pem: Path, ca: Path) -> Contexts:
    """Contexts of a file that a node would refuse to start with."""
    pair = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    pair[1].check_hostname = False
    for context in pair:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(pem)
        context.load_verify_locations(ca)
    return make_contexts(pair)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("bad", ["server", "client"])
@pytest.mark.parametrize(
    ("what", "seen", "told"),
    [
        ("expired", "its certificate has expired", "the other end reports that this node's certificate has expired"),
        ("stranger", "its certificate is not signed by a CA in", "does not trust the CA of this node's certificate"),
    ],
)
def test_bad_certificates(
    redpoll_pki: Certificates, version: ssl.TLSVersion, bad: str, what: str, seen: str, told: str
) -> None:
    """The end that rejects a certificate explains it, and the end that has it is told, in either role and version."""
    pem = redpoll_pki.issue("bad", expired=True) if what == "expired" else redpoll_pki.another().issue("bad")
    ends = {"bad": unchecked(pem, redpoll_pki.ca), "good": make_contexts(TLS(certificate=redpoll_pki.issue("good")))}
    server, client = ("bad", "good") if bad == "server" else ("good", "bad")
    ends[client].client.maximum_version = version
    there, here = shake_hands(*sessions(ends[server], ends[client]))
    by, of = (here, there) if bad == "server" else (there, here)
    assert seen in str(by)
    assert told in str(of)
    for error in (by, of):
        assert isinstance(error, TLSError)
        assert error.hint
        assert isinstance(error.__cause__, ssl.SSLError)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_wrong_name(redpoll_pki: Certificates, name: str) -> None:
    """The name or address by which it was dialled is in the text."""
    server = make_contexts(TLS(certificate=redpoll_pki.issue("one", ["one.example.org"])))
    client = make_contexts(TLS(certificate=redpoll_pki.issue("two"), check_names=True))
    there, here = shake_hands(*sessions(server, client, name))
    assert f"its certificate is not valid for {name} (issue it with that name, or dial one of its names)" in str(here)
    assert "the other end does not accept this node's certificate" in str(there)
    assert shake_hands(*sessions(server, client, "one.example.org")) == [None, None]


def test_old_versions(redpoll_pki: Certificates) -> None:
    """A peer below TLS 1.2 is distinguished from others."""
    server = make_contexts(TLS(certificate=redpoll_pki.issue("one")))
    assert server.server is not None
    server.server.minimum_version = ssl.TLSVersion.TLSv1_3
    client = make_contexts(TLS(certificate=redpoll_pki.issue("two")))
    client.client.maximum_version = ssl.TLSVersion.TLSv1_2
    there, here = shake_hands(*sessions(server, client))
    assert "the peer does not support TLS 1.2 or newer" in str(there)
    assert "the other end does not support TLS 1.2 or newer" in str(here)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("SSLV3_ALERT_BAD_RECORD_MAC", "the other end reports bad record mac"),
        ("SSL/TLS_ALERT_UNKNOWN_CA", "does not trust the CA"),
        ("HTTP_REQUEST", "the peer speaks HTTP (dial another port)"),
        ("SOMETHING_NEW", "something new"),
        (None, "broken"),
    ],
)
def test_reasons_of_openssl(reason: str | None, text: str) -> None:
    """An error without an explanation has OpenSSL's text."""
    error = ssl.SSLError(1, "broken")
    error.reason = reason  # type: ignore[assignment]
    failure = explained(error, HERE, name=None, trusted="ca.pem")
    assert text in str(failure)
    assert failure.address == HERE


def test_verification_errors_without_words() -> None:
    """A certificate rejected for a rare reason has OpenSSL's text."""
    error = ssl.SSLCertVerificationError(1, "refused")
    error.verify_code, error.verify_message = 79, "invalid CA certificate"
    assert "its certificate is refused: invalid CA certificate" in str(
        explained(error, HERE, name=None, trusted="ca.pem")
    )


def test_errors_that_are_not_of_openssl() -> None:
    """Plaintext and pins have words too."""
    assert "the peer sends plaintext, and this node expects TLS (" in str(not_encrypted(HERE))
    assert "sha256:00 is not one of the pins" in str(not_pinned(HERE, "sha256:00"))
    assert "the peer has no certificate, and certificates are pinned" in str(not_pinned(HERE, None))
