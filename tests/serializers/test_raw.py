"""raw: bytes-like in, bytes out."""

from __future__ import annotations

import array
import mmap
from typing import Any

import pytest

from redpoll.errors import EncodeError
from redpoll.serializers import RawSerializer

RAW = RawSerializer()


@pytest.mark.parametrize("data", [b"abc", bytearray(b"abc"), memoryview(b"abc"), memoryview(bytearray(b"abc"))])
def test_what_is_received_is_always_bytes(data: bytes | bytearray | memoryview) -> None:
    """Whatever buffer the body is in, the application gets bytes."""
    decoded = RAW.decode(data)
    assert type(decoded) is bytes
    assert decoded == b"abc"


def test_bytes_are_not_copied() -> None:
    """Bytes go through both ways as the same object, and so does a bytearray on sending."""
    data, array_ = b"abc", bytearray(b"abc")
    assert RAW.encode(data) is data
    assert RAW.decode(data) is data
    assert RAW.encode(array_) is array_


def test_received_bytes_do_not_change_with_the_buffer() -> None:
    """The bytes that were handed out are a copy of a buffer that is used again."""
    buffer = bytearray(b"abc")
    decoded = RAW.decode(memoryview(buffer))
    buffer[:] = b"xyz"
    assert decoded == b"abc"


@pytest.mark.parametrize(
    "obj",
    [memoryview(b"abcd"), memoryview(b"abcd").cast("B", (2, 2)), array.array("B", b"abcd"), array.array("I", b"abcd")],
)
def test_bytes_like_objects_are_sent_as_their_bytes(obj: Any) -> None:
    """Any buffer in one piece is sent as it is in memory."""
    assert bytes(RAW.encode(obj)) == b"abcd"


def test_a_map_of_a_file_is_bytes_like() -> None:
    """An mmap can be sent, and closed when the view of it is gone."""
    with mmap.mmap(-1, 4096) as memory:
        memory[:3] = b"abc"
        encoded = RAW.encode(memory)
        assert len(encoded) == 4096
        assert bytes(encoded[:3]) == b"abc"
        assert isinstance(encoded, memoryview)
        encoded.release()
        del encoded


def test_text_is_refused_with_the_remedy() -> None:
    """The error for str has the remedy."""
    with pytest.raises(EncodeError) as caught:
        RAW.encode("abc")
    assert str(caught.value) == (
        "raw cannot encode: it carries bytes, not str (call .encode() on it, or use the json or msgpack serializer)"
    )


@pytest.mark.parametrize("obj", [None, 5, 1.5, [1, 2], {"a": 1}, object()])
def test_what_is_not_bytes_like_is_refused(obj: object) -> None:
    """The error names the type and the serializers that could carry it, and keeps the cause."""
    with pytest.raises(EncodeError) as caught:
        RAW.encode(obj)
    problem, _, hint = str(caught.value).partition(" (")
    assert problem == f"raw cannot encode: {type(obj).__name__} is not bytes-like"
    assert hint == "the json and msgpack serializers carry other values)"
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_released_view_is_refused() -> None:
    """A memoryview that was released is an EncodeError, not a ValueError out of nowhere."""
    view = memoryview(b"abc")
    view.release()
    with pytest.raises(EncodeError):
        RAW.encode(view)


def test_what_is_not_in_one_piece_is_refused_with_the_remedy() -> None:
    """A view with steps would have to be copied; the error has the remedy."""
    with pytest.raises(EncodeError, match=r"memoryview is not C-contiguous \(send bytes\(obj\)"):
        RAW.encode(memoryview(b"abcd")[::2])
