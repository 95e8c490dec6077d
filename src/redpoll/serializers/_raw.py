"""Bytes in, bytes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redpoll.serializers.flat import flatten

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["RawSerializer"]


class RawSerializer:
    """Carries bytes-like objects; what is received is always `bytes`.

    A large message is copied once on arrival, since `bytes` cannot be received into; `BufferSerializer` avoids that.
    On sending nothing is copied, so the memory of a bytearray must not change until the send is done.
    """

    name = "raw"
    wants_buffer = False

    def encode(self, obj: Any, /) -> Buffer:
        """`obj` itself, or a view of its bytes.

        Raises:
            EncodeError: `obj` is not bytes-like, or not in one piece.
        """
        return flatten(self.name, obj)

    def decode(self, data: Buffer, /) -> bytes:
        """`data` as bytes; never fails."""
        return data if type(data) is bytes else bytes(data)
