from __future__ import annotations

import gc
import sys
import tracemalloc
import weakref
from pickle import PickleBuffer
from typing import Any

import numpy as np
import pytest

from redpoll.serializers import Parts, PickleSerializer
from redpoll.serializers.pickling.frame import split
from redpoll.serializers.pickling.writing import APART, write


def parts_of(obj: Any) -> list[memoryview]:
    """The parts behind the stream of what is written for it."""
    return split(memoryview(bytes(write(obj, None))))[1]


def test_arrays_are_not_copied() -> None:
    """The memory of an array goes out as it is: what changes before it is written changes what is sent."""
    value = np.zeros(100_000)
    sent = write([1, value], None)
    assert isinstance(sent, Parts)
    value[:] = 7
    assert np.frombuffer(sent.pieces[-1]).tolist() == [7] * 100_000
    assert sent.held < 1000


def test_bytes_are_not_copied() -> None:
    """Large bytes and bytearrays in the stream go out as they are."""
    data, memory = bytes(100_000), bytearray(100_000)
    sent = write([data, memory], None)
    assert isinstance(sent, Parts)
    assert any(piece is data for piece in sent.pieces)
    assert any(isinstance(piece, memoryview) and piece.obj is memory for piece in sent.pieces)


def test_only_a_copy_counts_as_held() -> None:
    """An array in more than one piece has to be copied; that copy is the library's, and queues count it."""
    value = np.zeros(200_000)[::2]
    sent = write(value, None)
    assert isinstance(sent, Parts)
    assert value.nbytes <= sent.held < value.nbytes + 1000


@pytest.mark.parametrize(("size", "count"), [(APART - 1, 0), (APART, 1)])
def test_small_parts_stand_in_the_stream(size: int, count: int) -> None:
    """Below a size a part is not worth its place."""
    for each in (np.zeros(size, "u1"), memoryview(bytearray(size)), PickleBuffer(bytearray(size))):
        assert len(parts_of([each])) == count


@pytest.mark.parametrize("size", [0, 5, 5000])
def test_views(size: int) -> None:
    """A memoryview arrives as one of its bytes, to be written to where it could be."""
    serializer = PickleSerializer()
    for view in (memoryview(bytearray(size)), memoryview(bytes(size)), memoryview(bytearray(2 * size))[size:]):
        found = serializer.decode(bytes(serializer.encode(view)))
        assert isinstance(found, memoryview)
        assert found == view
        assert found.readonly is view.readonly or not size


def test_nothing_is_left_to_the_collector() -> None:
    """A pickled object is no longer referred to once the body is gone."""
    value = np.zeros(100_000)
    gone = weakref.ref(value)
    gc.disable()
    try:
        write([value, memoryview(bytearray(5000))], None)
        del value
        assert gone() is None
    finally:
        gc.enable()


def test_little_is_allocated_beside_an_array() -> None:
    """Pickling an array needs no memory of its size."""
    value = np.zeros(1_000_000)
    tracemalloc.start()
    try:
        sent = write({"a": value}, None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(sent) > value.nbytes
    assert peak < 200_000


def test_state_is_set_without_build() -> None:
    """Objects with state, slots, items and cycles survive without the opcode that sets any state."""
    serializer = PickleSerializer([Slotted, Listed, Stateful])
    slotted = Slotted()
    slotted.a, slotted.b = 1, slotted
    listed = Listed([1, 2])
    listed.name = "x"
    value = {"slotted": slotted, "listed": listed, "stateful": Stateful(5)}
    found = serializer.decode(bytes(serializer.encode(value)))
    assert found["slotted"].a == 1
    assert found["slotted"].b is found["slotted"]
    assert (list(found["listed"]), found["listed"].name) == ([1, 2], "x")
    assert found["stateful"].size == 6


def test_ids_are_asked_for_only_if_wanted() -> None:
    """Objects are sent by id where the program gives one."""
    sent = write([1, "engine", 2], lambda obj: 77 if obj == "engine" else None)
    assert b"engine" not in bytes(sent)
    assert PickleSerializer(persistent_load={77: "engine"}.__getitem__).decode(bytes(sent)) == [1, "engine", 2]
    assert sys.getsizeof(sent)


class Slotted:
    __slots__ = ("a", "b")

    a: int
    b: object


class Listed(list[int]):
    name: str


class Stateful:
    def __init__(self, size: int) -> None:
        self.size = size

    def __getstate__(self) -> int:
        return self.size

    def __setstate__(self, state: int) -> None:
        self.size = state + 1
