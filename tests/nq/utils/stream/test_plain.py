"""Serializers of what is bytes already."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import EncodeError
from redpoll.nq import BufferSerializer, BytesSerializer, Stream, StreamSerializer
from redpoll.nq.core.codec import parts

DATA = [b"", b"abc", bytearray(b"abc"), memoryview(b"abc"), array("i", [1, 2]), np.arange(4.0)]


@pytest.mark.parametrize("serializer", [BytesSerializer(), BufferSerializer()], ids=["bytes", "buffer"])
@pytest.mark.parametrize("data", DATA, ids=["nothing", "bytes", "bytearray", "view", "array", "numpy"])
def test_bytes_come_back(serializer: Any, data: Any) -> None:
    """Anything with a buffer comes out as its bytes, however it was split on its way."""
    stream = serializer.dump(data)
    assert bytes(serializer.load(stream.copy())) == bytes(memoryview(data))
    whole = bytes(stream)
    pieces = Stream()
    pieces.writeviews([whole[at : at + 2] for at in range(0, len(whole), 2)])
    assert bytes(serializer.load(pieces)) == bytes(memoryview(data))
    assert not pieces


def test_what_is_received() -> None:
    """BytesSerializer gives bytes; BufferSerializer a view that can be written to, of the received memory itself."""
    assert type(BytesSerializer().load(Stream.frombuffer(bytearray(b"abc")))) is bytes
    memory = bytearray(b"abc")
    view = BufferSerializer().load(Stream.frombuffer(memory))
    assert view.obj is memory
    assert not BufferSerializer().load(Stream.frombuffer(b"abc")).readonly
    assert BufferSerializer().load(Stream()).nbytes == 0


@pytest.mark.parametrize("serializer", [BytesSerializer(), BufferSerializer()], ids=["bytes", "buffer"])
def test_what_is_sent_is_not_copied(serializer: Any) -> None:
    """The dumped stream refers to the memory of the object."""
    memory = bytearray(100_000)
    assert serializer.dump(memory)[0].obj is memory


@pytest.mark.parametrize("serializer", [BytesSerializer(), BufferSerializer()], ids=["bytes", "buffer"])
@pytest.mark.parametrize("data", ["text", None, np.arange(6)[::2]], ids=repr)
def test_what_has_no_bytes(serializer: Any, data: Any) -> None:
    """Anything else is an EncodeError."""
    with pytest.raises(EncodeError):
        serializer.dump(data)


@given(st.lists(st.binary(max_size=9), max_size=5))
def test_streams(chunks: list[bytes]) -> None:
    """A sent stream stays as it is, and a received one is the receiver's: nobody empties it behind its back."""
    serializer = StreamSerializer()
    sent = Stream()
    sent.writeviews(chunks)
    body = bytes(parts(serializer.dump(sent)))
    assert bytes(sent.copy()) == body == b"".join(chunks)
    with Stream.frombuffer(body) as received:
        found = serializer.load(received)
    assert bytes(found) == body


def test_what_is_no_stream() -> None:
    """Anything but a stream is an EncodeError that says how to make one."""
    with pytest.raises(EncodeError, match=r"bytes is no Stream \(Stream.frombuffer"):
        StreamSerializer().dump(b"abc")  # type: ignore[arg-type]
