"""Values without a pickle: written, and read back unchanged, or rejected."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import DecodeError
from redpoll.serializers import Parts, pickle
from redpoll.serializers.pickling import alone
from redpoll.serializers.pickling.arrays import ArrayError

VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary())
DTYPES = ("u1", "<i8", ">f4", "?", "c16", "S5", "<U3", "M8[ns]", "m8[D]", "V4")


def joined(value: Any) -> bytes:
    """The body of a value, in one piece."""
    pieces = alone.write(value)
    assert pieces is not None
    return b"".join(map(bytes, pieces))


def array_body(dtype: bytes, shape: tuple[int, ...], data: bytes) -> bytes:
    """A body that declares an array."""
    top = alone.MAGIC + b"A" + bytes((len(dtype), len(shape))) + dtype + struct.pack(f"!{len(shape)}Q", *shape)
    return top + bytes(-len(top) % 64) + data


@given(value=VALUES)
def test_plain_values_come_back(value: Any) -> None:
    """Text, bytes and numbers are read as what they were, of the same type."""
    read = alone.read(memoryview(joined(value)))
    assert read == value
    assert type(read) is type(value)


@given(value=st.one_of(VALUES, st.lists(st.integers())))
def test_the_serializer_carries_them(value: Any) -> None:
    """`pickle` writes them so where it can, and else as a pickle; both are read."""
    body = bytes(pickle.encode(value))
    assert body.startswith(alone.MAGIC) is (type(value) is not list)
    assert pickle.decode(body) == value


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 0, 2), (2, 3, 4)])
def test_arrays_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    """An array has its dtype, its shape and its bytes again, refers to the body, and can be written to."""
    array = np.zeros(shape, dtype)
    if array.nbytes and dtype != "<U3":
        array.reshape(-1).view("u1")[:] = np.arange(array.nbytes, dtype="u1") % 2
    body = bytearray(joined(array))
    read = alone.read(memoryview(body))
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert read.tobytes() == array.tobytes()
    assert read.flags.writeable
    if array.nbytes:
        assert np.shares_memory(read, np.frombuffer(body, "u1"))


def test_a_large_array_is_not_copied() -> None:
    """Its memory itself is a piece of the body, at a place that processors like."""
    array = np.arange(100_000, dtype="<i8")
    body = pickle.encode(array)
    assert isinstance(body, Parts)
    head, data = body.pieces
    assert len(head) % 64 == 0
    assert np.shares_memory(np.frombuffer(data, "u1"), array)


@pytest.mark.parametrize(
    "value",
    [
        [1],
        {"a": 1},
        bytearray(b"a"),
        "\ud800",
        np.zeros(2, "O"),
        np.zeros((4, 4))[:, ::2],
        np.zeros((2, 3), order="F"),
        np.zeros(2, [("a", "i4")]),
        np.float64(1.0),
        np.ma.zeros(2),
        np.frombuffer(b"read-only", "u1"),
        type("Text", (str,), {})("a"),
    ],
    ids=repr,
)
def test_others_do_not_stand_alone(value: Any) -> None:
    """Values that need a pickle get one, subclasses of plain values among them."""
    assert alone.write(value) is None


def test_objects_that_may_be_sent_by_id_are_asked_for() -> None:
    """With `persistent_id` every value needs a pickle: each object might have an id."""
    serializer = pickle(persistent_id=lambda obj: "it" if obj == "me" else None, persistent_load=lambda each: (each,))
    assert serializer.decode(bytes(serializer.encode("me"))) == ("it",)


@pytest.mark.parametrize(
    "body",
    [
        alone.MAGIC,
        alone.MAGIC + b"?",
        alone.MAGIC + b"Nx",
        alone.MAGIC + b"I",
        alone.MAGIC + b"D1234567",
        alone.MAGIC + b"S\xff",
        alone.MAGIC + b"A",
        alone.MAGIC + b"A\x03\x01<i8",
        array_body(b"|O8", (1,), bytes(8)),
        array_body(b"<i8,<i8", (1,), bytes(16)),
        array_body(b"<i8", (2,), bytes(15)),
        array_body(b"<i8", (2,), bytes(17)),
        array_body(b"<i8", (2**63, 0), b""),
        array_body(b"<i8", (2**61, 2**61), b""),
        array_body(b"|V0", (2**40,), b""),
        array_body(b"<i8", (1,) * 65, bytes(8)),
        array_body(b"<U1", (1,), b"\xff\xff\xff\x7f"),
        array_body(b"<M8[q]", (1,), bytes(8)),
    ],
    ids=lambda body: repr(body[4:40]),
)
def test_what_is_none_is_refused(body: bytes) -> None:
    """Truncated or inconsistent bodies are a `DecodeError`; nothing is allocated for them."""
    with pytest.raises(DecodeError):
        pickle.decode(body)


@given(value=VALUES, at=st.integers(0, 40), change=st.integers(1, 255))
def test_a_changed_byte_is_read_or_refused(value: Any, at: int, change: int) -> None:
    """Whatever a stranger changes, there is a value, or the documented error."""
    body = bytearray(joined(value))
    body[min(at, len(body) - 1)] ^= change
    try:
        pickle.decode(bytes(body))
    except DecodeError:
        pass


def test_errors_of_arrays_say_what_is_wrong() -> None:
    """The text has the sizes."""
    with pytest.raises(ArrayError, match="15 bytes for an array of 16"):
        alone.read(memoryview(array_body(b"<i8", (2,), bytes(15))))
