"""Bodies in several pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redpoll.serializers import Parts, gather
from redpoll.serializers.parts import APART, JOINED
from redpoll.wire.bodies import LARGE

SIZES = st.lists(st.sampled_from([0, 1, 27, APART - 1, APART, APART + 1, JOINED, 2 * JOINED]), max_size=8)


@given(SIZES, st.data())
def test_nothing_is_lost(sizes: list[int], drawn: st.DataObject) -> None:
    """A gathered body has all the bytes in order, whole and cut anywhere."""
    pieces = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    whole = b"".join(pieces)
    made = gather(pieces)
    assert (len(made), bytes(made)) == (len(whole), whole)
    if isinstance(made, Parts):
        start = drawn.draw(st.integers(0, len(whole)))
        stop = drawn.draw(st.integers(start, len(whole)))
        assert b"".join(made.cut(start, stop)) == whole[start:stop]
        assert all(len(piece) for piece in made.pieces)


def test_large_pieces_are_not_copied() -> None:
    """A large piece stays the memory that it was, also where it is cut; its small neighbours are joined."""
    memory = bytearray(2 * JOINED)
    made = gather([b"a", b"b", memoryview(memory), b"c", b"d"])
    assert isinstance(made, Parts)
    assert [len(piece) for piece in made.pieces] == [2, len(memory), 2]
    memory[5] = 1
    assert made.cut(6, 9) == [b"\x00\x01\x00"]
    assert bytes(made)[7] == 1


def test_small_bodies_are_in_one_piece() -> None:
    """A body that is joined with its frame anyway is bytes: only larger bodies are parts."""
    assert gather([b"a" * (APART + 1), b"b" * (JOINED - APART - 1)]) == b"a" * (APART + 1) + b"b" * (JOINED - APART - 1)
    assert isinstance(gather([b"a" * (APART + 1), b"b" * (JOINED - APART)]), Parts)
    assert gather([]) == b""


def test_one_large_piece_needs_no_parts() -> None:
    """A body of nothing but one bytes object is that object."""
    data = bytes(2 * JOINED)
    assert gather([b"", data]) == data
    assert type(gather([data])) is bytes


def test_no_parts_are_small() -> None:
    """The core joins bodies of up to `LARGE` bytes without looking whether they are in pieces."""
    assert JOINED == LARGE


def test_what_the_library_holds() -> None:
    """Bytes count as held, views as the application's, unless the serializer allocated them."""
    view = memoryview(bytearray(2 * JOINED))
    made = gather([b"ab", view, bytes(APART + 1)], held=10)
    assert isinstance(made, Parts)
    assert made.held == 2 + APART + 1 + 10
