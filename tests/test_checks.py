"""Checks of options: each says what is wrong, or nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from redpoll import checks


@pytest.mark.parametrize("value", [-3, 0, 7])
def test_integers_within_the_limits(value: int) -> None:
    """Both limits are taken."""
    assert checks.integer(-3, 7)(value) is None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (-4, "must be -3 to 7"),
        (8, "must be -3 to 7"),
        (True, "must be an int, not bool"),
        (5.0, "must be an int, not float"),
        ("5", "must be an int, not str"),
    ],
)
def test_other_integers(value: Any, problem: str) -> None:
    """What is beyond the limits, or no int, is told with them, or with its type."""
    assert checks.integer(-3, 7)(value) == problem


def test_seconds() -> None:
    """Any number above 0 and up to a year is a time."""
    assert [checks.seconds(value) for value in (0.001, 1, 31_536_000)] == [None] * 3
    for bad in (0, -1, float("nan"), float("inf"), 31_536_001):
        assert checks.seconds(bad) == "must be above 0 and at most 31536000 seconds"
    assert checks.seconds(True) == "must be a number of seconds, not bool"


def test_duration() -> None:
    """A duration is a number from 0 to a year."""
    assert [checks.duration(value) for value in (0, 0.0, 1, 0.5)] == [None] * 4
    assert checks.duration(-1) == checks.duration(float("nan")) == "must be 0 or more and at most 31536000 seconds"
    assert checks.duration(False) == "must be a number of seconds, not bool"


def test_flag() -> None:
    """Only True and False are flags."""
    assert checks.flag(True) is checks.flag(False) is None
    assert checks.flag(1) == "must be True or False, not int"


def test_one_of() -> None:
    """A choice is exact, by type too."""
    check = checks.one_of(True, "a")
    assert check(True) is check("a") is None
    assert check(1) == check("b") == "must be one of True, 'a'"


def test_optional() -> None:
    """None passes whatever the check says of it."""
    assert checks.optional(checks.flag)(None) is None
    assert checks.optional(checks.flag)(5) == "must be True or False, not int"


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda one: one, None),
        (lambda *every: every, None),
        (dict, None),
        (lambda: 0, "too many positional arguments"),
        (lambda one, two: one, "missing a required argument: 'two'"),
    ],
)
def test_calls_with_one_argument(function: Any, problem: str | None) -> None:
    """A function that one argument is too many or too few for is told as Python would; one that cannot be told is taken."""
    assert checks.call_problem(function) == problem


def test_what_gives_a_coroutine() -> None:
    """Coroutine functions, objects that are called like one, and either with some arguments filled in."""

    class Later:
        async def __call__(self, *_: object) -> None:
            pass

        async def method(self) -> None:
            pass

    async def later(*_: object) -> None:
        pass

    def plain(*_: object) -> None:
        pass

    asynchronous: list[Any] = [later, Later(), Later().method, partial(later, 1), partial(Later(), 1)]
    for function in asynchronous:
        assert checks.is_async(function)
    others: list[Any] = [plain, partial(plain, 1), Later, print, None]
    for function in others:
        assert not checks.is_async(function)
