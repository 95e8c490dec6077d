from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from redpoll.errors import DecodeError, EncodeError
from redpoll.serializers import PickleSerializer
from redpoll.serializers.pickling.arrays import ArrayError, describe, dtype, take
from tests.serializers.pickling.streams import body, ours, text

PICKLE = PickleSerializer()

KINDS = st.one_of(
    arrays_of.scalar_dtypes(),
    arrays_of.unicode_string_dtypes(max_len=5),
    arrays_of.byte_string_dtypes(max_len=5),
    arrays_of.nested_dtypes(max_leaves=4),
)


def turned(value: Any) -> Any:
    """The result of a round trip."""
    return PICKLE.decode(bytes(PICKLE.encode(value)))


def same(left: Any, right: Any) -> bool:
    """Whether two arrays have the same dtype, shape and bytes."""
    return bool(left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes())


@given(st.data())
def test_arrays_come_back(drawn: st.DataObject) -> None:
    """Arrays of every dtype, shape and order survive a round trip, and are writable."""
    kind = drawn.draw(KINDS)
    value = drawn.draw(arrays_of.arrays(kind, arrays_of.array_shapes(min_dims=0, max_side=4, min_side=0)))
    for each in (value, np.asfortranarray(value), value[::-1] if value.ndim else value, value.T):
        found = turned(each)
        assert same(found, each)
        assert type(found) is np.ndarray
        assert found.flags.writeable


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_order_stays(order: Any) -> None:
    """An array by columns is one by columns."""
    value = np.asarray(np.arange(6000.0).reshape(2, 3000), order=order)
    found = turned(value)
    assert same(found, value)
    assert found.flags.c_contiguous is value.flags.c_contiguous


def test_what_is_read_only_stays_so() -> None:
    """An array that may not be written to arrives as such a one, small and large."""
    for size in (3, 5000):
        value = np.arange(size)
        value.flags.writeable = False
        assert not turned(value).flags.writeable


def test_many_small_arrays_of_one_wide_dtype() -> None:
    """Common parts of arrays are in the pickle once, or are charged."""
    part = np.dtype(("|i1", (1,) * 20))
    for fields in (1, 60):
        kind = np.dtype([(f"a field with a long name, number {index}", part) for index in range(fields)])
        value = [np.zeros(0, kind) for _ in range(200)]
        assert [each.dtype for each in turned(value)] == [kind] * 200


def test_objects() -> None:
    """An array of objects has whatever a pickle carries, arrays among them."""
    value = np.empty((2, 2), object)
    value[0, 0], value[0, 1], value[1, 0] = "text", [1, 2], np.arange(3)
    found = turned(value)
    assert found.shape == (2, 2)
    assert found[0].tolist() == ["text", [1, 2]]
    assert same(found[1, 0], np.arange(3))
    assert found[1, 1] is None
    assert found.flags.writeable


@pytest.mark.parametrize(
    "value",
    [
        *[
            np.float64(0.1),
            np.int8(-1),
            np.bool_(True),
            np.complex64(1j),
            np.str_("é"),
            np.str_(""),
            np.bytes_(b"a\0b"),
        ],
        *[np.datetime64("2024-01-01T00:00", ("m", 25)), np.timedelta64(5, "D"), np.longdouble(1) / 3, np.void(b"abc")],
        *[np.dtype("<f4"), np.dtype([("a", "f8"), ("b", "U3", (2, 2))]), np.dtype("M8[ns]"), np.dtype("V0")],
    ],
    ids=repr,
)
def test_scalars_and_dtypes(value: Any) -> None:
    """Scalars and dtypes survive a round trip, with their exact class."""
    found = turned(value)
    assert type(found) is type(value)
    assert found == value


def test_padding_stays() -> None:
    """A record has its fields where they were, and the bytes between."""
    kind = np.dtype({"names": ["a", "b"], "formats": ["u1", "f8"], "offsets": [3, 16], "itemsize": 40})
    assert turned(np.zeros(2, kind)).dtype == kind
    assert turned(np.zeros(2, np.dtype("u1,f8", align=True))).dtype == np.dtype("u1,f8", align=True)


@pytest.mark.parametrize(
    "value",
    [np.zeros(1, [("a", object)]), np.zeros(1, "i4,f8")[0], np.dtype(object), np.dtype([("a", "O")])],
    ids=["a record of objects", "a record's scalar", "the dtype of objects", "a dtype with objects"],
)
def test_what_is_not_carried(value: Any) -> None:
    """An array that could not be read safely, or unchanged, is an EncodeError."""
    with pytest.raises(EncodeError):
        PICKLE.encode(value)


def test_subclasses_are_other_classes() -> None:
    """An array of a subclass is not encoded as a plain one."""
    assert take(np, np.ma.masked_array([1])) is None
    with pytest.raises((DecodeError, EncodeError)):
        turned(np.ma.masked_array([1]))


@given(KINDS)
def test_descriptions(kind: Any) -> None:
    """A dtype is built of its description."""
    assert dtype(describe(np, kind)) == kind


def test_descriptions_are_texts_and_tuples() -> None:
    """The format: the array protocol's text, or a tuple that begins with a word."""
    assert describe(np, np.dtype("f8").newbyteorder("<")) == "<f8"
    assert describe(np, np.dtype([("a", "<i2"), ("b", "<f8", (3,))])) == (
        "record",
        ("a", "b"),
        ("<i2", ("part", "<f8", (3,))),
        (0, 2),
        26,
        (None, None),
    )


@pytest.mark.parametrize(
    "bad", [None, 5, "f8,O", "O", "|O8", "object", (), ("part",), ("x", 1, 2), "<f8 ", "[<f8]", "<m8[0s]", "<M8[00D]"]
)
def test_other_descriptions(bad: Any) -> None:
    """Nothing that NumPy alone would understand is given to it."""
    with pytest.raises((ArrayError, ValueError)):
        dtype(bad)


def test_the_bytes_have_to_fit() -> None:
    """An array is never larger than its received bytes."""
    with pytest.raises(DecodeError, match="8 bytes for an array of 16"):
        PICKLE.decode(body(ours("numpy_ndarray", text("<f8"), b"K\x02\x85", text("C"), b"B\x08\0\0\0" + bytes(8))))


@pytest.mark.parametrize("inside", [False, True])
def test_empty_arrays_are_bounded(inside: bool) -> None:
    """An array without items has a million rows, or rows of rows, at most: going through them takes memory for each."""
    for shape in ((1_000_000, 0), (0, 1_000, 1_000), (0,), (5, 0, 0)):
        value = np.empty(shape, "u1")
        found = turned([value])[0] if inside else turned(value)
        assert found.shape == shape
    for shape in ((1_000_001, 0), (2**31 - 1, 0), (0, 1_001, 1_000)):
        value = np.empty(shape, "u1")
        with pytest.raises(DecodeError, match="more than 1,000,000 empty parts"):
            turned([value] if inside else value)
