"""What is said of the certificate that the other end of a link showed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

__all__ = ["Certificate", "public_key", "read_certificate"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate of a peer. Its signature, and that the peer has the private key, were checked before."""

    subject: str
    """Whose it is, for example ``CN=worker``."""
    name: str
    """The common name in the subject, for example ``worker``; empty if there is none. The CA answers for it, and for
    `names`: what `redpoll pki issue` is told."""
    names: tuple[str, ...]
    """The DNS names and IP addresses that it is valid for."""
    issuer: str
    """Who signed it."""
    serial: str
    """Its serial number, in hexadecimal digits."""
    begin: datetime
    """From when it is valid, in UTC."""
    end: datetime
    """Until when it is valid, in UTC."""
    fingerprint: str
    """``sha256:`` and 64 hexadecimal digits, of the certificate, as `redpoll pki show` prints it. A renewed one has
    another."""
    public_key: str
    """The same of its public key (RFC 7469's, in hexadecimal digits): a renewed certificate has another only if it was given
    a new key."""


def read_certificate(der: bytes) -> Certificate:
    """Read a certificate as TLS hands it over.

    Raises:
        ValueError: It is none, or one with fields that nobody can read.
    """
    # Whoever encrypts nothing does without.
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.x509.oid import NameOID

    from redpoll.pki.names import shown_names

    found = x509.load_der_x509_certificate(der)
    common = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    try:
        key = public_key(found)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    return Certificate(
        subject=found.subject.rfc4514_string(),
        name=str(common[0].value) if common else "",
        names=shown_names(found),
        issuer=found.issuer.rfc4514_string(),
        serial=f"{found.serial_number:x}",
        begin=found.not_valid_before_utc,
        end=found.not_valid_after_utc,
        fingerprint=_digest(der),
        public_key=key,
    )


def public_key(certificate: x509.Certificate) -> str:
    """Return what stands for a certificate's public key in `Certificate.public_key`."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return _digest(certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
