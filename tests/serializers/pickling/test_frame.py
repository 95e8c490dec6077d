from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.serializers.pickling.frame import ALIGNMENT, MAGIC, FrameError, join, split


def joined(stream: bytes, parts: list[bytes]) -> bytes:
    """A body in one piece."""
    return b"".join(join([stream], [memoryview(part) for part in parts]))


@given(st.binary(max_size=200), st.lists(st.binary(max_size=200), max_size=5))
def test_round_trip(stream: bytes, parts: list[bytes]) -> None:
    """Stream and parts survive a round trip, each part aligned."""
    body = memoryview(joined(stream, parts))
    found, views = split(body)
    assert (bytes(found), [bytes(view) for view in views]) == (stream, parts)
    assert all(view.obj is body.obj for view in views)
    at = 16 + 8 * len(parts) + len(stream)
    for part in parts:
        at += -at % ALIGNMENT
        assert body[at : at + len(part)] == part
        at += len(part)


def test_golden_bytes() -> None:
    """The format: magic, count, bytes of the stream, bytes of each part, the stream, a gap, the part."""
    body = joined(b"N.", [b"abc"])
    assert body.hex() == "9372700100000001000000000000000200000000000000034e2e" + "00" * 38 + "616263"


@given(st.binary(max_size=80))
def test_other_bytes_are_refused(junk: bytes) -> None:
    """Anything else is a FrameError."""
    for body in (junk, MAGIC + junk):
        try:
            stream, parts = split(memoryview(body))
        except FrameError:
            continue
        assert len(stream) + sum(map(len, parts)) < len(body)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (joined(b"N.", [])[:15], "too short"),
        (b"\x80\x05" + bytes(14), "was not written by this serializer"),
        (joined(b"N.", [])[:-1], "do not fit"),
        (joined(b"N.", [b"abc"])[:-1], "part 0 of 3 bytes does not fit"),
        (joined(b"N.", []) + b"x", "1 bytes after"),
        (MAGIC + b"\xff\xff\xff\xff" + bytes(8), "do not fit"),
        (MAGIC + bytes(4) + b"\xff" * 8, "do not fit"),
        (MAGIC + b"\0\0\0\1" + bytes(8) + b"\xff" * 8, "part 0 of 18446744073709551615 bytes does not fit"),
    ],
)
def test_sizes_that_contradict(body: bytes, problem: str) -> None:
    """Sizes are compared with the body before anything is allocated for them."""
    with pytest.raises(FrameError, match=problem):
        split(memoryview(body))
