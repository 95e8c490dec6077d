"""The numbers of the old module."""

from __future__ import annotations

import pytest

from redpoll import UsageError
from redpoll.wiring.names import NO_LIMIT as ENDLESS
from redpoll.wiring.names import Limits, Scope, Style
from redpoll.wiring.zmq import constants
from redpoll.wiring.zmq.constants import check_swap, limits_of, scope_of, style_of


def test_numbers_are_those_of_the_last_version() -> None:
    """A program that wrote the numbers themselves means the same."""
    assert (constants.SCOPE_LOCAL, constants.SCOPE_PROCESS, constants.SCOPE_GLOBAL) == (1, 2, 3)
    assert (constants.STYLE_DATA_DISTRIBUTION, constants.STYLE_LOAD_BALANCING) == (1, 2)
    assert (constants.MESSAGE_DATA, constants.MESSAGE_GAP) == (1, 2)
    assert (constants.NO_LIMIT, constants.NO_SWAP) == (-1, 0)


def test_scopes() -> None:
    """Each constant is a scope, and a scope is itself."""
    assert [scope_of(number) for number in (1, 2, 3)] == [Scope.LOCAL, Scope.PROCESS, Scope.GLOBAL]
    assert scope_of(Scope.GLOBAL) is Scope.GLOBAL


def test_styles() -> None:
    """Each constant is a style, and a style is itself."""
    assert [style_of(number) for number in (1, 2)] == [Style.DISTRIBUTE, Style.BALANCE]
    assert style_of(Style.BALANCE) is Style.BALANCE


@pytest.mark.parametrize("value", [0, 4, True, "GLOBAL", None, 1.0, []])
def test_no_scope_and_no_style(value: object) -> None:
    """What is no constant is an error that names those there are."""
    with pytest.raises(UsageError, match=r"no scope .*SCOPE_LOCAL, SCOPE_PROCESS or SCOPE_GLOBAL"):
        scope_of(value)
    with pytest.raises(UsageError, match=r"no style .*STYLE_DATA_DISTRIBUTION or STYLE_LOAD_BALANCING"):
        style_of(value)


@pytest.mark.parametrize("high", [1, 2, 7, 100, 10_000, 999_983])
def test_marks(high: int) -> None:
    """Senders stop at the higher mark, and go on when exactly the lower one is left."""
    for low in {0, 1, high // 3, high // 2, high - 1} - {high}:
        limits = limits_of(high, low)
        assert limits.messages == high
        assert limits.free_again(high) == high - low


def test_marks_that_are_not_given() -> None:
    """Without marks the limits are those of every queue, and NO_LIMIT is none at all."""
    assert limits_of(None, None) == Limits()
    assert limits_of(500, None) == limits_of(500, -1) == Limits(messages=500)
    assert limits_of(None, 10).messages == Limits().messages
    assert limits_of(-1, None) == ENDLESS


@pytest.mark.parametrize(("hwm", "lwm"), [("1", None), (True, None), (-2, None), (10, 1.5), (10, "1"), (1.0, None)])
def test_marks_that_are_none(hwm: object, lwm: object) -> None:
    """What is no number of messages is an error that names the mark."""
    with pytest.raises(UsageError, match=r"(hwm|lwm) is a number of messages"):
        limits_of(hwm, lwm)


def test_marks_in_the_wrong_order() -> None:
    """The lower mark is below the higher one."""
    with pytest.raises(UsageError, match=r"lwm=10 is not below hwm=10"):
        limits_of(10, 10)


def test_there_is_no_swap() -> None:
    """Nothing is written to disk, and who asks for it is told what to do instead."""
    check_swap(constants.NO_SWAP)
    with pytest.raises(UsageError, match=r"no swap.*NO_SWAP; a higher hwm"):
        check_swap(1024)
