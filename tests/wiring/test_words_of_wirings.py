"""What wirings tell one another."""

from __future__ import annotations

import pytest

from redpoll.errors import (
    Closed,
    DirectoryUnavailable,
    NameTaken,
    PeerLost,
    ProtocolError,
    RedpollError,
    ScopeError,
    UnknownName,
    WiringError,
)
from redpoll.wiring.protocol import CREDIT, DATA, MAX_WORD, check_answer, decode, encode, field, refusal


def test_round_trip() -> None:
    """A word comes out as it was."""
    word = {"word": "open", "pipe": 1, "run": b"\x00\xff", "none": None}
    assert decode(encode(word)) == word


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x81\x01\x02", bytes(MAX_WORD + 1)])
def test_no_word(body: bytes) -> None:
    """What is no record is one documented error."""
    with pytest.raises(ProtocolError):
        decode(body)


def test_field() -> None:
    """A field has to be there, and of its type: True is no number."""
    assert field({"at": 3}, "at", int) == 3
    for word in ({}, {"at": True}, {"at": "3"}, {"at": None}):
        with pytest.raises(ProtocolError, match="at"):
            field(word, "at", int)


@pytest.mark.parametrize(
    "error",
    [
        WiringError("too many"),
        UnknownName("queue", "Q", 1.5),
        NameTaken("exchange", "E", "somebody", "ask them"),
        ScopeError("not from here", "do that"),
        DirectoryUnavailable("127.0.0.1:5682", "it is gone"),
        Closed("wiring"),
    ],
)
def test_refusal(error: RedpollError) -> None:
    """An error comes out at the other end as what it was, with its text and hint."""
    with pytest.raises(type(error)) as caught:
        check_answer(decode(encode(refusal(error))))
    assert str(caught.value) == str(error)


def test_other_errors() -> None:
    """What is no error of wiring comes out as a plain one with its text; an answer that makes no sense, too."""
    with pytest.raises(WiringError, match="lost the peer"):
        check_answer(refusal(PeerLost(None, "it went")))
    for answer in (
        {"error": 7},
        {"error": "SystemExit", "arguments": 3},
        {"error": "UnknownName", "arguments": [1]},
        {"error": "UnknownName", "arguments": ["queue", "Q", "soon"]},
        {"error": "NameTaken", "arguments": ["queue", 1, "x"]},
        {"error": "NameTaken", "arguments": ["queue", None, "x"]},
    ):
        with pytest.raises(WiringError) as caught:
            check_answer(answer)
        assert str(caught.value)
    assert check_answer({"pipe": 1}) == {"pipe": 1}


def test_headers() -> None:
    """The headers of data and of credits have different sizes, and their first byte says what they are."""
    assert DATA.unpack(DATA.pack(b"D", 1, 2, 3, 4, 5)) == (b"D", 1, 2, 3, 4, 5)
    assert CREDIT.unpack(CREDIT.pack(b"C", 1, 2)) == (b"C", 1, 2)
    assert DATA.size != CREDIT.size


def test_a_word_of_nothings() -> None:
    """More lists than any word has are refused as they come."""
    with pytest.raises(ProtocolError, match="more than 65,536"):
        decode(b"\xdd" + (500_000).to_bytes(4, "big") + b"\x90" * 500_000)
