"""`inproc:NAME`: links between nodes on one event loop, with the same bytes but without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from redpoll.errors import ConfigError, DialFailed
from redpoll.platforms import after_fork
from redpoll.transport.carried import CarriedTransport

if TYPE_CHECKING:
    from redpoll.address import Address

__all__ = ["InprocListener", "InprocTransport", "connect"]

#: Maximum bytes delivered at a time, which are also the maximum that wait at an end that does not read.
_PIECE = 64 * 1024

ProtocolFactory = Callable[[], asyncio.BufferedProtocol]

_listeners: dict[str, InprocListener] = {}
# No node of the parent listens in a child.
after_fork(_listeners.clear)


class InprocListener:
    """Accepts the links that are dialled to a name, until it is closed."""

    def __init__(
        self, name: str, admit: Callable[[], asyncio.BufferedProtocol | None], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Register the name.

        Args:
            name: The part after "inproc:".
            admit: Makes the protocol of a dialled link; None rejects it.
            loop: The event loop of its node.

        Raises:
            ConfigError: Another node of this process has the name.
        """
        if _listener_at(name) is not None:
            raise ConfigError("host", f"inproc:{name}", "another node of this process listens there")
        self.name = name
        self.admit = admit
        self.loop = loop
        _listeners[name] = self

    def close(self) -> None:
        """Release the name."""
        if _listeners.get(self.name) is self:
            del _listeners[self.name]


def _listener_at(name: str) -> InprocListener | None:
    """Return the listener at a name; one whose loop was closed is none."""
    listener = _listeners.get(name)
    return None if listener is None or listener.loop.is_closed() else listener


def connect(address: Address, factory: ProtocolFactory, loop: asyncio.AbstractEventLoop) -> None:
    """Make a link to the node that listens at a name.

    Raises:
        DialFailed: No node listens there, it runs on another event loop, or it accepts no more links.
    """
    listener = _listener_at(address.host)
    if listener is None:
        raise DialFailed(address, "no node of this process listens there")
    if listener.loop is not loop:
        raise DialFailed(address, "its node runs on another event loop; use a unix socket")
    # First, as it may raise: an admitted link counts until it is lost.
    dialling = factory()
    protocol = listener.admit()
    if protocol is None:
        raise DialFailed(address, "its node accepts no more links")
    far = InprocTransport(loop, protocol)
    near = InprocTransport(loop, dialling)
    near.other, far.other = far, near
    far.begin()
    near.begin()


class InprocTransport(CarriedTransport):
    """One end: what is written here is read at the other end, in a later turn of the loop."""

    other: InprocTransport

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__(loop, protocol, self._schedule, self._ask)
        self._scheduled = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Buffer bytes to be sent; a mutable buffer is copied."""
        super().write(data if isinstance(data, bytes) else bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Buffer bytes in several parts to be sent."""
        self.write(b"".join(list_of_data))

    def resume_reading(self) -> None:
        """Resume delivering received bytes."""
        super().resume_reading()
        self._ask()

    def _ask(self) -> None:
        """Schedule the other end, which may have something for this one."""
        self.other._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._lost:
            self._scheduled = True
            self._loop.call_soon(self._carry)

    def _carry(self) -> None:
        self._scheduled = False
        other = self.other
        while other._reading and not other.unread and (parts := self.take(_PIECE)):
            # An end that closes drops what it is fed.
            for part in parts:
                other.feed(part)
        if other.is_closing():
            self.take(self.get_write_buffer_size())
        if self.is_closing() and not self.get_write_buffer_size() and (other.is_closing() or not other.unread):
            self.end(None)
            other.end(None)
