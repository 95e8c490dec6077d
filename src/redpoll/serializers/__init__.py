"""Serializers: what `Message.data` may be, and how it becomes bytes."""

from redpoll.serializers._buffer import BufferSerializer
from redpoll.serializers._json import JsonSerializer
from redpoll.serializers._msgpack import MsgpackSerializer
from redpoll.serializers._raw import RawSerializer
from redpoll.serializers.base import Buffer, Serializer
from redpoll.serializers.registry import SERIALIZERS, buffer, get, json, msgpack, raw

__all__ = [
    "SERIALIZERS",
    "Buffer",
    "BufferSerializer",
    "JsonSerializer",
    "MsgpackSerializer",
    "RawSerializer",
    "Serializer",
    "buffer",
    "get",
    "json",
    "msgpack",
    "raw",
]
