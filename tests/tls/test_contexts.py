"""Contexts from files: what they accept, and the errors for unusable files."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from redpoll import TLS, ConfigError
from redpoll.pki import Chain, inspect
from redpoll.testing.certificates import Certificates
from redpoll.tls.contexts import Contexts, make_contexts
from tests.tls.support import sessions, shake_hands


def test_one_file_for_all(redpoll_pki: Certificates) -> None:
    """A file of libchirp's is own chain, key and trust at once; both ends have to be signed, no name is checked."""
    one = make_contexts(TLS(certificate=redpoll_pki.issue("one", ["one.example.org"])))
    two = make_contexts(TLS(certificate=redpoll_pki.issue("two", ["two.example.org"])))
    server, client = sessions(one, two, "elsewhere.example.org")
    assert shake_hands(server, client) == [None, None]
    assert client.object.version() == "TLSv1.3"
    for context in (one.server, one.client):
        assert context is not None
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert not context.check_hostname
    assert one.trusted.endswith("one.pem")


def test_files_apart(redpoll_pki: Certificates, tmp_path: Path) -> None:
    """Certificate, key and CA may be files of their own."""
    chain = Chain.load(redpoll_pki.issue("one"))
    certificate, key = tmp_path / "one.crt", tmp_path / "one.key"
    certificate.write_bytes(chain.certificate.public_bytes(Encoding.PEM))
    key.write_bytes(b"-----BEGIN PRIVATE KEY-----" + chain.pem.split(b"-----BEGIN PRIVATE KEY-----")[1])
    contexts = make_contexts(TLS(certificate=certificate, key=key, ca=redpoll_pki.ca))
    assert shake_hands(*sessions(contexts, contexts)) == [None, None]
    assert contexts.trusted == str(redpoll_pki.ca)


def dhe_only(certificate: Path, dh: Path | None = None) -> Contexts:
    """The contexts of a peer as libchirp is with LibreSSL or OpenSSL 1.0, made with Python's ssl alone."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("DHE-RSA-AES256-GCM-SHA384:DHE-RSA-AES256-SHA256")
        context.load_cert_chain(certificate)
        context.load_verify_locations(certificate)
    if dh is not None:
        server.load_dh_params(str(dh))
    return Contexts(server, client, "the context", "the context")


def test_a_peer_with_dhe_alone_dials(redpoll_pki: Certificates) -> None:
    """A peer limited to TLS 1.2 with DHE and RSA is accepted where there are DH parameters, and nowhere else."""
    path = redpoll_pki.issue("rsa", key="rsa-2048")
    old = dhe_only(path)
    server, client = sessions(make_contexts(TLS(certificate=path, dh_params=redpoll_pki.dh)), old)
    assert shake_hands(server, client) == [None, None]
    assert client.object.version() == "TLSv1.2"
    assert client.object.cipher() == ("DHE-RSA-AES256-GCM-SHA384", "TLSv1.2", 256)
    there, here = shake_hands(*sessions(make_contexts(TLS(certificate=path)), old))
    assert "no common cipher (a peer limited to TLS 1.2 may need RSA keys and dh_p" in str(there)
    assert "no common version, cipher or certificate" in str(here)


def test_a_peer_with_dhe_alone_is_dialled(redpoll_pki: Certificates) -> None:
    """Such a peer is dialled with its own parameters, whether this node has any or not; it cannot be without its own."""
    path = redpoll_pki.issue("rsa", key="rsa-2048")
    for record in (TLS(certificate=path), TLS(certificate=path, dh_params=redpoll_pki.dh)):
        server, client = sessions(dhe_only(path, redpoll_pki.dh), make_contexts(record))
        assert shake_hands(server, client) == [None, None]
        assert client.object.cipher() == ("DHE-RSA-AES256-GCM-SHA384", "TLSv1.2", 256)
        _, here = shake_hands(*sessions(dhe_only(path), make_contexts(record)))
        assert "no common version, cipher or certificate" in str(here)


def test_a_peer_with_dhe_alone_needs_rsa(redpoll_pki: Certificates) -> None:
    """Parameters do not help a node whose key is not RSA."""
    node = make_contexts(TLS(certificate=redpoll_pki.issue("ec"), dh_params=redpoll_pki.dh))
    old = dhe_only(redpoll_pki.issue("rsa", key="rsa-2048"))
    there, _ = shake_hands(*sessions(node, old))
    assert "may need RSA keys and dh_params" in str(there)


def test_the_systems_trust_store(redpoll_pki: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """With "system" what the system trusts is trusted, and names are checked."""
    monkeypatch.setenv("SSL_CERT_FILE", str(redpoll_pki.ca))
    contexts = make_contexts(TLS(ca="system"))
    assert contexts.server is None
    assert contexts.client.check_hostname
    server = make_contexts(TLS(certificate=redpoll_pki.issue("one"), client_certificate="none"))
    assert shake_hands(*sessions(server, contexts, "localhost")) == [None, None]
    assert contexts.trusted == "the system's trust store"


def test_the_systems_trust_store_lets_nobody_in(redpoll_pki: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """Incoming links are not accepted by the system's store, unless pinned, but by the CA in the node's own file."""
    other = redpoll_pki.another()
    monkeypatch.setenv("SSL_CERT_FILE", str(other.ca))
    own, public = redpoll_pki.issue("one"), other.issue("two")
    server = make_contexts(TLS(certificate=own, ca="system"))
    member = make_contexts(TLS(certificate=redpoll_pki.issue("member")))
    assert shake_hands(*sessions(server, member)) == [None, None]
    stranger = make_contexts(TLS(certificate=public, ca=redpoll_pki.ca))
    there, _ = shake_hands(*sessions(server, stranger))
    assert f"its certificate is not signed by a CA in {own}" in str(there)
    pinning = make_contexts(TLS(certificate=own, ca="system", pins=(inspect(public).fingerprint,)))
    assert shake_hands(*sessions(pinning, stranger)) == [None, None]


def test_a_public_certificate_lets_nobody_in(redpoll_pki: Certificates, tmp_path: Path) -> None:
    """Without a CA in the node's file, and with the system's store, no incoming link passes if a certificate is required."""
    chain = Chain.load(redpoll_pki.issue("one"))
    leaf = tmp_path / "leaf.pem"
    leaf.write_bytes(chain.certificate.public_bytes(Encoding.PEM) + chain.pem.split(b"-----END CERTIFICATE-----\n")[-1])
    client = make_contexts(TLS(certificate=redpoll_pki.issue("two")))
    for wanted, accepted in (("required", False), ("optional", False), ("none", True)):
        server = make_contexts(TLS(certificate=leaf, ca="system", client_certificate=wanted))  # type: ignore[arg-type]
        there, _ = shake_hands(*sessions(server, client))
        assert (there is None) is accepted


@pytest.mark.parametrize(("wanted", "accepted"), [("required", False), ("optional", True), ("none", True)])
def test_what_is_wanted_of_clients(redpoll_pki: Certificates, wanted: str, accepted: bool) -> None:
    """Without a certificate a node is accepted only where none is required."""
    server = make_contexts(TLS(certificate=redpoll_pki.issue("one"), client_certificate=wanted))  # type: ignore[arg-type]
    there, here = shake_hands(*sessions(server, make_contexts(TLS(ca=redpoll_pki.ca)), "localhost"))
    assert (there is None) is (here is None) is accepted
    if not accepted:
        assert "the peer has no certificate" in str(there)
        assert "the other end requires a certificate, and this node has none (set TLS(certificate=" in str(here)


def test_contexts_of_ones_own(redpoll_pki: Certificates) -> None:
    """A pair of contexts is used as it is."""
    pair = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    contexts = make_contexts(pair)
    assert (contexts.server, contexts.client) == pair


def refused(tls: TLS, now: datetime | None = None) -> ConfigError:
    """The error for a record."""
    with pytest.raises(ConfigError) as caught:
        make_contexts(tls, now=now)
    return caught.value


def test_files_that_are_not_there(redpoll_pki: Certificates, tmp_path: Path) -> None:
    """A file that does not exist is named with its field, and with what makes one."""
    good, none = redpoll_pki.issue("one"), tmp_path / "none.pem"
    for field, tls in {
        "certificate": TLS(certificate=none),
        "key": TLS(certificate=good, key=none),
        "ca": TLS(certificate=good, ca=none),
        "dh_params": TLS(certificate=good, dh_params=none),
    }.items():
        error = refused(tls)
        assert (error.field, error.value) == (field, str(none))
        assert error.hint
    folder = refused(TLS(certificate=tmp_path))
    assert "cannot read" in str(folder)


def test_files_that_hold_something_else(redpoll_pki: Certificates, tmp_path: Path) -> None:
    """A file without what it is for is refused, and what it lacks is named."""
    good, other = redpoll_pki.issue("one"), redpoll_pki.issue("two")
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"nothing")
    leaf = tmp_path / "leaf.pem"
    chain = Chain.load(good)
    leaf.write_bytes(chain.certificate.public_bytes(Encoding.PEM) + chain.pem.split(b"-----END CERTIFICATE-----\n")[-1])
    secret = tmp_path / "secret.pem"
    secret.write_bytes(chain.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    for tls, problem in (
        (TLS(certificate=empty), "there is no certificate in"),
        (TLS(certificate=redpoll_pki.ca), "it contains no private key (append it to the file, or set key=)"),
        (TLS(certificate=good, key=other), "the private key does not match the first certificate in"),
        (TLS(certificate=good, key=secret), "is encrypted (decrypt it: openssl pkey"),
        (TLS(certificate=leaf), "it contains no CA certificate (set ca= to the file of the CA's certificate)"),
        (TLS(certificate=good, ca=leaf), "it contains no CA certificate"),
        (TLS(certificate=good, ca=empty), "there is no certificate in"),
        (TLS(certificate=good, dh_params=good), "is not a readable file of Diffie-Hellman parameters"),
    ):
        assert problem in str(refused(tls))


def test_files_out_of_date(redpoll_pki: Certificates) -> None:
    """Expired certificates are found when the file is read, with the day and the remedy."""
    old, good = redpoll_pki.issue("old", expired=True), redpoll_pki.issue("good")
    error = refused(TLS(certificate=old))
    assert (error.field, error.value) == ("certificate", str(old))
    assert "the certificate of the node expired on 20" in str(error)
    assert "`redpoll pki renew`" in str(error)
    later = datetime.now(UTC) + timedelta(days=9 * 365)
    assert "the certificate of the CA in it expired on" in str(refused(TLS(ca=redpoll_pki.ca), later))
    earlier = datetime.now(UTC) - timedelta(days=30)
    assert "is not valid before" in str(refused(TLS(certificate=good), earlier))
