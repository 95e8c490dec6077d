"""The buffer serializer: any buffer in, a writable memoryview out, large ones never copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redpoll.serializers.flat import flatten

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["BufferSerializer"]


class BufferSerializer:
    """Carries any object with the buffer protocol; the receiver gets a writable `memoryview` of bytes.

    Above 64 KiB, the body is received straight into the memory behind that view, and sent straight from the memory of
    the sent object, which must not change until the send is done. ``numpy.frombuffer(msg.data, dtype)`` and
    ``struct.unpack_from`` read it in place.
    """

    name = "buffer"
    wants_buffer = True

    def encode(self, obj: Any, /) -> Buffer:
        """Return the memory of `obj`, not copied.

        Raises:
            EncodeError: `obj` has no buffer, or not a contiguous one.
        """
        return flatten(self.name, obj)

    def decode(self, data: Buffer, /) -> memoryview:
        """Return a writable view of `data`, or of a copy if its memory is read-only; never fails."""
        if isinstance(data, bytes):
            return memoryview(bytearray(data))
        view = memoryview(data)
        return memoryview(bytearray(view)) if view.readonly else view
