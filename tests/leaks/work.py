"""What nodes do a million times: each work is a context that gives a function which does so many operations.

It returns when nothing of them is under way, so that what is held then is what they left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

from redpoll import Address, Message, Node, NoHandler, NotSent, QueueFull, Received, RedpollError, Refused
from tests.interop.raw import Frame, handshake
from tests.node.support import announcement, make, to, turns

__all__ = ["WORKS", "Operate"]

Operate = Callable[[int], Awaitable[None]]

_REQ_ACK = 0x01

#: Seconds after which what should have ended is taken as not ending.
_PATIENCE = 60.0

#: Closing a socket with this resets the connection: no port is left waiting for the last bytes of it.
_RESET = struct.pack("ii", 1, 0)

#: What a node writes in front of its first message, and what it reads before that is acknowledged.
_OPENING = 18 + 27


def _node(handler: Callable[[Any], Any] | None = None, **options: Any) -> Node[Any]:
    """A node that waits, on however busy a machine, where its work names no time."""
    return make(handler, timeout=_PATIENCE, keepalive=None, handshake_timeout=_PATIENCE, **options)


async def _until(condition: Callable[[], object]) -> None:
    """Wait until nothing is left that nodes count themselves."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _PATIENCE
    while not condition():
        assert loop.time() < end, "what was begun does not end, or is kept"
        await asyncio.sleep(0.001)


async def _in_batches(count: int, size: int, operate: Callable[[int], Awaitable[object]]) -> None:
    """Do `count` operations, by number, `size` at a time."""
    for first in range(0, count, size):
        await asyncio.gather(*(operate(number) for number in range(first, min(first + size, count))))


def _is_quiet(*nodes: Node[Any]) -> bool:
    """Whether nothing is under way at these nodes."""
    records = [node.stats() for node in nodes]
    return not any(record.in_flight or record.queued or record.slots_used for record in records)


def _addresses(folder: str) -> list[str]:
    return ["127.0.0.1", "::1", f"unix:{folder}/socket", "inproc:leaks"]


@contextlib.asynccontextmanager
async def connections() -> AsyncIterator[Operate]:
    """Nodes come, ask once, and leave; through every kind of address in turn."""
    with tempfile.TemporaryDirectory() as folder:
        async with _node(lambda message: message.data, host=tuple(_addresses(folder))) as server:

            async def come_and_go(number: int) -> None:
                async with _node(listen=False) as client:
                    await client.request(Message(b"ping", server.listening[number % 4]))

            async def operate(count: int) -> None:
                await _in_batches(count, 16, come_and_go)
                await _until(lambda: not server.stats().connections and not server.peers)

            yield operate


async def _stranger(address: Address, data: bytes, expected: int) -> None:
    """Connect, write, read so much, and be gone without a goodbye: by a reset over TCP."""
    family = socket.AF_UNIX if address.kind == "unix" else socket.AF_INET
    loop = asyncio.get_running_loop()
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        if family == socket.AF_INET:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        await loop.sock_connect(sock, address.host if family == socket.AF_UNIX else (address.host, address.port))
        if data:
            await loop.sock_sendall(sock, data)
        while expected > 0:
            received = await loop.sock_recv(sock, expected)
            assert received, "the node closed the link"
            expected -= len(received)


def _opening(*, redpoll: bool) -> bytes:
    """What a stranger writes: its handshake, its announcement if it has one, and a message to be acknowledged."""
    message = Frame(os.urandom(16), 1, _REQ_ACK, b"", b"hello").encode()
    return handshake(0, os.urandom(16)) + (announcement().encode() if redpoll else b"") + message


@contextlib.asynccontextmanager
async def _visited(visit: Callable[[int, Address], Awaitable[None]]) -> AsyncIterator[Operate]:
    """A node that strangers visit over TCP and a unix socket."""
    with tempfile.TemporaryDirectory() as folder:
        hosts = ("127.0.0.1", f"unix:{folder}/socket")
        # So many are remembered that vanished.
        async with _node(lambda message: None, host=hosts, backlog=256, max_connections=1_000) as server:

            async def operate(count: int) -> None:
                await _in_batches(count, 64, lambda number: visit(number, server.listening[number % 2]))
                await _until(lambda: not server.stats().connections and _is_quiet(server))

            yield operate


def strangers() -> contextlib.AbstractAsyncContextManager[Operate]:
    """Connections that end anywhere in the handshake, the announcement or the first message."""

    async def visit(number: int, address: Address) -> None:
        opening = _opening(redpoll=number % 4 < 2)
        await _stranger(address, opening[: number % len(opening)], 0)

    return _visited(visit)


def vanished() -> contextlib.AbstractAsyncContextManager[Operate]:
    """Nodes, redpoll's and libchirp's, whose one message is handled and that are gone then without a word."""

    async def visit(number: int, address: Address) -> None:
        await _stranger(address, _opening(redpoll=number % 4 < 2), _OPENING + 27)

    return _visited(visit)


@contextlib.asynccontextmanager
async def requests() -> AsyncIterator[Operate]:
    """Requests and sends of several sizes, acknowledged and not, 64 at a time."""

    async def handler(message: Received[bytes]) -> bytes:
        if len(message.data) % 2:
            await asyncio.sleep(0)
        if len(message.data) % 3 == 0:
            # The answer comes behind the acknowledgement then, and not with it.
            message.release()
        return message.data

    async with _node(handler, slots=16) as server, _node(listen=False, fragment_size=4096) as client:

        async def operate_one(number: int) -> None:
            message = to(server, bytes(20_000 if number % 64 == 0 else number % 100), header=b"h" * (number % 3))
            if number % 8 == 0:
                await client.send(message, acknowledge=number % 16 == 0)
            else:
                assert (await client.request(message)).data == message.data

        async def operate(count: int) -> None:
            await _in_batches(count, 64, operate_one)
            await _until(lambda: _is_quiet(server, client))

        yield operate


async def _handle_until_given_up(message: Received[bytes]) -> None:
    await message.cancelled.wait()


@contextlib.asynccontextmanager
async def cancellations() -> AsyncIterator[Operate]:
    """Sends and requests that are cancelled: in the queue, half written, in the peer's inbox, and being handled."""
    async with (
        _node(_handle_until_given_up, slots=4, window=16) as server,
        _node(listen=False, fragment_size=4096) as client,
    ):

        async def operate(count: int) -> None:
            for first in range(0, count, 64):
                numbers = range(first, min(first + 64, count))
                futures: list[asyncio.Future[Any]] = []
                for number in numbers:
                    message = to(server, bytes(20_000 if number % 32 == 0 else 10))
                    futures.append(client.request(message) if number % 2 else client.send(message))
                await turns(first // 64 % 8)
                for future in reversed(futures) if first // 64 % 2 else futures:
                    future.cancel()
                ends = await asyncio.gather(*futures, return_exceptions=True)
                assert all(isinstance(end, asyncio.CancelledError) for end in ends)
                await _until(lambda: _is_quiet(server, client))

        yield operate


async def _refuse(message: Received[bytes]) -> None:
    if message.data == b"raise":
        raise ValueError("on purpose")
    message.refuse("on purpose")


@contextlib.asynccontextmanager
async def refusals() -> AsyncIterator[Operate]:
    """Messages that fail: the handler raises, or refuses; nobody handles them; the queue is full; nobody is there."""
    async with (
        _node(_refuse, window=16) as server,
        _node(unclaimed_timeout=0.02, window=256) as deserted,
        _node(listen=False) as client,
        _node(listen=False, send_queue_limit=4) as hasty,
    ):

        async def fail(number: int) -> None:
            kind = number % 5
            sender = hasty if kind == 3 else client
            target: Node[Any] = deserted if kind == 2 else server
            data = b"raise" if kind == 0 else b"refuse"
            message = Message(data, "inproc:nobody") if kind == 4 else to(target, data)
            sending = sender.request(message, dial="once") if number % 2 else sender.send(message, dial="once")
            expected = (Refused, Refused, NoHandler, (QueueFull, Refused), NotSent)[kind]
            try:
                await sending
            except RedpollError as error:
                assert isinstance(error, expected), error  # noqa: PT017  # it may be one of two
            else:
                raise AssertionError("it did not fail")

        async def operate(count: int) -> None:
            await _in_batches(count, 1_000, fail)
            await _until(lambda: _is_quiet(server, deserted, client, hasty))

        yield operate


async def _handle_or_wait(message: Received[bytes]) -> None:
    if message.data == b"wait":
        await message.cancelled.wait()


@contextlib.asynccontextmanager
async def timeouts() -> AsyncIterator[Operate]:
    """Messages whose time ends: being handled, waiting there or here, without an answer, while nobody can be dialled."""
    with tempfile.TemporaryDirectory() as folder:
        async with _node(_handle_or_wait, slots=128, window=256) as server, _node(listen=False) as client:

            async def expire(number: int) -> None:
                kind = number % 4
                if kind == 0:
                    # Each of these is a peer of its own.
                    sending: asyncio.Future[Any] = client.send(Message(b"", f"unix:{folder}/{number}"), timeout=0.02)
                else:
                    sending = client.request(to(server, b"" if kind == 1 else b"wait"), timeout=0.02)
                try:
                    await sending
                except TimeoutError:
                    return
                raise AssertionError("it did not end with its time")

            async def operate(count: int) -> None:
                await _in_batches(count, 2_000, expire)
                await _until(lambda: _is_quiet(server, client) and len(client.peers) == 1)

            yield operate


#: By name: the work, and after how many operations what is kept for a time is as much as it gets.
WORKS: Mapping[str, tuple[Callable[[], contextlib.AbstractAsyncContextManager[Operate]], int]] = MappingProxyType(
    {
        "connections": (connections, 1_000),
        "strangers": (strangers, 2_000),
        # Of half of these as many are remembered as may be linked.
        "vanished": (vanished, 2_500),
        "requests": (requests, 2_000),
        "cancellations": (cancellations, 2_000),
        # As many outcomes as are remembered of a window.
        "refusals": (refusals, 6_000),
        # As many addresses as are remembered by their texts.
        "timeouts": (timeouts, 8_000),
    }
)
