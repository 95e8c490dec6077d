"""The protocol of a connection: reads for a link, writes for it, and keeps its one timer. It makes no decisions."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, Any, Protocol

from redpoll.address import Address
from redpoll.errors import LinkError, OtherProtocol, PeerLost, ProtocolError, RedpollError, TLSError
from redpoll.tls.credentials import TLSSession
from redpoll.transport.dial import in_words, tune
from redpoll.transport.kernel_buffers import KernelBuffers
from redpoll.transport.spin import Spin
from redpoll.transport.write_backpressure import WriteBackpressure
from redpoll.wire.link import Link
from redpoll.wire.link_timers import next_deadline, tick
from redpoll.wire.liveness import MIN_PROGRESS
from redpoll.wire.outgoing import Body
from redpoll.wire.peer import Peer
from redpoll.wire.reader import Reader
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    from redpoll.tls.certificate import Certificate

__all__ = [
    "ANNOUNCEMENT_GRACE",
    "ANNOUNCEMENT_PATIENCE",
    "CLOSING_TIME",
    "EARLY_FLUSH",
    "SHARED_BUFFER_SIZE",
    "WRITE_HIGH_WATER",
    "Connection",
    "Keeper",
]

#: Maximum bytes of one read. The incomplete tail of a frame, at most 197 KiB, is kept at its beginning.
SHARED_BUFFER_SIZE = 264 * 1024

#: Before 3.12, asyncio's writelines joins its arguments, which copies large bodies.
_VECTORED = sys.version_info >= (3, 12)

#: High-water mark in bytes: above it in the transport, a link is not writable.
WRITE_HIGH_WATER = 256 * 1024


def _is_uvloop(part: object) -> bool:
    return type(part).__module__.startswith("uvloop")


def _high_water(loop: asyncio.AbstractEventLoop) -> int:
    # Below the mark, uvloop delays a write by a turn of the loop instead of passing it to the kernel at once.
    return 0 if _is_uvloop(loop) else WRITE_HIGH_WATER


#: Number of pieces of output that are written without waiting for the turn's end, so that the peer can process them.
EARLY_FLUSH = 32

#: Time in seconds in which a closing transport has to send `MIN_PROGRESS` bytes.
CLOSING_TIME = 10.0

#: Time in seconds after a handshake in which its announcement may still be under way.
ANNOUNCEMENT_GRACE = 0.02

#: Number of looks in that time. A process that stood still finds its timer due before it has read what came meanwhile.
_LOOKS = 4

#: Time in seconds after that for an incomplete frame, which may be the announcement, to become complete.
ANNOUNCEMENT_PATIENCE = 1.0

_buffers = threading.local()


def _shared_buffer() -> memoryview:
    """Return the receive buffer of this thread's event loop, which all its links share."""
    buffer: memoryview | None = getattr(_buffers, "buffer", None)
    if buffer is None:
        buffer = _buffers.buffer = memoryview(bytearray(SHARED_BUFFER_SIZE))
    return buffer


class Keeper(Protocol):
    """Owns connections: the node. All methods are plain calls that return at once.

    Attributes:
        spin: Keeps the event loop awake after reads and writes; None if the process may sleep at once.
    """

    spin: Spin | None

    def opened(self, connection: Connection) -> None:
        """Handle a new socket, before its handshake."""

    def identified(self, connection: Connection, now: float) -> None:
        """Find the peer of a link whose handshake arrived."""

    def session(self, connection: Connection, now: float) -> None:
        """Handle the session frames in `link.arrived.session`, which just arrived or were left there."""

    def arrived(self, connection: Connection, now: float) -> None:
        """Handle the messages that arrived; all were copied out of the shared buffer."""

    def freed(self, peer: Peer) -> None:
        """Begin messages of a peer that read what was written to it."""

    def suspect(self, connection: Connection) -> None:
        """Handle a ping that was not answered in time."""

    def memory_blocked(self, connection: Connection, now: float) -> None:
        """Handle a link that waits for memory: it does not read until `Connection.read_on`."""

    def backed_up(self) -> None:
        """Handle a connection whose peer does not read what is written to it."""

    def parting(self, connection: Connection) -> bool:
        """Handle a goodbye; return True while a handler may still answer a released request over the connection."""

    def lost(self, connection: Connection, error: RedpollError) -> None:
        """Handle the loss of a connection."""


class Connection(asyncio.BufferedProtocol):
    """One link on one asyncio transport.

    Attributes:
        link: The state machine.
        reader: Reads for the link.
        remote: The remote address of the socket.
        target: The peer that this node dialled for; for the keeper only.
        secured: The TLS session; None if it is not encrypted.
        backpressure: What the peer reads of the output.
    """

    __slots__ = (
        "_awaiting", "_closing", "_kernel", "_late", "_loop", "_patience", "_reading", "_reads_on", "_shared",
        "_since_read", "_single", "_spin", "_time", "_timer", "backpressure", "error", "keeper", "link", "reader", "ready",
        "remote", "scheduled", "secured", "target", "transport",
    )  # fmt: skip

    def __init__(
        self, keeper: Keeper, link: Link, remote: Address, loop: asyncio.AbstractEventLoop, target: Any = None
    ) -> None:
        link.connection = self
        self.link = link
        self.remote = remote
        self.target = target
        self.secured: TLSSession | None = None
        self.error: RedpollError | None = None
        #: For the dialler: done when the link has its peer, or with the error that ended it before.
        self.ready: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport | None = None
        self.reader = Reader(link)
        self._shared = _shared_buffer()
        self.keeper = keeper
        self._spin = keeper.spin
        self.backpressure = WriteBackpressure(link)
        self._loop = loop
        self._time = loop.time
        self.scheduled = False
        self._reading = False
        #: Whether the transport reads up to 32 times in a row as long as reads fill their buffers, as uvloop's do.
        self._reads_on = False
        #: Whether messages are sent singly, each awaited before the next; and how many were sent since the last read.
        self._single = True
        self._since_read = 0
        self._awaiting: asyncio.TimerHandle | None = None
        self._patience = link.settings.patience
        #: Writes acknowledgements that nothing was written with.
        self._late: asyncio.TimerHandle | None = None
        self._closing = False
        #: Made when the first long body begins.
        self._kernel: KernelBuffers | None = None
        self._timer: asyncio.TimerHandle | None = None

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send handshake and announcement in one write: the socket is connected."""
        self.transport = self.backpressure.transport = transport  # type: ignore[assignment]
        self._reads_on = _is_uvloop(transport)
        if self.error is not None:
            # It was abandoned before it was connected.
            transport.abort()  # type: ignore[attr-defined]
            return
        if self.link.dialled:
            # The listener has tuned accepted sockets.
            tune(transport.get_extra_info("socket"))
        transport.set_write_buffer_limits(high=_high_water(self._loop))  # type: ignore[attr-defined]
        self.keeper.opened(self)
        self.flush()
        self.arm()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's signature
        """Return the buffer for the next read."""
        return self.reader.get_buffer(self._shared)

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the bytes read, let the keeper act on the result, and write what follows from it."""
        if self._spin is not None:
            self._spin.extend()
        now = self._time()
        self._reading = True
        if self._since_read:
            self._single = self._since_read == 1
            self._since_read = 0
        link = self.link
        try:
            arrived = self.reader.received(self._shared, nbytes, now)
            peer: Peer | None = link.peer
            if peer is None or arrived.session:
                self._act(now)
            else:
                # Inlined `after_binding`: a call less per read.
                if arrived.messages:
                    self.keeper.arrived(self, now)
                if peer.queue:
                    peer.pump(now)
        except (ProtocolError, TLSError) as error:
            self._broken(error)
            return
        finally:
            self._reading = False
        if link.incoming.long or self._kernel is not None:
            self._kernel_buffers().receiving(link.incoming.long)
        if arrived.attention:
            self._attend(now)
        if self._reads_on and self.reader.more_of_stream:
            self._read_later()
        if link.transfers or (link.output and not (self._patience and self._postpone())):
            self.flush()
        peer = link.peer
        if peer is not None and peer.writable_waiters and peer.ready:
            peer.wake_waiters()
        if link.state is not LinkState.OPEN:
            self.part()

    def _postpone(self) -> bool:
        """Return True if the few acknowledgements of a read may wait for what is written with them soon."""
        if len(self.link.output) >= EARLY_FLUSH or self.link.state is not LinkState.OPEN:
            return False
        if self._late is None:
            self._late = self._loop.call_later(self._patience, self._write_late)
        return True

    def _write_late(self) -> None:
        self._late = None
        self.flush()

    def _read_later(self) -> None:
        """Read again after the consumers' turn: the messages of 32 reads fit no cache, and garbage collections visit them."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.resume_reading()

    def _broken(self, error: ProtocolError | TLSError) -> None:
        if self.link.peer is not None:
            error.address = self.link.peer.address
        elif isinstance(error, TLSError | OtherProtocol):
            error.address = self.remote
        self.fail(error)

    def _attend(self, now: float) -> None:
        """Handle a link that has to pause, or that needs its timer set earlier."""
        self.link.arrived.attention = False
        if self.link.incoming.paused and self.transport is not None:
            self.transport.pause_reading()
            self.keeper.memory_blocked(self, now)
        self.arm()

    def _act(self, now: float) -> None:
        link = self.link
        if link.arrived.session:
            self.keeper.session(self, now)
        if link.peer is None:
            if link.handshake is None:
                return
            if link.announced is None and not link.incoming.awaiting_peer:
                # An announcement is in the same write as the handshake; without one the peer is libchirp.
                if self._awaiting is None:
                    self._awaiting = self._loop.call_later(ANNOUNCEMENT_GRACE / _LOOKS, self._identify, _LOOKS - 1)
                return
            self.keeper.identified(self, now)
            if link.incoming.awaiting_peer and link.peer is not None:
                self.reader.resume(self._shared, now)  # type: ignore[unreachable]  # the keeper gave it its peer
        self.after_binding(now)

    def _identify(self, looks: int) -> None:
        """Take a node for libchirp once it has announced nothing in `looks` further looks."""
        if self.link.peer is not None or self.transport is None:
            return
        if looks > 0:
            self._awaiting = self._loop.call_later(ANNOUNCEMENT_GRACE / _LOOKS, self._identify, looks - 1)
        elif not looks and self.link.incoming.unfinished:
            # Wait: a request sent before the announcement is read would get no answer, as libchirp is not told that one
            # is wanted.
            self._awaiting = self._loop.call_later(ANNOUNCEMENT_PATIENCE, self._identify, -1)
        else:
            self.go_on()

    def after_binding(self, now: float) -> None:
        """Pass on arrived messages if the link has its peer, and write queued ones."""
        link = self.link
        peer: Peer | None = link.peer
        if peer is None:
            return
        if link.arrived.messages:
            self.keeper.arrived(self, now)
        if peer.queue:
            peer.pump(now)

    def eof_received(self) -> bool:
        """Close this end too: the peer closed its own."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Settle everything on the link: the socket is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for timer in (self._awaiting, self._late):
            if timer is not None:
                timer.cancel()
        self.transport = self.backpressure.transport = None
        self.scheduled = True
        error = self.error
        if error is None and isinstance(exc, RedpollError):
            error = exc
        elif error is None:
            reason = "the peer closed the connection" if exc is None else in_words(exc)
            error = PeerLost(self.name, reason)
            error.__cause__ = exc
        self.keeper.lost(self, error)
        if self.ready is not None and not self.ready.done():
            self.ready.set_exception(error)
        self.link.writable = False

    def pause_writing(self) -> None:
        """Stop writing: the transport is above its high-water mark."""
        self.link.writable = False

    def resume_writing(self) -> None:
        """Resume fragments and queue: the transport drained."""
        if self.error is None:
            self.link.writable = True
            if self.transport is not None:
                # It may have had to drain completely.
                self.transport.set_write_buffer_limits(high=_high_water(self._loop))
            self.backpressure.drained(self._time())
            if self.link.unanswered_pings:
                self.link.answer_pings()
            self.flush()
            if self.link.peer is not None and self.link.peer.slots.inbox:
                self.keeper.freed(self.link.peer)

    # Called by the keeper

    def read_on(self) -> None:
        """Resume a link that waited for memory, or whose waiting message was rejected."""
        if self.transport is None or self.error is not None:
            return
        now = self._time()
        self._reading = True
        try:
            self.reader.read_on(self._shared, now)
            self._act(now)
        except (ProtocolError, TLSError) as error:
            self._broken(error)
            return
        finally:
            self._reading = False
        self.resume_reading()
        if self.link.arrived.attention:
            self._attend(now)
        self.flush()
        if self.link.state is not LinkState.OPEN:
            self.part()

    def pause_reading(self) -> None:
        """Stop reading for now."""
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading, unless something else requires a pause."""
        if self.transport is not None and not self.link.reading_paused:
            self.transport.resume_reading()

    @property
    def certificate(self) -> Certificate | None:
        """The certificate of the remote node; None if it is not known yet, or there is none."""
        return None if self.secured is None else self.secured.certificate

    def go_on(self) -> None:
        """Find the link's peer now if it has none, outside of reading, and pass on what waited for it."""
        link = self.link
        if self.transport is None:
            return
        now = self._time()
        try:
            if link.arrived.session and link.peer is None:
                self.keeper.session(self, now)
            if link.peer is None:
                self.keeper.identified(self, now)
            if link.incoming.awaiting_peer and link.peer is not None:
                self.reader.resume(self._shared, now)
        except (ProtocolError, TLSError) as error:
            self._broken(error)
            return
        self.after_binding(now)
        if link.arrived.attention:
            self._attend(now)
        self.wake()

    @property
    def name(self) -> Address:
        """The peer's address, or the socket's if there is no peer."""
        peer: Peer | None = self.link.peer
        return self.remote if peer is None or peer.address is None else peer.address

    @property
    def local_port(self) -> int:
        """The local port, 0 if there is none."""
        name = self.transport.get_extra_info("sockname") if self.transport is not None else None
        return int(name[1]) if isinstance(name, tuple) else 0

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
        peer: Peer | None = link.peer
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
        peer: Peer | None = link.peer
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
                transport.set_write_buffer_limits(high=_high_water(self._loop))
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

    def give_up(self, error: RedpollError) -> None:
        """Fail and be lost at once: uvloop makes no further calls for a connection whose making was cancelled."""
        self.fail(error)
        if self.transport is not None:
            self.connection_lost(None)

    def expel(self, error: RedpollError) -> None:
        """Be lost at once, unread data included; written output is still sent if the kernel accepts it now."""
        self.flush()
        transport = self.transport
        self._closing = True
        if transport is not None and not transport.get_write_buffer_size():
            self.wind_down(error)
            transport.close()
            self.connection_lost(None)
        else:
            self.give_up(error)

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
        """Complete a goodbye: say it too if the peer did, and close once nothing is left to end."""
        link = self.link
        answering = self.keeper.parting(self)
        if link.state is LinkState.LEFT and not link.in_flight and not link.transfers:
            link.leave()
            self.flush()
        peer: Peer | None = link.peer
        if link.state in (LinkState.LEFT, LinkState.PARTING) and peer is not None and peer.link is link:
            peer.pump(self._time())
        if (link.state is LinkState.PARTING or (link.state is LinkState.LEAVING and link.announced is None)) and not (
            link.busy or answering or (peer is not None and peer.awaits_answers(link))
        ):
            self.close(PeerLost(self.name, "the link ended with a goodbye"))

    # Timer

    def arm(self) -> None:
        """Set the timer to the next deadline, which may be earlier than before."""
        if self._closing:
            # Closing uses the timer.
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.transport is not None:
            self._timer = self._loop.call_at(next_deadline(self.link), self._tick)

    def _tick(self) -> None:
        self._timer = None
        link = self.link
        if self.transport is None:
            return
        now = self._time()
        verdict = tick(link, now)
        if isinstance(verdict, PeerLost):
            self.fail(verdict)
            return
        if verdict:
            self.keeper.suspect(self)
        if link.output:
            self.flush()
        if link.state is not LinkState.OPEN:
            self.part()
        self.arm()
