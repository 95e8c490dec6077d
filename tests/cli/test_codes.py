"""Exit codes."""

from __future__ import annotations

import pytest

from redpoll.address import Address
from redpoll.cli.codes import CannotListenError, ExitCode, code_of
from redpoll.errors import ConfigError, DialFailed, MessageTooLarge, NoAnswer, NotSent, PeerLost, UsageError
from redpoll.message import Message

PEER = Address.parse("127.0.0.1:2998")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (ConfigError("port", 0, "x"), 2),
        (NoAnswer(Message(b""), 1.0, PEER), 3),
        (CannotListenError(PEER, "in use"), 4),
        (MessageTooLarge("message", 2, 1), 1),
        (DialFailed(PEER, "refused"), 1),
        (PeerLost(PEER, "gone"), 1),
    ],
)
def test_each_error_has_its_code(error: Exception, code: int) -> None:
    """An error that ends a command decides the exit code."""
    assert code_of(error) == code


def test_codes_are_those_that_are_documented() -> None:
    """The numbers are a contract with scripts."""
    assert {code.name: int(code) for code in ExitCode} == {
        "DONE": 0,
        "NOT_DELIVERED": 1,
        "USAGE": 2,
        "NO_ANSWER": 3,
        "CANNOT_LISTEN": 4,
        "INTERRUPTED": 130,
        "TERMINATED": 143,
    }


def test_where_it_could_not_listen_is_in_the_text() -> None:
    """The text has the address and the system's reason."""
    assert str(CannotListenError(PEER, "in use")) == "cannot listen on 127.0.0.1:2998: in use"


def test_what_the_options_forbid_is_usage_wherever_it_shows() -> None:
    """A message that failed because of an option makes the code that of usage."""
    error = NotSent(Message(b""), "encryption", PEER)
    assert code_of(error) == 1
    error.__cause__ = ConfigError("encryption", "auto", "needs TLS")
    assert code_of(error) == 2
