"""NumPy's arrays, scalars and dtypes, as plain descriptions and bytes.

NumPy's own pickles are not safe to read: they may set the state of a dtype, with offsets and flags, unchecked, and so
reach any memory. Here a dtype is created from a description by its public constructor, which checks it, and an array is
a view of existing bytes. NumPy is used if the program has imported it, and never imported.
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
    "check_empty",
    "check_text",
    "describe",
    "dtype",
    "numpy",
    "objects",
    "scalar",
    "take",
]

#: Multiples of a unit of time are at least 1: NumPy accepts 0, and ends the process when it divides by it.
PLAIN: Final = re.compile(r"[<>|=][biufcmMSUV][0-9]{1,9}(\[([1-9][0-9]{0,8})?[a-zA-Z]{1,2}\])?")
_LARGEST: Final = 2**62
_MAX_CODE: Final = 0x10FFFF
#: Items without bytes cost nothing until something iterates over them.
_NOTHINGS: Final = 65536
#: Maximum empty parts of an array without items, which an iteration, or a sum over an axis, makes of a few bytes.
_EMPTY: Final = 1_000_000
#: Maximum checks per byte, on average, of overlapping text fields.
_LOOKS: Final = 16


class ArrayError(ValueError):
    """An array or a dtype that is not supported, or contradicts its description."""


class NoNumPyError(ArrayError):
    """The pickle contains an array, and the program has not imported NumPy."""

    def __init__(self) -> None:
        super().__init__("it contains NumPy arrays, and this program has not imported numpy")


def numpy() -> Any:
    """Return the module.

    Raises:
        NoNumPyError: The program has not imported it.
    """
    found = sys.modules.get("numpy")
    if found is None:
        raise NoNumPyError
    return found


# Encoding


def take(np: Any, value: Any) -> tuple[str, tuple[Any, ...], int] | None:
    """Reduce an array, a scalar or a dtype.

    Returns:
        The name in the pickle, the arguments, and the number of copied bytes; None for other objects, including
        instances of subclasses of an array.

    Raises:
        ArrayError: Its dtype is not supported.
    """
    kind = type(value)
    if kind is np.ndarray:
        return _take_array(np, value)
    if isinstance(value, np.generic):
        if value.dtype.names is not None:
            raise ArrayError("structured scalars are not supported: send an array of one item")
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
    # As bytes: the buffer protocol has no format for some dtypes.
    data = PickleBuffer(flat.reshape(-1).view(np.uint8)) if flat.nbytes else b""
    return "numpy_ndarray", (description, value.shape, order, data), copied


def describe(np: Any, kind: Any) -> Any:
    """Describe a dtype as text, or as a tuple: ("part", base, shape), ("record", names, dtypes, offsets, bytes, titles).

    Raises:
        ArrayError: It has Python objects, or text alone does not describe it.
    """
    if kind.subdtype is not None:
        base, shape = kind.subdtype
        # A separate tuple: one that is shared is charged for each use.
        return "part", describe(np, base), (*shape,)
    if kind.names is not None:
        fields = [kind.fields[name] for name in kind.names]
        formats = tuple(describe(np, field[0]) for field in fields)
        titles = tuple(field[2] if len(field) > 2 else None for field in fields)
        if any(type(title) not in {str, type(None)} for title in titles):
            raise ArrayError("fields whose title is not text are not supported")
        return "record", kind.names, formats, tuple(field[1] for field in fields), kind.itemsize, titles
    text = kind.str
    if PLAIN.fullmatch(text) is None or np.dtype(text) != kind:
        raise ArrayError(f"arrays of dtype {kind} are not supported")
    return text


# Decoding


def dtype(description: Any, depth: int = 0) -> Any:
    """Return the dtype of a description.

    Raises:
        ArrayError: The description is invalid.
    """
    np = numpy()
    if type(description) is str and PLAIN.fullmatch(description):
        return np.dtype(description)
    # Only text is compared: comparing nested arrays of objects recurses in C.
    if type(description) is not tuple or not description or type(description[0]) is not str or depth > 16:
        raise ArrayError("invalid description of a dtype")
    if description[0] == "part":
        _, base, shape = description
        return np.dtype((dtype(base, depth + 1), _shape(shape)))
    if description[0] == "record":
        _, names, formats, offsets, size, titles = description
        if any(type(each) is not str for each in names) or any(type(each) is not int for each in (*offsets, size)):
            raise ArrayError("invalid description of a dtype")
        if any(type(each) not in {str, type(None)} for each in titles):
            raise ArrayError("invalid description of a dtype")
        kinds = [dtype(each, depth + 1) for each in formats]
        # NumPy adds these as 32-bit integers, and accepts a sum that overflows: such a field is memory outside the array.
        if any(offset + kind.itemsize > size for offset, kind in zip(offsets, kinds, strict=True)):
            raise ArrayError("a field is outside its record")
        fields = {"names": list(names), "formats": kinds, "offsets": list(offsets), "itemsize": size}
        return np.dtype(fields if not any(titles) else fields | {"titles": list(titles)})
    raise ArrayError("invalid description of a dtype")


def array(description: Any, shape: Any, order: Any, data: Any) -> Any:
    """Return the array whose bytes are `data`, not copied; its text is checked by `check_text`.

    Raises:
        ArrayError: The number of bytes does not match.
    """
    np = numpy()
    kind = dtype(description)
    shape = _shape(shape)
    # Only text is hashed: hashing a tuple recurses in C.
    if type(data) not in {bytes, bytearray, memoryview} or type(order) is not str or order not in {"C", "F"}:
        raise ArrayError("invalid array")
    size = math.prod(shape) * kind.itemsize
    if not kind.itemsize and math.prod(shape) > _NOTHINGS:
        raise ArrayError("too many items without bytes")
    if size != len(data):
        raise ArrayError(f"{len(data)} bytes for an array of {size}")
    return np.ndarray(shape, kind, buffer=data, order=order) if size else np.ndarray(shape, kind, order=order)


def scalar(description: Any, data: Any) -> Any:
    """Return the scalar whose bytes are `data`.

    Raises:
        ArrayError: As for `array` and `check_text`.
    """
    # The pickle itself could write to a structured one.
    if type(description) is not str:
        raise ArrayError("invalid scalar")
    made = array(description, (), "C", bytearray(data) if type(data) is bytes else data)
    check_text(made)
    return made[()]


def objects(shape: Any, items: Any) -> Any:
    """Return an array of objects.

    Raises:
        ArrayError: The number of objects does not match.
    """
    np = numpy()
    shape = _shape(shape)
    if type(items) is not list or math.prod(shape) != len(items):
        raise ArrayError("invalid array of objects")
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
        raise ArrayError("invalid shape of an array")
    check_empty(shape)
    return shape


def check_empty(shape: tuple[int, ...]) -> None:
    """Check the other dimensions of an array without items, which no bytes pay for.

    Raises:
        ArrayError: They are too large.
    """
    if 0 in shape and math.prod(filter(None, shape)) > _EMPTY:
        raise ArrayError(f"an array without items of shape {shape}, with more than {_EMPTY:,} empty parts")


def check_text(made: Any) -> None:
    """Check the text in an array, once nothing can write to it any more.

    Raises:
        ArrayError: It has a code that is not a character, which would make invalid strings; or its fields overlap so
            much that the check would take too long.
    """
    np = numpy()
    if sum(text.nbytes for text in _texts(made)) > _LOOKS * made.nbytes:
        raise ArrayError("its text fields overlap too much")
    for text in _texts(made):
        codes = np.ascontiguousarray(text).view(np.dtype("u4").newbyteorder(text.dtype.byteorder))
        if codes.max() > _MAX_CODE:
            raise ArrayError("its text is not Unicode")


def _texts(made: Any) -> Iterator[Any]:
    kind = made.dtype
    if kind.names is not None:
        for name in kind.names:
            yield from _texts(made[name])
    elif kind.kind == "U" and made.nbytes:
        yield made
