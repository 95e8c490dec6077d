"""The interface of serializers."""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

from redpoll.serializers.parts import Buffer, Encoded

__all__ = ["Buffer", "Serializer"]

T = TypeVar("T")


@runtime_checkable
class Serializer(Protocol[T]):
    """Encodes the data of messages, and decodes it.

    One object serves all messages of a node, and may be shared by nodes in several threads: its methods keep no state.
    They run on the event loop, and block it while they run.

    ``decode(encode(x))`` means the same as ``x`` to the application; the types may differ as the serializer documents.
    """

    @property
    def name(self) -> str:
        """Short name, used in errors and in the registry."""
        ...

    @property
    def wants_buffer(self) -> bool:
        """True if `decode` gets a large body as a writable memoryview instead of bytes.

        This is the memory that the body was received into, and nothing else refers to it. Small bodies are bytes or a
        bytearray.
        """
        ...

    def encode(self, obj: T, /) -> Encoded:
        """Encode `obj`.

        Args:
            obj: The data that the application sends. The result may refer to its memory, which is not copied if it is
                large.

        Returns:
            The body: contiguous, or several pieces from `gather`, of which large ones are not copied, such as binary
            parts beside their description. `decode` gets all of it as one piece.

        Raises:
            EncodeError: `obj` cannot be carried.
        """
        ...

    def decode(self, data: Buffer, /) -> T:
        """Decode a body.

        Args:
            data: Bytes from a peer: anything at all, up to `Config.max_message_size`.

        Raises:
            DecodeError: `encode` does not return such bytes. Any other exception is a defect of the serializer.
        """
        ...
