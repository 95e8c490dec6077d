"""The certificate of a node, those of its CA, and its private key, in one file."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from redpoll.errors import UsageError
from redpoll.pki.certificates import own_name, read_certificates
from redpoll.pki.files import File, read_file, write_files
from redpoll.pki.keys import PrivateKey, read_key, write_key
from redpoll.pki.names import shown_names

__all__ = ["Chain"]


@dataclass(frozen=True, slots=True)
class Chain:
    """The credentials of a node, created by `CA.issue`: to prove its identity and to verify others.

    One file contains all of it, as in libchirp: `SSLContext.load_cert_chain` and `load_verify_locations` take the same
    path.
    """

    certificate: x509.Certificate
    """The node's own certificate."""
    authorities: tuple[x509.Certificate, ...]
    """Certificates of the CA, beginning with the one that signed the node's."""
    key: PrivateKey = field(repr=False)
    """The node's private key."""

    @property
    def name(self) -> str:
        """Name of the node, the common name of its certificate."""
        return own_name(self.certificate.subject)

    @property
    def names(self) -> tuple[str, ...]:
        """DNS names and IP addresses that the certificate is valid for."""
        return shown_names(self.certificate)

    @property
    def pem(self) -> bytes:
        """Content of the file: the node's certificate, then the CA's, then the private key."""
        # libchirp uses the first certificate as the node's own.
        written = (each.public_bytes(Encoding.PEM) for each in (self.certificate, *self.authorities))
        return b"".join(written) + write_key(self.key)

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write the file, with mode 0600, to an existing folder.

        It has the new content or the old one, even if the process or the machine stops.

        Args:
            path: The file, for example ``pki/worker.pem``.
            force: Whether to overwrite an existing file, and the private key in it.

        Returns:
            The path.

        Raises:
            UsageError: The file exists, without `force`.
            OSError: The system does not allow it.
        """
        file = File(Path(path), self.pem)
        write_files([file], force=force)
        return file.path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Chain:
        """Read a file as written by `save`. Its dates and signatures are not checked: `inspect` does that.

        Raises:
            UsageError: The file does not exist, or does not contain a certificate first, and its private key.
            OSError: The system does not allow it.
        """
        pem = read_file(Path(path), "`redpoll pki issue` makes one")
        certificate, *authorities = read_certificates(pem, path)
        key = read_key(pem, path)
        if key is None:
            raise UsageError(f"there is no private key in {path}", "append it to the file, or issue it again")
        if key.public_key() != certificate.public_key():
            hint = "put the node's certificate first in the file"
            raise UsageError(f"the private key in {path} does not match the first certificate", hint)
        return cls(certificate, tuple(authorities), key)
