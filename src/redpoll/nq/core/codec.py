"""Conversion of data to bytes and back, by the serializer of the options."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from redpoll.errors import MessageTooLarge, UsageError
from redpoll.nq.core.errors import SIZE_HINT
from redpoll.nq.core.options import CommunicatorOptions
from redpoll.nq.utils.stream import PickleSerializer, Stream, byteview
from redpoll.serializers.parts import Encoded, gather

if TYPE_CHECKING:
    from redpoll.node.door import Payload
    from redpoll.serializers.base import Buffer

__all__ = ["Codec", "parts"]


class Codec:
    """Converts data to the bodies of messages, and back."""

    __slots__ = ("_encode", "_limit", "decode")

    def __init__(self, options: CommunicatorOptions) -> None:
        """Use the functions of the options; `PickleSerializer` is called without a stream.

        Args:
            options: The options of the communicator.
        """
        serialization = options.serialization
        self._limit = options.connection.message_size
        own = getattr(serialization.dump, "__self__", None)
        if type(own) is PickleSerializer and serialization.dump == own.dump:
            self._encode: Callable[[Any], Payload] = own.encode
        else:
            self._encode = partial(_dumped, serialization.dump)
        own = getattr(serialization.load, "__self__", None)
        if type(own) is PickleSerializer and serialization.load == own.load:
            self.decode: Callable[[Any], Any] = own.decode
        else:
            self.decode = partial(_loaded, serialization.load)

    def encode(self, data: Any) -> Payload:
        """Return the body for data.

        Raises:
            MessageTooLarge: It has more bytes than the limit.
        """
        body = self._encode(data)
        if len(body) > self._limit:
            error = MessageTooLarge("message", len(body), self._limit)
            error.hint = SIZE_HINT
            raise error
        return body


def _dumped(dump: Callable[[Any], Stream], data: Any) -> Payload:
    return parts(dump(data))


def _loaded(load: Callable[[Stream], Any], body: Any) -> Any:
    return load(Stream.frombuffer(body))


def parts(stream: Any) -> Encoded:
    """Return the body for the content of a stream, which is removed from it. Large views are not copied.

    Args:
        stream: A `Stream`, or another object that gives its views as one does.

    Raises:
        UsageError: It is neither: what a program's serializer made.
    """
    # Its own count of what is the library's memory; others are the program's.
    held = getattr(stream, "_held", 0)
    take = getattr(stream, "readviews", None) or getattr(stream, "readchunks", None)
    if take is None:
        raise UsageError(
            f"a serializer's dump returns a Stream, not {type(stream).__name__}", "Stream.frombuffer(data) makes one"
        )
    views = [byteview(view) for view in take()]
    return gather(map(_whole, views), held=min(held, sum(view.nbytes for view in views)))


def _whole(view: memoryview) -> Buffer:
    """Return the bytes object of a view that shows all of it: it is joined, sent and counted without a copy."""
    whole = view.obj
    return whole if type(whole) is bytes and len(whole) == view.nbytes else view
