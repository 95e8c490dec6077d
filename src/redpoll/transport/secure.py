"""TLS between a connection and its transport: a transport for the former, a protocol for the latter.

asyncio's own would suffice except for four points: it closes a failed handshake without the alert that tells the peer
why; it cannot tell plaintext from TLS; its buffered output does not count as unwritten; and each link has a buffer of
its own. Here all links of a loop share one buffer, and a large body is decrypted straight into its own memory.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, cast

from redpoll.errors import PeerLost, RedpollError
from redpoll.tls.failures import not_encrypted
from redpoll.transport.connection import shared_buffer
from redpoll.transport.dial import in_words
from redpoll.wire.handshake import is_tls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from redpoll.tls.credentials import TLSSession

__all__ = ["CHUNK", "FEED_SIZE", "PENDING_LIMIT", "READ_SIZE", "Secured"]

#: Maximum bytes of a TLS record, overhead included.
_RECORD = 16 * 1024 + 256 + 5

#: Maximum encrypted bytes of one read: larger reads mean fewer wake-ups between the ends. The connection's buffer takes
#: all of it in two reads.
READ_SIZE = 448 * 1024

#: Maximum bytes given to OpenSSL at once: its copy stays with the link, and should fit the processor's cache.
FEED_SIZE = 64 * 1024

#: Bytes encrypted before they are passed to the transport; half as many more if that is all.
CHUNK = 8 * 16 * 1024

#: Maximum total bytes of pieces written at once that are joined: separate records would cost more than the copy.
_JOINED = 3 * CHUNK

#: Maximum bytes that TLS itself sends and the peer does not read; above it the link is closed.
PENDING_LIMIT = 1024 * 1024

# The TLS alert for plaintext: alert, TLS 1.2, two bytes, fatal, unexpected message.
_ALERT = b"\x15\x03\x03\x00\x02\x02\x0a"

_HIGH_WATER = 256 * 1024

_NOTHING = memoryview(b"")


class _State(Enum):
    OPENING = auto()
    OPEN = auto()
    #: Nothing more is read or accepted; accepted output is still written.
    CLOSING = auto()
    CLOSED = auto()


class Secured(asyncio.Transport, asyncio.BufferedProtocol):
    """Encrypts what one protocol writes, and decrypts what it reads.

    `connection_made` of the protocol is called as soon as the socket is connected: its output waits for the handshake,
    which is covered by its own time limit. Any failure reaches its `connection_lost` as an error of redpoll.

    Attributes:
        session: The TLS session, with the identity that the remote node must have.
    """

    def __init__(
        self, session: TLSSession, protocol: asyncio.BufferedProtocol, unread: Callable[[], None] | None = None
    ) -> None:
        """Make the TLS layer for one protocol.

        Args:
            session: The TLS session, with the identity that the remote node must have.
            protocol: The protocol that reads and writes over it.
            unread: Called when it is closed because the peer does not read TLS's own output.
        """
        super().__init__()
        self._unread = unread
        self.session = session
        self._object = session.object
        self._incoming = session.incoming
        self._outgoing = session.outgoing
        self._protocol = protocol
        self._below: asyncio.Transport
        self._state = _State.OPENING
        self._first = b""
        self._got_data = False
        self._reading = True
        #: Whether the peer has closed its direction (close_notify).
        self._eof = False
        #: Whether the transport below accepts more.
        self._accepts = True
        self._waiting: deque[memoryview] = deque()
        self._size = 0
        self._high = _HIGH_WATER
        self._paused = False
        self._error: RedpollError | None = None
        #: The error behind the data that was read last: OpenSSL reports it only once.
        self._broken: ssl.SSLError | None = None
        self._shared = shared_buffer(READ_SIZE)
        #: Bytes that were read and not given to OpenSSL yet.
        self._unfed = _NOTHING
        #: Whether writes wait until all data read is decrypted, for a single write and a single wake-up of the peer.
        self._corked = False

    # Protocol methods

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Notify the protocol, which writes, and start TLS: the socket is connected."""
        self._below = cast("asyncio.Transport", transport)  # uvloop's is one by its methods only
        self._protocol.connection_made(self)
        if self._state is _State.OPENING:
            self._handshake()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's signature
        """Return the buffer for the next encrypted bytes."""
        return self._shared

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt the bytes read, or continue the handshake."""
        if self._state is _State.OPENING:
            if not self._got_data and not self._is_encrypted(bytes(self._shared[: min(nbytes, 16)])):
                self._fail(not_encrypted(self.session.address), _ALERT if self._is_server else b"")
                return
            self._incoming.write(self._shared[:nbytes])
            self._handshake()
        elif self._state is _State.OPEN:
            self._unfed = self._shared[:nbytes]
            self._decrypt()
            if len(self._unfed):
                # Reading was paused, or has ended; another link uses this buffer next.
                self._incoming.write(self._unfed)
                self._unfed = _NOTHING

    def eof_received(self) -> bool:
        """Close this end too: the peer closed its own."""
        if self._state is _State.OPEN:
            self._decrypt()
        if self._state is _State.OPENING:
            self._lose("the peer closed the connection during the TLS handshake")
        elif self._state is _State.OPEN and self._is_silent:
            self._lose(
                "the peer closed the connection right after the TLS handshake: it may not accept this node's certificate"
            )
        elif self._state is _State.OPEN:
            self._protocol.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the protocol: the socket is gone."""
        if self._error is None and exc is not None and self._state is _State.OPENING:
            self._lose(f"the TLS handshake failed: {in_words(exc)}")
            cast("RedpollError", self._error).__cause__ = exc
        self._state = _State.CLOSED
        self._waiting.clear()
        self._size = 0
        self._protocol.connection_lost(self._error or exc)

    def pause_writing(self) -> None:
        """Stop writing: the transport below is above its mark."""
        self._accepts = False

    def resume_writing(self) -> None:
        """Resume writing: the transport below drained."""
        self._accepts = True
        self._encrypt()

    # Handshake

    @property
    def _is_server(self) -> bool:
        return self._object.server_side

    @property
    def _is_silent(self) -> bool:
        """True if a client received nothing since the handshake, as from a server that refuses certificates late."""
        return not self._is_server and not self._got_data

    def _is_encrypted(self, data: bytes) -> bool:
        """Return True if the first bytes may be TLS; OpenSSL decides about anything that begins like it."""
        self._first = (self._first + data)[:16]
        return is_tls(self._first)

    def _handshake(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._break(error)
            return
        failure = self.session.unknown_certificate()
        if failure is not None:
            self._fail(failure)
            return
        self._state = _State.OPEN
        self._got_data = False
        self._encrypt()
        self._decrypt()

    def _break(self, error: ssl.SSLError) -> None:
        """Handle a TLS error: send the peer the alert that TLS made, and close."""
        self._fail(self.session.explained(error), self._outgoing.read())

    def _fail(self, error: RedpollError, last: bytes = b"") -> None:
        self._error = error
        self._state = _State.CLOSING
        self._waiting.clear()
        self._size = 0
        if last and self._accepts and not self._below.is_closing():
            self._below.write(last)
            self._below.close()
        else:
            self._below.abort()

    def _lose(self, reason: str) -> None:
        self._error = PeerLost(self.session.address, reason)

    # Reading

    def _decrypt(self) -> None:
        """Decrypt the data, each time as much as the protocol's buffer holds; then write the protocol's output."""
        self._corked = True
        try:
            while self._reading and self._state is _State.OPEN:
                if self._eof:
                    self._protocol.eof_received()
                    self.close()
                    return
                room = cast("memoryview", self._protocol.get_buffer(-1))
                size = len(room)
                if not size:
                    # As both loops do; otherwise this would not terminate.
                    raise RuntimeError("get_buffer() returned an empty buffer")
                count = self._read_into(room)
                # The buffer may be resized once no view refers to it.
                del room
                if count:
                    self._got_data = True
                    self._protocol.buffer_updated(count)
                if count < size and not self._ends:
                    break
        except ssl.SSLError as error:
            self._break(error)
            return
        finally:
            self._corked = False
        if self._waiting:
            self._encrypt()
        if self._outgoing.pending:
            self._answer()

    @property
    def _ends(self) -> bool:
        """True if nothing valid can follow the data read."""
        return self._eof or self._broken is not None

    def _read_into(self, room: memoryview) -> int:
        """Fill a buffer, record by record, and return the number of bytes; note an end or error behind them."""
        if self._broken is not None:
            raise self._broken
        size = len(room)
        done = 0
        read = cast("Callable[[int, memoryview], int]", self._object.read)
        incoming = self._incoming
        try:
            while done < size:
                if len(self._unfed) and incoming.pending < _RECORD:
                    incoming.write(self._unfed[:FEED_SIZE])
                    self._unfed = self._unfed[FEED_SIZE:]
                count = read(size - done, room[done:] if done else room)
                done += count
                if not count:
                    self._eof = True
                    break
                if not incoming.pending and not len(self._unfed):
                    # There is no more, and asking OpenSSL costs as much as a small record.
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._eof = True
        except ssl.SSLError as error:
            # Deliver the data before the error first.
            if not done:
                raise
            self._broken = error
        return done

    def _answer(self) -> None:
        """Write TLS's own output, or keep it until the peer reads."""
        if self._accepts:
            self._flush()
        elif self._outgoing.pending > PENDING_LIMIT:
            self._lose("the peer is not reading: TLS output pending")
            if self._unread is not None:
                self._unread()
            self._below.abort()

    # Transport methods

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and write, or keep until the peer reads; a buffer must not change until then."""
        self._keep(data)
        if not self._corked or self._size >= CHUNK:
            self._encrypt()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Write several pieces, as `write` does."""
        pieces = list(list_of_data)
        if sum(map(len, pieces)) <= _JOINED:
            self.write(b"".join(pieces))
            return
        for data in pieces:
            self._keep(data)
        if not self._corked or self._size >= CHUNK:
            self._encrypt()

    def _keep(self, data: bytes | bytearray | memoryview) -> None:
        if self._state in (_State.OPENING, _State.OPEN) and len(data):
            if self._corked and type(data) is not bytes and len(data) < CHUNK:
                # It is encrypted later, though nothing blocks it: do not make its owner wait for that.
                data = bytes(data)
            view = memoryview(data).cast("B")
            self._waiting.append(view)
            self._size += len(view)

    def _encrypt(self) -> None:
        """Encrypt waiting data while the transport below accepts it."""
        if self._state in (_State.OPEN, _State.CLOSING) and not self._below.is_closing():
            waiting = self._waiting
            try:
                # A write may find out that the peer is gone.
                while waiting and self._accepts and not self._below.is_closing():
                    self._encrypt_chunk()
                    self._flush()
            except ssl.SSLError as error:
                self._break(error)
                return
            if self._accepts and self._outgoing.pending:
                self._flush()
            if self._state is _State.CLOSING and not waiting:
                self._end()
                return
        self._check_marks()

    def _encrypt_chunk(self) -> None:
        """Encrypt as much of the waiting data as is passed to the transport at once."""
        waiting = self._waiting
        data = waiting.popleft()
        if waiting and len(data) < CHUNK:
            # Short pieces, and the end of a long one, share records.
            pieces = [data]
            room = CHUNK - len(data)
            while waiting and room:
                data = waiting.popleft()
                if len(data) > room:
                    waiting.appendleft(data[room:])
                    data = data[:room]
                pieces.append(data)
                room -= len(data)
            data = memoryview(b"".join(pieces))
        elif len(data) > CHUNK + CHUNK // 2:
            waiting.appendleft(data[CHUNK:])
            data = data[:CHUNK]
        self._size -= len(data)
        # A MemoryBIO accepts all of it.
        self._object.write(data)

    def _flush(self) -> None:
        if self._outgoing.pending and not self._below.is_closing():
            self._below.write(self._outgoing.read())

    def _check_marks(self) -> None:
        """Pass on the state of the transport below, which has the same marks and will report when it drains."""
        if self._accepts:
            if self._paused and self._state is _State.OPEN:
                self._paused = False
                self._protocol.resume_writing()
        elif not self._paused and self.get_write_buffer_size() > self._high:
            self._paused = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks in bytes: writing pauses above the high one, and resumes at the low one."""
        self._high = _HIGH_WATER if high is None else high
        self._below.set_write_buffer_limits(high=high, low=low)
        self._check_marks()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes written and not yet accepted by the kernel, encrypted or not."""
        return self._size + self._outgoing.pending + self._below.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Stop delivering received bytes."""
        self._reading = False
        if not self._below.is_closing():
            self._below.pause_reading()

    def resume_reading(self) -> None:
        """Resume delivering received bytes, from the next turn of the loop on."""
        if self._reading or self.is_closing():
            return
        self._reading = True
        if not self._below.is_closing():
            self._below.resume_reading()
            asyncio.get_running_loop().call_soon(self._decrypt)

    def is_closing(self) -> bool:
        """Return True if it is closed or closing."""
        return self._state in (_State.CLOSING, _State.CLOSED)

    def close(self) -> None:
        """Close once everything written is sent."""
        if self._state is _State.OPENING:
            self.abort()
        elif self._state is _State.OPEN:
            self._state = _State.CLOSING
            self._encrypt()

    def _end(self) -> None:
        """Send close_notify, and close; if the peer has sent it, it has closed and reads no more."""
        if not self._eof:
            try:
                self._object.unwrap()
            except ssl.SSLError:
                # It would wait for the peer's close_notify.
                pass
            self._flush()
        self._below.close()

    def abort(self) -> None:
        """Close now: unsent data is lost."""
        self._state = _State.CLOSING
        self._waiting.clear()
        self._size = 0
        self._below.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the link: the TLS object as "ssl_object", the rest from the transport below."""
        if name == "ssl_object":
            return self._object
        return self._below.get_extra_info(name, default)
