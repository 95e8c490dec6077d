"""The CA and its files."""

from __future__ import annotations

import os
import stat
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding

from redpoll.errors import ConfigError, UsageError
from redpoll.pki import CA, Chain, inspect
from redpoll.pki.keys import make_key, write_key
from tests.pki.support import NOW, client_context, handshake, saved, self_issued, server_context

DAY = timedelta(days=1)


def test_saved_and_loaded(tmp_path: Path) -> None:
    """The folder is 0700, the key 0600 and the certificate for everybody; what is loaded issues as before."""
    folder = tmp_path / "pki"
    authority = CA.make("mine")
    assert authority.save(folder) == folder / "ca.pem"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644 & ~current_umask()}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    loaded = CA.load(folder)
    assert (loaded.name, loaded.certificates) == ("mine", authority.certificates)
    chain = loaded.issue("worker")
    assert chain.names == ("worker",)
    assert inspect(chain.save(folder / "worker.pem")).problems == ()
    assert b"PRIVATE" not in (folder / "ca.pem").read_bytes()


def current_umask() -> int:
    """The umask of this process."""
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_a_ca_is_not_overwritten(tmp_path: Path) -> None:
    """Without force neither file of a CA changes, also if only one is there; with force both do."""
    first, second = CA.make(), CA.make()
    first.save(tmp_path)
    for missing in (None, "ca.key", "ca.pem"):
        if missing:
            (tmp_path / missing).unlink()
        there = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(UsageError, match=r"File exists \(`force` overwrites it\)"):
            second.save(tmp_path)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == there
        first.save(tmp_path, force=True)
    second.save(tmp_path, force=True)
    assert CA.load(tmp_path).certificates == second.certificates


def test_keys_are_of_the_cas_kind() -> None:
    """An issued certificate has the CA's kind of key by default."""
    authority = CA.make(key="rsa-2048")
    assert isinstance(authority.issue("worker").key, rsa.RSAPrivateKey)
    assert not isinstance(authority.issue("worker", key="ec").key, rsa.RSAPrivateKey)


def test_folders_that_hold_no_ca(tmp_path: Path) -> None:
    """A missing or broken CA is an error with the remedy."""
    saved(tmp_path / "pki")
    pem, key = tmp_path / "pki" / "ca.pem", tmp_path / "pki" / "ca.key"
    again = "or make a new CA: `redpoll pki init --force`"
    good = {pem: pem.read_bytes(), key: key.read_bytes()}
    node = (tmp_path / "pki" / "worker.pem").read_bytes()
    cases: list[tuple[Path, bytes | None, str]] = [
        (pem, None, f"cannot read {pem}: No such file or directory (`redpoll pki init` makes one)"),
        (pem, b"", f"there is no certificate in {pem} (give a file in PEM, with BEGIN CERTIFICATE in it)"),
        (pem, node, f"the first certificate in {pem} is not that of a CA (`redpoll pki init` makes one)"),
        (key, None, f"cannot read {key}: No such file or directory (restore it, {again})"),
        (key, b"", f"there is no private key in {key} (restore the file, or make a new CA)"),
        (
            key,
            write_key(make_key("ec")),
            (
                f"the private key in {key} does not match the certificate in {pem}"
                f" (restore the one that belongs to the other, {again})"
            ),
        ),
    ]
    for path, content, text in cases:
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        with pytest.raises(UsageError) as raised:
            CA.load(tmp_path / "pki")
        assert str(raised.value) == text
        path.write_bytes(good[path])
    assert CA.load(tmp_path / "pki").name == "redpoll CA"


def test_a_ca_signs_in_its_own_time_only() -> None:
    """An expired CA, one that is not valid yet, and one that ends too early are refused with the remedy."""
    authority = CA.make(days=100, now=NOW)
    cases: list[tuple[dict[str, Any], type[UsageError], str]] = [
        (
            {"now": NOW + 100 * DAY + timedelta(seconds=1)},
            UsageError,
            "the CA 'redpoll CA' expired on 2026-06-09 (renew the CA: `redpoll pki renew ca`)",
        ),
        (
            {"now": NOW - DAY},
            UsageError,
            "the CA 'redpoll CA' is not valid before 2026-03-01 (set the clock of this machine)",
        ),
        (
            {"now": NOW + 40 * DAY},
            ConfigError,
            (
                "days=365: the CA 'redpoll CA' expires on 2026-06-09"
                " (choose at most 60 days, or renew the CA: `redpoll pki renew ca`)"
            ),
        ),
        (
            {"now": NOW + 99.5 * DAY, "days": 1},
            ConfigError,
            "days=1: the CA 'redpoll CA' expires on 2026-06-09 (renew the CA: `redpoll pki renew ca`)",
        ),
    ]
    chain = authority.issue("worker", days=100, now=NOW)
    for options, kind, text in cases:
        for make in (partial(authority.issue, "worker"), partial(authority.renew, chain)):
            with pytest.raises(UsageError) as raised:
                make(**options)
            assert (type(raised.value), str(raised.value)) == (kind, text)
    assert authority.issue("worker", days=60, now=NOW + 40 * DAY).names == ("worker",)


def test_a_node_is_not_called_like_its_ca() -> None:
    """A certificate whose subject is its issuer would be taken for self-signed."""
    with pytest.raises(ConfigError, match=r"name='mine': is the name of the CA \(choose another name\)"):
        CA.make("mine").issue("mine")


def test_a_certificate_is_renewed() -> None:
    """It has the names and the key of the old one, and a new serial and new dates."""
    authority = CA.make(now=NOW)
    old = authority.issue("worker", ["worker.example.org", "10.0.0.7"], key="rsa-2048", days=30, now=NOW)
    new = authority.renew(old, days=60, now=NOW + 29 * DAY)
    assert (new.name, new.names, new.pem.split(b"BEGIN PRIVATE")[1]) == (
        old.name,
        old.names,
        old.pem.split(b"BEGIN PRIVATE")[1],
    )
    assert new.certificate.serial_number != old.certificate.serial_number
    assert new.certificate.not_valid_after_utc == NOW + 89 * DAY
    fresh = authority.renew(old, new_key=True, now=NOW)
    assert fresh.names == old.names
    assert isinstance(fresh.key, rsa.RSAPrivateKey)
    assert fresh.key.public_key() != old.key.public_key()


def test_what_others_issued_is_not_renewed() -> None:
    """A chain of another CA of the same name is refused, and so is one without names."""
    authority = CA.make()
    with pytest.raises(UsageError) as raised:
        authority.renew(CA.make().issue("worker"))
    assert str(raised.value) == "'worker' was not issued by this CA (issue it again)"
    chain = authority.issue("worker")
    bare = (
        x509.CertificateBuilder()
        .subject_name(chain.certificate.subject)
        .issuer_name(chain.certificate.issuer)
        .public_key(chain.key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + DAY)
        .sign(authority.key, hashes.SHA256())
    )
    with pytest.raises(UsageError) as raised:
        authority.renew(Chain(bare, authority.certificates, chain.key))
    assert str(raised.value) == "'worker' has no host names (issue it again)"


def test_a_renewed_ca_stays_the_same(tmp_path: Path) -> None:
    """Certificates of the old CA and of the renewed one accept each other."""
    authority, _, old = saved(tmp_path / "pki", "old")
    renewed = authority.renewed(days=4000)
    assert renewed.save_certificate(tmp_path / "pki") == tmp_path / "pki" / "ca.pem"
    loaded = CA.load(tmp_path / "pki")
    assert loaded.certificates == renewed.certificates != authority.certificates
    assert loaded.certificates[0].serial_number != authority.certificates[0].serial_number
    new = loaded.issue("new", days=3900).save(tmp_path / "new.pem")
    handshake(client_context(old), server_context(new), "new")
    handshake(client_context(new), server_context(old), "old")


def test_an_expired_ca_can_be_renewed() -> None:
    """The remedy that the error names works after the end too."""
    authority = CA.make(days=1, now=NOW - 10 * DAY)
    assert authority.renewed(now=NOW).issue("worker", now=NOW).name == "worker"


def test_a_ca_below_another(tmp_path: Path) -> None:
    """A CA that another one signed issues chains with both; it is renewed there."""
    root = CA.make("root")
    key = make_key("ec")
    middle = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "middle")]))
        .issuer_name(root.certificates[0].subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(root.certificates[0].not_valid_before_utc)
        .not_valid_after(root.certificates[0].not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(root.key, hashes.SHA256())
    )
    CA((middle, *root.certificates), key).save(tmp_path)
    authority = CA.load(tmp_path)
    chain = authority.issue("worker")
    assert chain.authorities == (middle, *root.certificates)
    assert inspect(chain.save(tmp_path / "worker.pem")).problems == ()
    with pytest.raises(UsageError) as raised:
        authority.renewed()
    assert str(raised.value) == "the CA 'middle' was issued by 'root' (have it renewed there)"


def test_a_ca_made_elsewhere_keeps_its_identifier(tmp_path: Path) -> None:
    """A CA whose key has an identifier of its own keeps it when it is renewed, since what it issued names that."""
    key = make_key("ec")
    identifier = x509.SubjectKeyIdentifier(b"one of its own")
    own = (
        self_issued("elsewhere", key, days=30)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "ca.pem").write_bytes(own.public_bytes(Encoding.PEM))
    (tmp_path / "ca.key").write_bytes(write_key(key))
    authority = CA.load(tmp_path)
    issued = authority.issue("worker", days=10, now=NOW).certificate
    above = issued.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert above.key_identifier == identifier.digest
    renewed = authority.renewed(now=NOW).certificates[0]
    assert renewed.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value == identifier
