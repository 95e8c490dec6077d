"""The certificate of the other end of a link, as shown to users."""

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
    """The certificate of a peer. Its signature, and that the peer has the private key, are verified before."""

    subject: str
    """Subject, for example ``CN=worker``."""
    name: str
    """Common name of the subject, for example ``worker``; empty if there is none. The CA vouches for it, and for
    `names`: the arguments of `redpoll pki issue`."""
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
    fingerprint: str
    """``sha256:`` and 64 hexadecimal digits, of the certificate, as printed by `redpoll pki show`. A renewed
    certificate has another."""
    public_key: str
    """The same of its public key (RFC 7469's, in hexadecimal): a renewed certificate has another only if it has a new
    key."""


def read_certificate(der: bytes) -> Certificate:
    """Read a certificate in DER, as TLS provides it.

    Raises:
        ValueError: It is not a certificate, or has fields that cannot be read.
    """
    # Imported late: nodes without encryption do not need it.
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
    """Return `Certificate.public_key` of a certificate."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return _digest(certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
