"""The token file of a hub: identities, their tokens and permissions. It is reloaded when it changes."""

from __future__ import annotations

import hmac
import logging
import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

from redpoll.bus.broker.permissions import Permissions, Word
from redpoll.errors import ConfigError

__all__ = ["MAX_TOKEN", "Tokens"]

_log = logging.getLogger("redpoll.bus")

MAX_TOKEN: Final = 1_024
"""Maximum bytes of a token."""
_MIN_TOKEN: Final = 16


class Tokens:
    """The tokens in a file of TOML: a table for each identity, with its token, or several, and its permissions.

    For example::

        [night_worker]
        token = "5a2f…"
        work = ["night"]
        submit = ["night", "images.#"]

    A permission is a word of `redpoll.bus.broker.permissions` with ``_`` for the space, or ``all`` for each of them.

    Args:
        path: The file.

    Raises:
        ConfigError: It cannot be read, or says what cannot be; the text has no token.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        # Digests of tokens, which alone are kept and compared, reveal nothing without this key.
        self._key = os.urandom(32)
        self._seen = self._stamp()
        self._found = self._read()

    def find(self, token: str) -> tuple[bytes, Permissions | None]:
        """Return the digest of a token and its permissions, None for an unknown token, in constant time."""
        digest = self._digest(token)
        return digest, self.allowed(digest)

    def allowed(self, digest: bytes) -> Permissions | None:
        """Return the permissions of a token by its digest; None if it is not in the file any more."""
        found = None
        for each, rights in self._found:
            if hmac.compare_digest(each, digest):
                found = rights
        return found

    def renew(self) -> bool:
        """Reload the file if it changed; return True if it did. An invalid file is logged, and changes nothing."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            self._found = self._read()
        except ConfigError as error:
            _log.error("the tokens were not reloaded: %s", error)  # it says all
            return False
        _log.info("%s was read again", self._path)
        return True

    def _stamp(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode(errors="surrogatepass"), "sha256")

    def _read(self) -> list[tuple[bytes, Permissions]]:
        try:
            with self._path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                tables = tomllib.load(file)
        except (OSError, ValueError, RecursionError) as error:
            problem = error.strerror if isinstance(error, OSError) else type(error).__name__
            raise ConfigError("tokens", str(self._path), f"cannot be read as TOML: {problem}") from None
        if os.name == "posix" and mode & stat.S_IROTH:
            # Secrets of containers are readable for all by default: no error.
            _log.warning("%s: any user of this machine can read the tokens in it; chmod o-r prevents that", self._path)
        found: dict[bytes, Permissions] = {}
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise self._wrong(name, "must be a table")
            if ":" in name:
                raise self._wrong(name, "the name of an identity must have no colon")
            tokens = table.pop("token", [])
            for token in tokens if isinstance(tokens, list) else [tokens]:
                if not isinstance(token, str) or not _MIN_TOKEN <= len(token.encode()) <= MAX_TOKEN:
                    raise self._wrong(name, f"token must be text of {_MIN_TOKEN} to {MAX_TOKEN} bytes, or some of them")
                digest = self._digest(token)
                if digest in found:
                    raise self._wrong(name, f"token is that of {found[digest].name!r} as well")
                found[digest] = Permissions(name, self._words(name, table))
        return list(found.items())

    def _words(self, name: str, table: Mapping[str, Any]) -> dict[str, set[str]]:
        words: dict[str, set[str]] = {}
        for key, patterns in table.items():
            if not isinstance(patterns, list) or not all(isinstance(each, str) for each in patterns):
                raise self._wrong(name, f"{key} must be a list of patterns")
            for word in get_args(Word) if key == "all" else (key.replace("_", " "),):
                words.setdefault(word, set()).update(patterns)
        return words

    def _wrong(self, name: str, problem: str) -> ConfigError:
        return ConfigError("tokens", f"{self._path}, {name}", problem)
