"""The two SSLContexts of a node, made from files: for incoming links, and for dialled ones."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from redpoll.errors import ConfigError, UsageError
from redpoll.tls.certificate import public_key
from redpoll.tls.record import SYSTEM, TLS

if TYPE_CHECKING:
    from cryptography import x509

__all__ = ["Contexts", "make_contexts"]

#: Ciphers for TLS 1.2, with forward secrecy: libchirp's (DHE-RSA with AES-256) and the preferred ones of others.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:DHE+CHACHA20:DHE-RSA-AES256-SHA256:!aNULL:!eNULL:!DSS"

#: Verify mode by `TLS.client_certificate`.
_WANTED = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}

_ISSUE = "`redpoll pki issue` makes one"
_AUTHORITY = "`redpoll pki init` makes one"
_RENEW = "`redpoll pki renew` makes a new one"


@dataclass(frozen=True, slots=True)
class Contexts:
    """The two contexts of a node.

    Attributes:
        server: Context for incoming links; None if the node has no certificate.
        client: Context for dialled links.
        trusted: Description of the trusted CAs, for errors.
        admitting: Description of the CAs trusted on incoming links.
        pins: As in `TLS.pins`.
        own_key: Public key of the node's own certificate, as in `Certificate.public_key`; None if it has none, or the
            contexts were made elsewhere.
    """

    server: ssl.SSLContext | None
    client: ssl.SSLContext
    trusted: str
    admitting: str
    pins: tuple[str, ...] = ()
    own_key: str | None = None


def make_contexts(tls: TLS | tuple[ssl.SSLContext, ssl.SSLContext], *, now: datetime | None = None) -> Contexts:
    """Read the files of a `TLS` record and make its contexts; it blocks for some milliseconds.

    Args:
        tls: The record, or contexts made elsewhere: for incoming links, and for dialled ones.
        now: The time to check certificates against; None for the clock's.

    Raises:
        ConfigError: A file cannot be read, has other content, has expired, or does not match another one.
    """
    if isinstance(tls, tuple):
        return Contexts(*tls, "the context", "the context")
    moment = now or datetime.now(UTC)
    own_key = _check_own(tls, tls.certificate, moment) if tls.certificate is not None else None
    authorities = _authorities(tls, moment)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Set first: a context that checks names requires certificates.
    client.check_hostname = tls.effective_check_names
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls.certificate is not None else None
    trusted = admitting = "the system's trust store" if tls.ca == SYSTEM else str(tls.ca or tls.certificate)
    _set_up(client, tls, authorities)
    if server is not None:
        if tls.ca == SYSTEM and not tls.pins_certificates:
            # Otherwise anyone with a web site could send here: an incoming link has no name to check.
            authorities, admitting = _own_authorities(tls), str(tls.certificate)
        _set_up(server, tls, authorities)
        server.verify_mode = _WANTED[tls.client_certificate]
        # Sessions are never resumed: libchirp cannot, and links are long-lived.
        server.num_tickets = 0
        if tls.dh_params is not None:
            _load_dh(server, tls.dh_params)
    return Contexts(server, client, trusted, admitting, tls.pins, own_key)


def _set_up(context: ssl.SSLContext, tls: TLS, authorities: str | None) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(_CIPHERS)
    if authorities is None:
        context.load_default_certs()
    elif authorities:
        try:
            context.load_verify_locations(cadata=authorities)
        except ssl.SSLError as error:
            # OpenSSL is stricter than what read the file.
            field, path = _trusting(tls)
            raise ConfigError(field, path, f"a CA certificate in it cannot be used: {error}", _AUTHORITY) from error
    if tls.certificate is not None:
        try:
            context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
        except (ssl.SSLError, OSError) as error:
            # More specific errors were raised before.
            raise ConfigError("certificate", _path(tls.certificate), f"cannot be used: {error}", _ISSUE) from error


def _no_password() -> str:
    # Without it, OpenSSL would prompt at the terminal.
    return ""


def _path(path: str | os.PathLike[str]) -> str:
    return os.fspath(path)


def _read(field: str, path: str | os.PathLike[str], hint: str) -> bytes:
    from redpoll.pki.files import read_file

    try:
        return read_file(Path(path), hint)
    except UsageError as error:
        raise ConfigError(field, _path(path), error.text, error.hint) from error
    except OSError as error:
        raise ConfigError(field, _path(path), f"cannot be read: {error.strerror or error}", hint) from error


def _certificates(field: str, path: str | os.PathLike[str], hint: str) -> tuple[x509.Certificate, ...]:
    from redpoll.pki.certificates import read_certificates

    pem = _read(field, path, hint)
    try:
        return read_certificates(pem, _path(path))
    except UsageError as error:
        raise ConfigError(field, _path(path), error.text, error.hint) from error


def _check_own(tls: TLS, path: str | os.PathLike[str], now: datetime) -> str:
    """Check the node's own certificate and its key; return its public key."""
    from redpoll.pki.keys import read_key

    own = _certificates("certificate", path, _ISSUE)[0]
    field, where = ("certificate", path) if tls.key is None else ("key", tls.key)
    pem = _read(field, where, "restore the file")
    try:
        key = read_key(pem, _path(where))
    except UsageError as error:
        raise ConfigError(field, _path(where), error.text, error.hint) from error
    if key is None:
        hint = "append it to the file, or set key="
        raise ConfigError(field, _path(where), "it contains no private key", hint)
    if key.public_key() != own.public_key():
        hint = "put the node's certificate first in its file"
        raise ConfigError(field, _path(where), f"the private key does not match the first certificate in {path}", hint)
    for problem in _dates(own, now):
        raise ConfigError("certificate", _path(path), f"the certificate of the node {problem}", _RENEW)
    return public_key(own)


def _dates(certificate: x509.Certificate, now: datetime) -> Iterator[str]:
    if now > certificate.not_valid_after_utc:
        yield f"expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        yield f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d}"


def _authorities(tls: TLS, now: datetime) -> str | None:
    """Return the trusted CAs in PEM; None for the system's."""
    from redpoll.pki.certificates import is_authority

    if tls.ca == SYSTEM:
        return None
    field, path = _trusting(tls)
    if path is None:
        raise ConfigError("ca", None, "no CA is trusted")
    found = [each for each in _certificates(field, path, _AUTHORITY) if is_authority(each)]
    if not found:
        hint = "set ca= to the file of the CA's certificate"
        raise ConfigError(field, path, "it contains no CA certificate", hint)
    problems = [problem for each in found for problem in _dates(each, now)]
    if len(problems) >= len(found):
        hint = "renew the CA: `redpoll pki renew ca`"
        raise ConfigError(field, path, f"the certificate of the CA in it {problems[0]}", hint)
    return _in_pem(found)


def _trusting(tls: TLS) -> tuple[str, str | None]:
    """Return the field that names the file of the trusted CAs, and its path; None if there is none."""
    field, path = ("ca", tls.ca) if tls.ca not in {None, SYSTEM} else ("certificate", tls.certificate)
    return field, None if path is None else _path(path)


def _own_authorities(tls: TLS) -> str:
    """Return the CAs in the file of the certificate, in PEM; empty if there are none."""
    from redpoll.pki.certificates import is_authority

    found = _certificates("certificate", tls.certificate, _ISSUE) if tls.certificate is not None else ()
    return _in_pem(each for each in found if is_authority(each))


def _in_pem(certificates: Iterable[x509.Certificate]) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return "".join(each.public_bytes(Encoding.PEM).decode("ascii") for each in certificates)


def _load_dh(context: ssl.SSLContext, path: str | os.PathLike[str]) -> None:
    try:
        context.load_dh_params(_path(path))
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            "dh_params", _path(path), "is not a readable file of Diffie-Hellman parameters", _AUTHORITY
        ) from error
