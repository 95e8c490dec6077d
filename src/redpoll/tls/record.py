"""What a node says of TLS: one frozen record, checked when it is made. No file is read here."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Literal

from redpoll.errors import ConfigError

__all__ = ["SYSTEM", "TLS"]

#: What `TLS.ca` is for the system's trust store.
SYSTEM = "system"

_PIN = re.compile(r"sha256:[0-9a-f]{64}|identity:[0-9a-f]{32}")
_CHOICES = ("required", "optional", "none")
_FILES = ("certificate", "key", "ca", "dh_params")


@dataclass(frozen=True, slots=True, kw_only=True)
class TLS:
    """The certificates of a node, and what it wants of others.

    ``TLS(certificate="pki/worker.pem")`` is all that nodes of one CA need, with a file of `redpoll pki issue`: both ends
    prove that the CA has signed them, as with libchirp. ``TLS(ca="system")`` is a node that only dials, and checks the
    certificate and the name of whom it dials. Files are read when the node starts, and when it is told to read them again.

    Raises:
        ConfigError: A field has a value, or a type, that it cannot have; the text names it.
    """

    certificate: str | os.PathLike[str] | None = None
    """File, in PEM, of the node's own certificate, first, and those above it. None (default): it has none, cannot listen
    where links are encrypted, and is let in only where no certificate is wanted."""

    key: str | os.PathLike[str] | None = None
    """File, in PEM, of the private key, not encrypted. None (default): it is in the file of the certificate."""

    ca: str | os.PathLike[str] | None = None
    """File, in PEM, of the CAs that are trusted, or "system": the system's trust store, for those that this node dials; it
    says nothing of who dials this node, unless certificates are pinned: else the CAs in the file of the certificate do.
    None (default): those in the file of the certificate, which is libchirp's way."""

    dh_params: str | os.PathLike[str] | None = None
    """File, in PEM, of Diffie-Hellman parameters, for libchirp nodes whose TLS ends at 1.2. None (default): no such node
    can dial this one."""

    client_certificate: Literal["required", "optional", "none"] = "required"
    """What this node wants of those that dial it: a certificate of a trusted CA ("required", default), such a one if they
    have any ("optional"), or nothing ("none"): then everybody who reaches it can send to it."""

    check_names: bool | None = None
    """Whether the certificate of a node that is dialled has to be valid for the name or IP address by which it is. None
    (default): True if this node has no certificate, or trusts the system's store; else False, as with libchirp."""

    pins: tuple[str, ...] = ()
    """Whom to accept of all that a CA has signed. Of those that begin with "sha256:", fingerprints as `redpoll pki show`
    prints them, one has to be that of the other end's certificate; of those that begin with "identity:" and go on with 32
    hexadecimal digits, one has to be its node identity. Empty (default): everybody."""

    def __post_init__(self) -> None:
        """Check every field, then those that depend on each other."""
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
                raise ConfigError("key", self.key, "there is no certificate to it", "give certificate= as well")
            if self.ca is None:
                hint = 'give certificate= to nodes of one CA, or ca="system" to one that only dials'
                raise ConfigError("ca", None, "nobody is trusted, and there is no certificate", hint)
        if self.ca == SYSTEM and self.check_names is False and not self.pins_certificates:
            # A public CA signs for everybody, and everybody may claim an identity.
            hint = "leave check_names out, or pin certificates"
            raise ConfigError("check_names", False, "the system's trust store trusts anybody with a web site", hint)

    @staticmethod
    def _check_pins(pins: Any) -> None:
        if not isinstance(pins, tuple) or not all(isinstance(pin, str) for pin in pins):
            raise ConfigError("pins", pins, "must be a tuple of texts", 'one is ("sha256:…",), with a comma')
        for pin in pins:
            if not _PIN.fullmatch(pin):
                hint = "`redpoll pki show` prints fingerprints"
                problem = "is neither sha256: and 64 nor identity: and 32 hexadecimal digits, in lower case"
                raise ConfigError("pins", pin, problem, hint)

    @property
    def pins_certificates(self) -> bool:
        """Whether `pins` has fingerprints of certificates."""
        return any(pin.startswith("sha256:") for pin in self.pins)

    @property
    def effective_check_names(self) -> bool:
        """`check_names`, or its default: True without a certificate, and with the system's trust store."""
        if self.check_names is not None:
            return self.check_names
        return self.certificate is None or self.ca == SYSTEM
