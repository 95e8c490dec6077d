"""Messages as bytes to write."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from redpoll.cli.records import Form, Records
from redpoll.cli.source import NO_NEWLINE, LineSplitter
from redpoll.message import Message


def messages(content: bytes) -> list[Message[bytes]]:
    """The lines of some content as messages, as `send --lines` makes them."""
    splitter = LineSplitter()
    lines = [Message(line) for line in splitter.feed(content)]
    rest = splitter.end()
    return lines if rest is None else [*lines, Message(rest, header=NO_NEWLINE)]


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"\xff", b"\0"])).map(b"".join), st.integers(1, 4))
def test_lines_give_the_content_back(content: bytes, batch: int) -> None:
    """Lines of any content, in batches of any size, are written as the content."""
    records, lines = Records(Form.LINES), messages(content)
    batches = [lines[start : start + batch] for start in range(0, len(lines), batch)]
    assert b"".join(map(records.encode, batches)) == content


def test_an_unfinished_line_is_ended_when_another_follows() -> None:
    """A line without a newline never runs into the next message."""
    records = Records(Form.LINES)
    assert records.encode([Message(b"a", header=NO_NEWLINE)]) == b"a"
    assert records.encode([Message(b"b")]) == b"\nb\n"
    assert records.encode([Message(b"c")]) == b"c\n"


def test_raw_is_the_bytes() -> None:
    """In the raw form nothing is added."""
    assert Records(Form.RAW).encode([Message(b"a"), Message(b"b", header=NO_NEWLINE)]) == b"ab"


def test_json_has_all_there_is() -> None:
    """In JSON text is text, other bytes are base64, and a header is there where it is not empty."""
    encoded = Records(Form.JSON).encode([Message(b"a", "127.0.0.1:1"), Message(b"\xff", "127.0.0.1:1", header=b"h")])
    assert [json.loads(line) for line in encoded.splitlines()] == [
        {"event": "message", "address": "127.0.0.1:1", "text": "a"},
        {"event": "message", "address": "127.0.0.1:1", "base64": "/w==", "header": {"text": "h"}},
    ]


def test_json_says_null_where_a_sender_has_no_address() -> None:
    """A message over a unix socket from a node that does not listen has no address: JSON says null."""
    assert json.loads(Records(Form.JSON).encode([Message(b"a")]))["address"] is None


@given(st.lists(st.binary()))
def test_a_screen_gets_one_safe_line_a_message(data: list[bytes]) -> None:
    """For a terminal each message is one line without control characters, whatever its bytes."""
    shown = Records(Form.SCREEN).encode(Message(each) for each in data).decode()
    assert shown.count("\n") == len(data)
    assert all(char.isprintable() or char in "\t\n" for char in shown)
