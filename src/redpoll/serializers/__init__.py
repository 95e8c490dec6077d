"""Serializers: what `Message.data` may be, and how it is encoded."""

from redpoll.serializers._buffer import BufferSerializer
from redpoll.serializers._json import JsonSerializer
from redpoll.serializers._msgpack import MsgpackSerializer
from redpoll.serializers._pickle import PickleSerializer
from redpoll.serializers._raw import RawSerializer
from redpoll.serializers.base import Buffer, Serializer
from redpoll.serializers.parts import Encoded, Parts, gather
from redpoll.serializers.pickling.allow import allow_by_name
from redpoll.serializers.registry import SERIALIZERS, buffer, get, json, msgpack, pickle, raw

__all__ = [
    "SERIALIZERS",
    "Buffer",
    "BufferSerializer",
    "Encoded",
    "JsonSerializer",
    "MsgpackSerializer",
    "Parts",
    "PickleSerializer",
    "RawSerializer",
    "Serializer",
    "allow_by_name",
    "buffer",
    "gather",
    "get",
    "json",
    "msgpack",
    "pickle",
    "raw",
]
