"""What options are checked by: each check takes a value and says what is wrong with it, or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["Check", "flag", "integer", "one_of", "optional", "seconds"]

Check = Callable[[Any], "str | None"]

_YEAR: Final = 31_536_000.0


def integer(low: int, high: int) -> Check:
    """The check for an int from `low` to `high`; True and False are none."""

    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"must be an int, not {type(value).__name__}"
        return None if low <= value <= high else f"must be {low} to {high}"

    return check


def seconds(value: Any) -> str | None:
    """Check a time: an int or a float, above 0 and at most a year."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be a number of seconds, not {type(value).__name__}"
    return None if 0 < value <= _YEAR else f"must be above 0 and at most {_YEAR:.0f} seconds"


def optional(check: Check) -> Check:
    """The check for None or what another check takes."""
    return lambda value: None if value is None else check(value)


def flag(value: Any) -> str | None:
    """Check for True or False, not what counts as one."""
    return None if isinstance(value, bool) else f"must be True or False, not {type(value).__name__}"


def one_of(*values: object) -> Check:
    """The check for one of some values."""
    # By type too: 1 == True, and it is not meant.
    return lambda value: (
        None
        if any(type(value) is type(each) and value == each for each in values)
        else f"must be one of {', '.join(map(repr, values))}"
    )
