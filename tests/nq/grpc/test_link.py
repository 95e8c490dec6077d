"""A link on a stream: how much is under way, and what ends it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from redpoll.nq.grpc.link import DialledLink, Link, ServedLink, refuse
from tests.node.support import turns, within

pytestmark = pytest.mark.asyncio


class Reader(asyncio.BufferedProtocol):
    """Reads into a small buffer; notes what it is told."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.got = b""
        self.lost: list[Exception | None] = []
        self._buffer = bytearray(8)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        """Always the same one."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Keep what came."""
        self.got += self._buffer[:nbytes]

    def pause_writing(self) -> None:
        """Not of interest."""

    def resume_writing(self) -> None:
        """Not of interest."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Note it."""
        self.lost.append(exc)


class Stream:
    """A stream whose other end is the test: it has what was written, and says when it takes it and what it sends."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.taking = asyncio.Event()
        self.coming: asyncio.Queue[Any] = asyncio.Queue()
        self.reads = 0
        self.ended: list[str] = []

    async def write(self, message: bytes) -> None:
        """Wait until the other end takes it."""
        assert type(message) is bytes
        self.written.append(message)
        await self.taking.wait()

    async def read(self) -> Any:
        """Wait for what the other end sends; an exception is raised."""
        self.reads += 1
        message = await self.coming.get()
        if isinstance(message, Exception):
            raise message
        return message

    async def done_writing(self) -> None:
        """Note it."""
        self.ended.append("done")
        self.coming.put_nowait(grpc.aio.EOF)

    def cancel(self) -> None:
        """Note it; what waits for the other end fails."""
        self.ended.append("cancel")
        self.taking.set()
        self.coming.put_nowait(grpc.aio.EOF)

    async def close(self) -> None:
        """Note it."""
        self.ended.append("close")

    async def send_initial_metadata(self, _: object) -> None:
        """Nothing to be seen."""

    async def abort(self, code: object, details: str) -> None:
        """Note it."""
        self.ended.append("abort")


def dialled(size: int = 100) -> tuple[DialledLink, Stream, Reader]:
    """A link of who dialled."""
    stream, protocol = Stream(), Reader()
    return DialledLink(asyncio.get_running_loop(), protocol, size, stream, stream), stream, protocol


def served(size: int = 100) -> tuple[asyncio.Task[None], Stream, Reader]:
    """A link of who was dialled, and its handler."""
    stream, protocol = Stream(), Reader()
    link = ServedLink(asyncio.get_running_loop(), protocol, size, stream, {"peername": ("here", 1)})
    return asyncio.get_running_loop().create_task(link.run()), stream, protocol


async def finish(link: DialledLink, protocol: Reader) -> None:
    """End a link of who dialled."""
    protocol.transport.abort()
    await within(link.task)


async def test_one_message_is_under_way() -> None:
    """What is written while gRPC has not taken the last message stays in the transport, which pauses the node."""
    link, stream, protocol = dialled()
    protocol.transport.write(b"first")
    await turns()
    for _ in range(10):
        protocol.transport.write(bytes(50))
    await turns()
    assert stream.written == [b"first"]
    assert protocol.transport.get_write_buffer_size() == 500
    stream.taking.set()
    await turns()
    assert [len(each) for each in stream.written] == [5, 100, 100, 100, 100, 100]
    await finish(link, protocol)


async def test_a_bytes_object_goes_as_it_is() -> None:
    """What is written whole and fits is not copied; a part of something is."""
    link, stream, protocol = dialled()
    body = bytes(range(90))
    stream.taking.set()
    protocol.transport.write(body)
    await turns()
    protocol.transport.write(memoryview(body)[:50])
    await turns()
    assert stream.written[0] is body
    assert stream.written[1] == body[:50]
    await finish(link, protocol)


async def test_nothing_is_received_while_the_node_does_not_read() -> None:
    """One message waits; the next one stays with gRPC until the node has read it."""
    link, stream, protocol = dialled()
    for number in range(3):
        stream.coming.put_nowait(b"message %d " % number)
    protocol.transport.pause_reading()
    await turns()
    assert (stream.reads, protocol.got, protocol.transport.get_write_buffer_size()) == (1, b"", 0)
    protocol.transport.resume_reading()
    await turns()
    assert stream.reads == 4
    assert protocol.got == b"message 0 message 1 message 2 "
    await finish(link, protocol)


async def test_closing_writes_what_is_left() -> None:
    """Then the other end is told, the node too, and the channel is closed once the other end has answered."""
    link, stream, protocol = dialled()
    stream.taking.set()
    protocol.transport.write(b"last")
    protocol.transport.close()
    await within(link.task)
    assert stream.written == [b"last"]
    assert protocol.lost == [None]
    assert stream.ended == ["done", "cancel", "close"]
    assert link.over


async def test_closing_waits_for_an_answer_no_longer_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not answer the end is cut off."""
    monkeypatch.setattr("redpoll.nq.grpc.link.ENDING_GRACE", 0.01)
    link, stream, protocol = dialled()

    async def silent() -> None:
        stream.ended.append("done")

    monkeypatch.setattr(stream, "done_writing", silent)
    protocol.transport.close()
    await within(link.task)
    assert stream.ended == ["done", "cancel", "close"]


async def test_aborting_waits_for_nothing() -> None:
    """The node is told at once, though a message has not been taken."""
    link, stream, protocol = dialled()
    protocol.transport.write(b"stuck")
    await turns()
    protocol.transport.abort()
    await asyncio.sleep(0)
    assert protocol.lost == [None]
    await within(link.task)
    assert stream.ended[0] == "cancel"
    assert "done" not in stream.ended


@pytest.mark.parametrize("reading", [True, False])
async def test_the_other_end_closes(reading: bool) -> None:
    """The node is told of a good end, whether it reads or not."""
    link, stream, protocol = dialled()
    if not reading:
        protocol.transport.pause_reading()
    stream.coming.put_nowait(b"bytes")
    stream.coming.put_nowait(grpc.aio.EOF)
    if not reading:
        await turns()
        protocol.transport.abort()
    await within(link.task)
    assert protocol.lost == [None]
    assert protocol.got == (b"bytes" if reading else b"")


async def test_the_stream_breaks() -> None:
    """The node is told what gRPC says of it."""
    link, stream, protocol = dialled()
    stream.coming.put_nowait(grpc.aio.InternalError("broken"))
    await within(link.task)
    assert [str(each) for each in protocol.lost] == ["broken"]


async def test_what_nobody_foresaw_is_told_to_the_loop() -> None:
    """The link ends, and the error is not lost."""
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: told.append(context))
    link, stream, protocol = dialled()
    stream.coming.put_nowait(ValueError("unforeseen"))
    await within(link.task)
    loop.set_exception_handler(before)
    assert [str(each["exception"]) for each in told] == ["unforeseen", "unforeseen"]
    assert [str(each) for each in protocol.lost] == ["unforeseen"]


async def test_a_loop_that_ends_has_what_grpc_does_not_finish_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of gRPC's is dropped while it works on it: whoever drops it last would have to wait."""
    kept: set[object] = set()
    monkeypatch.setattr("redpoll.nq.grpc.link.KEPT", kept)
    link, stream, protocol = dialled()
    kept.add(stream)
    protocol.transport.write(b"stuck")
    monkeypatch.setattr(stream, "cancel", lambda: stream.coming.put_nowait(grpc.aio.EOF))
    await turns()
    protocol.transport.abort()
    await turns()
    link.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(link.task)
    stream.taking.set()
    await turns()
    assert kept == {stream}


async def test_the_served_end_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler returns when either end closes, aborts the call when this one cuts it or it breaks, and is cancelled."""
    handler, stream, protocol = served()
    assert protocol.transport.get_extra_info("peername") == ("here", 1)
    stream.taking.set()
    await turns()
    protocol.transport.write(b"last")
    protocol.transport.close()
    await within(handler)
    assert (stream.written, stream.ended, protocol.lost) == ([b"last"], [], [None])

    handler, stream, protocol = served()
    stream.coming.put_nowait(b"bytes")
    stream.coming.put_nowait(grpc.aio.EOF)
    await within(handler)
    assert (protocol.got, stream.ended, protocol.lost) == (b"bytes", [], [None])

    handler, stream, protocol = served()
    await turns()
    protocol.transport.write(b"stuck")
    await turns()
    protocol.transport.abort()
    await within(handler)
    assert (stream.ended, protocol.lost) == (["abort"], [None])

    handler, stream, protocol = served()
    stream.coming.put_nowait(grpc.aio.InternalError("broken"))
    await within(handler)
    assert (stream.ended, [str(each) for each in protocol.lost]) == (["abort"], ["broken"])

    handler, stream, protocol = served()
    await turns()
    handler.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(handler)
    await turns()
    assert (stream.ended, [str(each) for each in protocol.lost]) == ([], ["the stream was cut"])


async def test_a_connection_that_is_lost_while_its_stream_ends() -> None:
    """The node is told once that a link has ended, in whichever turn gRPC cancels its handler, and how often."""
    for count in range(6):
        handler, stream, protocol = served()
        await turns()
        stream.coming.put_nowait(grpc.aio.EOF)
        await turns(count)
        for _ in range(2):
            handler.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([handler])
        await turns()
        assert len(protocol.lost) == 1


async def test_given_up_before_it_began() -> None:
    """A protocol may abort while it is told that it is connected."""

    class Hasty(Reader):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.abort()

    stream, protocol = Stream(), Hasty()
    link = DialledLink(asyncio.get_running_loop(), protocol, 100, stream, stream)
    await within(link.task)
    assert protocol.lost == [None]
    stream, protocol = Stream(), Hasty()
    served_link: Link = ServedLink(asyncio.get_running_loop(), protocol, 100, stream, {})
    assert isinstance(served_link, ServedLink)
    await within(served_link.run())
    await turns()
    assert (protocol.lost, stream.ended) == ([None], ["abort"])


async def test_a_call_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client is told; one that is gone is none of gRPC's errors."""
    for error, raised in (
        (grpc.aio.AbortError("told"), grpc.aio.AbortError),
        (grpc.aio.InternalError("gone"), asyncio.CancelledError),
    ):
        stream = Stream()

        async def abort(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(stream, "abort", abort)
        with pytest.raises(raised):
            await refuse(stream, grpc.StatusCode.CANCELLED, "no")
