"""Objects with the buffer protocol as contiguous bytes."""

from __future__ import annotations

from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

from redpoll.errors import EncodeError

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["flatten"]


#: Serializers that a node's option names, so that another one can be named instead.
_CHOSEN = {"raw", "buffer"}

_ENCODE = "encode it first, for example with redpoll.serializers.msgpack.encode"


def flatten(serializer: str, obj: Any) -> Buffer:
    """Return the memory of `obj`, not copied.

    Args:
        serializer: Name of the calling serializer, for the error.
        obj: Any object with the buffer protocol: bytes, bytearray, memoryview, array, mmap, a NumPy array.

    Returns:
        bytes and bytearray unchanged, anything else as a C-contiguous memoryview of bytes.

    Raises:
        EncodeError: It has no buffer, or not a contiguous one.
    """
    if type(obj) is bytes or type(obj) is bytearray:
        return obj
    if isinstance(obj, str):
        hint = "call .encode() on it" + (", or use the json or msgpack serializer" if serializer in _CHOSEN else "")
        raise EncodeError(serializer, "it carries bytes, not str", hint)
    try:
        view = memoryview(obj)
    except (TypeError, ValueError, BufferError) as error:
        other = "the json and msgpack serializers carry other values" if serializer in _CHOSEN else _ENCODE
        remedy = other if isinstance(error, TypeError) else None
        raise EncodeError(serializer, f"{type(obj).__name__} is not bytes-like", remedy) from error
    if not view.c_contiguous:
        raise EncodeError(serializer, f"{type(obj).__name__} is not C-contiguous", "send bytes(obj), which is a copy")
    if not view.nbytes:
        return b""
    try:
        return view.cast("B")
    except TypeError:  # items of a form that memoryview does not know: records, other byte orders
        return _recast(view)


def _recast(view: memoryview) -> Buffer:
    """Return the bytes of a view that cannot be cast; copied if it shows only a part of its object."""
    # PickleBuffer gets the object itself, never the view: CPython 3.11 crashes when the garbage collector finds a
    # memoryview of another one.
    whole = PickleBuffer(view.obj).raw()
    return whole if whole.nbytes == view.nbytes else view.tobytes()
