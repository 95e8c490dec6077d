"""Serializers: what `Message.data` may be, and how it becomes bytes."""

from redpoll.serializers.base import Buffer, Serializer
from redpoll.serializers.buffer import BufferSerializer
from redpoll.serializers.json import JsonSerializer
from redpoll.serializers.msgpack import MsgpackSerializer
from redpoll.serializers.raw import RawSerializer
from redpoll.serializers.registry import SERIALIZERS, get

__all__ = [
    "SERIALIZERS",
    "Buffer",
    "BufferSerializer",
    "JsonSerializer",
    "MsgpackSerializer",
    "RawSerializer",
    "Serializer",
    "get",
]
