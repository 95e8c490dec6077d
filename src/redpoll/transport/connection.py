"""The protocol of a connection: reads for a link, keeps its one timer, and tells its keeper. It makes no decisions.

How it writes is in writing.py.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Protocol

from redpoll.address import Address
from redpoll.errors import OtherProtocol, PeerLost, ProtocolError, RedpollError, TLSError
from redpoll.transport.dial import in_words, tune
from redpoll.transport.writing import EARLY_FLUSH, PROMPT_ACK_SIZE, WritingHalf, WritingKeeper, high_water, is_uvloop
from redpoll.wire.link import Link
from redpoll.wire.link_timers import next_deadline, tick
from redpoll.wire.peer import Peer
from redpoll.wire.reader import Reader
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    from redpoll.tls.certificate import Certificate

__all__ = ["ANNOUNCEMENT_GRACE", "ANNOUNCEMENT_PATIENCE", "SHARED_BUFFER_SIZE", "Connection", "Keeper", "shared_buffer"]

#: Maximum bytes of one read. The incomplete tail of a frame, at most 197 KiB, is kept at its beginning.
SHARED_BUFFER_SIZE = 264 * 1024

#: Time in seconds after a handshake in which its announcement may still be under way.
ANNOUNCEMENT_GRACE = 0.02

#: Number of looks in that time. A process that stood still finds its timer due before it has read what came meanwhile.
_LOOKS = 4

#: Time in seconds after that for an incomplete frame, which may be the announcement, to become complete.
ANNOUNCEMENT_PATIENCE = 1.0


class _Buffers(threading.local):
    """The receive buffers of one thread, by size."""

    def __init__(self) -> None:
        self.by_size: dict[int, memoryview] = {}


_buffers = _Buffers()


def shared_buffer(size: int) -> memoryview:
    """Return the receive buffer of a size that all links of this thread's event loop share; each empties it at once."""
    buffers = _buffers.by_size
    if size not in buffers:
        buffers[size] = memoryview(bytearray(size))
    return buffers[size]


class Keeper(WritingKeeper, Protocol):
    """Owns connections: the node. All methods are plain calls that return at once."""

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

    def parting(self, connection: Connection) -> bool:
        """Handle a goodbye; return True while a handler may still answer a released request over the connection."""

    def lost(self, connection: Connection, error: RedpollError) -> None:
        """Handle the loss of a connection."""


class Connection(WritingHalf):
    """One link on one asyncio transport.

    Attributes:
        reader: Reads for the link.
        target: The peer that this node dialled for; for the keeper only.
    """

    __slots__ = (
        "_awaiting",
        "_late",
        "_patience",
        "_reads_on",
        "_received_then",
        "_sent_then",
        "_shared",
        "reader",
        "ready",
        "target",
    )

    keeper: Keeper

    def __init__(
        self,
        keeper: Keeper,
        link: Link[Peer],
        remote: Address,
        loop: asyncio.AbstractEventLoop,
        target: Peer | None = None,
    ) -> None:
        super().__init__(keeper, link, remote, loop)
        link.connection = self
        self.target = target
        #: For the dialler: done when the link has its peer, or with the error that ended it before.
        self.ready: asyncio.Future[None] | None = None
        self.reader = Reader(link)
        self._shared = shared_buffer(SHARED_BUFFER_SIZE)
        #: Whether the transport reads up to 32 times in a row as long as reads fill their buffers, as uvloop's do.
        self._reads_on = False
        self._awaiting: asyncio.TimerHandle | None = None
        self._patience = link.settings.patience
        #: Writes acknowledgements that nothing was written with; and the bytes that were sent when it was set.
        self._late: asyncio.TimerHandle | None = None
        self._sent_then = 0
        #: The bytes that were received when acknowledgements were last written at once.
        self._received_then = 0

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send handshake and announcement in one write: the socket is connected."""
        self.transport = self.backpressure.transport = transport  # type: ignore[assignment]
        self._reads_on = is_uvloop(transport)
        if self.error is not None:
            # It was abandoned before it was connected.
            transport.abort()  # type: ignore[attr-defined]
            return
        if self.link.dialled:
            # The listener has tuned accepted sockets.
            tune(transport.get_extra_info("socket"))
        transport.set_write_buffer_limits(high=high_water(self._loop))  # type: ignore[attr-defined]
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
            peer = link.peer
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
        """Return True if a read caused only a few acknowledgements, which may wait for what is written with them soon.

        Those of many bytes may not: the peer waits for them, and a write is little beside what was read.
        """
        link = self.link
        many = link.bytes_received - self._received_then > PROMPT_ACK_SIZE
        if many or len(link.output) >= EARLY_FLUSH or link.state is not LinkState.OPEN or not link.only_acknowledges:
            self._received_then = link.bytes_received
            return False
        if self._late is None:
            self._write_later()
        return True

    def _write_later(self) -> None:
        self._sent_then = self.link.bytes_sent
        self._late = self._loop.call_later(self._patience, self._write_late)

    def _write_late(self) -> None:
        self._late = None
        if self.link.output:
            if self.link.bytes_sent == self._sent_then:
                self.flush()
            else:
                # Those that the timer was set for were written with something, and these came later.
                self._write_later()

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
            if link.libchirp and not link.incoming.awaiting_peer:
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
        peer = link.peer
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
                self.transport.set_write_buffer_limits(high=high_water(self._loop))
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
    def local_port(self) -> int:
        """The local port, 0 if there is none."""
        name = self.transport.get_extra_info("sockname") if self.transport is not None else None
        return int(name[1]) if isinstance(name, tuple) else 0

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

    def part(self) -> None:
        """Complete a goodbye: say it too if the peer did, and close once nothing is left to end."""
        link = self.link
        answering = self.keeper.parting(self)
        if link.state is LinkState.LEFT and not link.in_flight and not link.transfers:
            link.leave()
            self.flush()
        peer = link.peer
        if link.state in (LinkState.LEFT, LinkState.PARTING) and peer is not None and peer.link is link:
            peer.pump(self._time())
        if (link.state is LinkState.PARTING or (link.state is LinkState.LEAVING and link.libchirp)) and not (
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
