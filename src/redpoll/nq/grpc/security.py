"""gRPC's credentials, from files."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Any

from redpoll.address import Address
from redpoll.errors import ConfigError, DialFailed, TLSError
from redpoll.nq.grpc.library import load
from redpoll.tls.contexts import make_contexts
from redpoll.tls.record import SYSTEM, TLS

__all__ = ["BOTH_ENDS", "NOT_CONNECTED", "client_credentials", "failure", "server_credentials", "system_roots"]

BOTH_ENDS = "set the same encryption on both ends"

#: Text of gRPC, among others, if nothing listens there.
NOT_CONNECTED = "Failed to connect to remote host"

#: Texts of gRPC for errors that a new attempt would repeat: the ends do not agree on TLS, or a certificate is not
#: trusted.
_FINAL = {
    "certificate has expired": ("its certificate has expired", "renew it at the other end"),
    "certificate is not yet valid": ("its certificate is not valid yet", "set the clock at the other end, or here"),
    "CERTIFICATE_VERIFY_FAILED": (
        "its certificate is signed by no CA that is trusted here",
        "give the certificate of its CA",
    ),
    "Hostname Verification Check failed": (
        "its certificate is not for the name that was dialled",
        "dial it by a name or an IP address that its certificate has",
    ),
    "WRONG_VERSION_NUMBER": ("it speaks no TLS", BOTH_ENDS),
    "HTTP/1.x": ("it speaks no TLS", BOTH_ENDS),
}

#: Text of the system's error, which follows gRPC's own.
_LAST = re.compile(rf"last error: \w+: ipv[46]:\S+: (?:{NOT_CONNECTED}: )?(.*)", re.DOTALL)

#: The name by which OpenSSL finds a CA in a folder.
_HASHED = re.compile(r"[0-9a-f]{8}\.\d+")


def server_credentials(key: Path | None, certificate: Path | None) -> Any:
    """Read the key and the certificate (with its chain) of a server, PEM.

    Raises:
        ConfigError: One is missing, cannot be read, has expired, or does not fit the other.
    """
    if key is None or certificate is None:
        missing = "key" if key is None else "certificate"
        raise ConfigError(missing, None, "a server that encrypts needs a key and its certificate")
    try:
        # The same checks as for links that the node encrypts. A server does not dial, so its CAs do not matter.
        make_contexts(TLS(ca=SYSTEM, certificate=certificate, key=key, client_certificate="none"))
        pair = key.read_bytes(), certificate.read_bytes()
    except OSError as error:
        raise ConfigError("certificate", str(certificate), f"cannot be used with {key}: {error}") from error
    return load().ssl_server_credentials([pair])


def client_credentials(certificate: Path | None) -> Any:
    """Read the certificates of the CAs that a client trusts, PEM; None trusts those of the system.

    Raises:
        ConfigError: They cannot be read.
    """
    if certificate is None:
        return load().ssl_channel_credentials(system_roots())
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
        roots = certificate.read_bytes()
    except OSError as error:
        raise ConfigError("certificate", str(certificate), f"cannot be used: {error}") from error
    return load().ssl_channel_credentials(roots)


def system_roots() -> bytes | None:
    """Return the certificates that this system trusts, PEM; None if it has none: gRPC then uses its own list.

    These are the ones that Python's `ssl` uses, SSL_CERT_FILE and SSL_CERT_DIR included.
    """
    paths = ssl.get_default_verify_paths()
    files = [Path(paths.cafile)] if paths.cafile else []
    if paths.capath:
        files += sorted(each for each in Path(paths.capath).iterdir() if _HASHED.fullmatch(each.name))
    return b"\n".join(each.read_bytes() for each in files) or None


def failure(address: Address, detail: str) -> DialFailed | TLSError:
    """Make the error of a failed dial from gRPC's text."""
    for word, (problem, hint) in _FINAL.items():
        if word in detail:
            return TLSError(problem, address, hint)
    found = _LAST.search(detail)
    return DialFailed(address, found[1] if found is not None else detail or "it ended the stream")
