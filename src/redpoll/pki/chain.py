"""A node's certificate, those of its CA, and its private key, in one file."""

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
    """What a node needs to prove who it is and to check others; `CA.issue` makes it.

    One file holds all of it, as libchirp takes it: for `SSLContext.load_cert_chain` and `load_verify_locations` it is
    the same path.
    """

    certificate: x509.Certificate
    """The node's own."""
    authorities: tuple[x509.Certificate, ...]
    """Those of the CA: the one that signed the node's first."""
    key: PrivateKey = field(repr=False)
    """The node's private key."""

    @property
    def name(self) -> str:
        """The name of the node, the common name of its certificate."""
        return own_name(self.certificate.subject)

    @property
    def names(self) -> tuple[str, ...]:
        """The DNS names and IP addresses that the certificate is valid for."""
        return shown_names(self.certificate)

    @property
    def pem(self) -> bytes:
        """The content of the file: the node's certificate first, then the CA's, then the private key."""
        # libchirp takes the first certificate for the node's own.
        written = (each.public_bytes(Encoding.PEM) for each in (self.certificate, *self.authorities))
        return b"".join(written) + write_key(self.key)

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write the file, with mode 0600; its folder has to be there.

        It has the new content or the old one, whenever the process or the machine stops.

        Args:
            path: The file, for example ``pki/worker.pem``.
            force: Whether a file that is there is overwritten, with the private key in it.

        Returns:
            The path.

        Raises:
            UsageError: The file is there already, and not `force`.
            OSError: The system does not allow it.
        """
        file = File(Path(path), self.pem)
        write_files([file], force=force)
        return file.path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Chain:
        """Read a file as `save` writes it. The dates and signatures in it are not judged: `inspect` does that.

        Raises:
            UsageError: There is no such file, or it does not hold a certificate, first, and the private key to it.
            OSError: The system does not allow it.
        """
        pem = read_file(Path(path), "`redpoll pki issue` makes one")
        certificate, *authorities = read_certificates(pem, path)
        key = read_key(pem, path)
        if key is None:
            raise UsageError(f"there is no private key in {path}", "append it to the file, or issue it again")
        if key.public_key() != certificate.public_key():
            hint = "the certificate of the node has to be the first in the file"
            raise UsageError(f"the private key in {path} does not match the first certificate", hint)
        return cls(certificate, tuple(authorities), key)
