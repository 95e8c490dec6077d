"""Serializers: what `Message.data` may be, and how it becomes bytes."""

from redpoll.serializers._buffer import BufferSerializer
from redpoll.serializers._json import JsonSerializer
from redpoll.serializers._msgpack import MsgpackSerializer
from redpoll.serializers._raw import RawSerializer
from redpoll.serializers.base import Buffer, Serializer
from redpoll.serializers.parts import Encoded, Parts, gather
from redpoll.serializers.registry import SERIALIZERS, buffer, get, json, msgpack, raw

__all__ = [
    "SERIALIZERS",
    "Buffer",
    "BufferSerializer",
    "Encoded",
    "JsonSerializer",
    "MsgpackSerializer",
    "Parts",
    "RawSerializer",
    "Serializer",
    "buffer",
    "gather",
    "get",
    "json",
    "msgpack",
    "raw",
]
