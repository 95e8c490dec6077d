"""The MessagePack serializer: compact, with binary data and timestamps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack  # type: ignore[import-untyped]

from redpoll.errors import DecodeError, EncodeError
from redpoll.serializers.containers import MAX_CONTAINERS, check_limit, too_many

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["MsgpackSerializer"]

# UnpackException is the base of msgpack's own errors; the others are raised while values are built.
_DECODING = (msgpack.UnpackException, ValueError, TypeError, OverflowError, RecursionError, MemoryError)
_ENCODING = (msgpack.PackException, ValueError, TypeError, OverflowError, RecursionError, BufferError)

# Text of msgpack behind the type of a key that is neither text nor bytes.
_FORBIDDEN_KEY: Final = " is not allowed for map key"
_KEY_HINT: Final = "send str or bytes as keys, or receive with MsgpackSerializer(strict_map_key=False)"

_VALUES: Final = "it carries None, bool, int, float, str, bytes, lists, dicts and aware datetimes; pickle carries more"

#: Size of a packer's buffer, in bytes; allocating one per value takes longer than filling it.
_BUFFER: Final = 65_536

#: The packers that are not in use: as many as encode at a time, in threads or inside of one another.
_packers: Final[list[Any]] = []


class MsgpackSerializer:
    """Carries None, bool, int of 64 bits, float, str, bytes, lists, dicts with str or bytes as keys, and aware datetimes.

    A tuple is received as a list, any bytes-like object as `bytes`, a datetime in UTC. Decoding creates only such
    values, and no more of them than the data has bytes. Python 3.12 keeps the strings of keys until the process ends.
    """

    name = "msgpack"
    wants_buffer = False

    def __init__(self, *, strict_map_key: bool = True, max_containers: int = MAX_CONTAINERS) -> None:
        """Set the limits of decoding.

        Args:
            strict_map_key: Whether keys of dicts must be str or bytes (default). False allows every hashable value; a
                hostile peer can then choose numbers that collide in the dict, and make decoding slow.
            max_containers: Maximum number of lists, dicts and extensions in one received message, 1 to 2**63-1 (default
                1,000,000): an empty one is one byte of a message and takes 72 bytes of memory.

        Raises:
            ConfigError: `max_containers` is out of range.
        """
        self._strict_map_key = strict_map_key
        self._max_containers = check_limit(max_containers)

    def encode(self, obj: Any, /) -> bytes:
        """Encode `obj` as MessagePack.

        Raises:
            EncodeError: `obj` contains a value that MessagePack does not have, or is nested too deeply.
        """
        # Taken while in use: a value's own methods may encode something themselves.
        try:
            packer = _packers.pop()
        except IndexError:
            packer = msgpack.Packer(datetime=True, buf_size=_BUFFER)
        try:
            data: bytes = packer.pack(obj)
        except _ENCODING as error:
            raise EncodeError(self.name, str(error), _VALUES if isinstance(error, TypeError) else None) from error
        # Its buffer has grown to the largest value.
        if len(data) <= _BUFFER:
            _packers.append(packer)
        return data

    def decode(self, data: Buffer, /) -> Any:
        """Decode MessagePack.

        Raises:
            DecodeError: `data` is not MessagePack, is truncated, has trailing bytes, has a key that is not allowed, or
                too many lists and dicts.
        """
        try:
            # Each has at least one byte.
            if len(data) <= self._max_containers:
                return msgpack.unpackb(data, timestamp=3, strict_map_key=self._strict_map_key)
            return msgpack.unpackb(data, timestamp=3, strict_map_key=self._strict_map_key, **self._counting())
        except _DECODING as error:
            kind, found, _ = str(error).partition(_FORBIDDEN_KEY)
            if found:
                raise DecodeError(self.name, f"a dict has a key of type {kind}", _KEY_HINT) from error
            raise DecodeError(self.name, str(error) or type(error).__name__) from error

    def _counting(self) -> dict[str, Any]:
        """Return hooks that count containers as they are created, since their number is not known before."""
        left = self._max_containers

        def count(made: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise too_many(self.name, self._max_containers, type(self).__name__)
            return made

        return {
            "list_hook": count,
            "object_hook": count,
            "ext_hook": lambda code, data: count(msgpack.ExtType(code, data)),
        }
