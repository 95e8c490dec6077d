"""Serializers by name."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from redpoll.errors import ConfigError
from redpoll.serializers._buffer import BufferSerializer
from redpoll.serializers._json import JsonSerializer
from redpoll.serializers._msgpack import MsgpackSerializer
from redpoll.serializers._pickle import PickleSerializer
from redpoll.serializers._raw import RawSerializer
from redpoll.serializers.base import Serializer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SERIALIZERS", "buffer", "get", "json", "msgpack", "pickle", "raw"]

raw = RawSerializer()
"""Bytes in, `bytes` out: the default."""

buffer = BufferSerializer()
"""Anything with a buffer in, a writable `memoryview` out; large bodies are not copied."""

msgpack = MsgpackSerializer()
"""MessagePack, as `MsgpackSerializer` reads and writes it unless told otherwise."""

json = JsonSerializer()
"""JSON."""

pickle = PickleSerializer()
"""Python objects, by the default allow-list. Call it for another one: ``pickle(allow=["jobs.Job"])``."""

SERIALIZERS: Mapping[str, Serializer[Any]] = MappingProxyType(
    {each.name: each for each in (raw, buffer, msgpack, json, pickle)}
)
"""The serializers that have a name; they keep no state, so all nodes share them."""


def get(serializer: str | Serializer[Any]) -> Serializer[Any]:
    """The serializer of that name.

    Args:
        serializer: A name in `SERIALIZERS`, or a serializer, which is returned as it is.

    Raises:
        ConfigError: There is none of that name, or it is no serializer; the hint lists the names.
    """
    if isinstance(serializer, str):
        if serializer not in SERIALIZERS:
            raise ConfigError(
                "serializer", serializer, "there is no such serializer", f"the names are {', '.join(SERIALIZERS)}"
            )
        return SERIALIZERS[serializer]
    given: object = serializer
    # A class has the attributes too, and is a likely slip.
    if isinstance(given, type) or not isinstance(given, Serializer):
        raise ConfigError("serializer", given, "is no Serializer", "pass a name, or an object of such a class")
    return serializer
