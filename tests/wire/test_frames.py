from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.message import MAX_HEADER_SIZE
from redpoll.wire import frames
from redpoll.wire.frames import (
    ACK_ANSWER,
    ACK_REFUSAL,
    BLANK_IDENTITY,
    CONTROL_MASK,
    MAX_REFUSAL_TEXT,
    PREAMBLE,
    PREAMBLE_SIZE,
    REQ_ACK,
    TOTAL,
    Control,
    control_frame,
    decode_refusal,
    encode_refusal,
    frame_struct,
)
from tests.wire.support import TYPE_BITS


def test_preamble_is_libchirps() -> None:
    """The preamble's bytes are those of chirp.md 1.2: identity, serial, data length, header length, type."""
    packed = PREAMBLE.pack(bytes(range(16)), 0x11223344, 5, 2, REQ_ACK)
    assert packed.hex() == "000102030405060708090a0b0c0d0e0f1122334400000005000201"
    assert len(packed) == PREAMBLE_SIZE == 27


def test_type_bits() -> None:
    """Libchirp's three bits are its own, the five above are ours, one each."""
    assert {name: getattr(frames, name) for name in TYPE_BITS} == {
        "REQ_ACK": 0x01,
        "ACK": 0x02,
        "NOOP": 0x04,
        "RETRY": 0x08,
        "WANTED": 0x10,
        "ANSWER": 0x20,
        "METADATA": 0x40,
        "CONTINUED": 0x80,
    }
    assert CONTROL_MASK == 0x06


def test_control_types() -> None:
    """A control frame's type is NOOP and a number in the bits above; no two are the same, none asks for an ACK."""
    assert {control.name: int(control) for control in Control} == {
        "ANNOUNCE": 0x04,
        "PING": 0x0C,
        "PONG": 0x14,
        "GOODBYE": 0x1C,
        "CREDIT": 0x24,
        "CANCEL": 0x2C,
        "FRAGMENT": 0x34,
        "SESSION": 0x3C,
    }


def test_acknowledgement_types() -> None:
    """A refusal and an answer are acknowledgements with a bit more."""
    assert (ACK_REFUSAL, ACK_ANSWER) == (0x0A, 0x22)


def test_control_frame() -> None:
    """A control frame is a preamble with its number and, behind it, its body."""
    assert control_frame(Control.GOODBYE, 0x01020304).hex() == "00" * 16 + "010203040000000000001c"
    assert control_frame(Control.CANCEL, 1, body=b"\x01").hex() == "00" * 16 + "000000010000000100002c01"
    assert control_frame(Control.ANNOUNCE, identity=b"i" * 16)[:16] == b"i" * 16
    assert bytes(16) == BLANK_IDENTITY


def test_header_limit() -> None:
    """The maximum header is limited by 16 bits."""
    assert struct.pack("!H", MAX_HEADER_SIZE) == b"\xff\xff"


def test_total_is_64_bits() -> None:
    """A continued message declares its length in 64 bits."""
    assert TOTAL.pack(2**40) == (2**40).to_bytes(8, "big")


@given(st.integers(0, 255), st.text(max_size=300))
def test_refusal_round_trip(code: int, text: str) -> None:
    """A refusal's code and text survive a round trip."""
    assert decode_refusal(encode_refusal(code, text)) == (code, text.encode("utf-8", "replace").decode())


@given(st.text(min_size=1, max_size=3), st.integers(1, 1100))
def test_long_refusal_is_cut(text: str, times: int) -> None:
    """A long text is cut to whole characters, at most `MAX_REFUSAL_TEXT` bytes of them."""
    long = (text * times).encode("utf-8", "replace").decode()
    body = encode_refusal(1, long)
    code, read = decode_refusal(body)
    assert code == 1
    assert long.startswith(read)
    assert len(body) - 1 == len(read.encode()) <= MAX_REFUSAL_TEXT
    assert read == long or len(read.encode()) > MAX_REFUSAL_TEXT - 4


def test_empty_refusal() -> None:
    """A refusal without a body is one without a reason."""
    assert decode_refusal(b"") == (0, "")


@given(st.binary(max_size=5000))
def test_any_refusal_body_is_read(body: bytes) -> None:
    """Whatever a peer puts into a refusal, it is read as a code and a text of bounded length."""
    code, text = decode_refusal(body)
    assert 0 <= code <= 255
    assert len(text) <= MAX_REFUSAL_TEXT


@pytest.mark.parametrize("size", [0, 1, 255, 4096])
def test_frame_struct(size: int) -> None:
    """A message of one size, preamble and body, is one struct without padding."""
    body = bytes(size)
    packed = frame_struct(size).pack(bytes(16), 1, size, 0, 0, body)
    assert packed == PREAMBLE.pack(bytes(16), 1, size, 0, 0) + body
