"""How much one pipe may hold at one of its ends."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from redpoll.errors import ConfigError

__all__ = ["NO_LIMIT", "Limits"]

_MIB = 1024 * 1024

#: Stands for "no limit" in calculations: more than anybody can send.
_ENDLESS = 2**62


@dataclass(frozen=True, slots=True)
class Limits:
    """What one pipe may hold at one end: of an exchange what waits to be sent, of a queue what waits to be received.

    A message has room while fewer than `messages` and less than `bytes` are held, so one message of any size passes
    where nothing is held, and what is held may be more than `bytes` by one message. What a pipe holds in all is at most
    the sum of both its ends.

    Attributes:
        messages: At most so many, from 1 (default 10,000); None is no limit.
        bytes: Less than so many before the last one, from 1 (default 64 MiB); None is no limit.
        resume: Which part has to be free again before the sender goes on, above 0 to 1 (default a half). What is free is
            told to the other end that much at a time.

    Raises:
        ConfigError: One of them has a value that it cannot have.
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
        """`messages`, or a number that is never reached."""
        return _ENDLESS if self.messages is None else self.messages

    @property
    def most_bytes(self) -> int:
        """`bytes`, or a number that is never reached."""
        return _ENDLESS if self.bytes is None else self.bytes

    def free_again(self, limit: int) -> int:
        """How much of a limit has to be free before the sender goes on, at least 1."""
        return max(1, min(limit, int(limit * self.resume)))


NO_LIMIT = Limits(messages=None, bytes=None)
"""No limit in either."""
