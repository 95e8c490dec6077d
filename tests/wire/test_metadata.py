from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import ProtocolError
from redpoll.wire import bodies
from redpoll.wire.bodies import LARGE
from redpoll.wire.metadata import (
    DEADLINE_BLOCK,
    DEADLINE_PREFIX,
    MAX_METADATA,
    Field,
    decode_metadata,
    millis,
)
from tests.wire.support import (
    CONTINUED,
    METADATA,
    NAME,
    REQ_ACK,
    Feeding,
    arrived,
    deadline,
    error_of,
    feed,
    feed_as,
    frame,
    linked,
    message,
    metadata,
)

FIELDS = st.dictionaries(st.integers(0, 255), st.binary(max_size=60), max_size=20)


def test_golden_bytes() -> None:
    """A block is a row of fields: key, length, value."""
    fields = decode_metadata(bytes.fromhex("010004000005dc0500026e71"))
    assert fields == {Field.DEADLINE: struct.pack("!I", 1500), Field.LAYER: b"nq"}


def test_keys() -> None:
    """The keys of version 1."""
    assert {field.name: int(field) for field in Field} == {
        "DEADLINE": 1,
        "TRACE": 2,
        "CONTENT_TYPE": 3,
        "SEQUENCE": 4,
        "LAYER": 5,
    }


@given(FIELDS)
def test_round_trip(fields: dict[int, bytes]) -> None:
    """Fields survive a round trip, also those with unknown keys."""
    encoded = metadata(*fields.items())
    assert decode_metadata(encoded[2:]) == fields
    assert decode_metadata(memoryview(encoded)[2:]) == fields


def test_deadline_block_is_such_a_block() -> None:
    """The one struct for a deadline alone packs what the general way packs."""
    block = DEADLINE_BLOCK.pack(7, Field.DEADLINE, 4, 250)
    assert block == deadline(250)
    assert block.startswith(DEADLINE_PREFIX)


def test_largest(feeding: Feeding) -> None:
    """Metadata of 4,096 bytes are read; a block that has more is illegal."""
    value = bytes(MAX_METADATA - 3)
    assert MAX_METADATA == 4096
    assert decode_metadata(metadata((9, value))[2:]) == {9: value}
    link = linked()
    feed_as(link, frame(REQ_ACK | METADATA, 3, metadata((9, value)) + b"body"), feeding)
    assert arrived(link) == [(REQ_ACK | METADATA, 3, NAME, b"", b"body")]
    text = error_of(linked(), frame(REQ_ACK | METADATA, 3, metadata((9, value + b"."))), feeding)
    assert text == "metadata block of 4097 bytes exceeds the limit of 4096"


@pytest.mark.parametrize("size", [0, 300, LARGE + 300])
@pytest.mark.parametrize("pieces", [None, [100]])
def test_what_trickles_in_is_decoded_once(monkeypatch: pytest.MonkeyPatch, size: int, pieces: list[int] | None) -> None:
    """Metadata are decoded when the body behind them is complete, however many reads that takes."""
    blocks: list[bytes] = []

    def decode(block: bytes) -> dict[int, bytes]:
        blocks.append(bytes(block))
        return decode_metadata(block)

    monkeypatch.setattr(bodies, "decode_metadata", decode)
    link = linked()
    block = metadata((200, b"unknown"), (1, b"\0\0\0\xfa"))
    data = message(REQ_ACK, 3, bytes(size), header=b"head", block=block, pieces=pieces if size else None)
    feed(link, data, range(min(len(data), 600)))
    assert blocks == [block[2:]]
    assert [each.deadline for each in link.arrived.messages] == [0.25]


@given(st.binary(max_size=200))
def test_any_block_is_read_or_refused(block: bytes) -> None:
    """A block decodes, or raises `ProtocolError`; the result is never larger than the input."""
    try:
        fields = decode_metadata(block)
    except ProtocolError:
        return
    assert sum(3 + len(value) for value in fields.values()) <= len(block)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, 0), (-3.0, 0), (0.0019, 1), (5.0, 5000), (1e9, 0xFFFFFFFF), (4294967.295, 0xFFFFFFFF)],
)
def test_millis(seconds: float, expected: int) -> None:
    """Seconds become whole milliseconds within 32 bits."""
    assert millis(seconds) == expected


# Received


def test_header_and_body_stay_the_users(feeding: Feeding) -> None:
    """A metadata block is removed: header and body arrive as they were sent."""
    link = linked()
    block = metadata((Field.LAYER, b"nq"), (200, b"unknown"))
    feed_as(link, frame(REQ_ACK | METADATA, 3, block), feeding)
    assert arrived(link) == [(REQ_ACK | METADATA, 3, NAME, b"", b"")]


@pytest.mark.parametrize("body", [b"", b"body", bytes(70_000)], ids=len)
@pytest.mark.parametrize("header", [b"", b"head", bytes(0xFFFF)], ids=len)
@pytest.mark.parametrize(
    "block",
    [deadline(1000), metadata((200, b"unknown")), metadata(), metadata((1, b"\x05"), (9, bytes(4_000)))],
    ids=len,
)
def test_all_shapes(block: bytes, header: bytes, body: bytes) -> None:
    """Any block before any header before any body is parsed."""
    link = linked()
    data = message(REQ_ACK, 3, body, header=header, block=block)
    feed_as(link, data, Feeding.MORE)
    assert arrived(link) == [(REQ_ACK | METADATA, 3, NAME, header, body)]


def test_deadline(feeding: Feeding) -> None:
    """A deadline counts from the arrival, on the receiver's clock; in a block alone and among other fields."""
    link = linked()
    alone = frame(REQ_ACK | METADATA, 3, deadline(1500) + b"body")
    among = frame(REQ_ACK | METADATA, 4, metadata((5, b"nq"), (1, struct.pack("!I", 250))) + b"body")
    none = frame(REQ_ACK | METADATA, 5, metadata((5, b"nq")) + b"body")
    feed_as(link, alone + among + none, feeding, now=100.0)
    assert [each.deadline for each in link.arrived.messages] == [101.5, 100.25, None]
    assert arrived(link) == [(REQ_ACK | METADATA, serial, NAME, b"", b"body") for serial in (3, 4, 5)]


def test_body_size_is_the_users(feeding: Feeding) -> None:
    """Windows count header and body; metadata is the library's own."""
    link = linked()
    with_header = message(REQ_ACK, 3, b"cde", header=b"ab", block=deadline(9))
    feed_as(link, with_header + message(REQ_ACK, 4, b"cde", block=deadline(9)), feeding)
    assert [each.body_size for each in link.arrived.messages] == [5, 3]


def test_block_longer_than_its_frame(feeding: Feeding) -> None:
    """A block that reaches beyond its frame is illegal."""
    text = error_of(linked(), frame(METADATA, 3, struct.pack("!H", 50) + b"only this"), feeding)
    assert text == "metadata block exceeds its frame"


def test_no_room_for_its_length(feeding: Feeding) -> None:
    """A frame whose data is too short for a block's length is illegal."""
    assert (
        error_of(linked(), frame(METADATA, 3, b"x"), feeding) == "frame with metadata is shorter than its length field"
    )


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (struct.pack("!HB", 1, 1), "metadata block ends inside a field"),
        (struct.pack("!HBH", 3, 1, 4), "metadata field exceeds its block"),
    ],
)
def test_broken_block(block: bytes, text: str, feeding: Feeding) -> None:
    """A block whose fields do not fit it is illegal."""
    assert error_of(linked(), frame(METADATA, 3, block + bytes(9)), feeding) == text


def test_continued(feeding: Feeding) -> None:
    """A continued message has its metadata in its first frame, before its whole length."""
    link = linked()
    first = frame(REQ_ACK | METADATA | CONTINUED, 3, deadline(500) + struct.pack("!Q", 6) + b"abc")
    feed_as(link, first + frame(0x34, 3, b"def", identity=NAME), feeding, now=2.0)
    assert link.arrived.messages[0].deadline == 2.5
    assert arrived(link) == [(REQ_ACK | METADATA | CONTINUED, 3, NAME, b"", b"abcdef")]
