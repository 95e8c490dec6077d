"""Any object with the buffer protocol as plain bytes in one piece."""

from __future__ import annotations

from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

from redpoll.errors import EncodeError

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["flatten"]


def flatten(serializer: str, obj: Any) -> Buffer:
    """The memory of `obj`, not copied.

    Args:
        serializer: Name of the serializer that asks, for the error.
        obj: Anything with the buffer protocol: bytes, bytearray, memoryview, array, mmap, a NumPy array.

    Returns:
        bytes and bytearray as they are, anything else as a C-contiguous memoryview of bytes.

    Raises:
        EncodeError: It has no buffer, or not in one piece.
    """
    if type(obj) is bytes or type(obj) is bytearray:
        return obj
    if isinstance(obj, str):
        raise EncodeError(
            serializer, "it carries bytes, not str", "call .encode() on it, or use the json or msgpack serializer"
        )
    try:
        view = memoryview(obj)
    except (TypeError, ValueError, BufferError) as error:
        hint = "the json and msgpack serializers carry other values" if isinstance(error, TypeError) else None
        raise EncodeError(serializer, f"{type(obj).__name__} is not bytes-like", hint) from error
    if not view.c_contiguous:
        raise EncodeError(
            serializer, f"{type(obj).__name__} is not in one piece (C-contiguous)", "send bytes(obj), which is a copy"
        )
    if not view.nbytes:
        return b""
    try:
        return view.cast("B")
    except TypeError:  # items of a form that memoryview does not know: records, other byte orders
        return _recast(view)


def _recast(view: memoryview) -> Buffer:
    """The bytes of a view that cannot be cast; copied if it shows only a part of what it was taken of."""
    # PickleBuffer is given the object itself, never the view: CPython 3.11 crashes when the garbage collector finds a
    # memoryview taken by way of another.
    whole = PickleBuffer(view.obj).raw()
    return whole if whole.nbytes == view.nbytes else view.tobytes()
