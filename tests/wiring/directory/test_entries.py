"""What may stand in a directory."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from redpoll import Address, UsageError
from redpoll.wiring.directory.entries import key_of, place_problem, stays_here, style_of
from tests.wiring.directory.support import entry


def test_an_entry_has_a_key() -> None:
    """Kind and name together say which one it is."""
    assert entry("E").key == ("exchange", "E") == key_of("exchange", "E")


@pytest.mark.parametrize(
    ("kind", "name"), [("topic", "E"), (None, "E"), ("queue", ""), ("queue", 5), ("queue", "x" * 256)]
)
def test_what_is_no_key(kind: Any, name: Any) -> None:
    """A kind that there is not, and a name that is none, are refused."""
    with pytest.raises(UsageError):
        key_of(kind, name)


def test_styles() -> None:
    """A style is short text, or a member of an enum that has such; a queue has none."""

    class Style(Enum):
        BALANCE = "balance"

    assert style_of(Style.BALANCE) == style_of("balance") == "balance"
    assert style_of(None) is None


@pytest.mark.parametrize("style", ["", "x" * 33, "a\nb", 5, b"balance"])
def test_what_is_no_style(style: Any) -> None:
    """Anything else is refused."""
    with pytest.raises(UsageError):
        style_of(style)


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("127.0.0.1:1", True),
        ("127.0.0.2:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/run/x", True),
        ("inproc:x", True),
        ("10.0.0.1:1", False),
        ("[fe80::1%eth0]:1", False),
        ("example.org:1", False),
    ],
)
def test_what_stays_on_this_machine(address: str, here: bool) -> None:
    """Loopback, unix sockets and names in the process are for this machine alone."""
    assert stays_here(Address.parse(address)) is here


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("127.0.0.1:1", None),
        ("example.org:1", None),
        ("unix:/run/x", None),
        ("10.0.0.1:0", "port 0"),
        ("0.0.0.0:1", "wildcard address"),
        ("[::]:1", "wildcard address"),
    ],
)
def test_what_can_be_dialled(address: str, problem: str | None) -> None:
    """A wildcard and port 0 are for listening; everything else can be tried."""
    found = place_problem(Address.parse(address))
    assert found is None if problem is None else problem in (found or "")
