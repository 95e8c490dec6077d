"""The limit of containers that one message may decode to."""

from __future__ import annotations

from typing import Any, Final

from redpoll.checks import integer
from redpoll.errors import ConfigError, DecodeError

__all__ = ["MAX_CONTAINERS", "check_limit", "too_many"]

#: Default maximum: an empty list or dict can be one byte of a message, and takes 72 bytes of memory.
MAX_CONTAINERS: Final = 1_000_000

_CHECK = integer(1, 2**63 - 1)


def check_limit(limit: Any) -> int:
    """Return a valid `max_containers`.

    Raises:
        ConfigError: It is not an int from 1 to 2**63-1.
    """
    problem = _CHECK(limit)
    if problem is not None:
        raise ConfigError("max_containers", limit, problem)
    return limit  # type: ignore[no-any-return]


def too_many(serializer: str, limit: int, kind: str) -> DecodeError:
    """Return the error for a message with more containers."""
    return DecodeError(
        serializer, f"it has more than {limit:,} lists and dicts", f"{kind}(max_containers=...) allows more"
    )
