"""The constants of the first ØMQ extension, and their meanings here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from redpoll.errors import UsageError
from redpoll.wiring.names import NO_LIMIT as ENDLESS
from redpoll.wiring.names import Limits, Scope, Style

__all__ = [
    "MESSAGE_DATA",
    "MESSAGE_GAP",
    "NO_LIMIT",
    "NO_SWAP",
    "SCOPE_GLOBAL",
    "SCOPE_LOCAL",
    "SCOPE_PROCESS",
    "STYLE_DATA_DISTRIBUTION",
    "STYLE_LOAD_BALANCING",
    "UNSET",
    "check_swap",
    "either",
    "limits_of",
    "scope_of",
    "style_of",
]

UNSET: Final[Any] = type("Unset", (), {"__repr__": lambda _: "..."})()
"""Not given; None has a meaning for some parameters."""

SCOPE_LOCAL: Final = 1
"""The name is known to the object that made it."""

SCOPE_PROCESS: Final = 2
"""The name is known to all objects of this process."""

SCOPE_GLOBAL: Final = 3
"""The name is known to all processes that use the same directory."""

STYLE_DATA_DISTRIBUTION: Final = 1
"""Every bound queue receives each message."""

STYLE_LOAD_BALANCING: Final = 2
"""One of the bound queues receives each message, in turn."""

MESSAGE_DATA: Final = 1
"""Kind of a result of `Zmq.receive`: a message."""

MESSAGE_GAP: Final = 2
"""Kind of a result of `Zmq.receive`: a gap, in the place of lost messages."""

NO_LIMIT: Final = -1
"""For `hwm`: no limit in messages or bytes."""

NO_SWAP: Final = 0
"""For `swap`: nothing is written to disk; there is no other choice."""

EnumT = TypeVar("EnumT", Scope, Style)

_SCOPES: Final = {SCOPE_LOCAL: Scope.LOCAL, SCOPE_PROCESS: Scope.PROCESS, SCOPE_GLOBAL: Scope.GLOBAL}
_STYLES: Final = {STYLE_DATA_DISTRIBUTION: Style.DISTRIBUTE, STYLE_LOAD_BALANCING: Style.BALANCE}


def either(name: str, value: Any, other: str, later: Any) -> Any:
    """Return the value of a parameter that has one name in each generation.

    Raises:
        TypeError: Both were given, or neither.
    """
    if later is not UNSET:
        if value is not UNSET and value is not None:
            raise TypeError(f"got {name!r} and {other!r}, which are one and the same")
        return later
    if value is UNSET:
        raise TypeError(f"missing argument {name!r}")
    return value


def scope_of(value: object) -> Scope:
    """Return the scope that a constant means.

    Raises:
        UsageError: It is none.
    """
    return _meant(value, _SCOPES, "scope", "SCOPE_LOCAL, SCOPE_PROCESS or SCOPE_GLOBAL")


def style_of(value: object) -> Style:
    """Return the style that a constant means.

    Raises:
        UsageError: It is none.
    """
    return _meant(value, _STYLES, "style", "STYLE_DATA_DISTRIBUTION or STYLE_LOAD_BALANCING")


def _meant(value: object, meanings: Mapping[int, EnumT], kind: str, hint: str) -> EnumT:
    """Return the meaning of a constant, or of one of the meanings itself."""
    for constant, meaning in meanings.items():
        if value is meaning or (type(value) is int and value == constant):
            return meaning
    raise UsageError(f"there is no {kind} {value!r}", hint)


def limits_of(hwm: object, lwm: object) -> Limits:
    """Return the limits of a queue for a high and a low mark.

    Args:
        hwm: Messages at which its senders stop; None is the default of `Limits`, `NO_LIMIT` none.
        lwm: Messages at which they go on; None or `NO_LIMIT` leaves that to `Limits`.

    Raises:
        UsageError: A mark is no number of messages, or the low mark is not below the high one.
    """
    for name, mark in (("hwm", hwm), ("lwm", lwm)):
        if mark is not None and (isinstance(mark, bool) or not isinstance(mark, int) or mark < NO_LIMIT):
            raise UsageError(f"{name} is a number of messages, not {mark!r}", "NO_LIMIT is none")
    default = Limits()
    if hwm == NO_LIMIT:
        return ENDLESS
    high = default.most_messages if hwm is None else int(hwm)  # type: ignore[call-overload]  # checked
    if lwm is None or lwm == NO_LIMIT:
        return Limits(messages=high)
    low = int(lwm)  # type: ignore[call-overload]  # as above
    if not low < high:
        raise UsageError(f"lwm={low} is not below hwm={high}", "senders stop at hwm and go on at lwm")
    # A half more, so that rounding yields the same number of messages.
    return Limits(messages=high, resume=min(1.0, (high - low + 0.5) / high))


def check_swap(value: object) -> None:
    """Validate `swap`: writing to disk is not supported.

    Raises:
        UsageError: It is not `NO_SWAP`.
    """
    if value != NO_SWAP:
        raise UsageError(
            f"there is no swap, so {value!r} bytes of it cannot be had",
            "NO_SWAP; a higher hwm keeps more in memory, and a sender that waits loses nothing",
        )
