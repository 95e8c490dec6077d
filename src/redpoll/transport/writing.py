"""The writing half of a connection: when output is written, in which pieces, and how the connection closes."""

from __future__ import annotations

import asyncio
import sys
from typing import Protocol

from redpoll.address import Address
from redpoll.errors import LinkError, PeerLost, RedpollError
from redpoll.tls.credentials import TLSSession
from redpoll.transport.kernel_buffers import KernelBuffers
from redpoll.transport.spin import Spin
from redpoll.transport.write_backpressure import WriteBackpressure
from redpoll.wire.link import Link
from redpoll.wire.liveness import MIN_PROGRESS
from redpoll.wire.outgoing import Body
from redpoll.wire.peer import Peer
from redpoll.wire.states import LinkState

__all__ = [
    "CLOSING_TIME",
    "EARLY_FLUSH",
    "PROMPT_ACK_SIZE",
    "WRITE_HIGH_WATER",
    "WritingHalf",
    "WritingKeeper",
    "high_water",
    "is_uvloop",
]

#: Before 3.12, asyncio's writelines joins its arguments, which copies large bodies.
_VECTORED = sys.version_info >= (3, 12)

#: High-water mark in bytes: above it in the transport, a link is not writable.
WRITE_HIGH_WATER = 256 * 1024


def is_uvloop(part: object) -> bool:
    """Return True if an event loop, or a part of it, is uvloop's."""
    return type(part).__module__.startswith("uvloop")


def high_water(loop: asyncio.AbstractEventLoop) -> int:
    """Return the high-water mark of a transport, in bytes."""
    # Below the mark, uvloop delays a write by a turn of the loop instead of passing it to the kernel at once.
    return 0 if is_uvloop(loop) else WRITE_HIGH_WATER


#: Number of pieces of output that are written without waiting for the turn's end, so that the peer can process them.
EARLY_FLUSH = 32

#: Bytes received after which acknowledgements wait for nothing that could be written with them.
PROMPT_ACK_SIZE = 64 * 1024

#: Time in seconds in which a closing transport has to send `MIN_PROGRESS` bytes.
CLOSING_TIME = 10.0


class WritingKeeper(Protocol):
    """The owner of connections, as their writing half uses it.

    Attributes:
        spin: Keeps the event loop awake after reads and writes; None if the process may sleep at once.
    """

    spin: Spin | None

    def backed_up(self) -> None:
        """Handle a connection whose peer does not read what is written to it."""


class WritingHalf(asyncio.BufferedProtocol):
    """Writes for one link; `Connection` adds the reading half.

    Attributes:
        link: The state machine.
        remote: The remote address of the socket.
        secured: The TLS session; None if it is not encrypted.
        backpressure: What the peer reads of the output.
    """

    __slots__ = (
        "_closing", "_kernel", "_loop", "_reading", "_since_read", "_single", "_spin", "_time", "_timer", "backpressure",
        "error", "keeper", "link", "remote", "scheduled", "secured", "transport",
    )  # fmt: skip

    keeper: WritingKeeper

    def __init__(
        self, keeper: WritingKeeper, link: Link[Peer], remote: Address, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.link = link
        self.remote = remote
        self.secured: TLSSession | None = None
        self.error: RedpollError | None = None
        self.transport: asyncio.Transport | None = None
        self.keeper = keeper
        self._spin = keeper.spin
        self.backpressure = WriteBackpressure(link)
        self._loop = loop
        self._time = loop.time
        self.scheduled = False
        self._reading = False
        #: Whether messages are sent singly, each awaited before the next; and how many were sent since the last read.
        self._single = True
        self._since_read = 0
        self._closing = False
        #: Made when the first long body begins.
        self._kernel: KernelBuffers | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def name(self) -> Address:
        """The peer's address, or the socket's if there is no peer."""
        peer = self.link.peer
        return self.remote if peer is None or peer.address is None else peer.address

    def wake(self) -> None:
        """Schedule a flush at the end of this turn of the loop."""
        if not self.scheduled and not self._reading:
            self.scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def submitted(self) -> None:
        """Write a submitted message at once if messages are sent singly, otherwise together with others."""
        self._since_read += 1
        if self._single and self._since_read == 1 and not self.scheduled:
            self.flush()
            return
        if len(self.link.output) >= EARLY_FLUSH:
            self.flush()
        if not self.scheduled and not self._reading:
            self.scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        # A lost connection stays scheduled: the loop itself may be closed when messages end.
        self.scheduled = self.transport is None
        self._single = len(self.link.output) <= 2
        self._since_read = 0
        self.flush()
        if self.link.state is not LinkState.OPEN:
            self.part()

    def flush(self) -> None:
        """Write the output, as far as the transport accepts it without growing above its mark."""
        link = self.link
        transport = self.transport
        if transport is None:
            return
        if link.output:
            blocked = not link.writable
            parts = link.take_output()
            if blocked and not self.admits_unread(sum(map(len, parts))):
                return
            self._write(transport, parts, _VECTORED)
        if link.transfers:
            self._write_fragments(transport)
        if link.last_large is not None or link.transfers:
            self.backpressure.flushed = link.bytes_sent - transport.get_write_buffer_size()
        if link.written and link.writable and transport.get_write_buffer_size() and link.borrows_memory:
            # The transport may refer to callers' buffers, which are theirs again once notified: wait until it is empty.
            transport.set_write_buffer_limits(high=0)
        if not link.writable:
            self.backpressure.note_read()
            if link.transfers.unwritten_answers:
                self.backpressure.charge()
                self.keeper.backed_up()
            return
        peer = link.peer
        if link.written:
            for out in link.flushed():
                if peer is not None:
                    peer.written(out)
        if peer is not None and peer.queue:
            peer.pump(self._time())
            if link.output or link.transfers:
                self.wake()
        if peer is not None and peer.writable_waiters and peer.ready:
            peer.wake_waiters()

    def admits_unread(self, size: int = 0) -> bool:
        """Count bytes added to a full transport; return False if the peer reads too little, and close the link."""
        reason = self.backpressure.add(size)
        self.keeper.backed_up()
        if reason is None:
            return True
        if self.error is None:
            self.link.memory.tally.slow_readers += 1
        self.fail(PeerLost(self.name, reason))
        return False

    def _write_fragments(self, transport: asyncio.Transport) -> None:
        """Write fragments of large bodies while the transport accepts them, and output that may pass in between."""
        link = self.link
        peer = link.peer
        if self._kernel is not None or link.transfers[0].long:
            self._kernel_buffers().sending(link.transfers[0].long)
        while link.writable and link.transfers:
            if peer is not None and peer.queue:
                peer.pump(self._time())
            if link.output:
                self._write(transport, link.take_output(), _VECTORED)
            if link.writable:
                self._write(transport, link.take_fragment(self._time()), False)
        if link.writable and link.output:
            self.wake()
        if self._kernel is not None and not link.transfers:
            self._kernel.sending(False)

    def _kernel_buffers(self) -> KernelBuffers:
        if self._kernel is None:
            transport = self.transport
            self._kernel = KernelBuffers(None if transport is None else transport.get_extra_info("socket"))
        return self._kernel

    def _write(self, transport: asyncio.Transport, parts: list[Body], vectored: bool) -> None:
        if transport.is_closing():
            # CPython's writelines would leave the descriptor in the selector, and break the next socket with that
            # number.
            self.link.writable = False
            return
        if self._spin is not None:
            self._spin.extend()
        try:
            if len(parts) < 2 or not (vectored or self.secured is not None):
                for part in parts:
                    transport.write(part)
                    if transport.is_closing():  # the system refused it; asyncio logs a warning for each further write
                        break
                return
            transport.writelines(parts)
            if self.link.writable and transport.get_write_buffer_size() > WRITE_HIGH_WATER:
                # Some versions of CPython's writelines do not pause the writer; setting the mark checks again.
                transport.set_write_buffer_limits(high=high_water(self._loop))
        except RuntimeError:
            # uvloop's error for a closed transport; `connection_lost` will be called.
            self.link.writable = False

    def fail(self, error: RedpollError) -> None:
        """Close at once because of an error, which fails what is in flight."""
        self.link.writable = False
        if self.error is None:
            self.error = error
        if self.transport is not None:
            self.transport.abort()

    def wind_down(self, error: RedpollError) -> None:
        """Write no more messages or fragments until it is closed; they fail with `error`."""
        self.flush()
        self.link.writable = False
        if self.error is None:
            self.error = error

    def close(self, error: RedpollError | None = None) -> None:
        """Close once the transport's buffer is written."""
        if self._closing:
            return
        self._closing = True
        self.wind_down(error or LinkError("the link is closed"))
        if self.transport is not None:
            self.transport.close()
            self._watch_closing(2**63)

    def _watch_closing(self, left: int) -> None:
        """Abort a closing transport if the peer reads too little; `left` is the previous size of its buffer."""
        transport = self.transport
        if transport is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        size = transport.get_write_buffer_size()
        if left - size < MIN_PROGRESS:
            transport.abort()
        else:
            self._timer = self._loop.call_later(CLOSING_TIME, self._watch_closing, size)

    def part(self) -> None:
        """Complete a goodbye."""
        raise NotImplementedError
