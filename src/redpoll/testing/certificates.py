"""Certificates for tests: of a throw-away CA, valid ones and ones that a peer must refuse."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from redpoll.pki import CA, KeyKind, dh_parameters

__all__ = ["Certificates"]

# Age of the CA, so that expired certificates were issued during its life.
_AGE = timedelta(days=730)


class Certificates:
    """A CA and its certificates, in files: the fixture `redpoll_pki`.

    Args:
        folder: Where the files are made.

    Attributes:
        folder: The folder of the CA, as `redpoll pki` takes it with ``--dir``.
        ca: The file of the CA's certificate, to trust it.
        dh: A file of Diffie-Hellman parameters.
    """

    #: The names of what is issued without any: those of this machine in a test.
    LOCAL = ("localhost", "127.0.0.1", "::1")

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._authority = CA.make("redpoll test CA", now=datetime.now(UTC) - _AGE)
        self.ca = self._authority.save(self.folder)
        self.dh = self.folder / "dh.pem"
        self.dh.write_bytes(dh_parameters(2048))
        self._made = 0

    def issue(
        self,
        name: str = "node",
        names: Iterable[str] | None = None,
        *,
        key: KeyKind = "ec",
        days: int = 365,
        expired: bool = False,
    ) -> Path:
        """Make a certificate with a new key.

        The same name may be issued again: every file is in a folder of its own.

        Args:
            name: The name of the node.
            names: DNS names and IP addresses; None is `LOCAL`.
            key: Kind of its key. RSA keys take a while.
            days: How long it is valid, or was.
            expired: Whether it has expired, a day ago.

        Returns:
            The file: the certificate, that of the CA, and the private key.

        Raises:
            ConfigError: As for `redpoll.pki.CA.issue`.
            UsageError: `expired`, and the CA, which is two years old, was not there when it began.
        """
        now = datetime.now(UTC) - timedelta(days=days + 1) if expired else None
        chain = self._authority.issue(name, self.LOCAL if names is None else names, key=key, days=days, now=now)
        return chain.save(self._new_folder() / f"{name}.pem")

    def another(self) -> Certificates:
        """Make a CA of the same name and another key, whose certificates have to be refused where this one is trusted."""
        return Certificates(self._new_folder())

    def _new_folder(self) -> Path:
        self._made += 1
        folder = self.folder / str(self._made)
        folder.mkdir(mode=0o700)
        return folder
