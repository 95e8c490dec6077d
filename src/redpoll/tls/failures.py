"""What OpenSSL says, in words that name the remedy."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from types import MappingProxyType

from redpoll.address import Address
from redpoll.errors import TLSError

__all__ = ["explained", "not_encrypted", "not_pinned"]

_THERE = "at the other end"

#: By X509_V_ERR: what is wrong with the other end's certificate, and what to do there.
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

#: X509_V_ERR of a certificate that no trusted CA has signed.
_UNKNOWN = frozenset((2, 7, 18, 19, 20, 21, 24, 27, 30))
_WRONG_NAME = frozenset((62, 64))

#: By the name of the alert that the other end sent, which rejects what this end has.
_ALERTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "UNKNOWN_CA": (
            "the other end does not trust the CA of this node's certificate",
            "issue the certificates of both by one CA, or add this CA to its file of those it trusts",
        ),
        "CERTIFICATE_REQUIRED": (
            "the other end wants a certificate, and this node has none",
            "give TLS(certificate=…)",
        ),
        "CERTIFICATE_EXPIRED": (
            "the other end says that this node's certificate has expired",
            "renew it with `redpoll pki renew`, and reload it or start again",
        ),
        "CERTIFICATE_REVOKED": ("the other end says that this node's certificate was revoked", "issue another one"),
        "BAD_CERTIFICATE": (
            "the other end does not accept this node's certificate",
            "it may not be valid for the name that was dialled, or not pinned: see what is logged there",
        ),
        "CERTIFICATE_UNKNOWN": (
            "the other end does not accept this node's certificate",
            "see what is logged there",
        ),
        "UNSUPPORTED_CERTIFICATE": (
            "the other end does not accept a certificate of this kind",
            "issue it for clients and for servers, as `redpoll pki issue` does",
        ),
        "DECRYPT_ERROR": (
            "the other end finds that this node's certificate was not signed by the CA it trusts",
            "issue the certificates of both by one CA",
        ),
        "HANDSHAKE_FAILURE": (
            "the other end finds no version, cipher or certificate that both have",
            "a peer that ends at TLS 1.2 may need RSA keys and dh_params; one may want a certificate that the other has not",
        ),
        "PROTOCOL_VERSION": ("the other end has no version of TLS from 1.2", "update it"),
        "UNEXPECTED_MESSAGE": (
            "the other end takes what this node sends for no TLS",
            "say the same of encryption on both ends",
        ),
    }
)

#: By OpenSSL's reason.
_REASONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
            "it has no certificate",
            'issue one for it, or say client_certificate="optional"',
        ),
        "NO_SHARED_CIPHER": (
            "there is no cipher that both have",
            "a peer that ends at TLS 1.2 may need RSA keys and dh_params",
        ),
        "UNSUPPORTED_PROTOCOL": ("it has no version of TLS from 1.2", "update it"),
        "WRONG_VERSION_NUMBER": ("it sends what is no TLS", "say the same of encryption on both ends"),
        "HTTP_REQUEST": ("it speaks HTTP", "dial another port"),
    }
)

_ALERT = re.compile(r"ALERT_([A-Z_]+)$")


def explained(error: ssl.SSLError, address: Address | None, *, name: str | None, trusted: str) -> TLSError:
    """Say what an error of OpenSSL means, with the error as its cause.

    Args:
        error: What was raised.
        address: The other end.
        name: By which it was dialled, where that is checked.
        trusted: What stands for the CAs that are trusted here.
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
        words = f"the other end says {alert[1].lower().replace('_', ' ')}"
        return _ALERTS.get(alert[1]) or (words, None)
    return _REASONS.get(reason) or (reason.lower().replace("_", " ") or str(error), None)


def not_encrypted(address: Address | None) -> TLSError:
    """The error for an other end that sends plaintext where TLS was expected."""
    hint = 'encryption="auto" encrypts all but 127.0.0.1 and ::1: say the same on both ends, and give both tls='
    return TLSError("it sends plaintext where this node expects TLS", address, hint)


def not_pinned(address: Address | None, pin: str | None) -> TLSError:
    """The error for an other end that may be anybody, but not who it is.

    Args:
        address: The other end.
        pin: What it has, as a pin is written; None if it has no certificate.
    """
    if pin is None:
        return TLSError("it has no certificate, and certificates are pinned", address, "issue one for it and pin it")
    return TLSError(f"{pin} is not one of the pins", address, "add it to TLS.pins if it is meant")
