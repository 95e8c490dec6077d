"""The raw serializer: bytes in, bytes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redpoll.serializers.flat import flatten

if TYPE_CHECKING:
    from redpoll.serializers.base import Buffer

__all__ = ["RawSerializer"]


class RawSerializer:
    """Carries bytes-like objects; the receiver always gets `bytes`.

    A large message is copied once on receipt, since `bytes` cannot be received into; `BufferSerializer` avoids that.
    Nothing is copied on sending, so the memory of a bytearray must not change until the send is done.

    Args:
        name: Name announced to redpoll peers, one word. A node with the serializer "msgpack", "json" or "pickle"
            refuses messages of a "raw" node; under any other name, for example "any", a program can forward what others
            encoded.
    """

    wants_buffer = False

    def __init__(self, name: str = "raw") -> None:
        self.name = name

    def encode(self, obj: Any, /) -> Buffer:
        """Return `obj`, or a view of its bytes.

        Raises:
            EncodeError: `obj` is not bytes-like, or not contiguous.
        """
        return flatten(self.name, obj)

    def decode(self, data: Buffer, /) -> bytes:
        """Return `data` as bytes; never fails."""
        return data if type(data) is bytes else bytes(data)
