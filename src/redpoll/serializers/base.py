"""What a serializer is."""

from __future__ import annotations

from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

from redpoll.serializers.parts import Encoded

__all__ = ["Buffer", "Serializer"]

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes in one piece: what a serializer makes and reads. A memoryview is one of bytes, C-contiguous."""

T = TypeVar("T")


@runtime_checkable
class Serializer(Protocol[T]):
    """Turns the data of a message into bytes and back.

    One object serves all messages of a node, and may be shared by nodes in several threads: its methods keep no
    state. They run on the event loop, so what they cost holds everything else up.

    ``decode(encode(x))`` means the same as ``x`` to the application; the types may differ where the serializer says so.
    """

    @property
    def name(self) -> str:
        """Short name, used in errors and in the registry."""
        ...

    @property
    def wants_buffer(self) -> bool:
        """Whether `decode` is given a large body as a writable memoryview, instead of bytes.

        It is the memory that the body was received into, and nobody else keeps it. Small bodies come as bytes or as a
        bytearray.
        """
        ...

    def encode(self, obj: T, /) -> Encoded:
        """The bytes for `obj`.

        Args:
            obj: What the application sends. A result that refers to its memory is allowed, and not copied when it is
                large.

        Returns:
            The body, in one piece; or what `gather` made of several, of which the large ones are not copied: binary
            parts beside what describes them. `decode` gets all of it in one piece.

        Raises:
            EncodeError: `obj` cannot be carried.
        """
        ...

    def decode(self, data: Buffer, /) -> T:
        """What `data` stands for.

        Args:
            data: What a peer sent: anything at all. Never more than `Config.max_message_size`.

        Raises:
            DecodeError: `data` is not what `encode` makes. Any other exception is a defect of the serializer.
        """
        ...
