"""Conversion of data to bytes and back, by the serializer of the options."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from redpoll.errors import MessageTooLarge
from redpoll.nq.core.options import CommunicatorOptions
from redpoll.nq.core.words import SIZE_HINT
from redpoll.nq.utils.stream import PickleSerializer, Stream, parts

if TYPE_CHECKING:
    from redpoll.node.door import Payload

__all__ = ["Codec"]


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
