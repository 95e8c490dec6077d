"""`inproc:NAME`: links between nodes on one event loop, without a socket, with the same bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from redpoll.errors import ConfigError, DialFailed

if TYPE_CHECKING:
    from redpoll.address import Address

__all__ = ["InprocListener", "InprocTransport", "connect"]

#: Bytes under way above which the writer is told to pause, unless it chooses another mark.
_HIGH_WATER = 256 * 1024

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


class InprocTransport(asyncio.Transport):
    """One end: what is written here is read there, on a later turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._outgoing: deque[memoryview] = deque()
        self._size = 0
        self._high = _HIGH_WATER
        self._low = _HIGH_WATER // 2
        self._paused = False
        self._reading = True
        self._scheduled = False
        self._closing = False
        self._lost = False
        self.other: InprocTransport

    def begin(self) -> None:
        """Tell the protocol that it is connected."""
        self._protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes; a buffer that may change is copied."""
        if self._lost or self._closing or not len(data):
            return
        self._outgoing.append(memoryview(data if isinstance(data, bytes) else bytes(data)))
        self._size += len(data)
        if self._size > self._high and not self._paused:
            self._paused = True
            self._protocol.pause_writing()
        self._schedule()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks in bytes: above the high one writing pauses, below the low one (half of it) it goes on."""
        self._high = _HIGH_WATER if high is None else high
        self._low = self._high // 2 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes written and not yet read by the other end."""
        return self._size

    def pause_reading(self) -> None:
        """Deliver no more to this end's protocol."""
        self._reading = False

    def resume_reading(self) -> None:
        """Deliver again."""
        self._reading = True
        self.other._schedule()

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self._closing

    def close(self) -> None:
        """Close once all that was written is read."""
        self._closing = True
        self._schedule()

    def abort(self) -> None:
        """Close now: what was not read is lost."""
        self._closing = True
        self._outgoing.clear()
        self._size = 0
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._lost:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        other = self.other
        outgoing = self._outgoing
        # Whoever closes reads no more.
        while outgoing and other._reading and not other._closing:
            view = outgoing[0]
            room = other._protocol.get_buffer(-1)
            count = min(len(view), len(room))  # type: ignore[arg-type]
            room[:count] = view[:count]  # type: ignore[index]
            if count == len(view):
                outgoing.popleft()
            else:
                outgoing[0] = view[count:]
            self._size -= count
            del room
            other._protocol.buffer_updated(count)
        if other._closing:
            outgoing.clear()
            self._size = 0
        if self._paused and self._size <= self._low and not self._closing:
            self._paused = False
            self._protocol.resume_writing()
        if self._closing and not outgoing:
            self._end()
            if not other._lost:
                other._closing = True
                other._outgoing.clear()
                other._end()

    def _end(self) -> None:
        if not self._lost:
            self._lost = True
            self._protocol.connection_lost(None)
