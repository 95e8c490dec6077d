"""Inspection of files of certificates."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from redpoll.errors import UsageError
from redpoll.pki import CA, fingerprint, inspect
from redpoll.pki.certificates import SKEW
from redpoll.pki.keys import make_key, write_key
from tests.pki.support import NOW, self_issued

DAY = timedelta(days=1)
AUTHORITY = CA.make(now=NOW, days=1000)
CHAIN = AUTHORITY.issue("worker", ["worker.example.org", "10.0.0.7"], now=NOW, days=10)
OWN, ABOVE = (each.public_bytes(Encoding.PEM) for each in (CHAIN.certificate, AUTHORITY.certificates[0]))
KEY = write_key(CHAIN.key)
FOREIGN = CA.make(now=NOW, days=1000)


def test_a_good_chain(tmp_path: Path) -> None:
    """Every field is that of the node's certificate, and there is no problem."""
    path = CHAIN.save(tmp_path / "worker.pem")
    report = inspect(path, now=NOW)
    assert report.file == path
    assert (report.subject, report.issuer) == ("CN=worker", "CN=redpoll CA")
    assert report.names == ("worker.example.org", "10.0.0.7")
    assert report.serial == f"{CHAIN.certificate.serial_number:x}"
    assert (report.begin, report.end, report.days_left) == (NOW - SKEW, NOW + 10 * DAY, 10)
    assert (report.key, report.key_matches, report.is_ca) == ("EC P-256", True, False)
    assert (report.chain_verifies, report.problems) == (True, ())
    assert report.fingerprint == fingerprint(CHAIN.certificate)


def test_the_fingerprint() -> None:
    """It is the SHA-256 of the certificate in DER, as lower case digits behind the name of the hash."""
    der = CHAIN.certificate.public_bytes(Encoding.DER)
    assert fingerprint(CHAIN.certificate) == f"sha256:{hashlib.sha256(der).hexdigest()}"


def test_a_ca(tmp_path: Path) -> None:
    """A CA is judged with the key in its own file, or without one."""
    path = AUTHORITY.save(tmp_path)
    report = inspect(path, now=NOW)
    assert (report.is_ca, report.key_matches, report.names, report.problems) == (True, None, (), ())
    assert inspect(path, key=tmp_path / "ca.key", now=NOW).key_matches is True
    (tmp_path / "ca.key").write_bytes(KEY)
    assert inspect(path, key=tmp_path / "ca.key", now=NOW).problems == ("the private key does not match",)


@pytest.mark.parametrize(
    ("pem", "after", "problems", "verifies"),
    [
        (OWN + ABOVE + KEY, 11, ("CN=worker expired on 2026-03-11",), False),
        (
            OWN + ABOVE + KEY,
            1001,
            ("CN=worker expired on 2026-03-11", "CN=redpoll CA expired on 2028-11-25"),
            False,
        ),
        (
            OWN + ABOVE + KEY,
            -1,
            ("CN=worker is not valid before 2026-03-01", "CN=redpoll CA is not valid before 2026-03-01"),
            False,
        ),
        (OWN + KEY, 0, ("the certificate of its issuer CN=redpoll CA is not in the file",), False),
        (ABOVE + OWN + KEY, 0, ("the certificate of the private key is not the first in the file",), True),
        (OWN + ABOVE + write_key(FOREIGN.key), 0, ("the private key does not match",), True),
        (
            OWN + FOREIGN.certificates[0].public_bytes(Encoding.PEM) + KEY,
            0,
            ("the CN=redpoll CA in the file has not signed CN=worker",),
            False,
        ),
        (OWN + FOREIGN.certificates[0].public_bytes(Encoding.PEM) + ABOVE + KEY, 0, (), True),
        (OWN + OWN + KEY, 0, ("the certificate of its issuer CN=redpoll CA is not in the file",), False),
    ],
)
def test_problems(tmp_path: Path, pem: bytes, after: int, problems: tuple[str, ...], verifies: bool) -> None:
    """Each reason why a file cannot be used is reported, all of them at once."""
    path = tmp_path / "worker.pem"
    path.write_bytes(pem)
    report = inspect(path, now=NOW + after * DAY)
    assert (report.problems, report.chain_verifies) == (problems, verifies)


def test_the_last_day() -> None:
    """Days are whole ones: none on the last day, and fewer after it."""
    end = CHAIN.certificate.not_valid_after_utc
    assert [(end - moment).days for moment in (end, end + timedelta(seconds=1))] == [0, -1]


def test_roles_and_signatures(tmp_path: Path) -> None:
    """A certificate for servers alone, and one that is wrongly self-signed, are reported."""
    key = make_key("ec")
    certificate = (
        self_issued("odd", key, days=1)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(make_key("ec"), hashes.SHA256())
    )
    path = tmp_path / "odd.pem"
    path.write_bytes(certificate.public_bytes(Encoding.PEM) + write_key(key))
    report = inspect(path, now=NOW)
    assert report.problems == (
        "its extended key usage does not allow the role of client",
        "the signature of CN=odd is wrong",
    )
    assert (report.names, report.key_matches) == ((), True)


def test_files_that_hold_nothing(tmp_path: Path) -> None:
    """A file that is not there, or holds no certificate, is an error."""
    with pytest.raises(UsageError, match=r"No such file or directory \(give the file of a certificate\)"):
        inspect(tmp_path / "none.pem")
    (tmp_path / "words.pem").write_bytes(b"words")
    with pytest.raises(UsageError, match="there is no certificate in"):
        inspect(tmp_path / "words.pem")
