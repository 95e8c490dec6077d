"""Sessions: which peers they accept; and credentials that change."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from redpoll import TLS, ConfigError
from redpoll.pki import inspect
from redpoll.testing.certificates import Certificates
from redpoll.tls import credentials as credentials_module
from redpoll.tls.certificate import Certificate
from redpoll.tls.contexts import make_contexts
from redpoll.tls.credentials import Credentials
from tests.tls.support import THERE, sessions, shake_hands

IDENTITY = bytes(range(16))


def test_fingerprints(redpoll_pki: Certificates) -> None:
    """The other end's fingerprint is the one that `redpoll pki show` prints, and has to be pinned if any is."""
    one, two = redpoll_pki.issue("one"), redpoll_pki.issue("two")
    known = make_contexts(TLS(certificate=two, pins=(inspect(one).fingerprint,)))
    server, client = sessions(make_contexts(TLS(certificate=one)), known)
    assert shake_hands(server, client) == [None, None]
    assert client.unknown_certificate() is None
    assert client.certificate is not None
    assert client.certificate.fingerprint == inspect(one).fingerprint
    assert server.unknown_certificate() is None
    server, client = sessions(make_contexts(TLS(certificate=two)), known)
    assert shake_hands(server, client) == [None, None]
    assert str(client.unknown_certificate()) == (
        f"TLS failed with 127.0.0.1:7: {inspect(two).fingerprint} is not one of the pins (add it to TLS.pins if it is "
        "the intended peer)"
    )


def test_no_certificate_is_none_that_is_pinned(redpoll_pki: Certificates) -> None:
    """A peer without a certificate matches no pinned one."""
    one = redpoll_pki.issue("one")
    server_tls = TLS(certificate=one, client_certificate="none", pins=(inspect(one).fingerprint,))
    server, client = sessions(make_contexts(server_tls), make_contexts(TLS(ca=redpoll_pki.ca)))
    assert shake_hands(server, client) == [None, None]
    assert "the peer has no certificate, and certificates are pinned" in str(server.unknown_certificate())
    assert server.certificate is None


def test_certificates_that_cannot_be_read(redpoll_pki: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that OpenSSL accepts and that cannot be read is rejected: it would not identify the peer."""

    def read(der: bytes) -> Certificate:
        raise ValueError(f"{len(der)} bytes")

    contexts = make_contexts(TLS(certificate=redpoll_pki.issue()))
    server, client = sessions(contexts, contexts)
    assert shake_hands(server, client) == [None, None]
    monkeypatch.setattr(credentials_module, "read_certificate", read)
    assert "its certificate cannot be read" in str(server.unknown_certificate())


def test_what_nobody_answers_for(redpoll_pki: Certificates) -> None:
    """A certificate that a context of the user's accepts unchecked identifies no peer."""
    one = redpoll_pki.issue("one")
    outgoing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    outgoing.check_hostname = False
    outgoing.verify_mode = ssl.CERT_NONE
    incoming = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    incoming.load_cert_chain(one)
    contexts = make_contexts((incoming, outgoing))
    server, client = sessions(contexts, contexts)
    assert shake_hands(server, client) == [None, None]
    assert client.unknown_certificate() is None
    assert client.certificate is None


@pytest.mark.parametrize("name", ["localhost", "localhost.", "127.0.0.1", "::1", "::1%lo"])
def test_names_as_certificates_have_them(redpoll_pki: Certificates, name: str) -> None:
    """The dot behind a name and the scope of an address are not in certificates, and not looked for."""
    contexts = make_contexts(TLS(certificate=redpoll_pki.issue("one"), check_names=True))
    assert shake_hands(*sessions(contexts, contexts, name)) == [None, None]


def test_identities(redpoll_pki: Certificates) -> None:
    """A node identity has to be pinned if any is; pins of the other kind do not count."""
    one = redpoll_pki.issue("one")
    pinned = Credentials(make_contexts(TLS(certificate=one, pins=(f"identity:{IDENTITY.hex()}",)))).accept(THERE)
    assert pinned.unknown_identity(IDENTITY) is None
    assert f"identity:{bytes(16).hex()} is not one of the pins" in str(pinned.unknown_identity(bytes(16)))
    free = Credentials(make_contexts(TLS(certificate=one, pins=(inspect(one).fingerprint,)))).accept(THERE)
    assert free.unknown_identity(bytes(16)) is None


def test_only_who_has_a_certificate_listens(redpoll_pki: Certificates) -> None:
    """Without a certificate no link is accepted."""
    credentials = Credentials(make_contexts(TLS(ca=redpoll_pki.ca)))
    assert not credentials.can_listen
    assert credentials.checks_names
    with pytest.raises(ConfigError, match="incoming links require a certificate"):
        credentials.accept(THERE)


@pytest.mark.asyncio
async def test_reloading(redpoll_pki: Certificates, tmp_path: Path) -> None:
    """What is in the files now holds for the sessions that begin from now on; if it cannot be used, nothing changes."""
    file = tmp_path / "node.pem"
    file.write_bytes(redpoll_pki.issue("one").read_bytes())
    tls = TLS(certificate=file)
    credentials = await Credentials.load(tls)
    assert credentials.can_listen
    before = credentials.accept(THERE)
    file.write_bytes(redpoll_pki.issue("two").read_bytes())
    await credentials.reload(tls)
    after = credentials.accept(THERE)
    assert shake_hands(before, credentials.dial(THERE, "name")) == [None, None]
    client = credentials.dial(THERE, "fe80::1%eth0")
    assert shake_hands(after, client) == [None, None]
    assert client.unknown_certificate() is None
    assert client.certificate is not None
    assert client.certificate.fingerprint == inspect(file).fingerprint
    file.write_bytes(b"")
    with pytest.raises(ConfigError, match="there is no certificate in"):
        await credentials.reload(tls)
    with pytest.raises(ConfigError, match="the new credentials have no certificate, which a listening node requires"):
        await credentials.reload(TLS(ca=redpoll_pki.ca))
    assert shake_hands(credentials.accept(THERE), credentials.dial(THERE, "name")) == [None, None]
