"""Links inside one process: the same bytes as through a socket, without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from redpoll import Address, ConfigError, DialFailed, Message, Node
from redpoll.transport.inproc import InprocListener, InprocTransport, connect
from tests.node.support import Inbox, make, turns, until, within

pytestmark = pytest.mark.asyncio

HERE = Address("inproc", "here")


class End(asyncio.BufferedProtocol):
    """Keeps what it reads, `room` bytes at a time."""

    def __init__(self, room: int = 1 << 16) -> None:
        self.read = bytearray()
        self.said: list[str] = []
        self.close_after: int | None = None
        self.transport: InprocTransport
        self._room = bytearray(room)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, InprocTransport)
        self.transport = transport
        self.said.append("made")

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._room)

    def buffer_updated(self, nbytes: int) -> None:
        self.read += self._room[:nbytes]
        if self.close_after is not None and len(self.read) >= self.close_after:
            self.transport.abort()

    def pause_writing(self) -> None:
        self.said.append("pause")

    def resume_writing(self) -> None:
        self.said.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.said.append(f"lost {exc}")


@pytest.fixture
def far() -> End:
    return End()


@pytest.fixture
def near() -> End:
    return End()


@pytest_asyncio.fixture
async def link(near: End, far: End) -> AsyncIterator[None]:
    """Both ends of a link."""
    loop = asyncio.get_running_loop()
    listener = InprocListener("here", lambda: far, loop)
    connect(HERE, lambda: near, loop)
    listener.close()
    yield
    near.transport.abort()
    await until(lambda: "lost None" in near.said and "lost None" in far.said, "the end of the link")


@pytest.mark.usefixtures("link")
async def test_bytes_arrive_in_order_on_a_later_turn(near: End, far: End) -> None:
    """What is written at one end is read at the other, in order, and never within the write."""
    near.transport.write(b"one ")
    near.transport.write(b"two")
    far.transport.write(b"back")
    assert far.read == b""
    await until(lambda: far.read == b"one two" and near.read == b"back", "the bytes")


async def test_small_buffers_are_filled_one_after_another() -> None:
    """A reader that offers little room gets the bytes in as many pieces as it takes."""
    loop = asyncio.get_running_loop()
    near, far = End(), End(room=3)
    listener = InprocListener("here", lambda: far, loop)
    connect(HERE, lambda: near, loop)
    listener.close()
    near.transport.write(b"0123456789")
    await until(lambda: far.read == b"0123456789", "the bytes")
    assert near.transport.get_write_buffer_size() == 0
    near.transport.abort()
    await turns()


@pytest.mark.usefixtures("link")
async def test_written_buffers_may_change(near: End, far: End) -> None:
    """A buffer may be used again as soon as it was written."""
    data = bytearray(b"before")
    near.transport.write(data)
    data[:] = b"after!"
    await until(lambda: far.read, "the bytes")
    assert far.read == b"before"


@pytest.mark.usefixtures("link")
async def test_writer_is_paused_above_its_mark(near: End, far: End) -> None:
    """Above the high-water mark the writer is told to pause, once, and to resume when the reader caught up."""
    near.transport.set_write_buffer_limits(high=10)
    far.transport.pause_reading()
    near.transport.write(b"x" * 10)
    assert "pause" not in near.said
    near.transport.write(b"x")
    near.transport.write(b"x")
    assert near.said.count("pause") == 1
    await turns()
    assert near.transport.get_write_buffer_size() == 12
    assert "resume" not in near.said
    far.transport.resume_reading()
    await until(lambda: "resume" in near.said, "the resumption")
    assert len(far.read) == 12
    assert near.said.count("resume") == 1


@pytest.mark.usefixtures("link")
async def test_paused_reader_gets_nothing(near: End, far: End) -> None:
    """A reader that paused is not given bytes until it resumes."""
    far.transport.pause_reading()
    near.transport.write(b"late")
    await turns()
    assert far.read == b""
    far.transport.resume_reading()
    await until(lambda: far.read == b"late", "the bytes")


@pytest.mark.usefixtures("link")
async def test_close_delivers_what_was_written(near: End, far: End) -> None:
    """Closing lets the other end read what was written before, and ends both."""
    near.transport.write(b"last words")
    near.transport.close()
    near.transport.write(b"after")
    assert near.transport.is_closing()
    await until(lambda: "lost None" in far.said, "the end")
    assert far.read == b"last words"
    assert near.said == far.said == ["made", "lost None"]


@pytest.mark.usefixtures("link")
async def test_abort_delivers_nothing(near: End, far: End) -> None:
    """Aborting drops what was not read."""
    near.transport.write(b"lost")
    near.transport.abort()
    await until(lambda: "lost None" in far.said, "the end")
    assert far.read == b""


@pytest.mark.usefixtures("link")
async def test_closing_end_reads_no_more(near: End, far: End) -> None:
    """An end that aborts while it reads is given nothing further, as with a socket."""
    far.close_after = 1
    near.transport.write(b"first")
    near.transport.write(b"second")
    await until(lambda: "lost None" in near.said, "the end")
    assert far.read == b"first"


async def test_nobody_listens_there() -> None:
    """Dialling a name that nobody has fails and names it."""
    with pytest.raises(DialFailed) as caught:
        connect(HERE, End, asyncio.get_running_loop())
    assert str(caught.value) == "cannot connect to inproc:here: no node of this process listens there"


async def test_name_is_free_again() -> None:
    """A name that was given back can be taken again; closing twice takes it from nobody."""
    loop = asyncio.get_running_loop()
    first = InprocListener("here", End, loop)
    first.close()
    second = InprocListener("here", End, loop)
    first.close()
    with pytest.raises(ConfigError, match="another node of this process listens there"):
        InprocListener("here", End, loop)
    second.close()


async def test_a_name_is_free_where_a_loop_was_closed() -> None:
    """A node whose loop was closed under it listens no more: nothing is connected there, and its name can be taken."""
    closed = asyncio.new_event_loop()
    closed.close()
    InprocListener("here", End, closed)
    with pytest.raises(DialFailed, match="no node of this process listens there"):
        connect(HERE, End, asyncio.get_running_loop())
    InprocListener("here", End, asyncio.get_running_loop()).close()


async def test_a_link_that_cannot_be_made_is_not_admitted() -> None:
    """If there is no protocol for the end that dials, none is made for the other one, which would wait for its end."""
    admitted: list[End] = []

    def admit() -> End:
        admitted.append(End())
        return admitted[-1]

    def fail() -> End:
        raise ConfigError("tls", None, "no certificate")

    loop = asyncio.get_running_loop()
    listener = InprocListener("here", admit, loop)
    with pytest.raises(ConfigError, match="no certificate"):
        connect(HERE, fail, loop)
    listener.close()
    assert admitted == []


async def test_node_on_another_loop(other_loop: asyncio.AbstractEventLoop) -> None:
    """A node of another thread's loop cannot be dialled this way; the error names the way that works."""

    async def start() -> Node[bytes]:
        node: Node[bytes] = Node(host="inproc:elsewhere")
        await node.start()
        return node

    async def stop(node: Node[bytes]) -> None:
        await node.stop()

    elsewhere = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(start(), other_loop))
    with pytest.raises(DialFailed) as caught:
        connect(Address("inproc", "elsewhere"), End, asyncio.get_running_loop())
    assert str(caught.value) == (
        "cannot connect to inproc:elsewhere: its node runs on another event loop; use a unix socket"
    )
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(stop(elsewhere), other_loop))


async def test_nodes_send_request_and_stop() -> None:
    """Nodes exchange messages of every size through a name, and the name is free when they have stopped."""
    big = bytes(range(256)) * 20_000
    inbox = Inbox(answer=b"answer")
    for _ in range(2):
        async with make(inbox, host="inproc:here") as server, make(listen=False) as client:
            assert server.address == HERE
            assert server.listening == (HERE,)
            await within(client.send(Message(b"small", "inproc:here")))
            await within(client.send(Message(big, "inproc:here")))
            answer = await within(client.request(Message(b"?", "inproc:here")))
            assert answer.data == b"answer"
            assert (client.stats().connections, server.stats().connections) == (1, 1)
    assert inbox.begun == [b"small", big, b"?"] * 2
