"""The token that lets clients in: what it may be, how it is compared, and the file that it is kept in."""

from __future__ import annotations

import hmac
from pathlib import Path

from redpoll.errors import ConfigError

__all__ = ["MAX_TOKEN", "is_proof", "is_token", "proof_of", "read_token", "token_bytes"]

#: Bytes that a token may have.
MAX_TOKEN = 1024

#: Bytes that its file may have, with the white space around it.
_MAX_FILE = 4096


def token_bytes(token: str | bytes | None) -> bytes | None:
    """A token as it goes over a link; None is none.

    Raises:
        ConfigError: It is neither text nor bytes, is empty, or has more than 1,024 bytes.
    """
    if token is None:
        return None
    if not isinstance(token, str | bytes):
        raise ConfigError("token", "hidden", f"must be text or bytes, not {type(token).__name__}")
    told = token.encode() if isinstance(token, str) else token
    if not 1 <= len(told) <= MAX_TOKEN:
        raise ConfigError("token", "hidden", f"must have 1 to {MAX_TOKEN} bytes")
    return told


def is_token(shown: bytes, token: bytes | None) -> bool:
    """Whether what was shown is the token, in a time that tells nothing of where it differs; any is, where there is none."""
    return token is None or hmac.compare_digest(shown, token)


def proof_of(token: bytes, own: bytes, other: bytes, run: bytes) -> bytes:
    """What shows one wiring that another one has the token, and shows neither the token nor anything to a third.

    Args:
        token: The token.
        own: The identity of the node that shows it.
        other: That of the node that it is shown to.
        run: The run of the wiring that it is shown to.
    """
    return hmac.digest(token, b"redpoll wiring" + own + other + run, "sha256")


def is_proof(shown: object, token: bytes, own: bytes, other: bytes, run: bytes) -> bool:
    """Whether what was shown is the proof, as `proof_of` takes its arguments, in a time that tells nothing."""
    return isinstance(shown, bytes) and hmac.compare_digest(shown, proof_of(token, own, other, run))


def read_token(path: str) -> bytes:
    """The token in a file, without white space around it.

    Raises:
        ConfigError: The file cannot be read, is too large, or holds none.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise ConfigError("token_file", path, "cannot be read") from error
    if len(data) > _MAX_FILE:
        raise ConfigError("token_file", path, f"must have at most {_MAX_FILE} bytes")
    data = data.strip()
    if not 1 <= len(data) <= MAX_TOKEN:
        raise ConfigError("token_file", path, f"must hold 1 to {MAX_TOKEN} bytes")
    return data
