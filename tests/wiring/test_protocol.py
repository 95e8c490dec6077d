"""Many messages in one body, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import ProtocolError
from redpoll.serializers.parts import Parts
from redpoll.wiring.protocol import MIXED, Batch, unpack


def through(messages: list[bytes]) -> list[bytes]:
    """Pack and unpack."""
    shape, body = Batch(messages).packed()
    found = unpack(shape, len(messages), bytes(body))
    assert unpack(shape, len(messages), memoryview(bytes(body))) == found
    assert unpack(shape, len(messages), bytearray(bytes(body))) == found
    return found


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=200))
def test_round_trip(messages: list[bytes]) -> None:
    """Whatever the messages are, the same come out, as bytes."""
    found = through(messages)
    assert found == messages
    assert {type(each) for each in found} == {bytes}


@given(st.integers(1, 5), st.integers(1, 300))
def test_one_size(size: int, count: int) -> None:
    """Messages of one size come out in order, however many they are."""
    messages = [number.to_bytes(size, "little", signed=False) for number in range(min(count, 256**size))]
    assert through(messages) == messages


@pytest.mark.parametrize("sizes", [[70_000], [40_000, 40_000], [40_000, 0, 50_000], [0], [0, 0], [1, 0]])
def test_large(sizes: list[int]) -> None:
    """Large messages, and empty ones, come out as they were."""
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    assert through(messages) == messages


def test_not_copied() -> None:
    """What goes alone is the body itself; several large ones stay where they are."""
    one = bytes(50_000)
    assert Batch([one]).packed()[1] is one
    body = Batch([one, one]).packed()[1]
    assert isinstance(body, Parts)
    assert all(piece is one for piece in body.pieces)


def test_packed_once() -> None:
    """All pipes that carry a batch share one body."""
    batch = Batch([b"a", b"b"])
    assert batch.packed() is batch.packed()
    assert (batch.size, len(batch), batch.cut(1).messages) == (2, 2, [b"b"])


@pytest.mark.parametrize(
    ("shape", "count", "body"),
    [
        (0, 2, b"ab"), (3, 2, b"abcde"), (MIXED, 3, b"ab"), (MIXED, 1, b"\x05\0\0\0abc"),
        (MIXED, 1, b"\x01\0\0\0abc"), (2**31, 1, b""),
    ],
)  # fmt: skip
def test_malformed(shape: int, count: int, body: bytes) -> None:
    """What no wiring packs is one documented error, and nothing is made of it."""
    with pytest.raises(ProtocolError):
        unpack(shape, count, body)


@given(st.integers(0, 2**32 - 1), st.integers(1, 1000), st.binary(max_size=100))
def test_anything(shape: int, count: int, body: bytes) -> None:
    """Any bytes unpack to as many messages as were said, or raise the documented error."""
    try:
        assert len(unpack(shape, count, body)) == count
    except ProtocolError:
        pass
