"""Names and the words of wiring."""

from __future__ import annotations

import pytest

from redpoll.errors import UsageError
from redpoll.wiring.names import GLOBAL, LOCAL, MAX_NAME, PROCESS, Scope, check_name


@pytest.mark.parametrize("name", ["a", "PRICES", "ø µ", "x" * MAX_NAME, "é" * 127])
def test_good(name: str) -> None:
    """A name is text of 1 to 255 bytes, spaces and letters of all kinds among them."""
    assert check_name("queue", name) == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "1 to 255 bytes in UTF-8, not 0"),
        ("x" * 256, "not 256"),
        ("é" * 128, "not 256"),
        ("a\tb", "control characters"),
        ("\ud800", "cannot be encoded as UTF-8"),
        (b"bytes", "must be text, not bytes"),
        (None, "must be text, not NoneType"),
    ],
)
def test_bad(name: object, problem: str) -> None:
    """What is no name is refused, with the kind of thing and what is wrong."""
    with pytest.raises(UsageError, match=f"an exchange.*{problem}|exchange {problem}"):
        check_name("exchange", name)


def test_scopes() -> None:
    """The three scopes have names of their own."""
    assert tuple(Scope) == (LOCAL, PROCESS, GLOBAL)
