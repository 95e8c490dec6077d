"""flatten: memory as bytes, without a copy."""

from __future__ import annotations

import array

import pytest

from redpoll.errors import EncodeError
from redpoll.serializers.flat import flatten


def test_bytes_and_bytearray_are_given_back() -> None:
    """What is flat already is not wrapped."""
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
