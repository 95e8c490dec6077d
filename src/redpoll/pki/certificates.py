"""X.509 certificates, created from names, keys and times, without files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from redpoll.errors import ConfigError, UsageError
from redpoll.pki.keys import PrivateKey

__all__ = [
    "DAYS_LIMIT",
    "SKEW",
    "Validity",
    "authority_certificate",
    "is_authority",
    "is_issued_by",
    "node_certificate",
    "own_name",
    "read_certificates",
    "timed",
]

#: Time before its creation from which a certificate is valid, for peers with a slow clock.
SKEW = timedelta(hours=1)

# Errors of cryptography for certificates that it does not accept.
_UNREADABLE = (
    TypeError,
    ValueError,
    UnsupportedAlgorithm,
    InternalError,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)

#: Maximum validity in days, a hundred years.
DAYS_LIMIT = 36_500


@dataclass(frozen=True, slots=True)
class Validity:
    """Start and end of the validity of a certificate, in UTC."""

    begin: datetime
    end: datetime


def timed(days: int, now: datetime | None) -> Validity:
    """Return the validity of a certificate created now: from an hour ago for `days`.

    Raises:
        ConfigError: The number of days is not from 1 to 36,500, or the time has no zone.
    """
    if type(days) is not int or not 1 <= days <= DAYS_LIMIT:
        raise ConfigError("days", days, f"must be an int from 1 to {DAYS_LIMIT}")
    if now is not None and now.tzinfo is None:
        raise ConfigError("now", now, "has no time zone", "add one, for example datetime.UTC")
    moment = (now or datetime.now(UTC)).astimezone(UTC).replace(microsecond=0)
    return Validity(moment - SKEW, moment + timedelta(days=days))


def authority_certificate(
    subject: x509.Name, key: PrivateKey, validity: Validity, *, like: x509.Certificate | None = None
) -> x509.Certificate:
    """Create the self-signed certificate of a CA that may sign those of nodes, and no further CA.

    Args:
        subject: Its name.
        key: Its key.
        validity: Its dates.
        like: The certificate that it replaces, whose key identifier the issued certificates refer to.
    """
    own = _new_identifier(key.public_key()) if like is None else _identifier(like)
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    return (
        _builder(subject, key, validity, own)
        .issuer_name(subject)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False)
        .add_extension(constraints, critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def node_certificate(
    subject: x509.Name,
    names: x509.SubjectAlternativeName,
    key: PrivateKey,
    validity: Validity,
    issuer: x509.Certificate,
    issuer_key: PrivateKey,
) -> x509.Certificate:
    """Create the certificate of a node, for clients and servers."""
    # With an RSA key, a TLS 1.2 client may encrypt the secret instead of having it signed (RFC 5246, 7.4.2).
    usage = _usage(digital_signature=True, key_encipherment=isinstance(key, rsa.RSAPrivateKey))
    roles = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    # By key and not by certificate, so that the CA's can be renewed (RFC 5280, 4.2.1.1).
    above = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(_identifier(issuer))
    return (
        _builder(subject, key, validity, _new_identifier(key.public_key()))
        .issuer_name(issuer.subject)
        .add_extension(above, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(roles, critical=False)
        .add_extension(names, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def read_certificates(pem: bytes, where: object) -> tuple[x509.Certificate, ...]:
    """Return the certificates in PEM text, one or more, in order.

    Args:
        pem: The text; anything besides certificates is skipped.
        where: Its file, for errors.

    Raises:
        UsageError: There is none, or one cannot be read.
    """
    if b"-----BEGIN CERTIFICATE-----" not in pem:
        raise UsageError(f"there is no certificate in {where}", "give a file in PEM, with BEGIN CERTIFICATE in it")
    try:
        found = tuple(x509.load_pem_x509_certificates(pem))
        for each in found:
            # These are parsed only when read, each by itself.
            _ = each.extensions, each.public_key(), each.subject, each.issuer
    except _UNREADABLE as error:
        raise UsageError(f"a certificate in {where} cannot be read", "restore the file, or make it again") from error
    return found


def is_authority(certificate: x509.Certificate) -> bool:
    """Return True if a certificate may sign others."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Return True if a certificate names the issuer and is signed with its key."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def own_name(name: x509.Name) -> str:
    """Return the common name of a subject, or all of it if there is none."""
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else name.rfc4514_string()


def _builder(
    subject: x509.Name, key: PrivateKey, validity: Validity, identifier: x509.SubjectKeyIdentifier
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity.begin)
        .not_valid_after(validity.end)
        .add_extension(identifier, critical=False)
    )


def _identifier(certificate: x509.Certificate) -> x509.SubjectKeyIdentifier:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return _new_identifier(certificate.public_key())


def _new_identifier(key: CertificatePublicKeyTypes) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key)


def _usage(
    *,
    digital_signature: bool = False,
    key_encipherment: bool = False,
    key_cert_sign: bool = False,
    crl_sign: bool = False,
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=key_encipherment,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )
