"""TLS between a connection and its transport: to the one it is the transport, to the other the protocol.

asyncio's own would do, but for four things: it ends a handshake that fails without the alert that tells the other end why;
it cannot tell plaintext from TLS; what it has handed on does not count as unwritten; and every link has a buffer of its
own. Here all links of a loop share one, and a large body is decrypted straight into its own memory.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, cast

from redpoll.errors import PeerLost, RedpollError
from redpoll.tls.failures import not_encrypted
from redpoll.transport.dial import in_words
from redpoll.wire.handshake import is_tls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from redpoll.tls.credentials import Session

__all__ = ["CHUNK", "FED", "KEPT_LIMIT", "READ_SIZE", "Secured"]

#: Bytes at most of a record, with what TLS adds to it.
_RECORD = 16 * 1024 + 256 + 5

#: One read brings at most so many encrypted bytes: the more, the less often one end wakes the other. In two readings of the
#: connection's buffer all of it is gone.
READ_SIZE = 448 * 1024

#: So many of them are given to OpenSSL at once: what it copies them to stays with the link, and in the processor's cache.
FED = 64 * 1024

#: So many bytes, or half as many more if that is all, are encrypted before they are given to the transport.
CHUNK = 8 * 16 * 1024

#: Pieces written at once that have no more bytes together are copied together: a record for each costs more than that.
_JOINED = 3 * CHUNK

#: A link is closed once so many bytes wait that TLS itself answers to the other end, which does not read them.
KEPT_LIMIT = 1024 * 1024

#: What says in TLS's own words that there was none: alert, TLS 1.2, two bytes, fatal, unexpected message.
_ALERT = b"\x15\x03\x03\x00\x02\x02\x0a"

_HIGH_WATER = 256 * 1024

_NOTHING = memoryview(b"")

_buffers = threading.local()


def _shared_buffer() -> memoryview:
    """The receive buffer of this thread's event loop: what is in it is taken out of it at once."""
    buffer: memoryview | None = getattr(_buffers, "buffer", None)
    if buffer is None:
        buffer = _buffers.buffer = memoryview(bytearray(READ_SIZE))
    return buffer


class _State(Enum):
    OPENING = auto()
    OPEN = auto()
    #: Nothing more is read or taken; what was taken is still written.
    CLOSING = auto()
    CLOSED = auto()


class Secured(asyncio.Transport, asyncio.BufferedProtocol):
    """Encrypts what one protocol writes, and decrypts what it reads.

    The protocol is told that it is connected as soon as its socket is: what it writes waits for the handshake, and its own
    time limit covers that. Whatever goes wrong reaches its `connection_lost` as an error of redpoll.

    Attributes:
        session: Whom the link may lead to.
    """

    def __init__(
        self, session: Session, protocol: asyncio.BufferedProtocol, unread: Callable[[], None] | None = None
    ) -> None:
        """Make it for one protocol.

        Args:
            session: Whom the link may lead to.
            protocol: What reads and writes over it.
            unread: Called when it is closed because the other end does not read what TLS answers.
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
        self._heard = False
        self._reading = True
        #: Whether the other end has said that this was all.
        self._parted = False
        #: Whether the transport below takes more.
        self._taking = True
        self._waiting: deque[memoryview] = deque()
        self._size = 0
        self._high = _HIGH_WATER
        self._paused = False
        self._error: RedpollError | None = None
        #: What speaks against going on behind what was read last: OpenSSL says it once.
        self._broken: ssl.SSLError | None = None
        self._shared = _shared_buffer()
        #: What was read and OpenSSL does not have yet.
        self._unfed = _NOTHING
        #: Whether what is written waits until all that was read is decrypted: one write then, and one wake of the other end.
        self._corked = False

    # As a protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected: the protocol writes, and TLS begins."""
        self._below = cast("asyncio.Transport", transport)  # uvloop's is one by its methods only
        self._protocol.connection_made(self)
        if self._state is _State.OPENING:
            self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's signature
        """Where the next encrypted bytes go."""
        return self._shared

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt, or go on with the handshake."""
        if self._state is _State.OPENING:
            if not self._heard and not self._is_encrypted(bytes(self._shared[: min(nbytes, 16)])):
                self._fail(not_encrypted(self.session.address), _ALERT if self._is_server else b"")
                return
            self._incoming.write(self._shared[:nbytes])
            self._shake_hands()
        elif self._state is _State.OPEN:
            self._unfed = self._shared[:nbytes]
            self._decrypt()
            if len(self._unfed):
                # Reading was paused, or has ended; another link reads into this memory next.
                self._incoming.write(self._unfed)
                self._unfed = _NOTHING

    def eof_received(self) -> bool:
        """The other end closed; so does this one."""
        if self._state is _State.OPEN:
            self._decrypt()
        if self._state is _State.OPENING:
            self._lose("closed by the other end during the TLS handshake")
        elif self._state is _State.OPEN and self._is_silent:
            self._lose(
                "closed by the other end right after the TLS handshake: it may not accept this node's certificate"
            )
        elif self._state is _State.OPEN:
            self._protocol.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        if self._error is None and exc is not None and self._state is _State.OPENING:
            self._lose(f"the TLS handshake broke off: {in_words(exc)}")
            cast("RedpollError", self._error).__cause__ = exc
        self._state = _State.CLOSED
        self._waiting.clear()
        self._size = 0
        self._protocol.connection_lost(self._error or exc)

    def pause_writing(self) -> None:
        """The transport below has enough."""
        self._taking = False

    def resume_writing(self) -> None:
        """It takes more."""
        self._taking = True
        self._encrypt()

    # The handshake

    @property
    def _is_server(self) -> bool:
        return self._object.server_side

    @property
    def _is_silent(self) -> bool:
        """Whether the other end has said nothing since the handshake, as one that refuses a certificate late."""
        return not self._is_server and not self._heard

    def _is_encrypted(self, data: bytes) -> bool:
        """Whether what came first may be TLS; whatever begins like it is left to OpenSSL."""
        self._first = (self._first + data)[:16]
        return is_tls(self._first)

    def _shake_hands(self) -> None:
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
        self._heard = False
        self._encrypt()
        self._decrypt()

    def _break(self, error: ssl.SSLError) -> None:
        """TLS gave up: tell the other end, in an alert that it has made, and close."""
        self._fail(self.session.explained(error), self._outgoing.read())

    def _fail(self, error: RedpollError, last: bytes = b"") -> None:
        self._error = error
        self._state = _State.CLOSING
        self._waiting.clear()
        self._size = 0
        if last and self._taking and not self._below.is_closing():
            self._below.write(last)
            self._below.close()
        else:
            self._below.abort()

    def _lose(self, reason: str) -> None:
        self._error = PeerLost(self.session.address, reason)

    # What comes

    def _decrypt(self) -> None:
        """Hand on what there is, each time as much as the protocol has room for; then write what it answered."""
        self._corked = True
        try:
            while self._reading and self._state is _State.OPEN:
                if self._parted:
                    self._protocol.eof_received()
                    self.close()
                    return
                room = cast("memoryview", self._protocol.get_buffer(-1))
                size = len(room)
                if not size:
                    # As both loops do; it would be asked again without end.
                    raise RuntimeError("get_buffer() returned an empty buffer")
                count = self._read_into(room)
                # What it belongs to may grow, once nobody looks into it.
                del room
                if count:
                    self._heard = True
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
        """Whether nothing good comes any more behind what was read."""
        return self._parted or self._broken is not None

    def _read_into(self, room: memoryview) -> int:
        """Fill a buffer, record by record, and return how many bytes came; note it if they were the last."""
        if self._broken is not None:
            raise self._broken
        size = len(room)
        done = 0
        read = cast("Callable[[int, memoryview], int]", self._object.read)
        incoming = self._incoming
        try:
            while done < size:
                if len(self._unfed) and incoming.pending < _RECORD:
                    incoming.write(self._unfed[:FED])
                    self._unfed = self._unfed[FED:]
                count = read(size - done, room[done:] if done else room)
                done += count
                if not count:
                    self._parted = True
                    break
                if not incoming.pending and not len(self._unfed):
                    # There is no more, and to hear that from OpenSSL costs as much as a small record.
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._parted = True
        except ssl.SSLError as error:
            # What came before it counts.
            if not done:
                raise
            self._broken = error
        return done

    def _answer(self) -> None:
        """Write what TLS has to say of its own, or wait with it until the other end reads."""
        if self._taking:
            self._flush()
        elif self._outgoing.pending > KEPT_LIMIT:
            self._lose("it does not read what TLS answers")
            if self._unread is not None:
                self._unread()
            self._below.abort()

    # As a transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and write, or keep until the other end reads; a buffer may not change until then."""
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
            view = memoryview(data).cast("B")
            self._waiting.append(view)
            self._size += len(view)

    def _encrypt(self) -> None:
        """Encrypt what waits, as long as the transport below takes it."""
        if self._state in (_State.OPEN, _State.CLOSING) and not self._below.is_closing():
            waiting = self._waiting
            try:
                # A write finds out that the other end is gone.
                while waiting and self._taking and not self._below.is_closing():
                    self._encrypt_chunk()
                    self._flush()
            except ssl.SSLError as error:
                self._break(error)
                return
            if self._taking and self._outgoing.pending:
                self._flush()
            if self._state is _State.CLOSING and not waiting:
                self._end()
                return
        self._look_at_marks()

    def _encrypt_chunk(self) -> None:
        """Encrypt what waits, as much as is given to the transport at once."""
        waiting = self._waiting
        data = waiting.popleft()
        if waiting and len(data) < CHUNK:
            # Short pieces, and the end of a long one, share their records.
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
        # A MemoryBIO takes all of it.
        self._object.write(data)

    def _flush(self) -> None:
        if self._outgoing.pending and not self._below.is_closing():
            self._below.write(self._outgoing.read())

    def _look_at_marks(self) -> None:
        """Tell the protocol what the transport below told, which has the same marks; it will tell when it takes more."""
        if self._taking:
            if self._paused and self._state is _State.OPEN:
                self._paused = False
                self._protocol.resume_writing()
        elif not self._paused and self.get_write_buffer_size() > self._high:
            self._paused = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks in bytes: above the high one writing pauses, at the low one it goes on."""
        self._high = _HIGH_WATER if high is None else high
        self._below.set_write_buffer_limits(high=high, low=low)
        self._look_at_marks()

    def get_write_buffer_size(self) -> int:
        """Bytes written and not yet taken by the system, encrypted or not."""
        return self._size + self._outgoing.pending + self._below.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Deliver no more."""
        self._reading = False
        if not self._below.is_closing():
            self._below.pause_reading()

    def resume_reading(self) -> None:
        """Deliver again, from the next turn of the loop on."""
        if self._reading or self.is_closing():
            return
        self._reading = True
        if not self._below.is_closing():
            self._below.resume_reading()
            asyncio.get_running_loop().call_soon(self._decrypt)

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self._state in (_State.CLOSING, _State.CLOSED)

    def close(self) -> None:
        """Close once all that was written is gone."""
        if self._state is _State.OPENING:
            self.abort()
        elif self._state is _State.OPEN:
            self._state = _State.CLOSING
            self._encrypt()

    def _end(self) -> None:
        """Say that this was all, and close; who has said so itself has closed, and reads no more."""
        if not self._parted:
            try:
                self._object.unwrap()
            except ssl.SSLError:
                # It would wait for the other end to say the same.
                pass
            self._flush()
        self._below.close()

    def abort(self) -> None:
        """Close now: what was not written is lost."""
        self._state = _State.CLOSING
        self._waiting.clear()
        self._size = 0
        self._below.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the link: the TLS as "ssl_object", the rest from the transport below."""
        if name == "ssl_object":
            return self._object
        return self._below.get_extra_info(name, default)
