"""Explanations of OpenSSL's errors, with the remedy."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from types import MappingProxyType

from redpoll.address import Address
from redpoll.errors import TLSError

__all__ = ["explained", "not_encrypted", "not_pinned"]

_THERE = "at the other end"

#: By X509_V_ERR: the problem of the other end's certificate, and the remedy there.
_VERIFY: Mapping[int, tuple[str, str]] = MappingProxyType(
    {
        9: ("its certificate is not valid yet", f"set the clock {_THERE}, or here"),
        10: ("its certificate has expired", f"renew it {_THERE}: `redpoll pki renew`"),
        23: ("its certificate was revoked", f"issue another {_THERE}"),
        26: (
            "its certificate is not for this role",
            "issue it for clients and for servers, as `redpoll pki issue` does",
        ),
    }
)

#: X509_V_ERR of certificates that no trusted CA has signed.
_UNKNOWN = frozenset((2, 7, 18, 19, 20, 21, 24, 27, 30))
_WRONG_NAME = frozenset((62, 64))

#: By the name of the alert with which the other end rejects this one.
_ALERTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "UNKNOWN_CA": (
            "the other end does not trust the CA of this node's certificate",
            "issue the certificates of both by one CA, or add this CA to its file of those it trusts",
        ),
        "CERTIFICATE_REQUIRED": (
            "the other end requires a certificate, and this node has none",
            "set TLS(certificate=…)",
        ),
        "CERTIFICATE_EXPIRED": (
            "the other end reports that this node's certificate has expired",
            "renew it with `redpoll pki renew`, and reload it or restart",
        ),
        "CERTIFICATE_REVOKED": ("the other end reports that this node's certificate was revoked", "issue another one"),
        "BAD_CERTIFICATE": (
            "the other end does not accept this node's certificate",
            "it may not be valid for the dialled name, or not be pinned: see the log there",
        ),
        "CERTIFICATE_UNKNOWN": (
            "the other end does not accept this node's certificate",
            "see the log there",
        ),
        "UNSUPPORTED_CERTIFICATE": (
            "the other end does not accept a certificate of this kind",
            "issue it for clients and for servers, as `redpoll pki issue` does",
        ),
        "DECRYPT_ERROR": (
            "the other end reports that this node's certificate was not signed by a CA it trusts",
            "issue the certificates of both by one CA",
        ),
        "HANDSHAKE_FAILURE": (
            "the other end found no common version, cipher or certificate",
            "a peer limited to TLS 1.2 may need RSA keys and dh_params; or an end lacks a required certificate",
        ),
        "PROTOCOL_VERSION": ("the other end does not support TLS 1.2 or newer", "update it"),
        "UNEXPECTED_MESSAGE": (
            "the other end does not recognize TLS",
            "set the same encryption on both ends",
        ),
    }
)

#: By OpenSSL's reason.
_REASONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
            "the peer has no certificate",
            'issue one for it, or set client_certificate="optional"',
        ),
        "NO_SHARED_CIPHER": (
            "no common cipher",
            "a peer limited to TLS 1.2 may need RSA keys and dh_params",
        ),
        "UNSUPPORTED_PROTOCOL": ("the peer does not support TLS 1.2 or newer", "update it"),
        "WRONG_VERSION_NUMBER": ("the peer sends data that is not TLS", "set the same encryption on both ends"),
        "HTTP_REQUEST": ("the peer speaks HTTP", "dial another port"),
    }
)

_ALERT = re.compile(r"ALERT_([A-Z_]+)$")


def explained(error: ssl.SSLError, address: Address | None, *, name: str | None, trusted: str) -> TLSError:
    """Return the TLSError that explains an error of OpenSSL, with that as its cause.

    Args:
        error: The error.
        address: Address of the other end.
        name: Name that was dialled, if it is checked.
        trusted: Description of the CAs trusted here.
    """
    detail, hint = _words(error, name, trusted)
    failure = TLSError(detail, address, hint)
    failure.__cause__ = error
    return failure


def _words(error: ssl.SSLError, name: str | None, trusted: str) -> tuple[str, str | None]:
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code in _WRONG_NAME:
            return f"its certificate is not valid for {name}", "issue it with that name, or dial one of its names"
        if code in _UNKNOWN:
            hint = f"issue its certificate by that CA, or add its CA to {trusted}"
            return f"its certificate is not signed by a CA in {trusted}", hint
        return _VERIFY.get(code) or (f"its certificate is refused: {error.verify_message}", None)
    reason = error.reason or ""
    alert = _ALERT.search(reason)
    if alert is not None:
        words = f"the other end reports {alert[1].lower().replace('_', ' ')}"
        return _ALERTS.get(alert[1]) or (words, None)
    return _REASONS.get(reason) or (reason.lower().replace("_", " ") or str(error), None)


def not_encrypted(address: Address | None) -> TLSError:
    """Return the error for plaintext from the other end where TLS was expected."""
    hint = (
        'encryption="auto" encrypts all links except to 127.0.0.1 and ::1: set the same on both ends, and tls= on both'
    )
    return TLSError("the peer sends plaintext, and this node expects TLS", address, hint)


def not_pinned(address: Address | None, pin: str | None) -> TLSError:
    """Return the error for an other end that is not among the pins.

    Args:
        address: Address of the other end.
        pin: Its pin; None if it has no certificate.
    """
    if pin is None:
        return TLSError(
            "the peer has no certificate, and certificates are pinned", address, "issue one for it and pin it"
        )
    return TLSError(f"{pin} is not one of the pins", address, "add it to TLS.pins if it is the intended peer")
