"""flatten: memory as bytes, without a copy."""

from __future__ import annotations

import array
import ctypes
import gc
from collections.abc import Callable

import pytest

from redpoll.errors import EncodeError
from redpoll.serializers.flat import flatten


def test_bytes_and_bytearray_are_given_back() -> None:
    """Contiguous bytes are not wrapped."""
    for obj in (b"abc", bytearray(b"abc")):
        assert flatten("x", obj) is obj


def test_length_counts_bytes() -> None:
    """A view of larger items becomes one of bytes."""
    view = flatten("x", array.array("I", [1, 2, 3]))
    assert isinstance(view, memoryview)
    assert (len(view), view.itemsize, view.c_contiguous) == (12, 1, True)


def test_the_error_names_the_serializer_that_asked() -> None:
    """The name given is the one in the error."""
    with pytest.raises(EncodeError) as caught:
        flatten("mine", 5)
    assert (caught.value.serializer, caught.value.problem) == ("mine", "int is not bytes-like")


class Record(ctypes.BigEndianStructure):
    _fields_ = [("left", ctypes.c_uint16), ("right", ctypes.c_uint32)]


def test_an_empty_view_of_several_dimensions_is_empty() -> None:
    """No bytes are no bytes, whatever the shape."""
    assert bytes(flatten("x", memoryview(b"").cast("B"))) == b""
    assert bytes(flatten("x", (ctypes.c_uint8 * 0 * 3)())) == b""


def test_records_are_not_copied() -> None:
    """Items whose form memoryview cannot cast are seen through, in their own memory."""
    records = (Record * 2)(Record(1, 2), Record(3, 4))
    for obj in (records, memoryview(records)):
        view = flatten("x", obj)
        assert isinstance(view, memoryview)
        assert bytes(view) == bytes(records)
        records[1].left = 5
        assert bytes(view) == bytes(records)


def test_a_part_of_the_records_is_copied() -> None:
    """A view of some of the records becomes the bytes of those alone."""
    records = (Record * 3)(Record(1, 2), Record(3, 4), Record(5, 6))
    assert flatten("x", memoryview(records)[1:2]) == bytes(records[1])


@pytest.mark.parametrize("make", [lambda: bytearray(10), lambda: memoryview(bytearray(10)), Record * 2])
def test_what_is_made_can_be_garbage(make: Callable[[], object]) -> None:
    """A result that the collector finds in a circle is freed; through PickleBuffer, CPython 3.11 crashed on it."""

    class Circle:
        pass

    view = flatten("x", make())
    circle = Circle()  # made after the view, since the collector goes by age
    circle.me, circle.view = circle, view  # type: ignore[attr-defined]
    del view, circle
    gc.collect()
