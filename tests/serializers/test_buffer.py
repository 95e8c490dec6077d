"""buffer: any memory in, a writable view out."""

from __future__ import annotations

import array
import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import EncodeError
from redpoll.serializers import BufferSerializer

BUFFER = BufferSerializer()


@given(st.binary(max_size=100), st.sampled_from([bytes, bytearray, memoryview]))
def test_what_is_received_is_a_writable_view_of_bytes(data: bytes, kind: type[bytes | bytearray | memoryview]) -> None:
    """Whatever buffer the body is in, the application gets a flat memoryview that it may write to."""
    view = BUFFER.decode(kind(data))
    assert isinstance(view, memoryview)
    assert not view.readonly
    assert (view.format, view.ndim, view.nbytes) == ("B", 1, len(data))
    assert view == data


def test_a_large_body_is_not_copied_on_arrival() -> None:
    """A writable body stays where it was received: writing to the view writes there."""
    body = bytearray(200_000)
    for view in (BUFFER.decode(memoryview(body)), BUFFER.decode(body)):
        view[5] += 1
    assert body[5] == 2


def test_a_small_body_is_not_shared() -> None:
    """Bytes are copied, since they are read-only."""
    data = bytes(3)
    BUFFER.decode(data)[0] = 1
    BUFFER.decode(memoryview(data))[0] = 1
    assert data == bytes(3)


def test_memory_is_not_copied_on_sending() -> None:
    """The encoded body refers to the memory of the object."""
    numbers = array.array("d", [1.0, 2.0])
    encoded = BUFFER.encode(numbers)
    assert isinstance(encoded, memoryview)
    assert (encoded.format, encoded.ndim, encoded.nbytes) == ("B", 1, 16)
    numbers[1] = 3.0
    assert encoded[8:] == array.array("d", [3.0]).tobytes()


@pytest.mark.parametrize("count", [0, 3])
def test_memory_of_any_format_is_taken(count: int) -> None:
    """Numbers, tables of them, and empty tables are sent as their memory."""
    numbers = (ctypes.c_int * 3 * count)()
    assert bytes(BUFFER.encode(numbers)) == bytes(numbers)
    assert bytes(BUFFER.encode(memoryview(numbers))) == bytes(numbers)


def test_memory_in_another_order_is_refused() -> None:
    """An object that is not contiguous is an EncodeError: its bytes would be copied, or in the wrong order."""
    with pytest.raises(EncodeError, match="is not C-contiguous"):
        BUFFER.encode(memoryview(b"abcdef").cast("B", (2, 3))[::-1])


def test_text_is_refused_with_the_remedy() -> None:
    """The error for str has the remedy."""
    with pytest.raises(
        EncodeError, match=r"^buffer cannot encode: it carries bytes, not str \(call \.encode\(\) on it"
    ):
        BUFFER.encode("abc")


def test_it_asks_for_the_buffer() -> None:
    """The node learns from wants_buffer that a large body need not become bytes."""
    assert BUFFER.wants_buffer
