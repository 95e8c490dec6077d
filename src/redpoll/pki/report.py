"""Inspection of a file of certificates."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID

from redpoll.pki.certificates import is_authority, is_issued_by, read_certificates
from redpoll.pki.files import read_file
from redpoll.pki.keys import PrivateKey, described, read_key
from redpoll.pki.names import shown_names

__all__ = ["Report", "fingerprint", "inspect"]

_ROLES = {"server": ExtendedKeyUsageOID.SERVER_AUTH, "client": ExtendedKeyUsageOID.CLIENT_AUTH}


@dataclass(frozen=True, slots=True)
class Report:
    """Result of `inspect`; all but the last two fields are about the first certificate in the file."""

    file: Path
    """The file."""
    subject: str
    """Subject, for example ``CN=worker``."""
    names: tuple[str, ...]
    """DNS names and IP addresses that it is valid for."""
    issuer: str
    """Issuer."""
    serial: str
    """Serial number, in hexadecimal."""
    begin: datetime
    """Start of its validity, in UTC."""
    end: datetime
    """End of its validity, in UTC."""
    days_left: int
    """Whole days until then; negative if it has expired."""
    key: str
    """Kind of its key, for example ``EC P-256``."""
    key_matches: bool | None
    """Whether the private key belongs to it; None if there is none in the file."""
    fingerprint: str
    """Fingerprint of the certificate, see `fingerprint`."""
    is_ca: bool
    """Whether it may sign others."""
    chain_verifies: bool
    """Whether each certificate is signed by the next, up to a self-signed one, and all are valid now."""
    problems: tuple[str, ...]
    """Why it cannot be used; empty if it can."""


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the fingerprint of a certificate: ``sha256:`` and 64 hexadecimal digits, lower case.

    It is the SHA-256 of the certificate in DER, so a renewed certificate has another.
    """
    return f"sha256:{certificate.fingerprint(hashes.SHA256()).hex()}"


def inspect(
    path: str | os.PathLike[str], *, key: str | os.PathLike[str] | None = None, now: datetime | None = None
) -> Report:
    """Read a file of certificates and check it, as the chain of a node unless it begins with that of a CA.

    Args:
        path: The file, in PEM.
        key: File of the private key; None for the same file, which need not contain one.
        now: The time to check the dates against, with a time zone; None for the clock's.

    Raises:
        UsageError: A file does not exist, or cannot be read.
        OSError: The system does not allow it.
    """
    moment = datetime.now(UTC) if now is None else now
    pem = read_file(Path(path), "give the file of a certificate")
    found = read_certificates(pem, path)
    private = read_key(pem, path) if key is None else read_key(read_file(Path(key), "restore the file"), key)
    first = found[0]
    chain = tuple(_chain_problems(found, moment))
    return Report(
        file=Path(path),
        subject=first.subject.rfc4514_string(),
        names=shown_names(first),
        issuer=first.issuer.rfc4514_string(),
        serial=f"{first.serial_number:x}",
        begin=first.not_valid_before_utc,
        end=first.not_valid_after_utc,
        days_left=(first.not_valid_after_utc - moment).days,
        key=described(first.public_key()),
        key_matches=None if private is None else _matches(private, first),
        fingerprint=fingerprint(first),
        is_ca=is_authority(first),
        chain_verifies=not chain,
        problems=(*_key_problems(private, found), *_role_problems(first), *chain),
    )


def _matches(key: PrivateKey, certificate: x509.Certificate) -> bool:
    return key.public_key() == certificate.public_key()


def _key_problems(key: PrivateKey | None, found: Sequence[x509.Certificate]) -> Iterator[str]:
    if key is None or _matches(key, found[0]):
        return
    if any(_matches(key, other) for other in found[1:]):
        yield "the certificate of the private key is not the first in the file"
    else:
        yield "the private key does not match"


def _role_problems(certificate: x509.Certificate) -> Iterator[str]:
    if is_authority(certificate):
        return
    try:
        allowed = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    for role, oid in _ROLES.items():
        if oid not in allowed:
            yield f"its extended key usage does not allow the role of {role}"


def _chain_problems(found: Sequence[x509.Certificate], moment: datetime) -> Iterator[str]:
    current, others = found[0], list(found[1:])
    while True:
        yield from _date_problems(current, moment)
        if current.issuer == current.subject:
            if not is_issued_by(current, current):
                yield f"the signature of {current.subject.rfc4514_string()} is wrong"
            return
        issuer = current.issuer.rfc4514_string()
        named = [other for other in others if other.subject == current.issuer and is_authority(other)]
        if not named:
            yield f"the certificate of its issuer {issuer} is not in the file"
            return
        above = next((other for other in named if is_issued_by(current, other)), None)
        if above is None:
            yield f"the {issuer} in the file has not signed {current.subject.rfc4514_string()}"
            return
        others.remove(above)
        current = above


def _date_problems(certificate: x509.Certificate, moment: datetime) -> Iterator[str]:
    subject = certificate.subject.rfc4514_string()
    if moment > certificate.not_valid_after_utc:
        yield f"{subject} expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if moment < certificate.not_valid_before_utc:
        yield f"{subject} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d}"
