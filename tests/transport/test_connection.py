"""One link on one transport: its opening, what breaks it, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
import struct
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from redpoll import Message, Node, NotConfirmed, PeerLost, ProtocolError, Received
from redpoll.transport import connection as connection_module
from redpoll.transport import writing
from redpoll.transport.connection import ANNOUNCEMENT_GRACE, Connection, Keeper
from tests.interop.raw import ACK, NOOP, REQ_ACK, Frame, RawLink, handshake, raw_listener
from tests.node.processes import compute
from tests.node.support import (
    Inbox,
    announcement,
    elapse,
    make,
    raw_accepting,
    raw_dialling,
    settle,
    to,
    turns,
    until,
    within,
)
from tests.transport.support import Lost, serves
from tests.wire.support import THERE, bare_link

GOODBYE = 0x1C
WANTED = 0x10
#: What a node writes first: a handshake of 18 bytes and an announcement of 27.
OPENING = 45


# Opening


@pytest.mark.asyncio
async def test_opening_is_one_write() -> None:
    """Whoever dials, a node opens with its handshake and its announcement, in one write."""
    async with make(identity=b"0123456789abcdef") as node, raw_listener() as listener:
        port = node.address.port
        came_in = await RawLink.dial("127.0.0.1", port)
        opening = await came_in.read_available()
        assert opening[:18] == struct.pack("!H16s", port, b"0123456789abcdef")
        assert (opening[18:20], len(opening), opening[-1]) == (b"\xf2r", OPENING, NOOP)
        came_in.close()
        future = node.send(Message(b"x", f"127.0.0.1:{listener.port}"))
        dialled = await listener.accept()
        assert await dialled.read_available() == opening
        future.cancel()
        dialled.close()


@pytest.mark.asyncio
async def test_tuned_before_anything_is_written() -> None:
    """Who dialled tunes its socket before anything is written, as who listens does."""
    async with make(Inbox()) as server, make(listen=False) as client:
        await within(client.send(to(server)))
        (link,) = client._peers.connections
        assert link.transport is not None
        sock = link.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


@pytest.mark.asyncio
async def test_nothing_is_sent_before_the_handshake() -> None:
    """A node that dialled waits for the handshake before it sends a message."""
    async with make() as node, raw_listener() as listener:
        future = node.send(Message(b"x", f"127.0.0.1:{listener.port}"))
        link = await listener.accept()
        await link.read(OPENING)
        assert await link.silent(0.05)
        link.write(handshake(listener.port, b"I" * 16) + announcement().encode())
        frame = await link.read_frame()
        link.send(Frame(frame.identity, frame.serial, ACK))
        await within(future)
        link.close()


@pytest.mark.asyncio
async def test_libchirp_is_told_by_its_silence() -> None:
    """A handshake alone is libchirp's, as soon as no announcement came in the time for it."""
    inbox = Inbox()
    async with make(inbox) as node:
        link = await RawLink.dial("127.0.0.1", node.address.port)
        begin = asyncio.get_running_loop().time()
        link.write(handshake(4000, b"I" * 16))
        await until(lambda: node.peers, "the peer")
        assert asyncio.get_running_loop().time() - begin >= ANNOUNCEMENT_GRACE * 0.9
        assert not node.peers[0].redpoll
        link.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("said", [1, 26])
async def test_an_announcement_that_has_begun_is_waited_for(said: int) -> None:
    """A request waits for the rest of a slow announcement: sent as to libchirp, it would get no answer."""
    async with make() as node, raw_listener() as listener:
        future = node.request(Message(b"x", f"127.0.0.1:{listener.port}"))
        link = await listener.accept()
        opening = handshake(listener.port, b"I" * 16) + announcement().encode()
        link.write(opening[: 18 + said])
        await link.read(OPENING)
        assert await link.silent(3 * ANNOUNCEMENT_GRACE)
        link.write(opening[18 + said :])
        assert (await link.read_frame()).kind & WANTED
        link.close()
        await settle(future)


@pytest.mark.asyncio
async def test_an_announcement_is_read_after_a_standstill() -> None:
    """A process that stood still reads the announcement that came meanwhile before it takes the peer for libchirp."""
    async with make() as node, raw_listener() as listener:
        future = node.request(Message(b"x", f"127.0.0.1:{listener.port}"))
        link = await listener.accept()
        opening = handshake(listener.port, b"I" * 16) + announcement().encode()
        link.write(opening[:18])
        await until(lambda: any(each.link.handshake for each in node._peers.connections), "the handshake")
        compute(2 * ANNOUNCEMENT_GRACE)
        await turns(2)
        link.write(opening[18:])
        await link.read(OPENING)
        assert (await link.read_frame()).kind & WANTED
        link.close()
        await settle(future)


@pytest.mark.asyncio
async def test_an_announcement_that_is_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who begins a frame and does not end it is libchirp before long."""
    monkeypatch.setattr(connection_module, "ANNOUNCEMENT_PATIENCE", 0.05)
    async with make(Inbox()) as node:
        link = await RawLink.dial("127.0.0.1", node.address.port)
        link.write(handshake(4000, b"I" * 16) + announcement().encode()[:20])
        await until(lambda: node.peers, "the peer")
        assert not node.peers[0].redpoll
        link.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("said", [0, 1, 17])
async def test_handshake_timeout_of_who_comes_in(said: int) -> None:
    """A stranger that does not complete its handshake in time is closed; nobody else notices."""
    async with make(Inbox(), handshake_timeout=0.1) as node:
        lost = Lost(node)
        link = await RawLink.dial("127.0.0.1", node.address.port)
        if said:
            link.write(handshake(4000, b"I" * 16)[:said])
        await serves(node)
        assert len(await link.read_all()) == OPENING
        await lost.error()  # of the client that was served
        assert not lost.errors
        link.close()
        await until(lambda: node.stats().connections == 0, "its end")


@pytest.mark.asyncio
@pytest.mark.parametrize("said", [0, 1, 17])
async def test_stranger_that_goes_before_its_handshake(said: int) -> None:
    """A stranger that leaves before its handshake was never a peer."""
    async with make(Inbox()) as node:
        lost = Lost(node)
        link = await RawLink.dial("127.0.0.1", node.address.port)
        if said:
            link.write(handshake(4000, b"I" * 16)[:said])
        await until(lambda: node.stats().connections == 1, "the stranger")
        link.close()
        await until(lambda: node.stats().connections == 0, "its end")
        assert not lost.errors
        assert not node.peers
        await serves(node)


@pytest.mark.asyncio
async def test_byte_by_byte() -> None:
    """A link whose bytes come one at a time works like any other."""
    inbox = Inbox()
    async with make(inbox) as node:
        link = await RawLink.dial("127.0.0.1", node.address.port)
        message = link.message(b"data", header=b"header")
        for byte in handshake(4000, b"I" * 16) + announcement().encode() + message.encode():
            link.write(bytes([byte]))
            await turns(2)
        await link.read(OPENING)
        frame = await link.read_frame()
        assert (frame.kind, frame.serial, frame.identity) == (ACK, message.serial, message.identity)
        assert (inbox.messages[0].data, inbox.messages[0].header) == (b"data", b"header")
        link.close()


# What breaks a link


@pytest.mark.asyncio
@pytest.mark.parametrize("redpoll", [True, False])
async def test_garbage(*, redpoll: bool) -> None:
    """Whatever bytes a stranger sends behind its handshake, its link ends or waits, and the node goes on."""
    async with make(Inbox(), max_message_size=10_000) as node:
        for seed in range(40):
            async with raw_dialling(node, port=4000, redpoll=redpoll) as link:
                try:
                    await link.write_all(random.Random(seed).randbytes(500))
                except ConnectionError:
                    pass
        await until(lambda: node.stats().connections == 0, "their end")
        await serves(node)


@pytest.mark.asyncio
async def test_garbage_from_the_first_byte() -> None:
    """Any 18 bytes are a handshake; what follows is what breaks the link."""
    async with make(Inbox(), max_message_size=10_000) as node:
        for seed in range(40):
            link = await RawLink.dial("127.0.0.1", node.address.port)
            link.write(random.Random(seed).randbytes(200))
            await link.read(OPENING)
            link.close()
        await until(lambda: node.stats().connections == 0, "their end")
        await serves(node)


@pytest.mark.asyncio
@pytest.mark.parametrize("redpoll", [True, False])
@pytest.mark.parametrize(("header", "size"), [(0, 1001), (500, 501), (0, 0xFFFFFFFF)])
async def test_a_message_that_is_too_large(header: int, size: int, *, redpoll: bool) -> None:
    """A link on which a message above max_message_size is announced is closed at once, and why is told."""
    async with make(Inbox(), max_message_size=1000) as node:
        lost = Lost(node)
        async with raw_dialling(node, port=4000, redpoll=redpoll) as link:
            await until(lambda: node.peers, "the peer")
            link.write(struct.pack("!16sIIHB", b"i" * 16, 7, size, header, REQ_ACK) + bytes(header))
            assert await link.read_all() == b""
        error = await lost.error()
        assert isinstance(error, ProtocolError)
        assert str(error) == (
            f"protocol error with 127.0.0.1:4000: message of {header + size} bytes exceeds max_message_size of 1000 bytes"
        )
        await serves(node)


@pytest.mark.asyncio
async def test_a_small_limit_is_no_limit_of_nothing() -> None:
    """A node that takes less than a kibibyte is sent what it takes, and closes the link for what it does not."""
    inbox = Inbox()
    async with make(inbox, max_message_size=500) as node, make() as client:
        await within(client.send(to(node, bytes(500))))
        with pytest.raises(NotConfirmed):
            await within(client.send(to(node, bytes(501))))
    assert [len(data) for data in inbox.begun] == [500]


@pytest.mark.asyncio
async def test_a_message_that_is_just_not_too_large() -> None:
    """A message of max_message_size, header and data together, is taken."""
    inbox = Inbox()
    async with make(inbox, max_message_size=1000) as node, raw_dialling(node, port=4000) as link:
        link.send(link.message(bytes(600), header=bytes(400)))
        assert (await link.read_frame()).kind == ACK
        assert len(inbox.messages[0].data) == 600


@pytest.mark.asyncio
async def test_in_flight_fails_with_what_broke_the_link() -> None:
    """What was sent on a link that the other end broke is not confirmed, and the cause is how it broke it."""
    async with make() as node, raw_listener() as listener:
        future = node.send(Message(b"x", f"127.0.0.1:{listener.port}"))
        async with raw_accepting(listener) as link:
            await link.read_frame()
            link.write(struct.pack("!16sIIHB", bytes(16), 0, 0, 0, NOOP | REQ_ACK))
            with pytest.raises(NotConfirmed, match="control frame with a header or acknowledgement bits") as caught:
                await within(future)
        assert isinstance(caught.value.__cause__, ProtocolError)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (RawLink.close, "the peer closed the connection"),
        # In the system's words, the same on each event loop.
        (RawLink.reset, os.strerror(errno.ECONNRESET)),
    ],
)
async def test_the_other_end_ends_the_link(end: Callable[[RawLink], None], reason: str) -> None:
    """A link that the other end closed or reset says so, and what was sent on it is not confirmed."""
    async with make() as node, raw_listener() as listener:
        lost = Lost(node)
        address = f"127.0.0.1:{listener.port}"
        future = node.send(Message(b"x", address))
        async with raw_accepting(listener) as link:
            await link.read_frame()
            end(link)
            error = await lost.error()
        with pytest.raises(NotConfirmed) as caught:
            await within(future)
        assert caught.value.__cause__ is error
        assert isinstance(error, PeerLost)
        assert str(error) == f"lost the peer {address}: {reason}"


# Writing


@pytest.mark.asyncio
async def test_what_is_sent_in_one_turn_is_written_together() -> None:
    """Many small messages of one turn of the loop leave in very few writes, in order."""
    async with make(acknowledge=False) as node, raw_listener() as listener:
        address = f"127.0.0.1:{listener.port}"
        first = node.send(Message(b"first", address))
        async with raw_accepting(listener) as link:
            await link.read_frame()
            await within(first)
            futures = [node.send(Message(bytes([n]), address)) for n in range(50)]
            await within(asyncio.gather(*futures))
            data, reads = b"", 0
            while len(data) < 50 * 28:
                data += await link.read_available()
                reads += 1
            assert [data[position + 27] for position in range(0, len(data), 28)] == list(range(50))
            assert reads <= 3


def connection(loop: asyncio.AbstractEventLoop) -> Connection:
    """A connection that nobody keeps."""
    return Connection(cast("Keeper", SimpleNamespace(spin=None)), bare_link(), THERE, loop)


@pytest.mark.asyncio
async def test_links_of_one_thread_share_their_buffer() -> None:
    """Idle links cost no receive buffer each: all of a thread read into one, and another thread has its own."""
    loop = asyncio.get_running_loop()
    one, two = connection(loop), connection(loop)
    assert one.get_buffer(-1).obj is two.get_buffer(-1).obj
    others: list[Connection] = []
    thread = threading.Thread(target=lambda: others.append(connection(loop)))
    thread.start()
    thread.join()
    assert others[0].get_buffer(-1).obj is not one.get_buffer(-1).obj


@pytest.mark.asyncio
async def test_a_link_that_waited_for_memory_reads_on() -> None:
    """A large body that waits for memory is read to its end once there is some."""
    inbox = Inbox(hold=True)
    async with make(inbox, memory_limit=1 << 20) as node, make(listen=False) as first, make(listen=False) as second:
        sends = [first.send(to(node, bytes(1 << 19))) for _ in range(4)]
        await until(lambda: node.stats().memory_held >= 1 << 20, "a full memory")
        sends.append(second.send(to(node, bytes(1 << 20))))
        await until(lambda: node.stats().turned_away.memory_waits, "a link that waits")
        inbox.gate.set()
        await within(asyncio.gather(*sends))


class Line(asyncio.Transport):
    """A transport that notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def abort(self) -> None:
        self.asked.append("abort")


@pytest.mark.asyncio
async def test_who_was_given_up_hangs_up() -> None:
    """A connection that was given up before it was there hangs up when it comes, and introduces nobody."""
    abandoned = connection(asyncio.get_running_loop())
    abandoned.give_up(PeerLost(THERE, "given up"))
    line = Line()
    abandoned.connection_made(line)
    assert line.asked == ["abort"]
    assert not abandoned.link.output


class Gone(asyncio.Transport):
    """A transport that has closed and not told of it yet, as one of uvloop's is for a turn of the loop."""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        raise RuntimeError("the handler is closed")

    def writelines(self, list_of_data: Any) -> None:
        raise RuntimeError("the handler is closed")

    def get_write_buffer_size(self) -> int:
        return 0


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
async def test_a_transport_that_closed_meanwhile(size: int) -> None:
    """What is written to a transport that has closed and not told of it yet raises nothing, and is not confirmed."""
    async with make(Inbox()) as server, make(listen=False) as client:
        await within(client.send(to(server)))
        (line,) = client._peers.connections
        transport, line.transport = line.transport, Gone()
        sending = client.send(to(server, bytes(size)))
        await turns()
        line.transport = transport
        assert not line.link.writable
        assert not sending.done()
        line.fail(PeerLost(THERE, "it is gone"))
        with pytest.raises(NotConfirmed, match="it is gone"):
            await within(sending)


@pytest.mark.asyncio
async def test_writing_to_a_connection_that_was_reset_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The first write that the system refuses is the last: asyncio logs a warning for each further one."""
    async with make(listen=False) as node, raw_listener() as listener:
        sending = node.send(Message(b"x", f"127.0.0.1:{listener.port}"), acknowledge=False)
        link = await listener.accept()
        link.write(handshake(listener.port, b"I" * 16) + announcement().encode())
        await within(sending)
        listener.close()
        futures = [node.send(Message(bytes(50_000), f"127.0.0.1:{listener.port}"), timeout=0.1) for _ in range(30)]
        link.reset()
        await settle(*futures)
        assert all(future.exception() for future in futures)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


class Closing:
    """A transport that notes what is written to it once it closes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.late: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in {"write", "writelines", "set_write_buffer_limits"} and self._transport.is_closing():
            self.late.append(name)
        return getattr(self._transport, name)


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [10, 40_000, 200_000, 3_000_000])
async def test_nothing_is_written_to_what_closes(size: int) -> None:
    """Output that waits when a link is given up is dropped, and the next socket with its descriptor hears."""
    loop = asyncio.get_running_loop()
    async with make(Inbox()) as server, make(listen=False) as client:
        await within(client.send(to(server)))
        (connection,) = client._peers.connections
        assert connection.transport is not None
        spy = Closing(connection.transport)
        connection.transport = cast("asyncio.Transport", spy)
        descriptor = spy.get_extra_info("socket").fileno()
        futures = [client.send(to(server, bytes(size))) for _ in range(4)]
        connection.fail(PeerLost(server.address, "given up"))
        connection.flush()
        await settle(*futures)
        assert isinstance(futures[0].exception(), NotConfirmed)
        assert spy.late == []
        pairs = [socket.socketpair()]
        while all(each.fileno() != descriptor for both in pairs for each in both) and len(pairs) < 100:
            pairs.append(socket.socketpair())
        for one, other in pairs:
            one.setblocking(False)
            other.setblocking(False)
            for here, there in ((one, other), (other, one)):
                hears = asyncio.ensure_future(loop.sock_recv(here, 1))
                await asyncio.sleep(0)
                there.send(b"x")
                assert await within(hears) == b"x"
            one.close()
            other.close()


def test_a_message_may_end_after_its_loop() -> None:
    """Releasing what is left of a node whose loop is closed does nothing, and raises nothing."""

    async def take() -> Received[Any]:
        async with make() as server, make(listen=False) as client:
            sending = client.send(to(server), timeout=None)
            message = await within(server.receive())
            await client.stop(0)
            await server.stop(0)
            await asyncio.gather(sending, return_exceptions=True)
            return message

    message = asyncio.run(take())
    message.release()
    assert message.ended


# Idle links


#: A timeout of None lets reuse_time be as short as a test needs.
IDLE: dict[str, Any] = {"timeout": None, "reuse_time": 0.05}


@pytest.mark.asyncio
async def test_an_idle_link_is_closed_and_made_again() -> None:
    """A link that carried nothing for reuse_time ends with a goodbye, at both ends; the next send makes a new one."""
    inbox = Inbox()
    async with make(inbox) as server, make(**IDLE) as client:
        lost = Lost(server)
        for count in range(1, 4):
            await within(client.send(to(server)))
            await until(lambda: client.stats().connections == 0 == server.stats().connections, "idle collection")
            assert "the link ended with a goodbye" in str(await lost.error())
            assert len(inbox.messages) == count
        assert client.stats().errors == server.stats().errors == 0


@pytest.mark.asyncio
async def test_goodbye_names_the_last_message() -> None:
    """The goodbye on an idle link says which message was the last, and the link is closed when it was answered."""
    async with make(Inbox(), **IDLE) as node, raw_dialling(node, port=4000) as link:
        message = link.message(b"x")
        link.send(message)
        assert (await link.read_frame()).kind == ACK
        goodbye = await link.read_frame()
        assert (goodbye.kind, goodbye.serial) == (GOODBYE, message.serial)
        assert await link.silent(0.05)
        link.send(Frame(bytes(16), 0, GOODBYE))
        assert await link.read_all() == b""


async def unread(node: Node[Any], address: str, **options: Any) -> Connection:
    """The connection to somebody who does not read, with bytes in the transport that the system does not take."""
    data = bytes(100_000)
    connection: Connection | None = None
    while connection is None or connection.transport is None or not connection.transport.get_write_buffer_size():
        node.send(Message(data, address), acknowledge=False, **options)
        await asyncio.sleep(0)
        (connection,) = node._peers.connections
    return connection


@pytest.mark.asyncio
@pytest.mark.parametrize("redpoll", [False, True])
async def test_who_reads_nothing_holds_up_no_close(redpoll: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is closed while its other end takes nothing of what was written is given up after a time."""
    monkeypatch.setattr(writing, "CLOSING_TIME", 0.1)
    async with make(listen=False, keepalive=None) as node, raw_listener() as listener:
        address = f"127.0.0.1:{listener.port}"
        dialling = asyncio.ensure_future(node.ready(address))
        async with raw_accepting(listener, redpoll=redpoll, window=100_000, window_units=60_000):
            await within(dialling)
            connection = await unread(node, address, timeout=None)
            connection.close()
            assert node.stats().connections == 1
            await until(lambda: node.stats().connections == 0, "the end of the link")


@pytest.mark.asyncio
async def test_who_reads_on_gets_all_before_a_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is closed stays as long as its other end takes what was written."""
    monkeypatch.setattr(writing, "CLOSING_TIME", 0.2)
    async with make(listen=False) as node, raw_listener() as listener:
        address = f"127.0.0.1:{listener.port}"
        dialling = asyncio.ensure_future(node.ready(address))
        async with raw_accepting(listener, redpoll=False) as link:
            await within(dialling)
            connection = await unread(node, address, timeout=None)
            connection.close()
            written = connection.link.bytes_sent - 45
            begun = asyncio.get_running_loop().time()
            read = 0
            while read < written:
                read += len(await within(link.read(min(written - read, written // 8))))
                await elapse(0.05)
            assert asyncio.get_running_loop().time() - begun > 0.2
            await until(lambda: node.stats().connections == 0, "the end of the link")


@pytest.mark.asyncio
async def test_libchirp_gets_no_goodbye() -> None:
    """An idle link to libchirp is closed without a word, as libchirp does it."""
    async with make(Inbox(), **IDLE) as node, raw_dialling(node, port=4000, redpoll=False) as link:
        assert await link.read_all() == b""


@pytest.mark.asyncio
async def test_a_busy_link_is_not_idle() -> None:
    """A link is not closed while a handler works on what came over it, nor while an answer is awaited."""
    inbox = Inbox(hold=True, answer=b"answer")
    async with make(inbox, **IDLE) as server, make(**IDLE) as client:
        request = client.request(to(server))
        await inbox.holds(1)
        await elapse(0.3)
        inbox.gate.set()
        assert (await within(request)).data == b"answer"
        assert client.stats().reconnects == 0


@pytest.mark.asyncio
async def test_a_link_in_use_is_not_idle() -> None:
    """A link that carries a message now and then stays."""
    async with make(Inbox(), timeout=None, reuse_time=0.2) as server, make(timeout=None, reuse_time=0.2) as client:
        loop = asyncio.get_running_loop()
        last, unused = loop.time(), []
        end = last + 0.6
        while last < end:
            await within(client.send(to(server)))
            await elapse(0.02)
            unused.append(loop.time() - last)
            last = loop.time()
        # On a busy machine a pause may be longer than the link is kept.
        assert client.stats().reconnects <= sum(pause >= 0.2 for pause in unused)


@pytest.mark.asyncio
@pytest.mark.parametrize("acknowledge", [True, False])
async def test_nothing_is_lost_as_a_link_goes_idle(*, acknowledge: bool) -> None:
    """Messages that cross a goodbye, acknowledged or not, arrive once, over that link or the next."""
    inboxes = Inbox(), Inbox()
    options = {"timeout": None, "reuse_time": 0.012, "acknowledge": acknowledge}
    async with make(inboxes[0], **options) as one, make(inboxes[1], **options) as two:
        pauses = random.Random(5)
        futures = []
        for number in range(60):
            data = number.to_bytes(2, "big")
            futures += [one.send(to(two, data)), two.send(to(one, data))][:: pauses.choice((1, -1))]
            await elapse(pauses.uniform(0.009, 0.016))
        await within(asyncio.gather(*futures))
        for inbox in inboxes:
            await inbox.holds(60)
            assert sorted(inbox.begun) == [number.to_bytes(2, "big") for number in range(60)]
        assert one.stats().reconnects + two.stats().reconnects > 3
