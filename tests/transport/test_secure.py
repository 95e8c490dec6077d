"""TLS between a protocol and its transport, without nodes: bytes both ways, marks, the end, and what is no TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from redpoll import TLS, PeerLost, TLSError
from redpoll.address import Address
from redpoll.testing.certificates import Certificates
from redpoll.tls.contexts import make_contexts
from redpoll.tls.credentials import Credentials
from redpoll.transport import secure
from redpoll.transport.secure import CHUNK, FEED_SIZE, READ_SIZE, Secured
from tests.node.support import turns, until, within

pytestmark = pytest.mark.asyncio

HERE = Address.parse("127.0.0.1:7")


class End(asyncio.BufferedProtocol):
    """Keeps what it reads, in pieces of `room` bytes."""

    def __init__(self, room: int = 1 << 20, opening: bytes = b"") -> None:
        self.transport: asyncio.Transport | None = None
        self.room = room
        self.opening = opening
        self.read = bytearray()
        self.pieces = 0
        self.marks: list[str] = []
        self.eof = False
        self.lost: list[BaseException | None] = []
        self._buffer = memoryview(bytearray(room))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self.opening:
            self.transport.write(self.opening)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.read += self._buffer[:nbytes]
        self.pieces += 1

    def eof_received(self) -> bool:
        self.eof = True
        return False

    def pause_writing(self) -> None:
        self.marks.append("pause")

    def resume_writing(self) -> None:
        self.marks.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)
        self.transport = None

    def has(self, size: int) -> bool:
        """Whether so many bytes were read."""
        return len(self.read) >= size

    @property
    def there(self) -> asyncio.Transport:
        """Its transport, which is there."""
        assert self.transport is not None
        return self.transport


class Pair:
    """Who listens and who dialled it."""

    def __init__(self, server: End, client: End) -> None:
        self.server = server
        self.client = client
        self.ends = (server, client)

    async def ended(self) -> None:
        """Wait until both know of the end."""
        await until(lambda: all(end.lost for end in self.ends), "the end of both")


@contextlib.asynccontextmanager
async def pair(
    server: Path | None, client: Path | None, *, ends: tuple[End, End] | None = None, **options: Any
) -> AsyncIterator[Pair]:
    """Two protocols on two connected sockets; each has TLS if it has a certificate."""
    loop = asyncio.get_running_loop()
    both = Pair(*(ends or (End(), End())))
    listening, dialled = socket.socketpair()
    for sock, end, pem in ((listening, both.server, server), (dialled, both.client, client)):
        protocol: asyncio.BufferedProtocol = end
        if pem is not None:
            credentials = Credentials(make_contexts(TLS(certificate=pem, **options)))
            session = credentials.accept(HERE) if end is both.server else credentials.dial(HERE, "127.0.0.1")
            protocol = Secured(session, end)
        sock.setblocking(False)
        await loop.connect_accepted_socket(lambda made=protocol: made, sock)  # type: ignore[misc]
    try:
        yield both
    finally:
        for end in both.ends:
            if end.transport is not None:
                end.transport.abort()
        await both.ended()


async def test_both_ways(redpoll_pki: Certificates) -> None:
    """What is written before the handshake arrives after it; then everything, in order, whatever its size."""
    ends = End(opening=b"from the server"), End(opening=b"from the client")
    async with pair(redpoll_pki.issue("a"), redpoll_pki.issue("b"), ends=ends) as both:
        await until(lambda: both.server.read and both.client.read, "the openings")
        assert both.server.read == b"from the client"
        assert both.client.read == b"from the server"
        assert isinstance(both.server.there.get_extra_info("ssl_object"), ssl.SSLObject)
        assert both.server.there.get_extra_info("socket") is not None
        for end, other in (both.ends, both.ends[::-1]):
            other.read.clear()
            sent: list[bytes | bytearray | memoryview] = [
                b"",
                b"small",
                memoryview(bytes(range(256)) * 40_000),
                bytearray(b"x" * 20_000),
            ]
            end.there.writelines(sent)
            end.there.write(b"the last")
            expected = b"".join(sent) + b"the last"
            await until(partial(other.has, len(expected)), "all of it")
            assert other.read == expected


@pytest.mark.parametrize("room", [1, 1000, 16_384, 16_385, READ_SIZE])
async def test_rooms_of_any_size(redpoll_pki: Certificates, room: int) -> None:
    """A reader that takes little at a time gets all, and one that takes much gets many records at once."""
    size = min(300_000, 5_000 * room)
    async with pair(redpoll_pki.issue("a"), redpoll_pki.issue("b"), ends=(End(room), End())) as both:
        both.client.there.write(bytes(size))
        await until(lambda: len(both.server.read) >= size, "all of it")
        assert both.server.read == bytes(size)
        assert both.server.pieces >= size // room


async def test_reading_pauses(redpoll_pki: Certificates) -> None:
    """Who pauses reading gets nothing more, slows the writer, and gets the rest when it goes on, the end as well."""
    async with pair(redpoll_pki.issue("a"), redpoll_pki.issue("b")) as both:
        both.client.there.write(b"x")
        await until(lambda: both.server.read, "the first byte")
        both.server.there.pause_reading()
        size = 8_000_000
        for _ in range(8):
            both.client.there.write(bytes(size // 8))
        await turns(50)
        assert both.client.marks == ["pause"]
        assert both.client.there.get_write_buffer_size() > 1_000_000
        assert len(both.server.read) == 1
        both.client.there.close()
        assert both.client.there.is_closing()
        both.client.there.write(b"too late")
        both.server.there.resume_reading()
        both.server.there.resume_reading()
        await both.ended()
        assert len(both.server.read) == size + 1
        assert both.server.eof
        assert [end.lost for end in both.ends] == [[None], [None]]


async def test_marks(redpoll_pki: Certificates) -> None:
    """A mark of nothing does not stall: the writer is told to go on once all is gone."""
    async with pair(redpoll_pki.issue("a"), redpoll_pki.issue("b")) as both:
        both.client.there.set_write_buffer_limits(high=0)
        for _ in range(3):
            both.client.there.write(bytes(4_000_000))
        await until(lambda: len(both.server.read) == 12_000_000, "all of it")
        await until(lambda: both.client.marks[-1] == "resume", "the word to go on")
        assert both.client.there.get_write_buffer_size() == 0
        both.client.there.set_write_buffer_limits()


async def test_abort(redpoll_pki: Certificates) -> None:
    """Aborting loses what was not written, and tells both ends."""
    async with pair(redpoll_pki.issue("a"), redpoll_pki.issue("b")) as both:
        both.client.there.write(b"x")
        await until(lambda: both.server.read, "the first byte")
        both.client.there.abort()
        both.client.there.write(b"too late")
        await both.ended()
        assert both.client.lost == [None]


@pytest.mark.parametrize("by", ["close", "abort"])
async def test_ending_before_it_is_open(redpoll_pki: Certificates, by: str) -> None:
    """Who ends it during the handshake loses what it wrote; the other end is told that it broke off."""
    async with pair(redpoll_pki.issue("a"), redpoll_pki.issue("b")) as both:
        both.client.there.write(b"x")
        getattr(both.client.there, by)()
        await both.ended()
        (error,) = both.server.lost
        assert isinstance(error, PeerLost)
        assert "the TLS handshake" in str(error)
        assert both.server.read == b""


@pytest.mark.parametrize("plain", ["server", "client"])
@pytest.mark.parametrize(
    "opening", [b"\x0b\xb6" + b"i" * 16, b"\x16", b"\x16\x03\x09", b"GET / HTTP/1.1\r\n\r\n", b"\x80"]
)
async def test_plaintext(redpoll_pki: Certificates, plain: str, opening: bytes) -> None:
    """Who meets plaintext closes at the first byte that is no TLS, and a server says so in TLS's words."""
    pem = redpoll_pki.issue("a")
    files = (None, pem) if plain == "server" else (pem, None)
    ends = (End(opening=opening), End()) if plain == "server" else (End(), End(opening=opening))
    async with pair(*files, ends=ends) as both:
        talker, listener = both.ends if plain == "server" else both.ends[::-1]
        if opening == b"\x16":
            talker.there.write(b"\x04")
        await until(lambda: listener.lost, "the end")
        assert isinstance(listener.lost[0], TLSError)
        assert "the peer sends plaintext, and this node expects TLS" in str(listener.lost[0])
        await both.ended()
        if plain == "client":
            assert talker.read == b"\x15\x03\x03\x00\x02\x02\x0a"


async def test_what_only_begins_like_tls(redpoll_pki: Certificates) -> None:
    """What looks like a record and is none is told in OpenSSL's words."""
    async with pair(redpoll_pki.issue("a"), None, ends=(End(), End(opening=b"\x16\x03\x01\x00\x05hello" * 3))) as both:
        await both.ended()
        assert isinstance(both.server.lost[0], TLSError)
        assert isinstance(both.server.lost[0].__cause__, ssl.SSLError)


async def test_both_are_told_of_bad_certificates(redpoll_pki: Certificates) -> None:
    """A handshake that fails ends with an alert: who is refused hears why, late in TLS 1.3 and before it reads anything."""
    stranger = redpoll_pki.another().issue("stranger")
    async with pair(redpoll_pki.issue("a"), stranger, ca=redpoll_pki.ca) as both:
        both.client.there.write(b"x")
        await both.ended()
        assert "its certificate is not signed by a CA in" in str(both.server.lost[0])
        assert "does not trust the CA of this node's certificate" in str(both.client.lost[0])
        assert both.server.read == b""


async def test_pins(redpoll_pki: Certificates) -> None:
    """A certificate that is not pinned ends the link before anything is read over it."""
    async with pair(redpoll_pki.issue("a"), redpoll_pki.issue("b"), pins=("sha256:" + "00" * 32,)) as both:
        both.client.there.write(b"x")
        await both.ended()
        assert any("is not one of the pins" in str(end.lost[0]) for end in both.ends)
        assert not any(end.read for end in both.ends)


async def raw_handshake(
    redpoll_pki: Certificates, sock: socket.socket, *, server_side: bool
) -> tuple[ssl.SSLObject, ssl.MemoryBIO]:
    """Shake hands as a peer of another kind would, that does not go on by itself; return it and what it has to send."""
    context = make_contexts(TLS(certificate=redpoll_pki.issue("raw")))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    chosen = context.server if server_side else context.client
    assert chosen is not None
    end = chosen.wrap_bio(incoming, outgoing, server_side=server_side)
    loop = asyncio.get_running_loop()
    while True:
        try:
            end.do_handshake()
            await loop.sock_sendall(sock, outgoing.read())
            return end, outgoing
        except ssl.SSLWantReadError:
            await loop.sock_sendall(sock, outgoing.read())
            incoming.write(await loop.sock_recv(sock, 65_536))


@contextlib.asynccontextmanager
async def facing_raw(redpoll_pki: Certificates, *, server_side: bool) -> AsyncIterator[tuple[End, socket.socket]]:
    """One end, and the socket at the other."""
    sock, far = socket.socketpair()
    sock.setblocking(False)
    far.setblocking(False)
    end = End()
    credentials = Credentials(make_contexts(TLS(certificate=redpoll_pki.issue("a"))))
    session = credentials.accept(HERE) if server_side else credentials.dial(HERE, "127.0.0.1")
    await asyncio.get_running_loop().connect_accepted_socket(lambda: Secured(session, end), sock)
    try:
        yield end, far
    finally:
        far.close()
        await until(lambda: end.lost, "the end")


@pytest.mark.parametrize("after", ["nothing", "hello", "handshake"])
async def test_closed_without_a_word(redpoll_pki: Certificates, after: str) -> None:
    """An end without an alert says how far it came; one after the handshake may be a refusal."""
    async with facing_raw(redpoll_pki, server_side=False) as (end, far):
        if after == "hello":
            far.send(b"\x16\x03\x03")
        if after == "handshake":
            await within(raw_handshake(redpoll_pki, far, server_side=True))
        far.close()
        await until(lambda: end.lost, "the end")
        (error,) = end.lost
        assert isinstance(error, PeerLost)
        expected = "right after the TLS handshake" if after == "handshake" else "the TLS handshake"
        assert expected in str(error)


async def test_truncated(redpoll_pki: Certificates) -> None:
    """A link cut without TLS's goodbye ends as a closed one: what arrived whole was read, half a record was not."""
    async with facing_raw(redpoll_pki, server_side=True) as (end, far):
        await within(raw_handshake(redpoll_pki, far, server_side=False))
        far.send(b"\x17\x03\x03\x00\x40half a record")
        await turns()
        assert not end.lost
        far.shutdown(socket.SHUT_WR)
        await until(lambda: end.lost, "the end")
        assert end.lost == [None]
        assert end.read == b""


async def test_garbage_on_an_open_link(redpoll_pki: Certificates) -> None:
    """A record that was changed on its way ends the link with a TLSError."""
    async with facing_raw(redpoll_pki, server_side=True) as (end, far):
        await within(raw_handshake(redpoll_pki, far, server_side=False))
        far.send(b"\x17\x03\x03\x00\x40" + bytes(64))
        await until(lambda: end.lost, "the end")
        assert isinstance(end.lost[0], TLSError)


async def test_an_error_behind_data(redpoll_pki: Certificates) -> None:
    """What is wrong behind good data of one read is told in its own words, after the data."""
    async with facing_raw(redpoll_pki, server_side=True) as (end, far):
        raw, outgoing = await within(raw_handshake(redpoll_pki, far, server_side=False))
        raw.write(b"good")
        far.send(outgoing.read() + b"\x17\x03\x03\x00\x40" + bytes(64))
        await until(lambda: end.lost, "the end")
        assert end.read == b"good"
        assert isinstance(end.lost[0], TLSError)
        assert "bad record mac" in str(end.lost[0])


async def test_gone_while_much_is_written(redpoll_pki: Certificates) -> None:
    """Writing ends when the other end is found gone in the middle of it."""
    async with facing_raw(redpoll_pki, server_side=True) as (end, far):
        await within(raw_handshake(redpoll_pki, far, server_side=False))
        await until(lambda: cast("Secured", end.there)._state is secure._State.OPEN, "the handshake")
        far.close()
        end.there.write(bytes(4 * CHUNK))
        await until(lambda: end.lost, "the end")
        assert len(end.lost) == 1


async def test_paused_before_it_is_open(redpoll_pki: Certificates) -> None:
    """Who pauses reading before the handshake is done gets everything when it goes on."""
    async with pair(redpoll_pki.issue("a"), redpoll_pki.issue("b")) as both:
        both.server.there.pause_reading()
        both.client.there.write(b"x")
        await turns()
        assert not both.server.read
        both.server.there.resume_reading()
        await until(lambda: both.server.read, "the byte")


async def test_who_asks_and_does_not_read(redpoll_pki: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """What TLS itself has to say to one that does not read is bounded, and who made it is told."""
    told: list[bool] = []
    async with pair(redpoll_pki.issue("a"), redpoll_pki.issue("b")) as both:
        both.client.there.write(b"x")
        await until(lambda: both.server.read, "the first byte")
        secured = cast("Secured", both.server.transport)
        monkeypatch.setattr(secure, "PENDING_LIMIT", -1)
        monkeypatch.setattr(secured, "_unread", lambda: told.append(True))
        secured.pause_writing()
        secured._object.write(b"x")
        both.client.there.write(b"x")
        await both.ended()
        assert "the peer is not reading: TLS output pending" in str(both.server.lost[0])
        assert told == [True]


class Counting:
    """Stands before something and notes the sizes of what is written to it."""

    def __init__(self, wrapped: Any) -> None:
        self.sizes: list[int] = []
        self._wrapped = wrapped

    def write(self, data: memoryview) -> Any:
        self.sizes.append(len(data))
        return self._wrapped.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


class Answering(End):
    """Answers each piece that it reads with one byte."""

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        self.there.write(b"x")


async def test_short_pieces_share_records(redpoll_pki: Certificates) -> None:
    """Pieces that are written at once, or wait together, are one record as long as they fit into one."""
    async with pair(redpoll_pki.issue("a"), redpoll_pki.issue("b")) as both:
        both.client.there.write(b"x")
        await until(lambda: both.server.read, "the first byte")
        secured = cast("Secured", both.client.transport)
        counting = Counting(secured._object)
        secured._object = counting  # type: ignore[assignment]
        secured.writelines([b"one", b"two", memoryview(b"three")])
        secured.pause_writing()
        for data in (b"four", b"five", bytes(CHUNK)):
            secured.write(data)
        secured.resume_writing()
        await until(lambda: both.server.has(20 + CHUNK), "all of it")
        assert counting.sizes == [11, CHUNK, 8]
        assert both.server.read == b"xonetwothreefourfive" + bytes(CHUNK)


async def test_what_answers_one_read_is_written_at_once(redpoll_pki: Certificates) -> None:
    """While what was read at once is decrypted, piece by piece, what is written waits; then it goes in one write."""
    ends = Answering(100), End()
    async with pair(redpoll_pki.issue("a"), redpoll_pki.issue("b"), ends=ends) as both:
        both.client.there.write(b"x")
        await until(lambda: both.client.has(1), "the answer")
        secured = cast("Secured", both.server.transport)
        below = Counting(secured._below)
        secured._below = below  # type: ignore[assignment]
        both.client.there.write(bytes(10_000))
        await until(lambda: both.client.has(101), "the answers")
        assert both.server.pieces == 101
        assert len(below.sizes) == 1


class Reusing(End):
    """Answers each read with a buffer that it uses again for the next answer."""

    def __init__(self) -> None:
        super().__init__(room=1)
        self.answer = bytearray(1000)

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        self.answer[:] = bytes((self.pieces,)) * 1000
        self.there.write(self.answer)


async def test_a_buffer_that_is_written_while_reading(redpoll_pki: Certificates) -> None:
    """What is written while more is to be read is copied: nothing is in its way, so its owner is not to wait for it."""
    pem = redpoll_pki.issue()
    async with pair(pem, pem, ends=(Reusing(), End())) as both:
        both.client.there.write(b"12345")
        await until(lambda: both.client.has(5000), "the answers")
        assert both.client.read == b"".join(bytes((number,)) * 1000 for number in range(1, 6))
        assert both.server.marks == []


async def test_openssl_gets_little_at_a_time(redpoll_pki: Certificates) -> None:
    """Of much that was read at once OpenSSL has a part at a time: the copy it makes stays with the link."""
    async with facing_raw(redpoll_pki, server_side=True) as (end, far):
        raw, outgoing = await within(raw_handshake(redpoll_pki, far, server_side=False))
        await until(lambda: cast("Secured", end.there)._state is secure._State.OPEN, "the handshake")
        secured = cast("Secured", end.transport)
        counting = Counting(secured._incoming)
        secured._incoming = counting  # type: ignore[assignment]
        raw.write(bytes(4 * FEED_SIZE))
        data = outgoing.read()
        secured.get_buffer(-1)[: len(data)] = data
        secured.buffer_updated(len(data))
        assert end.read == bytes(4 * FEED_SIZE)
        assert max(counting.sizes) <= FEED_SIZE
        assert sum(counting.sizes) == len(data)


async def test_paused_in_the_middle_of_a_read(redpoll_pki: Certificates) -> None:
    """Who pauses in the middle of what was read at once gets the rest later, whatever other links read meanwhile."""

    class Pausing(End):
        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            self.there.pause_reading()

    async with facing_raw(redpoll_pki, server_side=True) as (end, far):
        raw, outgoing = await within(raw_handshake(redpoll_pki, far, server_side=False))
        await until(lambda: cast("Secured", end.there)._state is secure._State.OPEN, "the handshake")
        secured = cast("Secured", end.transport)
        pausing = Pausing(100)
        pausing.transport = secured
        secured._protocol = pausing
        sent = bytes(range(256)) * 1024
        raw.write(sent)
        data = outgoing.read()
        assert len(data) > 2 * FEED_SIZE
        secured.get_buffer(-1)[: len(data)] = data
        secured.buffer_updated(len(data))
        assert pausing.read == sent[:100]
        # Another link of this loop reads into the same memory.
        secured.get_buffer(-1)[:] = bytes(READ_SIZE)
        secured._protocol = end
        secured.resume_reading()
        await until(lambda: end.has(len(sent) - 100), "the rest")
        assert end.read == sent[100:]


async def test_the_end_behind_data(redpoll_pki: Certificates) -> None:
    """TLS's goodbye in the same read as data ends the link after the data, though the socket stays open."""
    async with facing_raw(redpoll_pki, server_side=True) as (end, far):
        raw, outgoing = await within(raw_handshake(redpoll_pki, far, server_side=False))
        raw.write(b"good")
        with contextlib.suppress(ssl.SSLWantReadError):
            raw.unwrap()
        far.send(outgoing.read())
        await until(lambda: end.lost, "the end")
        assert end.read == b"good"
        assert end.eof
        assert end.lost == [None]


async def test_a_protocol_without_room(redpoll_pki: Certificates) -> None:
    """One that has no room for a byte is wrong, and is told so: it is not asked again without end."""
    ends = End(opening=b"x"), End(opening=b"y")
    async with pair(redpoll_pki.issue("a"), redpoll_pki.issue("b"), ends=ends) as both:
        await until(lambda: both.server.read and both.client.read, "the openings")
        both.server._buffer = memoryview(b"")
        secured = cast("Secured", both.server.there)
        with pytest.raises(RuntimeError, match="empty buffer"):
            secured._decrypt()
