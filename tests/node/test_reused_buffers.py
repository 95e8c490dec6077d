"""A send that succeeded gives the buffer back: what the caller does with it then, nobody sees."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from redpoll import Message, Node, Received
from tests.node.encrypted import Make
from tests.node.support import Inbox, make, within

pytestmark = pytest.mark.asyncio

KIB = 1024

#: Bytes around each size from which on a body takes another way.
SIZES = (
    1,
    10_000,
    *(limit * KIB + more for limit in (16, 32, 64) for more in (-27, 0, 1)),
    200_000,
    1024 * KIB,
    1024 * KIB + 1,
    3_000_000,
)

PATHS = ("tcp", "tls", "unix", "inproc")

each_path = pytest.mark.parametrize("path", PATHS)
each_mode = pytest.mark.parametrize("acknowledge", [True, False])


@pytest.fixture
def options(path: str, tmp_path: Path, issued: Make) -> dict[str, Any]:
    """What makes a node take a path; it may have much unread."""
    room = {"window": 256, "window_bytes": 64 * KIB * KIB}
    if path == "tls":
        return {**room, "encryption": True, "tls": issued()}
    hosts = {"tcp": "127.0.0.1", "unix": f"unix:{tmp_path / 'node'}", "inproc": "inproc:node"}
    return {**room, "host": hosts[path], **({} if path == "tcp" else {"port": None})}


async def send_reused(
    node: Node[Any], server: Node[Any], buffer: bytearray, data: Any, numbers: range, **options: Any
) -> None:
    """Send a buffer again and again, each time full of another number, which is written as soon as the send is done."""
    for number in numbers:
        buffer[:] = bytes((number,)) * len(buffer)
        await node.send(Message(data, server.address, **options.get("message", {})), acknowledge=options["acknowledge"])
        if data is buffer:
            # A view of it would be in the way.
            buffer.append(0)
            buffer.pop()
    buffer[:] = bytes((255,)) * len(buffer)


def check(inbox: Inbox, size: int, numbers: range) -> None:
    """Each message is full of its number, in order."""
    assert [message.data[:1] for message in inbox.messages] == [bytes((number,)) for number in numbers]
    torn = [message for message in inbox.messages if message.data != message.data[:1] * size]
    assert not torn


@each_path
@each_mode
@pytest.mark.parametrize(("header", "kind"), [(b"", bytearray), (b"header", memoryview)])
async def test_a_buffer_is_used_again_at_once(
    options: dict[str, Any], acknowledge: bool, header: bytes, kind: type[Any]
) -> None:
    """One buffer sent again and again arrives each time as it was, by every path, whatever its size."""
    inbox = Inbox()
    async with make(inbox, **options) as server, make(**{**options, "listen": False}) as client:
        await within(client.send(Message(b"warm", server.address)))
        for size in SIZES:
            inbox.messages.clear()
            buffer = bytearray(size)
            data = buffer if kind is bytearray else memoryview(buffer)
            numbers = range(4)
            await within(
                send_reused(client, server, buffer, data, numbers, acknowledge=acknowledge, message={"header": header})
            )
            await inbox.holds(len(numbers))
            check(inbox, size, numbers)


@each_path
@pytest.mark.parametrize("size", [20_000, 60_000, 200_000, 1_500_000])
async def test_a_buffer_is_used_again_though_nobody_reads(options: dict[str, Any], size: int) -> None:
    """What the other end does not read yet is with the system, or was copied, when the send is done."""
    inbox = Inbox()
    async with make(inbox, **options) as server, make(**{**options, "listen": False}) as client:
        await within(client.send(Message(b"warm", server.address)))
        inbox.messages.clear()
        buffer = bytearray(size)
        numbers = range(min(200, 12_000_000 // size))
        (connection,) = server._peers.connections
        connection.pause_reading()
        sending = asyncio.ensure_future(send_reused(client, server, buffer, buffer, numbers, acknowledge=False))
        for _ in range(50):
            await asyncio.sleep(0)
        connection.resume_reading()
        await within(sending)
        await inbox.holds(len(numbers))
        check(inbox, size, numbers)


@each_path
@pytest.mark.parametrize("size", [10_000, 20_000, 60_000, 200_000])
async def test_a_handler_uses_a_buffer_again(options: dict[str, Any], size: int) -> None:
    """What a handler sent may change as soon as its future is done, while the node still reads."""
    inbox = Inbox()
    buffer = bytearray(size)
    futures: list[asyncio.Future[None]] = []

    def handler(message: Received[Any]) -> None:
        while len(futures) < 20 and (not futures or futures[-1].done()):
            buffer[:] = bytes((len(futures),)) * size
            futures.append(message.node.send(message.reply(buffer), acknowledge=False))
        if futures[-1].done():
            buffer[:] = bytes((255,)) * size

    async with make(handler, **options) as server, make(inbox, **{**options, "listen": False}) as client:
        await within(client.send(Message(b"begin", server.address)))
        await within(asyncio.gather(*futures))
        await inbox.holds(len(futures))
        check(inbox, size, range(len(futures)))


@each_path
@each_mode
async def test_buffers_of_a_stream_are_used_again(options: dict[str, Any], acknowledge: bool) -> None:
    """The buffers of a stream may change once `send_many` returned, though nobody read yet."""
    inbox = Inbox()
    sizes = (100, 1_000, 20_000, 60_000, 200_000, 1_500_000)
    buffers = [bytearray(bytes((number,)) * size) for size in sizes for number in range(5)]
    async with make(inbox, **options) as server, make(**{**options, "listen": False}) as client:
        await within(client.send(Message(b"warm", server.address)))
        inbox.messages.clear()
        messages = [Message(buffer, server.address) for buffer in buffers]
        assert await within(client.send_many(messages, acknowledge=acknowledge)) == len(buffers)
        for buffer in buffers:
            buffer[:] = bytes((255,)) * len(buffer)
        await inbox.holds(len(buffers))
        expected = [bytes((number,)) * size for size in sizes for number in range(5)]
        assert [bytes(message.data) for message in inbox.messages] == expected


@each_path
@pytest.mark.parametrize("size", [1_000, 20_000, 60_000, 1_500_000])
async def test_a_buffer_is_used_again_behind_an_answer(options: dict[str, Any], size: int) -> None:
    """A buffer that a handler responded with may change when that is done."""
    buffer = bytearray(size)

    async def handler(message: Received[Any]) -> None:
        buffer[:] = message.data * size
        await message.respond(buffer)
        buffer[:] = bytes((255,)) * size

    async with make(handler, **options) as server, make(**{**options, "listen": False}) as client:
        numbers = [bytes((number,)) for number in range(20)]
        requests = [client.request(Message(number, server.address)) for number in numbers]
        answers = await within(asyncio.gather(*requests))
        assert [answer.data for answer in answers] == [number * size for number in numbers]
