"""What is printed, and that it is safe to print."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from redpoll.cli.output import Output, beginning, counted, payload, printable, reason, remedy, size
from redpoll.errors import ConfigError, DialFailed, Expired, NoRoute, NotConfirmed, NotSent, TLSError, UsageError
from redpoll.message import Message

if TYPE_CHECKING:
    import pytest


def test_results_and_errors_go_to_different_places(capsys: pytest.CaptureFixture[str]) -> None:
    """Notices, errors and hints go to standard error; without --json nothing goes to standard output."""
    output = Output()
    output.notice("listening")
    output.event("listening", {"address": "x"})
    output.error(UsageError("bad", hint="do better"))
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "redpoll: listening\nredpoll: error: bad\nredpoll: hint: do better\n"


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json events and errors are objects, and notices are left out."""
    output = Output(json=True)
    output.notice("listening")
    output.event("listening", {"address": "x"})
    output.error(NotConfirmed(Message(b""), "lost", None), fields={"index": 3})
    out, err = capsys.readouterr()
    first, second = map(json.loads, out.splitlines())
    assert first == {"event": "listening", "address": "x"}
    assert second == {
        "event": "failed",
        "error": "message was sent, but not confirmed: lost",
        "hint": None,
        "kind": "NotConfirmed",
        "sent": True,
        "index": 3,
    }
    assert err == "redpoll: error: message was sent, but not confirmed: lost\n"


def test_long_errors_are_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    """A text longer than the terminal stays one line, so that scripts can search it, and no markup is read from it."""
    Output().error("[bold]" + "x" * 300)
    assert capsys.readouterr().err == "redpoll: error: [bold]" + "x" * 300 + "\n"


def test_quiet_leaves_notices_out(capsys: pytest.CaptureFixture[str]) -> None:
    """With --quiet errors are told and notices are not."""
    output = Output(quiet=True)
    output.notice("listening")
    output.error("bad")
    assert capsys.readouterr().err == "redpoll: error: bad\n"


def test_nothing_moves_where_there_is_no_terminal() -> None:
    """Without a terminal there is no progress and no status."""
    output = Output()
    assert not output.live
    with output.status("working") as status:
        assert status is None


def test_the_reason_has_the_cause() -> None:
    """The cause of an error is told behind it, unless it says the same."""
    error = NotConfirmed(Message(b""), "lost", "127.0.0.1:1")
    error.__cause__ = DialFailed("127.0.0.1:1", "Connection refused")
    assert reason(error).endswith("not confirmed: lost (cannot connect to 127.0.0.1:1: Connection refused)")
    late = Expired(Message(b""), 5.0, "connecting", "127.0.0.1:1")
    late.__cause__ = error.__cause__
    assert reason(late).endswith("was not sent: still connecting after 5 s: cannot connect: Connection refused")
    outer = DialFailed("127.0.0.1:1", "Connection refused")
    outer.__cause__ = OSError(111, "Connection refused")
    assert reason(outer) == "cannot connect to 127.0.0.1:1: Connection refused"
    assert reason(OSError(98, "Address already in use")) == "Address already in use"
    assert reason(KeyError()) == "KeyError"
    unsent = NotSent(Message(b""), "cannot connect: Connection refused", "127.0.0.1:1")
    unsent.__cause__ = outer
    assert reason(unsent) == "message to 127.0.0.1:1 was not sent: cannot connect: Connection refused"
    assert reason("words") == "words"


def test_remedies_are_those_of_the_command() -> None:
    """A hint that names an argument of the library is replaced or left out."""
    assert remedy(UsageError("x", hint="y")) == "y"
    assert remedy(NotConfirmed(Message(b""), "lost", None)) is None
    nobody = DialFailed("127.0.0.1:1", "no hub answered in time")
    nobody.hint = "redpoll hub --data DIR starts one"
    assert remedy(nobody) == nobody.hint
    assert "redpoll queue list" in str(remedy(NoRoute("nope", "declare it first")))
    forbidden = ConfigError("encryption", "auto", "needs TLS", "encryption=False")
    assert "--plain" in str(remedy(forbidden))
    error = NotSent(Message(b""), str(forbidden))
    error.__cause__ = forbidden
    assert "--plain" in str(remedy(error))
    assert reason(error) == "message was not sent: encryption='auto': needs TLS"
    error.__cause__ = TLSError("it wants TLS", "127.0.0.1:1", "give tls=")
    assert "--tls on both ends" in str(remedy(error))


@given(st.text())
def test_what_is_printable_has_nothing_to_act_upon(text: str) -> None:
    """Every character is printable or a tab, and printable text stays as it is."""
    shown = printable(text)
    assert all(char.isprintable() or char == "\t" for char in shown)
    assert shown == text or not text.isprintable()


@given(st.binary(max_size=2000))
def test_a_beginning_is_short_and_safe(data: bytes) -> None:
    """Whatever the bytes, the quotation is printable and bounded, and says if there is more."""
    shown = beginning(data)
    assert printable(shown) == shown
    assert len(shown) <= 60 * len("\\U0010ffff") + len('"..."')
    assert shown.startswith('"')
    assert shown.endswith('"')


def test_beginnings_of_text() -> None:
    """Short text is quoted whole, long text to 60 characters, and no character is cut in half."""
    assert beginning(b"GET /index") == '"GET /index"'
    assert beginning(b"x" * 61) == '"' + "x" * 60 + '..."'
    assert beginning("ä".encode() * 300) == '"' + "ä" * 60 + '..."'
    assert beginning(b"a" + "€".encode() * 300) == '"a' + "€" * 59 + '..."'
    assert beginning(b"\xff\x1b[1m") == '"\\xff\\x1b[1m"'


def test_numbers_and_sizes() -> None:
    """One has no plural; thousands are set apart; sizes have units."""
    assert [counted(n, "line") for n in (0, 1, 2000)] == ["0 lines", "1 line", "2,000 lines"]
    assert [size(n) for n in (0, 1, 17, 1_200_000)] == ["0 bytes", "1 byte", "17 bytes", "1.2 MB"]


def test_payloads_are_text_or_base64() -> None:
    """Bytes that are UTF-8 are text; others are base64."""
    assert payload("ä".encode()) == {"text": "ä"}
    assert payload(b"\xff") == {"base64": "/w=="}
