"""Checks of options: each takes a value and returns what is wrong with it, or None."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from redpoll.errors import ConfigError

__all__ = [
    "Check",
    "call_problem",
    "check_function",
    "duration",
    "flag",
    "integer",
    "is_async",
    "one_of",
    "optional",
    "require",
    "seconds",
    "text",
]

Check = Callable[[Any], "str | None"]

_YEAR: Final = 31_536_000.0


def integer(low: int, high: int) -> Check:
    """Return a check for an int from `low` to `high`; True and False are rejected."""

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


def duration(value: Any) -> str | None:
    """Check a time that may be none at all: 0, or what `seconds` takes."""
    if type(value) in {int, float} and value == 0:
        return None
    problem = seconds(value)
    return problem and problem.replace("above 0", "0 or more")


def optional(check: Check) -> Check:
    """Return a check for None or a value that another check accepts."""
    return lambda value: None if value is None else check(value)


def flag(value: Any) -> str | None:
    """Check for True or False, not for truthiness."""
    return None if isinstance(value, bool) else f"must be True or False, not {type(value).__name__}"


def text(value: Any) -> str | None:
    """Check for text."""
    return None if isinstance(value, str) else f"must be text, not {type(value).__name__}"


def one_of(*values: object) -> Check:
    """Return a check for one of some values."""
    # By type too: 1 == True, but is not meant.
    return lambda value: (
        None
        if any(type(value) is type(each) and value == each for each in values)
        else f"must be one of {', '.join(map(repr, values))}"
    )


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if calling it gives a coroutine: a coroutine function, or an object whose ``__call__`` is one.

    `functools.partial` is looked through. What only happens to return a coroutine cannot be told before.
    """
    while isinstance(function, partial):
        function = function.func
    # Of its type, where a call looks: a class of such objects gives no coroutine.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004  # it is the method that is looked at
    )


def require(field: str, value: object, check: Check) -> None:
    """Check an option.

    Raises:
        ConfigError: The check has something against the value; it names the option.
    """
    problem = check(value)
    if problem is not None:
        raise ConfigError(field, value, problem)


def check_function(field: str, value: object, hint: str) -> None:
    """Check for a function, or another object that can be called.

    Raises:
        ConfigError: It is none; its hint says what it is to be.
    """
    if not callable(value):
        raise ConfigError(field, value, f"must be a function, not {type(value).__name__}", hint)


def call_problem(function: Callable[..., Any]) -> str | None:
    """Check that a function can be called with one argument; None also if its signature is not available."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions
        return None
    try:
        signature.bind(None)
    except TypeError as error:
        return str(error)
    return None
