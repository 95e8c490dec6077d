"""msgpack: what it keeps, what it changes, what a hostile peer cannot do."""

from __future__ import annotations

import resource
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from redpoll.errors import DecodeError, EncodeError
from redpoll.serializers import MsgpackSerializer

MSGPACK = MsgpackSerializer()


def _round(value: object) -> Any:
    return MSGPACK.decode(MSGPACK.encode(value))


def test_bytes_and_text_stay_apart() -> None:
    """Bytes come back as bytes, text as str, also as keys; other buffers as bytes."""
    assert _round({"a": b"x", b"b": "y"}) == {"a": b"x", b"b": "y"}
    assert _round([bytearray(b"x"), memoryview(b"y")]) == [b"x", b"y"]


def test_a_tuple_arrives_as_a_list() -> None:
    """MessagePack has one kind of sequence."""
    assert _round((1, (2, 3))) == [1, [2, 3]]


def test_times_come_back_in_utc() -> None:
    """An aware datetime keeps its moment to the microsecond, before 1970 too."""
    for when in (
        datetime(2024, 2, 29, 12, 0, 0, 123_456, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        datetime(1901, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ):
        assert _round(when) == when
        assert _round(when).tzinfo is UTC


def test_a_naive_time_is_refused() -> None:
    """A datetime without a zone is an EncodeError, since its moment is not known."""
    with pytest.raises(EncodeError, match=r"^msgpack cannot encode: "):
        MSGPACK.encode(datetime(2024, 1, 1))  # noqa: DTZ001 - that is the point


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, {1, 2}, 1j, "\ud800", object, print])
def test_what_messagepack_has_not_is_refused(value: object) -> None:
    """Numbers that are too large, sets and objects are an EncodeError with the cause."""
    with pytest.raises(EncodeError) as caught:
        MSGPACK.encode([value])
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x92\x01",
        b"\x01\x02",
        b"\xa3ab",
        b"\xa1\xff",
        b"\x81\x01\x02",
        b"\x81\xc0\x02",
        b"\x81\x90\x02",
        b"\xd6\xff\x00",
        b"\xc7\x03\xff\x00\x00\x00",
        b"\xd7\xff" + b"\xff" * 8,
        b"\xc7\x0c\xff" + b"\x00" * 4 + b"\x7f" + b"\xff" * 7,
    ],
)
def test_what_is_no_messagepack_is_refused(data: bytes) -> None:
    """Cut short, too long, bad text, forbidden keys, impossible times: a DecodeError with the cause."""
    with pytest.raises(DecodeError) as caught:
        MSGPACK.decode(data)
    assert caught.value.__cause__ is not None


def test_other_keys_have_to_be_asked_for() -> None:
    """Numbers as keys are refused by default, as they can be chosen to collide, and read with strict_map_key=False."""
    encoded = MSGPACK.encode({1: "a", None: "b"})
    with pytest.raises(DecodeError, match="is not allowed for map key when strict_map_key=True"):
        MSGPACK.decode(encoded)
    assert MsgpackSerializer(strict_map_key=False).decode(encoded) == {1: "a", None: "b"}


def test_a_key_that_cannot_be_one_is_refused() -> None:
    """A list as a key is a DecodeError too when all keys are allowed."""
    with pytest.raises(DecodeError):
        MsgpackSerializer(strict_map_key=False).decode(b"\x81\x90\x02")


def test_unknown_extensions_are_data() -> None:
    """An extension that is no time is a pair of its number and its bytes; nothing is run for it."""
    assert tuple(MSGPACK.decode(b"\xd4\x05x")) == (5, b"x")


@pytest.mark.parametrize("header", [b"\xdd", b"\xdf", b"\xdb", b"\xc6"])
def test_an_announced_size_allocates_nothing(header: bytes) -> None:
    """A few bytes that announce four thousand million items are refused at once."""
    with pytest.raises(DecodeError):
        MSGPACK.decode(header + b"\xff\xff\xff\xff" + b"\x00" * 100)


def _peak() -> int:
    """The most memory this process has held since the last call, in bytes; where the system cannot say, since ever."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    reset.write_text("5")
    return int(peak.split()[1]) * 1024


def test_nested_announcements_stay_bounded() -> None:
    """Arrays in arrays that each announce as much as the data has bytes do not multiply its memory."""
    size = 4_000_000
    data = (b"\xdd" + (size - 10_000).to_bytes(4, "big")) * 500 + b"\xc0" * (size - 2_500)
    _peak()
    before = _peak()
    with pytest.raises(DecodeError):
        MSGPACK.decode(data)
    assert _peak() - before < 32 * size  # one list of pointers as long as the data, and room for the allocator
