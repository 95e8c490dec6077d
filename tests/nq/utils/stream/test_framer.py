"""Messages one behind the other in a stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.nq import Stream
from redpoll.nq.utils.stream import Framer, StreamFramer

FRAMER = StreamFramer()


@given(st.lists(st.binary(max_size=20), max_size=5), st.integers(1, 9))
def test_messages_come_back(messages: list[bytes], size: int) -> None:
    """Messages come out as they went in, whole, however their bytes arrive."""
    written = Stream()
    for message in messages:
        data = Stream.frombuffer(message)
        assert FRAMER.pack(written, data) == 8 + len(message)
        assert not data
    whole = bytes(written)
    transport = Stream()
    found = []
    for at in range(0, len(whole), size):
        transport.write(whole[at : at + size])
        while True:
            there = transport.nbytes
            try:
                found.append(bytes(FRAMER.unpack(transport)))
            except BlockingIOError:
                assert transport.nbytes == there
                break
    assert found == messages
    assert not transport


def test_the_form() -> None:
    """The size stands in front, in 64 bits, big-endian; nothing behind it is copied."""
    memory = bytearray(b"abc")
    transport = Stream()
    FRAMER.pack(transport, Stream.frombuffer(memory))
    assert bytes(transport[0]) == b"\0\0\0\0\0\0\0\3"
    assert transport[1].obj is memory
    assert FRAMER.unpack(transport)[0].obj is memory
    assert FRAMER.pack_header(transport, 2**64 - 1) == 8
    assert FRAMER.unpack_header(transport) == 2**64 - 1


@pytest.mark.parametrize("size", [-1, 2**64])
def test_sizes_have_limits(size: int) -> None:
    """What does not fit 64 bits is no size."""
    with pytest.raises(ValueError, match="is no size"):
        FRAMER.pack_header(Stream(), size)


def test_messages_over_the_limit() -> None:
    """A message that has more bytes than allowed is refused as soon as its size is there."""
    transport = Stream()
    FRAMER.pack_header(transport, 2**60)
    with pytest.raises(ValueError, match="over the limit of 10"):
        FRAMER.unpack(transport, 10)
    FRAMER.pack(transport, Stream.frombuffer(b"abc"))
    assert bytes(FRAMER.unpack(transport, 3)) == b"abc"


def test_both_names() -> None:
    """net-queue 2.4 called it Framer."""
    assert Framer is StreamFramer
