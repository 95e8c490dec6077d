"""msgpack: what it keeps, what it changes, what a hostile peer cannot do."""

from __future__ import annotations

import resource
import tracemalloc
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from redpoll.errors import ConfigError, DecodeError, EncodeError
from redpoll.serializers import MsgpackSerializer

MSGPACK = MsgpackSerializer()


def _round(value: object) -> Any:
    return MSGPACK.decode(MSGPACK.encode(value))


def test_bytes_and_text_stay_apart() -> None:
    """Bytes survive as bytes, text as str, also as keys; other buffers become bytes."""
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
    with pytest.raises(DecodeError, match=r"a dict has a key of type int \(send str .*\(strict_map_key=False\)\)$"):
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
    """The peak memory of this process since the last call, in bytes; since its start if the system has no other."""
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


@pytest.mark.parametrize("each", [b"\x80", b"\x90", b"\x81\xa0\xc0", b"\x91\xc0", b"\xd4\x05x"])
def test_containers_are_bounded(each: bytes) -> None:
    """A message with more lists, dicts and extensions than the limit is refused; one more byte of something else is not."""
    few = MsgpackSerializer(max_containers=1_000)
    head = b"\xdd" + (1_000).to_bytes(4, "big")
    assert len(few.decode(head + each * 999 + b"\xc0")) == 1_000
    with pytest.raises(DecodeError, match=r"more than 1,000 lists and dicts \(MsgpackSerializer\(max_containers="):
        few.decode(head + each * 1_000)


def test_what_looks_like_containers_is_not_counted() -> None:
    """Bytes, text and numbers do not count, whatever they look like."""
    value = [b"\x80" * 5_000, "\u0410" * 5_000, *[1.5] * 5_000]
    assert MsgpackSerializer(max_containers=10).decode(MSGPACK.encode(value)) == value


def test_a_million_by_default() -> None:
    """Empty dicts of one byte each use no more memory than a million of them."""
    size = 4_000_000
    data = b"\xdd" + size.to_bytes(4, "big") + b"\x80" * size
    tracemalloc.start()
    with pytest.raises(DecodeError, match="more than 1,000,000"):
        MSGPACK.decode(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000 * 72 + 10 * size


@pytest.mark.parametrize("limit", [0, -1, True, None, "1", 2**63])
def test_a_limit_is_a_number(limit: Any) -> None:
    """An invalid number of containers is a ConfigError that names it."""
    with pytest.raises(ConfigError, match="max_containers"):
        MsgpackSerializer(max_containers=limit)


def test_what_is_refused_is_freed() -> None:
    """Lists that began in a truncated message are freed."""
    data = b"\x9f" * 900 + b"\xd9\xff"
    left = 0
    for _ in range(2):
        tracemalloc.start()
        for _ in range(50):
            with pytest.raises(DecodeError):
                MSGPACK.decode(data)
        left, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert left < 200_000


@pytest.mark.parametrize(
    "each", [b"\xc0", b"\xa2ab", b"\xa2\xc4\x80", b"\xc4\x02ab", b"\xcd\x01\x01", b"\xd6\xff\x00\x00\x00\x01"]
)
def test_the_dearest_values(each: bytes) -> None:
    """Other values use at most about 35 times their bytes: short texts that are not ASCII."""
    data = b"\xdd" + (50_000).to_bytes(4, "big") + each * 50_000
    tracemalloc.start()
    value = MSGPACK.decode(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(value) == 50_000
    assert peak < 35 * len(data)


def test_what_a_thread_keeps_for_encoding_is_in_nobodys_way() -> None:
    """Values that encode something themselves, failures and large values leave the next one as it should be."""
    serializer = MsgpackSerializer()

    class Nested(dict[str, int]):
        def items(self) -> Any:
            assert serializer.encode([1]) == b"\x91\x01"
            return super().items()

    assert serializer.encode([Nested(a=1), 2]) == b"\x92\x81\xa1a\x01\x02"
    with pytest.raises(EncodeError):
        serializer.encode([1, 2, object()])
    assert serializer.encode([3]) == b"\x91\x03"
    large = b"x" * 1_000_000
    assert serializer.decode(serializer.encode(large)) == large
    assert serializer.encode([4]) == b"\x91\x04"
