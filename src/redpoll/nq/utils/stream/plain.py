"""Serializers of data that is bytes already."""

from __future__ import annotations

from typing import Any

from redpoll.errors import EncodeError
from redpoll.nq.utils.stream.view import Stream
from redpoll.serializers.flat import flatten

__all__ = ["BufferSerializer", "BytesSerializer", "StreamSerializer"]


class BytesSerializer:
    """Serializer of bytes-like objects; received data is `bytes`, a copy."""

    def dump(self, data: Any) -> Stream:
        """Return the memory of `data`, not copied; it must not change until the put is done.

        Raises:
            EncodeError: It has no buffer, or not in one piece.
        """
        return Stream.frombuffer(flatten("bytes", data))

    def load(self, data: Stream) -> bytes:
        """Return the content of the stream as bytes."""
        return bytes(data)


class BufferSerializer:
    """Serializer of bytes-like objects; received data is a writable `memoryview`, not copied."""

    def dump(self, data: Any) -> Stream:
        """Return the memory of `data`, not copied; it must not change until the put is done.

        Raises:
            EncodeError: It has no buffer, or not in one piece.
        """
        return Stream.frombuffer(flatten("buffer", data))

    def load(self, data: Stream) -> memoryview:
        """Return the content of the stream in one view, copied only if it is in several, or not writable."""
        view = data.toview()
        return memoryview(bytearray(view)) if view.readonly else view


class StreamSerializer:
    """Serializer of streams."""

    def dump(self, data: Stream) -> Stream:
        """Return another stream of the same memory: `data` stays as it is; its memory must not change until the put is done.

        Raises:
            EncodeError: It is no stream.
        """
        if not hasattr(data, "readviews"):
            raise EncodeError("stream", f"{type(data).__name__} is no Stream", "Stream.frombuffer(data) makes one")
        return data.copy()

    def load(self, data: Stream) -> Stream:
        """Return another stream of the same memory, which belongs to the receiver."""
        return data.copy()
