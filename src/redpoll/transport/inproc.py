"""`inproc:NAME`: links between nodes on one event loop, without a socket, with the same bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from redpoll.errors import ConfigError, DialFailed
from redpoll.transport.carried import CarriedTransport

if TYPE_CHECKING:
    from redpoll.address import Address

__all__ = ["InprocListener", "InprocTransport", "connect"]

#: Bytes that are handed over at a time, and may wait at an end that does not read.
_PIECE = 64 * 1024

ProtocolFactory = Callable[[], asyncio.BufferedProtocol]

_listeners: dict[str, InprocListener] = {}


class InprocListener:
    """Takes the links that are dialled to a name, until it is closed."""

    def __init__(
        self, name: str, admit: Callable[[], asyncio.BufferedProtocol | None], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Take the name.

        Args:
            name: What comes behind "inproc:".
            admit: Makes the protocol of a link that is dialled to it; None turns it away.
            loop: Where its node runs.

        Raises:
            ConfigError: Another node of this process has it.
        """
        if name in _listeners:
            raise ConfigError("host", f"inproc:{name}", "another node of this process listens there")
        self.name = name
        self.admit = admit
        self.loop = loop
        _listeners[name] = self

    def close(self) -> None:
        """Give the name back."""
        if _listeners.get(self.name) is self:
            del _listeners[self.name]


def connect(address: Address, factory: ProtocolFactory, loop: asyncio.AbstractEventLoop) -> None:
    """Make a link to the node that listens at a name.

    Raises:
        DialFailed: No node listens there, it runs on another event loop, or it takes no more links.
    """
    listener = _listeners.get(address.host)
    if listener is None:
        raise DialFailed(address, "no node of this process listens there")
    if listener.loop is not loop:
        raise DialFailed(address, "its node runs on another event loop; use a unix socket")
    protocol = listener.admit()
    if protocol is None:
        raise DialFailed(address, "its node takes no more links")
    far = InprocTransport(loop, protocol)
    near = InprocTransport(loop, factory())
    near.other, far.other = far, near
    far.begin()
    near.begin()


class InprocTransport(CarriedTransport):
    """One end: what is written here is read there, on a later turn of the loop."""

    other: InprocTransport

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__(loop, protocol, self._schedule, self._ask)
        self._scheduled = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes; a buffer that may change is copied."""
        super().write(data if isinstance(data, bytes) else bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Take bytes in several parts."""
        self.write(b"".join(list_of_data))

    def resume_reading(self) -> None:
        """Deliver again."""
        super().resume_reading()
        self._ask()

    def _ask(self) -> None:
        """This end reads: the other one may have something for it."""
        self.other._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._lost:
            self._scheduled = True
            self._loop.call_soon(self._carry)

    def _carry(self) -> None:
        self._scheduled = False
        other = self.other
        while other._reading and not other.unread and (parts := self.take(_PIECE)):
            # Whoever closes reads no more: it drops what it is fed.
            for part in parts:
                other.feed(part)
        if other.is_closing():
            self.take(self.get_write_buffer_size())
        if self.is_closing() and not self.get_write_buffer_size() and (other.is_closing() or not other.unread):
            self.end(None)
            other.end(None)
