"""The words of wiring: who sees a name, how an exchange hands messages out, and what it does when there is no room."""

from __future__ import annotations

from enum import Enum

from redpoll.errors import UsageError

__all__ = ["GLOBAL", "LOCAL", "MAX_NAME", "PROCESS", "AtLimit", "Scope", "Style", "check_name"]

#: Bytes that a name has at most, in UTF-8.
MAX_NAME = 255


class Scope(Enum):
    """Who can see an exchange or a queue by its name."""

    #: Only the `Wiring` that made it.
    LOCAL = "local"
    #: Every `Wiring` of this process.
    PROCESS = "process"
    #: Everybody who uses the same directory.
    GLOBAL = "global"


LOCAL = Scope.LOCAL
PROCESS = Scope.PROCESS
GLOBAL = Scope.GLOBAL


class Style(Enum):
    """How an exchange hands its messages out."""

    #: Each bound queue gets every message; without one it is dropped and counted.
    DISTRIBUTE = "distribute"
    #: Each message goes to one bound queue, in turn; one that has no room is passed over, and without any `send` waits.
    BALANCE = "balance"


class AtLimit(Enum):
    """What an exchange does with a message for which there is no room."""

    #: `send` waits until there is; `send_nowait` returns False.
    WAIT = "wait"
    #: The message is dropped for that queue, and counted.
    DROP_NEW = "drop-new"
    #: The oldest message that waits for that queue is dropped, and counted.
    DROP_OLD = "drop-old"
    #: `send` raises `QueueFull`; `send_nowait` returns False.
    REFUSE = "refuse"


def check_name(kind: str, name: object) -> str:
    """Refuse what cannot be a name.

    Args:
        kind: "exchange" or "queue", for the error.
        name: What was given.

    Raises:
        UsageError: It is no text of 1 to 255 bytes in UTF-8, or has control characters.
    """
    if not isinstance(name, str):
        raise UsageError(f"the name of {_a(kind)} is text, not {type(name).__name__}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"the name {name!r} of {_a(kind)} is no text that can be written as UTF-8") from error
    if not 1 <= size <= MAX_NAME:
        raise UsageError(f"the name of {_a(kind)} has 1 to {MAX_NAME} bytes in UTF-8, not {size}")
    if not name.isprintable():
        raise UsageError(f"the name {name!r} of {_a(kind)} has control characters")
    return name


def _a(kind: str) -> str:
    return f"an {kind}" if kind == "exchange" else f"a {kind}"
