"""Streams: what goes in comes out, in order, not copied, by net-queue's names of both generations."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from redpoll.nq import Stream, byteview
from tests.serializers.pickling.test_opcodes import VALUES

CHUNKS = st.lists(st.binary(max_size=8), max_size=6)


def made(*chunks: bytes) -> Any:
    """A stream with these views."""
    stream: Any = Stream()
    stream.writeviews(chunks)
    return stream


class Model(RuleBasedStateMachine):
    """A stream beside a bytearray: both have the same bytes after any steps."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = Stream()
        self.model = bytearray()

    def _took(self, view: Any, size: int) -> None:
        assert type(view) is memoryview
        assert bytes(view) == bytes(self.model[:size])
        del self.model[:size]

    def _first(self) -> int:
        return self.stream[0].nbytes if self.stream else 0

    @rule(data=st.binary(max_size=9), chunks=CHUNKS)
    def write(self, data: bytes, chunks: list[bytes]) -> None:
        assert self.stream.write(data) == len(data)
        assert self.stream.writelines(chunks) == len(b"".join(chunks))
        self.model += data + b"".join(chunks)

    @rule(data=st.binary(max_size=9))
    def unread(self, data: bytes) -> None:
        assert self.stream.unreadview(memoryview(data)) == len(data)
        self.model[:0] = data

    @rule(size=st.none() | st.integers(-1, 12))
    def read(self, size: int | None) -> None:
        wanted = len(self.model) if size is None or size < 0 else min(size, len(self.model))
        self._took(self.stream.read(size), wanted)

    @rule(size=st.none() | st.integers(-1, 12))
    def read1(self, size: int | None) -> None:
        first = self._first()
        self._took(self.stream.read1(size), first if size is None or size < 0 else min(size, first))

    @rule()
    def readview(self) -> None:
        first = self._first()
        self._took(self.stream.readview(), first)

    @rule()
    def unwrite(self) -> None:
        last = bytes(self.stream[-1]) if self.stream else b""
        assert bytes(self.stream.unwriteview()) == last
        assert bytes(self.model[len(self.model) - len(last) :]) == last
        del self.model[len(self.model) - len(last) :]

    @rule(size=st.integers(0, 12), once=st.booleans())
    def readinto(self, size: int, once: bool) -> None:
        wanted = min(size, self._first() if once else len(self.model))
        target = bytearray(size)
        assert (self.stream.readinto1 if once else self.stream.readinto)(target) == wanted
        self._took(memoryview(target)[:wanted], wanted)

    @rule(size=st.integers(-1, 12))
    def readline(self, size: int) -> None:
        line = io.BytesIO(self.model).readline(size)
        self._took(self.stream.readline(size), len(line))

    @rule(offset=st.integers(0, 12), whence=st.sampled_from([os.SEEK_SET, os.SEEK_CUR]))
    def seek(self, offset: int, whence: int) -> None:
        assert self.stream.seek(offset, whence) == min(offset, len(self.model))
        del self.model[:offset]

    @rule(size=st.none() | st.integers(0, 12))
    def truncate(self, size: int | None) -> None:
        del self.model[size or 0 :]
        assert self.stream.truncate(size) == len(self.model)

    @rule()
    def change_the_copy(self) -> None:
        twin = self.stream.copy()
        assert bytes(twin) == bytes(self.model)
        twin.close()

    @invariant()
    def same(self) -> None:
        views = list(self.stream.views)
        assert b"".join(views) == bytes(self.model)
        assert all(view.nbytes for view in views)
        assert self.stream.nbytes == len(self.model)
        assert len(self.stream) == self.stream.nchunks == len(views)
        assert bool(self.stream) is not self.stream.empty()
        assert bool(self.stream) is bool(self.model)
        assert self.stream.tell() == 0


TestModel = Model.TestCase


@given(CHUNKS, st.integers(-1, 30))
def test_lines(chunks: list[bytes], hint: int) -> None:
    """Lines are found wherever the views begin and end, with an empty one and without an end at the end."""
    whole = b"\n".join(chunks)
    for size in (1, 2, 5):
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert [bytes(line) for line in made(*pieces)] == list(io.BytesIO(whole))
        assert [bytes(line) for line in made(*pieces).readlines(hint)] == io.BytesIO(whole).readlines(hint)


def test_a_line_far_behind() -> None:
    """The end of a line is found behind any number of bytes, and what stands behind it stays."""
    stream = made(bytes(100_000), bytes(50_000) + b"\nrest")
    assert stream.readline().nbytes == 150_001
    assert bytes(stream) == b"rest"


@given(VALUES, st.integers(1, 9), st.integers(0, 5))
def test_pickle_reads_from_it(value: Any, size: int, protocol: int) -> None:
    """pickle.load reads a pickle of any protocol from any pieces, and leaves what stands behind it."""
    written = pickle.dumps(value, protocol)
    stream = made(*[written[at : at + size] for at in range(0, len(written), size)], b"rest")
    assert pickle.load(stream) == value
    assert bytes(stream) == b"rest"


@given(VALUES, st.data())
def test_truncated_pickles(value: Any, drawn: st.DataObject) -> None:
    """A pickle that is cut short, or is not there at all, is an error of pickle's, as from a file."""
    written = pickle.dumps(value)
    cut = drawn.draw(st.integers(0, len(written) - 1))
    with pytest.raises((pickle.UnpicklingError, EOFError)):
        pickle.load(made(written[:cut]))


def test_pickle_writes_to_it() -> None:
    """pickle.dump writes to a stream as to a file."""
    stream: Any = Stream()
    pickle.dump(["a", bytes(100_000)], stream, 5)
    assert pickle.load(stream) == ["a", bytes(100_000)]


def test_nothing_is_copied() -> None:
    """A view that is read is of the memory that was written, its beginning and its rest as well."""
    memory = bytearray(b"abcdef")
    stream: Any = Stream.frombuffer(memory)
    assert stream.read(2).obj is memory
    assert stream[0].obj is memory
    memory[2] = ord("X")
    assert stream.toview() == b"Xdef"
    stream = made(b"ab")
    stream.writeview(memory)
    joined = stream.read(3)
    assert not joined.readonly
    assert stream.readview().obj is memory


def test_an_empty_stream_reads_nothing() -> None:
    """Where nothing is there, reading gives an empty view, again and again."""
    stream: Any = Stream()
    for read in (
        stream.read,
        stream.read1,
        stream.readline,
        stream.readview,
        stream.readchunk,
        stream.unwriteview,
        stream.unwritechunk,
        stream.toview,
        stream.peekchunk,
    ):
        assert read() == memoryview(b"")
    assert stream.read(5) == b""
    assert stream.readinto(bytearray(5)) == stream.readinto1(bytearray(5)) == 0
    assert bytes(stream) == stream.tobytes() == b""
    assert list(stream) == stream.readlines() == list(stream.readviews()) == []
    assert stream.seek(5) == 0
    assert stream.truncate() == 0
    assert not stream
    with pytest.raises(IndexError):
        stream[0]


def test_empty_views_are_not_kept() -> None:
    """What is empty changes nothing, so that a stream with views has something to read."""
    stream = made(b"", b"a", b"")
    assert stream.unreadview(b"") == 0
    assert len(stream) == 1


def test_what_was_read_is_gone() -> None:
    """Whole views come in order, and each leaves as it is given: a loop that breaks off leaves the rest."""
    stream = made(b"ab", b"cd", b"ef")
    assert next(stream.views) == b"ab"
    assert stream[1] == b"cd"
    assert stream[-1] == b"ef"
    for view in stream.readviews():
        assert view == b"ab"
        break
    assert (len(stream), stream.nbytes) == (2, 4)
    assert bytes(stream) == b"cdef"
    assert not stream


def test_names_of_2_4() -> None:
    """The names of net-queue 2.4 do the same."""
    stream: Any = Stream.frombytes(b"ab")
    assert stream.writechunk(b"cd") == 2
    assert stream.writechunks([b"e", b"f"]) == 2
    assert (stream.nchunks, stream.empty(), stream.peekchunk()) == (4, False, b"ab")
    assert stream.readchunk() == b"ab"
    assert stream.unreadchunk(b"AB") == 2
    assert stream.unwritechunk() == b"f"
    assert [bytes(chunk) for chunk in stream.copy().readchunks()] == [b"AB", b"cd", b"e"]
    assert stream.tobytes() == b"ABcde"
    assert stream.empty()


def test_copies() -> None:
    """A copy refers to the same memory, a deep one to memory of its own, and each is read by itself."""
    memory = bytearray(b"abc")
    stream: Any = Stream.frombuffer(memory)
    twin, deep = copy.copy(stream), copy.deepcopy(stream)
    stream.close()
    memory[0] = ord("X")
    assert bytes(twin) == b"Xbc"
    assert bytes(deep) == b"abc"


def test_closing_lets_go() -> None:
    """Closed, at the end of with as well, a stream holds nothing; what was read from it stays readable."""
    memory = bytearray(b"abcdef")
    with Stream.frombuffer(memory) as stream:
        read = stream.read(2)
        array_of_it = np.frombuffer(stream[0], "u1")
    assert stream.closed
    assert bytes(read) == b"ab"
    assert array_of_it.tobytes() == b"cdef"
    del read, array_of_it
    gc.collect()
    memory += b"g"
    for use in (
        stream.read,
        stream.readview,
        stream.readline,
        stream.toview,
        stream.copy,
        stream.tell,
        stream.truncate,
        stream.readable,
        stream.writable,
        stream.seekable,
        stream.unwriteview,
        stream.peekchunk,
        lambda: stream.write(b"x"),
        lambda: stream.unreadview(b"x"),
        lambda: stream.readinto(bytearray(1)),
        lambda: stream.readinto1(bytearray(1)),
        lambda: stream.seek(0),
        lambda: bytes(stream),
        lambda: copy.deepcopy(stream),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert (len(stream), stream.nbytes, bool(stream)) == (0, 0, False)
    stream.close()


def test_it_is_a_file_that_goes_forward() -> None:
    """It reads, writes and drops what is in front; it does not go back, and there is nothing to detach."""
    stream = made(b"abc")
    assert issubclass(type(stream), io.BufferedIOBase)
    assert stream.readable()
    assert stream.writable()
    assert stream.seekable()
    with pytest.raises(ValueError, match="does not go back"):
        stream.seek(-1)
    with pytest.raises(io.UnsupportedOperation):
        stream.seek(0, os.SEEK_END)
    with pytest.raises(io.UnsupportedOperation):
        stream.detach()
    assert bytes(stream) == b"abc"


def test_repr() -> None:
    """It says how much there is, and none of it."""
    stream = made(b"secret")
    assert repr(stream) == "<Stream 1 view, 6 bytes>"
    assert repr(made(b"a", b"b")) == "<Stream 2 views, 2 bytes>"
    stream.close()
    assert repr(stream) == "<Stream closed>"


@pytest.mark.parametrize(
    "buffer",
    [
        b"\1\0\0\0\2\0\0\0",
        bytearray(b"\1\0\0\0\2\0\0\0"),
        array("i", [1, 2]),
        memoryview(array("i", [1, 2])),
        np.array([1, 2], "<i4"),
        np.array([[1], [2]], "<i4"),
        np.array([(1,), (2,)], [("a", "<i4")]),
        pickle.PickleBuffer(bytearray(b"\1\0\0\0\2\0\0\0")),
    ],
    ids=lambda buffer: type(buffer).__name__,
)
def test_byteview(buffer: Any) -> None:
    """Whatever its items are, the memory of an object is seen as bytes, and read from a stream as such."""
    view = byteview(buffer)
    assert (view.format, view.ndim, view.itemsize) == ("B", 1, 1)
    assert bytes(view) == b"\1\0\0\0\2\0\0\0"
    assert bytes(Stream.frombuffer(buffer)) == bytes(view)


@pytest.mark.parametrize("buffer", [np.empty((0, 3)), memoryview(b""), array("d")], ids=["numpy", "view", "array"])
def test_byteview_of_nothing(buffer: Any) -> None:
    """What is empty is an empty view."""
    assert byteview(buffer) == memoryview(b"")


def test_byteview_copies_nothing() -> None:
    """The view is of the object's own memory; one of bytes is taken as it is."""
    numbers = np.zeros(2, "<i4")
    byteview(numbers)[0] = 7
    assert numbers[0] == 7
    view = memoryview(b"abc")
    assert byteview(view) is view


@pytest.mark.parametrize(
    ("given", "problem"),
    [("text", "call .encode"), (5, "int is not bytes-like"), (np.arange(6)[::2], "not C-contiguous")],
    ids=["text", "number", "gaps"],
)
def test_no_buffer(given: Any, problem: str) -> None:
    """What has no bytes, or not in one piece, is a TypeError with the remedy, wherever it is given."""
    for take in (byteview, Stream.frombuffer, Stream().write, Stream().unreadview):
        with pytest.raises(TypeError, match=problem):
            take(given)
