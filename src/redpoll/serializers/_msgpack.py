"""MessagePack: compact, with binary data and times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack  # type: ignore[import-untyped]

from redpoll.errors import DecodeError, EncodeError

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["MsgpackSerializer"]

# UnpackException is the root of msgpack's own; the others come out of building the values.
_DECODING = (msgpack.UnpackException, ValueError, TypeError, OverflowError, RecursionError, MemoryError)
_ENCODING = (msgpack.PackException, ValueError, TypeError, OverflowError, RecursionError, BufferError)


class MsgpackSerializer:
    """Carries None, bool, int of 64 bits, float, str, bytes, lists, dicts, and aware datetimes.

    A tuple arrives as a list, any bytes-like object as `bytes`, a datetime in UTC. Reading builds nothing but these
    values, and no more of them than the data has bytes.
    """

    name = "msgpack"
    wants_buffer = False

    def __init__(self, *, strict_map_key: bool = True) -> None:
        """Choose what keys are read.

        Args:
            strict_map_key: Whether a dict's keys must be str or bytes (default). False takes every hashable value; a
                hostile peer can then choose numbers that fall into one place of the dict, and make reading slow.
        """
        self._strict_map_key = strict_map_key

    def encode(self, obj: Any, /) -> bytes:
        """`obj` as MessagePack.

        Raises:
            EncodeError: `obj` holds something that MessagePack has not, or is nested too deeply.
        """
        try:
            return msgpack.packb(obj, datetime=True)  # type: ignore[no-any-return]
        except _ENCODING as error:
            raise EncodeError(self.name, str(error)) from error

    def decode(self, data: Buffer, /) -> Any:
        """The value that `data` spells.

        Raises:
            DecodeError: `data` is no MessagePack, is cut short, has more behind it, or holds a key that is not allowed.
        """
        try:
            return msgpack.unpackb(data, raw=False, timestamp=3, strict_map_key=self._strict_map_key)
        except _DECODING as error:
            raise DecodeError(self.name, str(error) or type(error).__name__) from error
