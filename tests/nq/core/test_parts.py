"""From streams to the bodies of messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import UsageError
from redpoll.nq import PickleSerializer, Stream
from redpoll.nq.core.codec import parts
from redpoll.serializers import Parts

BIG = 100_000


@given(st.lists(st.binary(max_size=9) | st.just(bytes(BIG)), max_size=5))
def test_a_body_has_the_bytes_of_the_stream(chunks: list[bytes]) -> None:
    """Whatever views it had, the body is their bytes, and the stream is empty."""
    stream = Stream()
    stream.writeviews(chunks)
    assert bytes(parts(stream)) == b"".join(chunks)
    assert not stream


def test_small_ones_are_bytes() -> None:
    """A small body is one bytes object; one that was bytes is that object."""
    small = b"abc"
    assert parts(Stream.frombuffer(small)) is small
    assert parts(Stream()) == b""
    large = bytes(BIG)
    assert parts(Stream.frombuffer(large)) is large


def test_large_views_are_not_copied() -> None:
    """A large body has the memory of the program in it, which is not counted as the library's; closing changes nothing."""
    memory = bytearray(BIG)
    with Stream.frombuffer(b"head") as stream:
        stream.writeview(memory)
        body = parts(stream)
    assert isinstance(body, Parts)
    assert body.pieces[0] == b"head"
    assert isinstance(body.pieces[1], memoryview)
    assert body.pieces[1].obj is memory
    assert (len(body), body.held) == (BIG + 4, 4)


def test_what_pickle_copied_counts() -> None:
    """An array that had to be copied to be sent counts as held by the library, one that was not does not."""
    serializer = PickleSerializer()
    whole, gaps = np.zeros(BIG), np.zeros(2 * BIG)[::2]
    for data, copied in ((whole, 0), (gaps, gaps.nbytes), ([whole, gaps], gaps.nbytes)):
        body = parts(serializer.dump(data))
        assert isinstance(body, Parts)
        assert copied <= body.held < copied + 2000
    stream = serializer.dump(gaps)
    stream.seek(stream.nbytes - 80_000)
    body = parts(stream)
    assert isinstance(body, Parts)
    assert body.held == 80_000


class Chunked:
    """What a serializer makes that was written for net-queue 2.4, with a stream of its own."""

    def readchunks(self) -> Iterator[Any]:
        yield memoryview(b"abc")
        yield np.arange(2, dtype="u1")


def test_other_streams() -> None:
    """What gives views as a stream does is taken for one."""
    assert parts(Chunked()) == b"abc\0\1"


@pytest.mark.parametrize("made", [None, b"abc", "abc"])
def test_what_is_no_stream(made: Any) -> None:
    """A dump that returns something else is told what it should return."""
    with pytest.raises(UsageError, match=rf"a Stream, not {type(made).__name__} \(Stream.frombuffer"):
        parts(made)
