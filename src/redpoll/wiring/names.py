"""Enums of wiring: the scope of a name, the style of an exchange, its action at a limit."""

from __future__ import annotations

from enum import Enum

from redpoll.errors import UsageError

__all__ = ["GLOBAL", "LOCAL", "MAX_NAME", "PROCESS", "AtLimit", "Scope", "Style", "check_name"]

#: Maximum size of a name, in bytes of UTF-8.
MAX_NAME = 255


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


def _a(kind: str) -> str:
    return f"an {kind}" if kind == "exchange" else f"a {kind}"
