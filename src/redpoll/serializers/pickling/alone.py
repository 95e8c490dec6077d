"""Values encoded without a pickle: text, bytes, numbers, and arrays of plain dtypes.

    magic 4 | kind 1 | the value

An array: length of its dtype's text, 8 bits | dimensions, 8 bits | the text | each dimension, 64 bits | zeros up to a
multiple of 64 | its bytes, in C order. An int is signed and of any length, a float has 64 bits, text is UTF-8. Numbers
are big-endian.
"""

from __future__ import annotations

import math
import sys
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from redpoll.serializers.pickling.arrays import PLAIN, ArrayError, check_empty, check_text, numpy
from redpoll.serializers.pickling.frame import ALIGNMENT

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["MAGIC", "AloneError", "read", "write"]

#: As in frame.py, with another version in the last byte.
MAGIC: Final = b"\x93rp\x02"

_FLOAT = Struct("!d")
_KIND, _START = 4, 5

_NONE, _TRUE, _FALSE = MAGIC + b"N", MAGIC + b"T", MAGIC + b"F"
_TEXT, _BYTES, _INT, _REAL, _ARRAY = MAGIC + b"S", MAGIC + b"B", MAGIC + b"I", MAGIC + b"D", MAGIC + b"A"

#: Maximum cached heads of arrays, by dtype and number of dimensions.
_MAX_HEADS = 256
_MAX_DIMENSIONS = 64
_LARGEST = 2**62

_heads: dict[Any, bytes | None] = {}


class AloneError(ValueError):
    """The body does not have such a value."""


def write(value: Any) -> list[Buffer] | None:
    """Return the pieces of the body, or None if the value needs a pickle."""
    kind = type(value)
    if kind is bytes:
        return [_BYTES, value]
    if kind is str:
        try:
            return [_TEXT, value.encode()]
        except UnicodeEncodeError:
            return None
    if value is None:
        return [_NONE]
    if kind is int:
        return [_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)]
    if kind is float:
        return [_REAL, _FLOAT.pack(value)]
    if kind is bool:
        return [_TRUE if value else _FALSE]
    np = sys.modules.get("numpy")
    if np is not None and kind is np.ndarray:
        flags = value.flags
        # A read-only array has to be received as read-only, which this format cannot say.
        return _write_array(np, value) if flags.c_contiguous and flags.writeable else None
    return None


def _write_array(np: Any, value: Any) -> list[Buffer] | None:
    dtype = value.dtype
    head = _heads.get(dtype, b"?")
    if head == b"?":
        if len(_heads) >= _MAX_HEADS:
            _heads.clear()
        head = _heads[dtype] = _head_of(np, dtype)
    if head is None:
        return None
    shape = value.shape
    top = b"%b%c%c%b%b" % (_ARRAY, len(head), len(shape), head, b"".join([size.to_bytes(8, "big") for size in shape]))
    top += bytes(-len(top) % ALIGNMENT)
    return [top, value.reshape(-1).view(np.uint8).data] if value.nbytes else [top]


def _head_of(np: Any, dtype: Any) -> bytes | None:
    """Return the text of a dtype if it describes all of it."""
    text = dtype.str
    if dtype.names is not None or dtype.subdtype is not None or PLAIN.fullmatch(text) is None or not dtype.itemsize:
        return None
    return text.encode() if np.dtype(text) == dtype else None


def read(body: memoryview) -> Any:
    """Return the value in a body that begins with `MAGIC`; an array refers to its memory.

    Raises:
        AloneError: There is no value.
        ArrayError: An array contradicts its description.
    """
    if len(body) < _START:
        raise AloneError("the body is too short for a value")
    kind = body[_KIND]
    if kind == 0x41:
        return _read_array(body)
    rest = body[_START:]
    size = len(rest)
    if kind == 0x42:
        return bytes(rest)
    if kind == 0x53:
        return str(rest, "utf-8")
    if kind == 0x49 and size:
        return int.from_bytes(rest, "big", signed=True)
    if kind == 0x44 and size == _FLOAT.size:
        return _FLOAT.unpack(rest)[0]
    if kind in _FIXED and not size:
        return _FIXED[kind]
    raise AloneError("unknown kind of value")


_FIXED: Final = {0x4E: None, 0x54: True, 0x46: False}
_TOP = _START + 2


def _read_array(body: memoryview) -> Any:
    np = numpy()
    if len(body) < _TOP:
        raise ArrayError("invalid array")
    length, dimensions = body[_START], body[_START + 1]
    at = _TOP + length
    end = at + 8 * dimensions
    start = end + -end % ALIGNMENT
    if start > len(body) or dimensions > _MAX_DIMENSIONS:
        raise ArrayError("invalid array")
    text = str(body[_TOP:at], "ascii", "replace")
    if PLAIN.fullmatch(text) is None:
        raise ArrayError("invalid description of a dtype")
    kind = np.dtype(text)
    if dimensions == 1:
        shape: tuple[int, ...] = (int.from_bytes(body[at:end], "big"),)
    else:
        shape = tuple(int.from_bytes(body[place : place + 8], "big") for place in range(at, end, 8))
    size = math.prod(shape) * kind.itemsize
    if size != len(body) - start or not kind.itemsize or max(shape, default=0) >= _LARGEST:
        raise ArrayError(f"{len(body) - start} bytes for an array of {size}")
    check_empty(shape)
    made = np.ndarray(shape, kind, buffer=body, offset=start) if size else np.ndarray(shape, kind)
    if kind.kind == "U":
        check_text(made)
    return made
