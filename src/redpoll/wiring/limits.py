"""The limits of a pipe at one of its ends."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from redpoll.errors import ConfigError

__all__ = ["NO_LIMIT", "Limits"]

_MIB = 1024 * 1024

#: Stands for "no limit" in calculations.
_ENDLESS = 2**62


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a pipe at one end: of an exchange, for messages that wait to be sent; of a queue, to be received.

    A message has room while fewer than `messages` messages and less than `bytes` bytes are held. So one message of any size
    passes if none is held, and the held bytes may exceed `bytes` by one message. A pipe holds at most the sum
    of both ends.

    Attributes:
        messages: Maximum messages, from 1 (default 10,000); None is no limit.
        bytes: Maximum bytes before the last message, from 1 (default 64 MiB); None is no limit.
        resume: The fraction that must be free again before the sender continues, above 0 to 1 (default 0.5). Credit is
            returned to the other end in such portions.

    Raises:
        ConfigError: A value is invalid.
    """

    messages: int | None = 10_000
    bytes: int | None = 64 * _MIB
    resume: float = 0.5

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("messages", "bytes"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(name, value, f"must be an int or None, not {type(value).__name__}")
            if not 1 <= value <= _ENDLESS:
                raise ConfigError(name, value, f"must be 1 to {_ENDLESS}", "None is no limit")
        resume: object = self.resume
        if isinstance(resume, bool) or not isinstance(resume, int | float) or not isfinite(resume):
            raise ConfigError("resume", resume, "must be a number above 0, at most 1")
        if not 0 < resume <= 1:
            raise ConfigError("resume", resume, "must be above 0 and at most 1")

    @property
    def most_messages(self) -> int:
        """`messages`, or a number that cannot be reached."""
        return _ENDLESS if self.messages is None else self.messages

    @property
    def most_bytes(self) -> int:
        """`bytes`, or a number that cannot be reached."""
        return _ENDLESS if self.bytes is None else self.bytes

    def free_again(self, limit: int) -> int:
        """Return how much of a limit must be free before the sender continues, at least 1."""
        return max(1, min(limit, int(limit * self.resume)))


NO_LIMIT = Limits(messages=None, bytes=None)
"""No limit in messages or bytes."""
