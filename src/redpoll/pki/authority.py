"""The CA, which signs the certificates of nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from redpoll.errors import ConfigError, UsageError
from redpoll.pki.certificates import (
    Validity,
    authority_certificate,
    is_authority,
    is_issued_by,
    node_certificate,
    own_name,
    read_certificates,
    timed,
)
from redpoll.pki.chain import Chain
from redpoll.pki.files import File, make_folder, read_file, write_files
from redpoll.pki.keys import KeyKind, PrivateKey, kind_of, make_key, read_key, write_key
from redpoll.pki.names import alternative_names, check_file_name, common_name

__all__ = ["CA"]

CERTIFICATE = "ca.pem"
KEY = "ca.key"

_NONE = "`redpoll pki init` makes one"


@dataclass(frozen=True, slots=True)
class CA:
    """A certificate authority of your own: all nodes with a certificate signed by it trust each other.

    Keep its private key away from the nodes: they need only what `issue` returns.
    """

    certificates: tuple[x509.Certificate, ...]
    """Its own certificate, followed by those above it if another CA signed it."""
    key: PrivateKey = field(repr=False)
    """Its private key."""

    @classmethod
    def make(
        cls, name: str = "redpoll CA", *, key: KeyKind = "ec", days: int = 3650, now: datetime | None = None
    ) -> CA:
        """Create a CA with a new private key.

        Args:
            name: Name in its certificate, at most 64 characters.
            key: Kind of its key, and the default for those it issues.
            days: Validity in days, from 1 to 36,500.
            now: Time of creation, with a time zone; None for the clock's.

        Raises:
            ConfigError: An argument is invalid.
        """
        subject, validity = common_name(name), timed(days, now)
        made = make_key(key)
        return cls((authority_certificate(subject, made, validity),), made)

    @property
    def name(self) -> str:
        """Name in its certificate."""
        return own_name(self.certificates[0].subject)

    def issue(
        self,
        name: str,
        names: Iterable[str] | None = None,
        *,
        key: KeyKind | None = None,
        days: int = 365,
        now: datetime | None = None,
    ) -> Chain:
        """Issue a certificate for a node, with a new private key.

        Args:
            name: Name of the node: letters, digits, ".", "-" and "_", at most 64.
            names: DNS names and IP addresses that it is dialled by; None for its name alone.
            key: Kind of its key; None for the CA's.
            days: Validity in days, from 1 to 36,500 and not beyond the CA's.
            now: Time of creation, with a time zone; None for the clock's.

        Raises:
            ConfigError: An argument is invalid, or the CA expires earlier.
            UsageError: The CA has expired, or is not valid yet.
        """
        subject = common_name(check_file_name(name))
        if subject == self.certificates[0].subject:
            # A certificate whose subject is its issuer would be taken for self-signed.
            raise ConfigError("name", name, "is the name of the CA", "choose another name")
        hosts = alternative_names([name] if names is None else names)
        validity = self._timed(days, now)
        return self._sign(subject, hosts, make_key(key or kind_of(self.key)), validity)

    def renew(self, chain: Chain, *, days: int = 365, new_key: bool = False, now: datetime | None = None) -> Chain:
        """Issue a certificate with the subject and the names of an earlier one, and a new serial and new dates.

        Args:
            chain: The certificate to renew; it stays valid until its own end.
            days: Validity of the new one in days, as for `issue`.
            new_key: Whether to create a new private key of the same kind; by default it is kept.
            now: As for `issue`.

        Raises:
            ConfigError: As for `issue`.
            UsageError: As for `issue`; or another CA issued it, or it has no names.
        """
        old = chain.certificate
        if not is_issued_by(old, self.certificates[0]):
            raise UsageError(f"{chain.name!r} was not issued by this CA", "issue it again")
        try:
            names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound as error:
            raise UsageError(f"{chain.name!r} has no host names", "issue it again") from error
        validity = self._timed(days, now)
        return self._sign(old.subject, names, make_key(kind_of(chain.key)) if new_key else chain.key, validity)

    def renewed(self, *, days: int = 3650, now: datetime | None = None) -> CA:
        """Return the same CA with new dates: issued certificates stay valid, since name and key are the same.

        Args:
            days: Validity in days from now, from 1 to 36,500.
            now: As for `make`.

        Raises:
            ConfigError: An argument is invalid.
            UsageError: Another CA signed it, and has to renew it.
        """
        own = self.certificates[0]
        if not is_issued_by(own, own):
            hint = "have it renewed there"
            raise UsageError(f"the CA {self.name!r} was issued by {own_name(own.issuer)!r}", hint)
        return CA((authority_certificate(own.subject, self.key, timed(days, now), like=own),), self.key)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write ``ca.key``, with mode 0600, and ``ca.pem``, which all users may read.

        Args:
            folder: Created with mode 0700 if it does not exist.
            force: Whether to overwrite existing files, including the private key.

        Returns:
            Path of ``ca.pem``.

        Raises:
            UsageError: One of the files exists, without `force`; or `folder` cannot be a folder. Nothing was written.
            OSError: The system does not allow it.
        """
        place = Path(folder)
        make_folder(place)
        write_files([File(place / KEY, write_key(self.key)), self._public(place)], force=force)
        return place / CERTIFICATE

    def save_certificate(self, folder: str | os.PathLike[str]) -> Path:
        """Overwrite ``ca.pem`` alone, after `renewed`.

        Returns:
            Path of ``ca.pem``.

        Raises:
            OSError: The system does not allow it.
        """
        file = self._public(Path(folder))
        write_files([file], force=True)
        return file.path

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> CA:
        """Read a CA as written by `save`, or another one with an unencrypted EC or RSA key.

        Raises:
            UsageError: A file does not exist, cannot be read, or does not match the other.
            OSError: The system does not allow it.
        """
        where, key_file = Path(folder, CERTIFICATE), Path(folder, KEY)
        certificates = read_certificates(read_file(where, _NONE), where)
        if not is_authority(certificates[0]):
            raise UsageError(f"the first certificate in {where} is not that of a CA", _NONE)
        key = read_key(read_file(key_file, "restore it, or make a new CA: `redpoll pki init --force`"), key_file)
        if key is None:
            raise UsageError(f"there is no private key in {key_file}", "restore the file, or make a new CA")
        if key.public_key() != certificates[0].public_key():
            hint = "restore the one that belongs to the other, or make a new CA: `redpoll pki init --force`"
            raise UsageError(f"the private key in {key_file} does not match the certificate in {where}", hint)
        return cls(certificates, key)

    def _public(self, folder: Path) -> File:
        written = b"".join(each.public_bytes(Encoding.PEM) for each in self.certificates)
        return File(folder / CERTIFICATE, written, private=False)

    def _timed(self, days: int, now: datetime | None) -> Validity:
        validity, own = timed(days, now), self.certificates[0]
        moment = datetime.now(UTC) if now is None else now
        if moment > own.not_valid_after_utc:
            hint = "renew the CA: `redpoll pki renew ca`"
            raise UsageError(f"the CA {self.name!r} expired on {own.not_valid_after_utc:%Y-%m-%d}", hint)
        if moment < own.not_valid_before_utc:
            hint = "set the clock of this machine"
            raise UsageError(f"the CA {self.name!r} is not valid before {own.not_valid_before_utc:%Y-%m-%d}", hint)
        if validity.end > own.not_valid_after_utc:
            left = (own.not_valid_after_utc - moment).days
            problem = f"the CA {self.name!r} expires on {own.not_valid_after_utc:%Y-%m-%d}"
            hint = f"choose at most {left} days, or renew the CA" if left else "renew the CA"
            raise ConfigError("days", days, problem, f"{hint}: `redpoll pki renew ca`")
        return validity

    def _sign(
        self, subject: x509.Name, names: x509.SubjectAlternativeName, key: PrivateKey, validity: Validity
    ) -> Chain:
        certificate = node_certificate(subject, names, key, validity, self.certificates[0], self.key)
        return Chain(certificate, self.certificates, key)
