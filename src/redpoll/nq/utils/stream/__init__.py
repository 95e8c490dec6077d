"""Streams, and the serializers that make and read them."""

from redpoll.nq.utils.stream.body import parts
from redpoll.nq.utils.stream.framer import Framer, StreamFramer
from redpoll.nq.utils.stream.pickled import PickleSerializer, PicklingError, UnpicklingError
from redpoll.nq.utils.stream.plain import BufferSerializer, BytesSerializer, StreamSerializer
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
    "parts",
]
