"""NumPy's arrays, scalars and dtypes, as plain descriptions and bytes.

NumPy's own way to pickle them is not safe to read: it lets a pickle set the state of a dtype, offsets and flags, without
looking at it, and so reach any memory. Here a dtype is built from a description by its public constructor, which checks
it, and an array is a view of bytes that are there. NumPy is used if the program has imported it, and never imported.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from pickle import PickleBuffer
from typing import Any, Final

__all__ = [
    "PLAIN",
    "ArrayError",
    "NoNumPyError",
    "array",
    "check_text",
    "describe",
    "dtype",
    "numpy",
    "objects",
    "scalar",
    "take",
]

PLAIN: Final = re.compile(r"[<>|=][biufcmMSUV][0-9]{1,9}(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?")
_LARGEST: Final = 2**62
_MAX_CODE: Final = 0x10FFFF
#: Items that have no bytes cost nothing until somebody counts through them.
_NOTHINGS: Final = 65536
#: How often a byte is looked at, on average, where fields of text lie over one another.
_LOOKS: Final = 16


class ArrayError(ValueError):
    """An array or a dtype that is not carried, or not what it says."""


class NoNumPyError(ArrayError):
    """There is an array, and the program has not imported NumPy."""

    def __init__(self) -> None:
        super().__init__("it holds NumPy's arrays, and this program has not imported numpy")


def numpy() -> Any:
    """The module.

    Raises:
        NoNumPyError: The program has not imported it.
    """
    found = sys.modules.get("numpy")
    if found is None:
        raise NoNumPyError
    return found


# Taking apart


def take(np: Any, value: Any) -> tuple[str, tuple[Any, ...], int] | None:
    """What becomes of an array, a scalar or a dtype.

    Returns:
        The name in the pickle, the arguments, and how many bytes were copied for it; None for what is none of these, a
        subclass of an array among them.

    Raises:
        ArrayError: Its dtype is not carried.
    """
    kind = type(value)
    if kind is np.ndarray:
        return _take_array(np, value)
    if isinstance(value, np.generic):
        if value.dtype.names is not None:
            raise ArrayError("a structured scalar is not carried: send an array of one")
        return "numpy_scalar", (describe(np, value.dtype), value.tobytes()[: value.dtype.itemsize]), 0
    return ("numpy_dtype", (describe(np, value),), 0) if isinstance(value, np.dtype) else None


def _take_array(np: Any, value: Any) -> tuple[str, tuple[Any, ...], int]:
    if value.dtype == object:
        return "numpy_objects", (value.shape, value.ravel().tolist()), 0
    description = describe(np, value.dtype)
    order, copied = "C", 0
    if value.flags.c_contiguous:
        flat = value
    elif value.flags.f_contiguous:
        order, flat = "F", value.T
    else:
        flat = value.copy(order="C")
        copied = flat.nbytes
    # As bytes: some dtypes have no form that the buffer protocol knows.
    data = PickleBuffer(flat.reshape(-1).view(np.uint8)) if flat.nbytes else b""
    return "numpy_ndarray", (description, value.shape, order, data), copied


def describe(np: Any, kind: Any) -> Any:
    """A dtype as text, or as a tuple: ("part", base, shape), ("record", names, dtypes, offsets, bytes, titles).

    Raises:
        ArrayError: It holds Python objects, or text alone does not say what it is.
    """
    if kind.subdtype is not None:
        base, shape = kind.subdtype
        # A tuple of its own: one that stands here once is charged as often as it is used.
        return "part", describe(np, base), (*shape,)
    if kind.names is not None:
        fields = [kind.fields[name] for name in kind.names]
        formats = tuple(describe(np, field[0]) for field in fields)
        titles = tuple(field[2] if len(field) > 2 else None for field in fields)
        if any(type(title) not in {str, type(None)} for title in titles):
            raise ArrayError("a field whose title is no text is not carried")
        return "record", kind.names, formats, tuple(field[1] for field in fields), kind.itemsize, titles
    text = kind.str
    if PLAIN.fullmatch(text) is None or np.dtype(text) != kind:
        raise ArrayError(f"arrays of dtype {kind} are not carried")
    return text


# Putting together


def dtype(description: Any, depth: int = 0) -> Any:
    """The dtype that a description says.

    Raises:
        ArrayError: It is no such description.
    """
    np = numpy()
    if type(description) is str and PLAIN.fullmatch(description):
        return np.dtype(description)
    if type(description) is not tuple or depth > 16:
        raise ArrayError("it is no description of a dtype")
    if description[:1] == ("part",):
        _, base, shape = description
        return np.dtype((dtype(base, depth + 1), _shape(shape)))
    if description[:1] == ("record",):
        _, names, formats, offsets, size, titles = description
        if any(type(each) is not str for each in names) or any(type(each) is not int for each in (*offsets, size)):
            raise ArrayError("it is no description of a dtype")
        if any(type(each) not in {str, type(None)} for each in titles):
            raise ArrayError("it is no description of a dtype")
        kinds = [dtype(each, depth + 1) for each in formats]
        fields = {"names": list(names), "formats": kinds, "offsets": list(offsets), "itemsize": size}
        return np.dtype(fields if not any(titles) else fields | {"titles": list(titles)})
    raise ArrayError("it is no description of a dtype")


def array(description: Any, shape: Any, order: Any, data: Any) -> Any:
    """The array whose bytes `data` are, not copied: what it has as text is checked by `check_text`.

    Raises:
        ArrayError: They are more or fewer than it has.
    """
    np = numpy()
    kind = dtype(description)
    shape = _shape(shape)
    if type(data) not in {bytes, bytearray, memoryview} or order not in {"C", "F"}:
        raise ArrayError("it is no array")
    size = math.prod(shape) * kind.itemsize
    if not kind.itemsize and math.prod(shape) > _NOTHINGS:
        raise ArrayError("it has too many items of no bytes")
    if size != len(data):
        raise ArrayError(f"{len(data)} bytes are given for an array of {size}")
    return np.ndarray(shape, kind, buffer=data, order=order) if size else np.ndarray(shape, kind, order=order)


def scalar(description: Any, data: Any) -> Any:
    """The scalar whose bytes `data` are.

    Raises:
        ArrayError: As for `array` and `check_text`.
    """
    # A structured one could be written to by the pickle itself.
    if type(description) is not str:
        raise ArrayError("it is no scalar")
    made = array(description, (), "C", bytearray(data) if type(data) is bytes else data)
    check_text(made)
    return made[()]


def objects(shape: Any, items: Any) -> Any:
    """An array of objects.

    Raises:
        ArrayError: There are more or fewer than it has.
    """
    np = numpy()
    shape = _shape(shape)
    if type(items) is not list or math.prod(shape) != len(items):
        raise ArrayError("it is no array of objects")
    made = np.empty(len(items), object)
    for index, item in enumerate(items):
        made[index] = item
    return made.reshape(shape)


def _shape(shape: Any) -> tuple[int, ...]:
    if (
        type(shape) is not tuple
        or len(shape) > 64
        or not all(type(each) is int and 0 <= each < _LARGEST for each in shape)
    ):
        raise ArrayError("it is no shape of an array")
    return shape


def check_text(made: Any) -> None:
    """Look through the text in an array, once nothing can write to it any more.

    Raises:
        ArrayError: There is what is no character: strings that Python makes of it would be broken. Or its fields lie over
            one another so that it would take for ever.
    """
    np = numpy()
    if sum(text.nbytes for text in _texts(made)) > _LOOKS * made.nbytes:
        raise ArrayError("its fields of text lie over one another too often")
    for text in _texts(made):
        codes = np.ascontiguousarray(text).view(np.dtype("u4").newbyteorder(text.dtype.byteorder))
        if codes.max() > _MAX_CODE:
            raise ArrayError("its text is no Unicode")


def _texts(made: Any) -> Iterator[Any]:
    kind = made.dtype
    if kind.names is not None:
        for name in kind.names:
            yield from _texts(made[name])
    elif kind.kind == "U" and made.nbytes:
        yield made
