"""Serializers of data that is bytes already."""

from __future__ import annotations

from typing import Any

from redpoll.errors import EncodeError
from redpoll.nq.utils.stream.view import Stream
from redpoll.serializers.flat import flatten

__all__ = ["BufferSerializer", "BytesSerializer", "StreamSerializer"]


class BytesSerializer:
    """Carries objects with a buffer; what is received is `bytes`, which is a copy."""

    def dump(self, data: Any) -> Stream:
        """The memory of `data`, not copied; it must not change until the put is done.

        Raises:
            EncodeError: It has no buffer, or not in one piece.
        """
        return Stream.frombuffer(flatten("bytes", data))

    def load(self, data: Stream) -> bytes:
        """All that is in the stream, as bytes."""
        return bytes(data)


class BufferSerializer:
    """Carries objects with a buffer; what is received is a `memoryview` of bytes that can be written to, not copied."""

    def dump(self, data: Any) -> Stream:
        """The memory of `data`, not copied; it must not change until the put is done.

        Raises:
            EncodeError: It has no buffer, or not in one piece.
        """
        return Stream.frombuffer(flatten("buffer", data))

    def load(self, data: Stream) -> memoryview:
        """All that is in the stream, in one view; of a copy where that is in several, or cannot be written to."""
        view = data.toview()
        return memoryview(bytearray(view)) if view.readonly else view


class StreamSerializer:
    """Carries streams."""

    def dump(self, data: Stream) -> Stream:
        """Another stream of the same memory: `data` stays as it is; its memory must not change until the put is done.

        Raises:
            EncodeError: It is no stream.
        """
        if not hasattr(data, "readviews"):
            raise EncodeError("stream", f"{type(data).__name__} is no Stream", "Stream.frombuffer(data) makes one")
        return data.copy()

    def load(self, data: Stream) -> Stream:
        """Another stream of the same memory, which is the receiver's."""
        return data.copy()
