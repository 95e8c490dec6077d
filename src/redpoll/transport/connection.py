"""The only protocol: it reads for a link, writes for it, and keeps its one timer. It decides nothing."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, Any

from redpoll.address import Address
from redpoll.errors import LinkError, PeerLost, ProtocolError, RedpollError, TLSError
from redpoll.tls.credentials import Session
from redpoll.transport.dial import in_words, tune
from redpoll.transport.kernel_buffers import KernelBuffers
from redpoll.transport.outflow import Outflow
from redpoll.wire.link import Link
from redpoll.wire.outgoing import Body
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    from redpoll.tls.certificate import Certificate
    from redpoll.transport.keeper import Keeper

__all__ = [
    "ANNOUNCEMENT_GRACE",
    "ANNOUNCEMENT_PATIENCE",
    "EARLY_FLUSH",
    "SHARED_BUFFER_SIZE",
    "WRITE_HIGH_WATER",
    "Connection",
]

#: One read brings at most this many bytes. The unfinished tail of a frame, at most 197 KiB, stands at its beginning.
SHARED_BUFFER_SIZE = 264 * 1024

#: Before 3.12 asyncio's writelines joins what it is given, copying large bodies.
_VECTORED = sys.version_info >= (3, 12)

#: Bytes in the transport above which a link is not writable.
WRITE_HIGH_WATER = 256 * 1024


def _high_water(loop: asyncio.AbstractEventLoop) -> int:
    # uvloop hands a write to the system at once only if it is above the mark, else a turn of the loop later.
    return 0 if type(loop).__module__.startswith("uvloop") else WRITE_HIGH_WATER


#: With this many pieces of output the turn's end is not waited for: the other end works on them meanwhile.
EARLY_FLUSH = 32

#: Seconds after a handshake in which the announcement behind it may still be on its way.
ANNOUNCEMENT_GRACE = 0.02

#: Seconds after that in which a frame that has begun, and may be it, has to be whole.
ANNOUNCEMENT_PATIENCE = 1.0

_buffers = threading.local()


def _shared_buffer() -> memoryview:
    """The receive buffer of this thread's event loop: all its links read into it, one after another."""
    buffer: memoryview | None = getattr(_buffers, "buffer", None)
    if buffer is None:
        buffer = _buffers.buffer = memoryview(bytearray(SHARED_BUFFER_SIZE))
    return buffer


class Connection(asyncio.BufferedProtocol):
    """One link on one asyncio transport.

    Attributes:
        link: The state machine.
        remote: The other end's address as the socket knows it.
        target: Whom this end dialled for; the keeper's own use.
        secured: Its TLS; None where it is not encrypted.
        outflow: What of its output the other end takes.
    """

    __slots__ = (
        "_awaiting", "_closing", "_kernel", "_loop", "_reader", "_reading", "_shared", "_since_read", "_single", "_time",
        "_timer", "error", "keeper", "link", "outflow", "ready", "remote", "scheduled", "secured", "target", "transport",
    )  # fmt: skip

    def __init__(
        self, keeper: Keeper, link: Link, remote: Address, loop: asyncio.AbstractEventLoop, target: Any = None
    ) -> None:
        link.owner = self
        self.link = link
        self.remote = remote
        self.target = target
        self.secured: Session | None = None
        self.error: RedpollError | None = None
        #: For who dialled: done when the link has its peer, or with the error that ended it before.
        self.ready: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport | None = None
        self._reader = link.reader
        self._shared = _shared_buffer()
        self.keeper = keeper
        self.outflow = Outflow(self)
        self._loop = loop
        self._time = loop.time
        self.scheduled = False
        self._reading = False
        #: Whether messages go one at a time, each awaited before the next; and how many went since the last read.
        self._single = True
        self._since_read = 0
        self._awaiting: asyncio.TimerHandle | None = None
        self._closing = False
        #: Made with the first long body.
        self._kernel: KernelBuffers | None = None
        self._timer: asyncio.TimerHandle | None = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected: handshake and announcement go out in one write."""
        self.transport = transport  # type: ignore[assignment]
        if self.error is not None:
            # It was given up before it was there.
            transport.abort()  # type: ignore[attr-defined]
            return
        if self.link.dialled:
            # Whoever listens has done so before.
            tune(transport.get_extra_info("socket"))
        transport.set_write_buffer_limits(high=_high_water(self._loop))  # type: ignore[attr-defined]
        self.keeper.opened(self)
        self.flush()
        self.arm()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's signature
        """Where the next bytes go."""
        return self._reader.get_buffer(self._shared)

    def buffer_updated(self, nbytes: int) -> None:
        """Read, let the keeper act on it, write what follows from it."""
        now = self._time()
        self._reading = True
        if self._since_read:
            self._single = self._since_read == 1
            self._since_read = 0
        try:
            self._reader.received(self._shared, nbytes, now)
            self._act(now)
        except (ProtocolError, TLSError) as error:
            self._broken(error)
            return
        finally:
            self._reading = False
        link = self.link
        if link.long_body or self._kernel is not None:
            self._kernel_buffers().receiving(link.long_body)
        if link.attention:
            self._attend(now)
        if link.out or link.transfers:
            self.flush()
        peer = link.peer
        if peer is not None and peer.starved and peer.ready:
            self.keeper.room(peer)
        if link.state is not LinkState.OPEN:
            self.part()

    def _broken(self, error: ProtocolError | TLSError) -> None:
        if self.link.peer is not None:
            error.address = self.link.peer.address
        elif isinstance(error, TLSError):
            error.address = self.remote
        self.fail(error)

    def _attend(self, now: float) -> None:
        """The link has something to wait for, or to be looked at earlier than was told."""
        self.link.attention = False
        if self._reader.waits and self.transport is not None:
            self.transport.pause_reading()
            self.keeper.held_up(self, now)
        self.arm()

    def _act(self, now: float) -> None:
        link = self.link
        if link.session:
            self.keeper.session(self, now)
        if link.peer is None:
            if link.handshake is None:
                return
            if link.announced is None and not self._reader.stalled:
                # An announcement stands in the same write as the handshake; without one it is libchirp, soon.
                if self._awaiting is None:
                    self._awaiting = self._loop.call_later(ANNOUNCEMENT_GRACE, self._identify)
                return
            self.keeper.identified(self, now)
            if self._reader.stalled and link.peer is not None:
                self._reader.resume(self._shared, now)  # type: ignore[unreachable]  # the keeper gave it its peer
        self.after_binding(now)

    def _identify(self, patient: bool = True) -> None:
        if self.link.peer is None and self.transport is not None:
            if patient and self._reader.unfinished:
                # A request that is sent before the announcement is read gets no answer: its wish is not told to libchirp.
                self._awaiting = self._loop.call_later(ANNOUNCEMENT_PATIENCE, self._identify, False)
                return
            self.go_on()

    def after_binding(self, now: float) -> None:
        """Pass on what arrived, if the link has its peer, and write what waits."""
        link = self.link
        peer = link.peer
        if peer is None:
            return
        if link.arrived:
            self.keeper.arrived(self, now)
        if peer.queued:
            peer.pump(now)

    def eof_received(self) -> bool:
        """The other end closed; so does this one."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone: everything on the link is settled."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._awaiting is not None:
            self._awaiting.cancel()
        self.transport = None
        self.scheduled = True
        error = self.error
        if error is None and isinstance(exc, RedpollError):
            error = exc
        elif error is None:
            reason = "the connection was closed by the other end" if exc is None else in_words(exc)
            error = PeerLost(self.name, reason)
            error.__cause__ = exc
        self.keeper.lost(self, error)
        if self.ready is not None and not self.ready.done():
            self.ready.set_exception(error)
        self.link.writable = False

    def pause_writing(self) -> None:
        """The transport is above its high-water mark."""
        self.link.writable = False

    def resume_writing(self) -> None:
        """The transport drained: go on with fragments and the queue."""
        if self.error is None:
            self.link.writable = True
            self.outflow.eased(self._time())
            self.flush()
            if self.link.peer is not None and self.link.peer.slots.inbox:
                self.keeper.drained(self.link.peer)

    # What the keeper calls

    def read_on(self) -> None:
        """There is memory for what the link waits with, or that was turned away."""
        if self.transport is None or self.error is not None:
            return
        now = self._time()
        self._reading = True
        try:
            self._reader.read_on(self._shared, now)
            self._act(now)
        except (ProtocolError, TLSError) as error:
            self._broken(error)
            return
        finally:
            self._reading = False
        self.resume_reading()
        if self.link.attention:
            self._attend(now)
        self.flush()
        if self.link.state is not LinkState.OPEN:
            self.part()

    def resume_reading(self) -> None:
        """Read again, unless something else still speaks against it."""
        if self.transport is not None and not self.link.stands_still:
            self.transport.resume_reading()

    @property
    def certificate(self) -> Certificate | None:
        """What the other end showed; None if it is not known yet, or there is none."""
        return None if self.secured is None else self.secured.certificate

    def go_on(self) -> None:
        """Find the link's peer now, unless it has it, outside of reading, and pass on what waited for that."""
        link = self.link
        if self.transport is None:
            return
        now = self._time()
        try:
            if link.session and link.peer is None:
                self.keeper.session(self, now)
            if link.peer is None:
                self.keeper.identified(self, now)
            if self._reader.stalled and link.peer is not None:
                self._reader.resume(self._shared, now)
        except (ProtocolError, TLSError) as error:
            self._broken(error)
            return
        self.after_binding(now)
        if link.attention:
            self._attend(now)
        self.wake()

    @property
    def name(self) -> Address:
        """The peer's address, or the socket's while there is no peer."""
        peer = self.link.peer
        return self.remote if peer is None or peer.address is None else peer.address

    @property
    def local_port(self) -> int:
        """This end's own port, 0 where it has none."""
        name = self.transport.get_extra_info("sockname") if self.transport is not None else None
        return int(name[1]) if isinstance(name, tuple) else 0

    def wake(self) -> None:
        """There is output: write it once this turn of the loop is over, all in one."""
        if not self.scheduled and not self._reading:
            self.scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def submitted(self) -> None:
        """A message was put into the output: write it at once if it goes alone, as the last one did, else with others."""
        self._since_read += 1
        if self._single and self._since_read == 1 and not self.scheduled:
            self.flush()
            return
        if len(self.link.out) >= EARLY_FLUSH:
            self.flush()
        if not self.scheduled and not self._reading:
            self.scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        # A connection that is gone stays as if it had been woken: the loop itself may be gone when messages end.
        self.scheduled = self.transport is None
        self._single = len(self.link.out) <= 2
        self._since_read = 0
        self.flush()
        if self.link.state is not LinkState.OPEN:
            self.part()

    def flush(self) -> None:
        """Write what there is, as far as the transport takes it without growing above its mark."""
        link = self.link
        transport = self.transport
        if transport is None:
            return
        if link.out:
            blocked = not link.writable
            parts = link.take_output()
            if blocked and not self.outflow.admits(transport, sum(map(len, parts))):
                return
            self._write(transport, parts, _VECTORED)
        if link.transfers:
            self._write_fragments(transport)
        if link.last_large is not None or link.transfers:
            self.outflow.handed = link.bytes_sent - transport.get_write_buffer_size()
        if not link.writable:
            self.outflow.left = transport.get_write_buffer_size()
            if link.transfers.owed:
                self.outflow.charge()
            return
        if link.written:
            peer = link.peer
            for out in link.flushed():
                if peer is not None:
                    peer.written(out)
        peer = link.peer
        if peer is not None and peer.queued:
            peer.pump(self._time())
            if link.out or link.transfers:
                self.wake()
        if peer is not None and peer.starved and peer.ready:
            self.keeper.room(peer)

    def _write_fragments(self, transport: asyncio.Transport) -> None:
        """Write pieces of large bodies as long as the transport takes them, and between two what waits and may pass."""
        link = self.link
        peer = link.peer
        if self._kernel is not None or link.transfers[0].long:
            self._kernel_buffers().sending(link.transfers[0].long)
        while link.writable and link.transfers:
            if peer is not None and peer.queued:
                peer.pump(self._time())
            if link.out:
                self._write(transport, link.take_output(), _VECTORED)
            if link.writable:
                self._write(transport, link.take_fragment(self._time()), False)
        if link.writable and link.out:
            self.wake()
        if self._kernel is not None and not link.transfers:
            self._kernel.sending(False)

    def _kernel_buffers(self) -> KernelBuffers:
        if self._kernel is None:
            transport = self.transport
            self._kernel = KernelBuffers(None if transport is None else transport.get_extra_info("socket"))
        return self._kernel

    def _write(self, transport: asyncio.Transport, parts: list[Body], vectored: bool) -> None:
        try:
            if len(parts) < 2 or not (vectored or self.secured is not None):
                for part in parts:
                    transport.write(part)
                return
            transport.writelines(parts)
            if self.link.writable and transport.get_write_buffer_size() > WRITE_HIGH_WATER:
                # Some versions of CPython's writelines forget to pause the writer; setting the mark looks again.
                transport.set_write_buffer_limits(high=_high_water(self._loop))
        except RuntimeError:
            # uvloop's word for a transport that has closed and not told of it yet: `connection_lost` is to come.
            self.link.writable = False

    def fail(self, error: RedpollError) -> None:
        """Close at once because of an error; what is in flight fails with it."""
        self.link.writable = False
        if self.error is None:
            self.error = error
        if self.transport is not None:
            self.transport.abort()

    def give_up(self, error: RedpollError) -> None:
        """Fail and be lost at once: uvloop says nothing more of a connection whose making was cancelled."""
        self.fail(error)
        if self.transport is not None:
            self.connection_lost(None)

    def expel(self, error: RedpollError) -> None:
        """Be lost at once, with what is not read; what was written still leaves, if the system takes it now."""
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
        """Write no message and no further piece of one, until it is closed; `error` is what they will fail with."""
        self.flush()
        self.link.writable = False
        if self.error is None:
            self.error = error

    def close(self, error: RedpollError | None = None) -> None:
        """Write what was given to the transport, then close."""
        if self._closing:
            return
        self._closing = True
        self.wind_down(error or LinkError("the link is closed"))
        if self.transport is not None:
            self.transport.close()

    def part(self) -> None:
        """One end said goodbye: say it too, and close once nothing is left to end."""
        link = self.link
        self.keeper.parting(self)
        if link.state is LinkState.LEFT and not link.in_flight and not link.transfers:
            link.leave()
            self.flush()
        peer = link.peer
        if link.state in (LinkState.LEFT, LinkState.PARTING) and peer is not None and peer.link is link:
            peer.pump(self._time())
        if (
            link.state is LinkState.PARTING or (link.state is LinkState.LEAVING and link.announced is None)
        ) and not link.busy:
            self.close(PeerLost(self.name, "the link ended with a goodbye"))

    # Time

    def arm(self) -> None:
        """Set the timer to what is due next, which may be earlier than what it was set to."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.transport is not None:
            self._timer = self._loop.call_at(self.link.next_deadline(), self._tick)

    def _tick(self) -> None:
        self._timer = None
        link = self.link
        if self.transport is None:
            return
        now = self._time()
        verdict = link.tick(now)
        if isinstance(verdict, PeerLost):
            self.fail(verdict)
            return
        if verdict:
            self.keeper.suspect(self)
        if link.out:
            self.flush()
        if link.state is not LinkState.OPEN:
            self.part()
        self.arm()
