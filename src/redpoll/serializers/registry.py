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
"""Any buffer in, a writable `memoryview` out; large bodies are not copied."""

msgpack = MsgpackSerializer()
"""MessagePack, with the defaults of `MsgpackSerializer`."""

json = JsonSerializer()
"""JSON."""

pickle = PickleSerializer()
"""Python objects, with the default allow-list. Call it for another one: ``pickle(allow=["jobs.Job"])``."""

SERIALIZERS: Mapping[str, Serializer[Any]] = MappingProxyType(
    {each.name: each for each in (raw, buffer, msgpack, json, pickle)}
)
"""The serializers by name; they keep no state, so all nodes share them."""


def get(serializer: str | Serializer[Any]) -> Serializer[Any]:
    """Return the serializer for an option.

    Args:
        serializer: A name in `SERIALIZERS`, or a serializer, which is returned unchanged.

    Raises:
        ConfigError: There is no serializer of that name, or the object is not a serializer; the hint lists the names.
    """
    if isinstance(serializer, str):
        if serializer not in SERIALIZERS:
            raise ConfigError(
                "serializer", serializer, "there is no such serializer", f"choose one of {', '.join(SERIALIZERS)}"
            )
        return SERIALIZERS[serializer]
    given: object = serializer
    # A class has the attributes too, and is a likely mistake.
    if isinstance(given, type) or not isinstance(given, Serializer):
        raise ConfigError("serializer", given, "is not a Serializer", "pass a name, or an object of such a class")
    return serializer
