"""Messages: what is sent, what was received."""

from __future__ import annotations

import os
from itertools import count
from typing import Any, Generic, TypeVar

from redpoll.address import Address, parse_text
from redpoll.errors import MessageTooLarge, UsageError

__all__ = ["IDENTITY_SIZE", "MAX_HEADER_SIZE", "Message", "identity_prefix"]

IDENTITY_SIZE = 16

#: Bytes that a header may have: the length field of libchirp's frame is 16 bits.
MAX_HEADER_SIZE = 0xFFFF

DataT = TypeVar("DataT")
OtherT = TypeVar("OtherT")

# A random prefix for each process and a counter: unique as random identities are, without asking the operating
# system for entropy once a message. After a fork the child goes on counting behind a prefix of its own.
_prefix = os.urandom(8)
_numbers = count(1)
_NO_HEADER = b""


def _new_prefix() -> None:
    global _prefix  # noqa: PLW0603  # one a process
    _prefix = os.urandom(8)


os.register_at_fork(after_in_child=_new_prefix)


def identity_prefix() -> bytes:
    """The first 8 bytes of the identities that this process makes; a number of 8 bytes follows."""
    return _prefix


class Message(Generic[DataT]):
    """Something to send, immutable: the same one may be sent many times, also at once.

    Args:
        data: What the node's serializer carries: anything bytes-like by default.
        address: Where it goes, an `Address` or its text ("127.0.0.1:2998", "[::1]:2998", "unix:PATH", "inproc:NAME").
        header: Bytes for the user alone, at most 65,535; they arrive as they are.

    Raises:
        UsageError: The address cannot be read, or the header is not bytes-like.
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
        """The payload; on a received message what the node's serializer made of the bytes."""
        return self._data

    @property
    def header(self) -> bytes:
        """The user's header, at most 65,535 bytes."""
        return self._header

    @property
    def identity(self) -> bytes:
        """16 bytes that name the message; a reply and a forwarded message keep them."""
        return _prefix + self._number.to_bytes(8, "big")

    @property
    def address(self) -> Address | None:
        """Where the message goes or, received, where it came from: sending it back is a reply."""
        return self._address

    @property
    def remote_identity(self) -> bytes | None:
        """The identity of the node it came from, 16 bytes; None on a message that was made here."""
        return None

    def reply(self, data: OtherT, *, header: bytes = b"") -> Message[OtherT]:
        """Return a message with the same identity to where this one points: on a received one, its sender."""
        return _Continued(data, self.address, header, self.identity, self._bound_to(), None)

    def forward(self, address: Address | str) -> Message[DataT]:
        """Return this message, with its identity and header, addressed to another node.

        Sent without a timeout of its own, a received message that is forwarded has what is left of its deadline, less
        three tenths of that and 0.7 seconds at most. So the error of a next hop that does not answer refuses this message,
        and reaches its sender inside that one's own timeout if that is a second or more.
        """
        return _Continued(self.data, Address.parse(address), self.header, self.identity, None, self._due())

    def _bound_to(self) -> Any:
        """The peer that a reply to this message goes to, whoever else is at its address; None is whoever is there."""
        return None

    def _due(self) -> float | None:
        """By when this message has to be done, on the node's clock; None is never."""
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        """What can be read elsewhere: a message with this identity, not bound to a peer or a deadline."""
        return _continued, (self.data, self.address, self.header, self.identity)

    def __repr__(self) -> str:
        data = self.data
        size = f"{len(data)} bytes" if isinstance(data, (bytes, bytearray, memoryview)) else "an object"
        name = type(self).__name__.replace("_Continued", "Message")
        return f"<{name} {self.identity.hex()[-8:]} of {size}, address {self.address}>"


class _Continued(Message[DataT]):
    """A reply or a forwarded message: it keeps an identity, and what it came from binds it."""

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
        """16 bytes, those of the message that it continues."""
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
            f"a header is bytes, not {type(header).__name__}",
            hint="encode text first: header=text.encode()" if isinstance(header, str) else None,
        )
    header = bytes(header)
    if len(header) > MAX_HEADER_SIZE:
        raise MessageTooLarge("header", len(header), MAX_HEADER_SIZE)
    return header
