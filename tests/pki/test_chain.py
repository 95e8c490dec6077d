"""A node's chain in libchirp's layout, and what TLS makes of it."""

from __future__ import annotations

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from redpoll.errors import UsageError
from redpoll.pki import CA, Chain, KeyKind, dh_parameters
from redpoll.pki.keys import write_key
from tests.pki.support import client_context, handshake, saved, server_context


def test_the_layout(tmp_path: Path) -> None:
    """The node's certificate is first, the CA's after it, and the key in the same file, which is 0600."""
    authority, chain, path = saved(tmp_path / "pki")
    pem = path.read_bytes()
    assert pem == chain.pem
    own, above = (each.public_bytes(Encoding.PEM) for each in (chain.certificate, authority.certificates[0]))
    assert pem == own + above + write_key(chain.key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_read_as_it_was_written(tmp_path: Path) -> None:
    """A saved chain loads unchanged; the key may be anywhere in the file."""
    _, chain, path = saved(tmp_path / "pki", names=["worker.example.org", "fd00::7"])
    loaded = Chain.load(path)
    assert (loaded.certificate, loaded.authorities, loaded.pem) == (chain.certificate, chain.authorities, chain.pem)
    assert (loaded.name, loaded.names) == ("worker", ("worker.example.org", "fd00::7"))
    path.write_bytes(write_key(chain.key) + chain.pem.replace(write_key(chain.key), b"# no more keys\n"))
    assert Chain.load(path).pem == chain.pem


def test_an_existing_file_stays(tmp_path: Path) -> None:
    """A private key is overwritten only with force."""
    authority, chain, path = saved(tmp_path / "pki")
    other = authority.issue("worker")
    with pytest.raises(UsageError, match=r"File exists \(`force` overwrites it\)"):
        other.save(path)
    assert path.read_bytes() == chain.pem
    other.save(path, force=True)
    assert path.read_bytes() == other.pem


def test_the_key_is_not_shown(tmp_path: Path) -> None:
    """Neither repr has the key in it."""
    authority, chain, _ = saved(tmp_path / "pki")
    assert "key=" not in repr(chain) + repr(authority)


def test_what_is_no_chain(tmp_path: Path) -> None:
    """Each file that cannot serve is refused with what is wrong and what to do."""
    authority, chain, path = saved(tmp_path / "pki")
    own, above = (each.public_bytes(Encoding.PEM) for each in (chain.certificate, authority.certificates[0]))
    key = write_key(chain.key)
    texts = {
        own + above: f"there is no private key in {path} (append it to the file, or issue it again)",
        above + own + key: (
            f"the private key in {path} does not match the first certificate"
            " (put the node's certificate first in the file)"
        ),
        key: f"there is no certificate in {path} (give a file in PEM, with BEGIN CERTIFICATE in it)",
        own[:100] + own[110:] + key: f"a certificate in {path} cannot be read (restore the file, or make it again)",
    }
    for pem, text in texts.items():
        path.write_bytes(pem)
        with pytest.raises(UsageError) as raised:
            Chain.load(path)
        assert str(raised.value) == text
    with pytest.raises(UsageError, match=r"No such file or directory \(`redpoll pki issue` makes one\)"):
        Chain.load(tmp_path / "none.pem")


@pytest.mark.parametrize("kind", ["ec", "rsa-2048", "rsa-3072"])
def test_both_ends_are_proved(tmp_path: Path, kind: KeyKind) -> None:
    """Two nodes shake hands with strict checks, each with its one file, and the client checks the name."""
    authority = CA.make(key=kind)
    server = authority.issue("server", ["server.example.org", "10.0.0.7"]).save(tmp_path / "server.pem")
    client = authority.issue("client").save(tmp_path / "client.pem")
    for host in ("server.example.org", "10.0.0.7"):
        ends = handshake(client_context(client), server_context(server), host)
        certificates = [end.getpeercert() for end in ends]
        assert [each and each["subject"] for each in certificates] == [
            ((("commonName", name),),) for name in ("server", "client")
        ]
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(client_context(client), server_context(server), "other.example.org")
    # Each is client and server: the other way round it works as well.
    handshake(client_context(server), server_context(client), "client")


@pytest.mark.parametrize("bits", [2048, 3072])
def test_as_an_old_libchirp_needs_it(tmp_path: Path, bits: int) -> None:
    """RSA keys and the DH parameters serve a peer that has TLS 1.2 with DHE and RSA alone."""
    authority = CA.make(key="rsa-2048")
    server = authority.issue("server").save(tmp_path / "server.pem")
    client = authority.issue("client").save(tmp_path / "client.pem")
    (tmp_path / "dh.pem").write_bytes(dh_parameters(bits))
    listening, dialling = server_context(server), client_context(client)
    listening.load_dh_params(str(tmp_path / "dh.pem"))
    dialling.maximum_version = ssl.TLSVersion.TLSv1_2
    dialling.set_ciphers("DHE-RSA-AES256-GCM-SHA384")
    end, _ = handshake(dialling, listening, "server")
    assert end.version() == "TLSv1.2"
    assert (end.cipher() or ("",))[0] == "DHE-RSA-AES256-GCM-SHA384"


def test_an_ec_key_does_not_serve_an_old_libchirp(tmp_path: Path) -> None:
    """The documentation is right about TLS 1.2: with an EC key such a peer finds no cipher."""
    _, _, server = saved(tmp_path / "pki", "server")
    listening, dialling = server_context(server), client_context(server)
    (tmp_path / "dh.pem").write_bytes(dh_parameters())
    listening.load_dh_params(str(tmp_path / "dh.pem"))
    dialling.maximum_version = ssl.TLSVersion.TLSv1_2
    dialling.set_ciphers("DHE-RSA-AES256-GCM-SHA384")
    with pytest.raises(ssl.SSLError):
        handshake(dialling, listening, "server")


def test_a_strangers_certificate_is_refused(tmp_path: Path) -> None:
    """Certificates of another CA with the same name are rejected, by a client and by a server."""
    _, _, good = saved(tmp_path / "good", "server")
    _, _, bad = saved(tmp_path / "bad", "server")
    for client, server in ((good, bad), (bad, good)):
        with pytest.raises(ssl.SSLError):
            handshake(client_context(client), server_context(server), "server")


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    """A handshake fails after the last day."""
    past = datetime.now(UTC) - timedelta(days=10)
    authority = CA.make(now=past)
    old = authority.issue("server", days=5, now=past).save(tmp_path / "old.pem")
    good = authority.issue("server").save(tmp_path / "good.pem")
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(client_context(good), server_context(old), "server")
    handshake(client_context(good), server_context(good), "server")
