"""Messages, sent and received."""

from __future__ import annotations

import os
from itertools import count
from typing import Any, Generic, TypeVar

from redpoll.address import Address, parse_text
from redpoll.errors import MessageTooLarge, UsageError
from redpoll.platforms import after_fork

__all__ = ["IDENTITY_SIZE", "MAX_HEADER_SIZE", "Message", "identity_prefix"]

IDENTITY_SIZE = 16

#: Maximum size of a header, in bytes: the length field of libchirp's frame has 16 bits.
MAX_HEADER_SIZE = 0xFFFF

DataT = TypeVar("DataT")
OtherT = TypeVar("OtherT")

# A random prefix per process and a counter: as unique as random identities, without asking the operating system for
# entropy for each message. After a fork the child continues with a prefix of its own.
_prefix = os.urandom(8)
_numbers = count(1)
_NO_HEADER = b""


def _new_prefix() -> None:
    global _prefix  # noqa: PLW0603  # one per process
    _prefix = os.urandom(8)


after_fork(_new_prefix)


def identity_prefix() -> bytes:
    """Return the first 8 bytes of the identities that this process makes; a number of 8 bytes follows."""
    return _prefix


class Message(Generic[DataT]):
    """A message to send. It is immutable: one object may be sent many times, also at the same time.

    Args:
        data: The payload, for the node's serializer: by default any bytes-like object.
        address: The destination, an `Address` or its text ("127.0.0.1:2998", "[::1]:2998", "unix:PATH", "inproc:NAME").
        header: Bytes for the user alone, at most 65,535; they are delivered unchanged.

    Raises:
        UsageError: The address cannot be parsed, or the header is not bytes-like.
        MessageTooLarge: The header has more than 65,535 bytes.
    """

    __slots__ = ("_address", "_data", "_header", "_number")

    def __init__(self, data: DataT, address: Address | str | None = None, *, header: bytes = _NO_HEADER) -> None:
        if type(address) is not Address and address is not None:
            address = parse_text(address) if type(address) is str else Address.parse(address)
        if header is not _NO_HEADER:
            header = _checked_header(header)
        self._data: DataT = data
        self._address = address
        self._header = header
        self._number = next(_numbers)

    @property
    def data(self) -> DataT:
        """The payload; on a received message the value that the node's serializer decoded."""
        return self._data

    @property
    def header(self) -> bytes:
        """The user's header, at most 65,535 bytes."""
        return self._header

    @property
    def identity(self) -> bytes:
        """The identity of the message, 16 bytes; replies and forwarded messages keep it."""
        return _prefix + self._number.to_bytes(8, "big")

    @property
    def address(self) -> Address | None:
        """The destination or, on a received message, its sender: sending it back is a reply."""
        return self._address

    @property
    def remote_identity(self) -> bytes | None:
        """The identity of the node that sent it, 16 bytes; None on a message made here."""
        return None

    def reply(self, data: OtherT, *, header: bytes = b"") -> Message[OtherT]:
        """Return a message with the same identity and address: on a received message, that of its sender."""
        return _Continued(data, self.address, header, self.identity, self._bound_to(), None)

    def forward(self, address: Address | str) -> Message[DataT]:
        """Return this message, with its identity and header, addressed to another node.

        If a received message is forwarded without a timeout, it inherits its deadline, less three tenths of the time
        left, 0.7 seconds at most. So if the next hop does not answer, the error refuses this message and reaches its
        sender within the sender's own timeout, if that is a second or more.
        """
        return _Continued(self.data, Address.parse(address), self.header, self.identity, None, self._due())

    def _bound_to(self) -> Any:
        """Return the peer that a reply is pinned to, whatever node is at its address; None for any node there."""
        return None

    def _due(self) -> float | None:
        """Return the deadline of this message, by the node's clock; None if it has none."""
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a message with this identity, without its peer and deadline."""
        return _continued, (self.data, self.address, self.header, self.identity)

    def __repr__(self) -> str:
        data = self.data
        size = f"{len(data)} bytes" if isinstance(data, (bytes, bytearray, memoryview)) else "an object"
        name = type(self).__name__.replace("_Continued", "Message")
        return f"<{name} {self.identity.hex()[-8:]} of {size}, address {self.address}>"


class _Continued(Message[DataT]):
    """A reply or a forwarded message: it keeps the identity, and the peer or deadline, of the original."""

    __slots__ = ("_deadline", "_identity", "_peer")

    def __init__(
        self,
        data: DataT,
        address: Address | None,
        header: bytes,
        identity: bytes,
        peer: Any,
        deadline: float | None,
    ) -> None:
        super().__init__(data, address, header=header)
        self._identity = identity
        self._peer = peer
        self._deadline = deadline

    @property
    def identity(self) -> bytes:
        """The identity of the original message, 16 bytes."""
        return self._identity

    def _bound_to(self) -> Any:
        return self._peer

    def _due(self) -> float | None:
        return self._deadline


def _continued(data: Any, address: Address | None, header: bytes, identity: bytes) -> Message[Any]:
    return _Continued(data, address, header, identity, None, None)


def _checked_header(header: object) -> bytes:
    if not isinstance(header, (bytes, bytearray, memoryview)):
        raise UsageError(
            f"a header must be bytes, not {type(header).__name__}",
            hint="encode text first: header=text.encode()" if isinstance(header, str) else None,
        )
    header = bytes(header)
    if len(header) > MAX_HEADER_SIZE:
        raise MessageTooLarge("header", len(header), MAX_HEADER_SIZE)
    return header
