"""The TLS options of a node: one frozen record, checked when it is created. No file is read here."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Literal

from redpoll.errors import ConfigError

__all__ = ["SYSTEM", "TLS"]

#: Value of `TLS.ca` for the system's trust store.
SYSTEM = "system"

_PIN = re.compile(r"sha256:[0-9a-f]{64}|identity:[0-9a-f]{32}")
_CHOICES = ("required", "optional", "none")
_FILES = ("certificate", "key", "ca", "dh_params")


@dataclass(frozen=True, slots=True, kw_only=True)
class TLS:
    """Certificates of a node, and its requirements for others.

    ``TLS(certificate="pki/worker.pem")``, with a file from `redpoll pki issue`, is all that nodes of one CA need: both
    ends prove that the CA has signed them, as with libchirp. ``TLS(ca="system")`` is for a node that only dials, and
    checks the certificate and the name of the dialled node. Files are read when the node starts, and when they are
    reloaded.

    Raises:
        ConfigError: A field has an invalid value or type; the text names it.
    """

    certificate: str | os.PathLike[str] | None = None
    """File, in PEM, with the node's own certificate first, then those of its CAs. None (default): the node has no
    certificate, cannot listen where links are encrypted, and is accepted only where no certificate is required."""

    key: str | os.PathLike[str] | None = None
    """File, in PEM, of the private key, unencrypted. None (default): it is in the file of the certificate."""

    ca: str | os.PathLike[str] | None = None
    """File, in PEM, of the trusted CAs, or "system" for the system's trust store. The latter applies to dialled nodes
    only, unless certificates are pinned; for incoming links the CAs in the file of the certificate are trusted. None
    (default): those in the file of the certificate, as in libchirp."""

    dh_params: str | os.PathLike[str] | None = None
    """File, in PEM, of Diffie-Hellman parameters, for libchirp nodes limited to TLS 1.2. None (default): such nodes
    cannot dial this one."""

    client_certificate: Literal["required", "optional", "none"] = "required"
    """Requirement for nodes that dial this one: a certificate of a trusted CA ("required", default), such a
    certificate if they have any ("optional"), or nothing ("none"), which lets every node that reaches this one send to
    it."""

    check_names: bool | None = None
    """Whether the certificate of a dialled node has to be valid for the dialled name or IP address. None (default):
    True if this node has no certificate, or trusts the system's store; otherwise False, as in libchirp."""

    pins: tuple[str, ...] = ()
    """Nodes to accept, of all that a CA has signed. If there are pins that begin with "sha256:", which are fingerprints
    as printed by `redpoll pki show`, one has to match the other end's certificate; if there are pins that begin with
    "identity:", followed by 32 hexadecimal digits, one has to match its node identity. Empty (default): all nodes."""

    def __post_init__(self) -> None:
        """Check every field, then the combinations."""
        for name in _FILES:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str | os.PathLike) or not os.fspath(value)):
                raise ConfigError(name, value, "must be the path of a file, or None")
        if self.client_certificate not in _CHOICES:
            problem = f"must be one of {', '.join(map(repr, _CHOICES))}"
            raise ConfigError("client_certificate", self.client_certificate, problem)
        if self.check_names is not None and not isinstance(self.check_names, bool):
            raise ConfigError("check_names", self.check_names, "must be True, False or None")
        self._check_pins(self.pins)
        if self.certificate is None:
            if self.key is not None:
                raise ConfigError("key", self.key, "requires a certificate", "set certificate= too")
            if self.ca is None:
                hint = 'set certificate= for nodes of one CA, or ca="system" for a node that only dials'
                raise ConfigError("ca", None, "no CA is trusted, and there is no certificate", hint)
        if self.ca == SYSTEM and self.check_names is False and not self.pins_certificates:
            # A public CA signs for anyone, and anyone may claim an identity.
            hint = "omit check_names, or pin certificates"
            raise ConfigError("check_names", False, "the system's trust store trusts anyone with a web site", hint)

    @staticmethod
    def _check_pins(pins: Any) -> None:
        if not isinstance(pins, tuple) or not all(isinstance(pin, str) for pin in pins):
            raise ConfigError("pins", pins, "must be a tuple of str", 'one is ("sha256:…",), with a comma')
        for pin in pins:
            if not _PIN.fullmatch(pin):
                hint = "`redpoll pki show` prints fingerprints"
                problem = "is neither sha256: and 64 nor identity: and 32 hexadecimal digits, in lower case"
                raise ConfigError("pins", pin, problem, hint)

    @property
    def pins_certificates(self) -> bool:
        """True if `pins` contains fingerprints of certificates."""
        return any(pin.startswith("sha256:") for pin in self.pins)

    @property
    def effective_check_names(self) -> bool:
        """`check_names`, or its default: True without a certificate, and with the system's trust store."""
        if self.check_names is not None:
            return self.check_names
        return self.certificate is None or self.ca == SYSTEM
