"""Names of wiring: scopes, styles, limits, actions at a limit, and the record of missing messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from redpoll.checks import integer, optional, require
from redpoll.errors import ConfigError, UsageError

__all__ = [
    "ENDLESS",
    "GLOBAL",
    "LOCAL",
    "MAX_NAME",
    "NO_LIMIT",
    "PROCESS",
    "AtLimit",
    "Gap",
    "Limits",
    "Scope",
    "Style",
    "check_kind",
    "check_name",
]

_MIB = 1024 * 1024

#: Stands for "no limit" in calculations.
ENDLESS = 2**62

#: Maximum size of a name, in bytes of UTF-8.
MAX_NAME = 255


_limit = optional(integer(1, ENDLESS))


class Scope(Enum):
    """The visibility of the name of an exchange or a queue."""

    #: The `Wiring` that created it.
    LOCAL = "local"
    #: Every `Wiring` of this process.
    PROCESS = "process"
    #: All wirings with the same directory.
    GLOBAL = "global"


LOCAL = Scope.LOCAL
PROCESS = Scope.PROCESS
GLOBAL = Scope.GLOBAL


class Style(Enum):
    """The way in which an exchange distributes its messages."""

    #: Each bound queue receives every message; without a bound queue it is dropped and counted.
    DISTRIBUTE = "distribute"
    #: Each message goes to one bound queue, in turn; queues without room are skipped, and without a bound queue `send` waits.
    BALANCE = "balance"


class AtLimit(Enum):
    """The action of an exchange on a message without room.

    Queues of the bus have texts instead: `redpoll.bus.AtLimit`.
    """

    #: `send` waits for room; `send_nowait` returns False.
    WAIT = "wait"
    #: The message is dropped for that queue, and counted.
    DROP_NEW = "drop-new"
    #: The oldest waiting message for that queue is dropped, and counted.
    DROP_OLD = "drop-old"
    #: `send` raises `QueueFull`; `send_nowait` returns False.
    REFUSE = "refuse"


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
        require("messages", self.messages, _limit)
        require("bytes", self.bytes, _limit)
        if type(self.resume) not in {int, float} or not 0 < self.resume <= 1:
            raise ConfigError("resume", self.resume, "must be a number above 0, at most 1")

    @property
    def most_messages(self) -> int:
        """`messages`, or a number that cannot be reached."""
        return ENDLESS if self.messages is None else self.messages

    @property
    def most_bytes(self) -> int:
        """`bytes`, or a number that cannot be reached."""
        return ENDLESS if self.bytes is None else self.bytes

    def free_again(self, limit: int) -> int:
        """Return how much of a limit must be free before the sender continues, at least 1."""
        return max(1, min(limit, int(limit * self.resume)))


NO_LIMIT = Limits(messages=None, bytes=None)
"""No limit in messages or bytes."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages of one exchange are missing at this position.

    Attributes:
        exchange: The name of the exchange.
        count: The number of missing messages; exact, except for those that a former run of the sender had not announced.
        restarted: Whether the sender restarted: the messages that its former run still held cannot be counted.
    """

    exchange: str
    count: int
    restarted: bool = False


def check_name(kind: str, name: object) -> str:
    """Validate a name.

    Args:
        kind: "exchange" or "queue", for the error.
        name: The name.

    Raises:
        UsageError: It is not text of 1 to 255 bytes in UTF-8, or has control characters.
    """
    if not isinstance(name, str):
        raise UsageError(f"the name of {_a(kind)} must be text, not {type(name).__name__}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"the name {name!r} of {_a(kind)} cannot be encoded as UTF-8") from error
    if not 1 <= size <= MAX_NAME:
        raise UsageError(f"the name of {_a(kind)} must have 1 to {MAX_NAME} bytes in UTF-8, not {size}")
    if not name.isprintable():
        raise UsageError(f"the name {name!r} of {_a(kind)} has control characters")
    return name


def check_kind(name: str, value: object, kind: type) -> None:
    """Validate the type of an argument.

    Raises:
        UsageError: It has another type.
    """
    if not isinstance(value, kind):
        hint = "of redpoll.wiring: " + ", ".join(map(str, kind)) if issubclass(kind, Enum) else None
        raise UsageError(f"{name} is {_a(kind.__name__)}, not {value!r}", hint)


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "Ae" else f"a {kind}"
