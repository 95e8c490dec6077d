"""Streams, and the serializers that make and read them."""

from redpoll.nq.utils.stream.framer import Framer, StreamFramer
from redpoll.nq.utils.stream.serializers import (
    BufferSerializer,
    BytesSerializer,
    PickleSerializer,
    PicklingError,
    StreamSerializer,
    UnpicklingError,
)
from redpoll.nq.utils.stream.view import Stream, byteview

__all__ = [
    "BufferSerializer",
    "BytesSerializer",
    "Framer",
    "PickleSerializer",
    "PicklingError",
    "Stream",
    "StreamFramer",
    "StreamSerializer",
    "UnpicklingError",
    "byteview",
]
