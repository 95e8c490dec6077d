"""The token of a directory: its format, its comparison, its file."""

from __future__ import annotations

import hmac
from pathlib import Path

from redpoll.errors import ConfigError

__all__ = ["MAX_TOKEN", "is_proof", "is_token", "proof_of", "read_token", "token_bytes"]

#: Maximum size of a token, in bytes.
MAX_TOKEN = 1024

#: Maximum size of its file, in bytes, with white space.
_MAX_FILE = 4096


def token_bytes(token: str | bytes | None) -> bytes | None:
    """Return a token as bytes; None is none.

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
    """Return True if the presented token is the required one, or none is required; the time is constant."""
    return token is None or hmac.compare_digest(shown, token)


def proof_of(token: bytes, own: bytes, other: bytes, run: bytes) -> bytes:
    """Return the proof by which one wiring shows another one that it has the token, without revealing it.

    Args:
        token: The token.
        own: The identity of the node that proves it.
        other: The identity of the node that receives the proof.
        run: The run of the wiring that receives the proof.
    """
    return hmac.digest(token, b"redpoll wiring" + own + other + run, "sha256")


def is_proof(shown: object, token: bytes, own: bytes, other: bytes, run: bytes) -> bool:
    """Return True if a value is the proof, with the arguments of `proof_of`; the time is constant."""
    return isinstance(shown, bytes) and hmac.compare_digest(shown, proof_of(token, own, other, run))


def read_token(path: str) -> bytes:
    """Return the token in a file, without surrounding white space.

    Raises:
        ConfigError: The file cannot be read, is too large, or is empty.
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
