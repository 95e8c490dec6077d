"""A request on which the server of grpcio fails: its port is opened again."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from redpoll import Message, nq
from redpoll.address import Address
from redpoll.errors import ConfigError
from redpoll.nq.grpc import listening
from tests.conftest import EAGER
from tests.node.support import until, within
from tests.nq.grpc.support import echo, make
from tests.nq.support import options

pytestmark = [
    pytest.mark.asyncio,
    # Its task has ended with the error before anybody could ask for that.
    pytest.mark.skipif(EAGER, reason="gRPC itself leaves the error of a failed server behind where tasks are eager"),
]

PATIENCE = 20.0


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack("!I", stream) + payload


def _header(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


#: One request of HTTP/2, whose path is not UTF-8.
REQUEST = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + _frame(4, 0, 0, b"")
    + _frame(
        1,
        4,
        1,
        _header(b":method", b"POST")
        + _header(b":scheme", b"http")
        + _header(b":path", b"/\xc1\xff/x")
        + _header(b":authority", b"a")
        + _header(b"te", b"trailers")
        + _header(b"content-type", b"application/grpc"),
    )
)


async def send_request(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """Send it, and wait until gRPC has failed on it."""
    before = failures(caplog)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(REQUEST)
        await until(lambda: failures(caplog) > before, "failure of gRPC")


def failures(caplog: pytest.LogCaptureFixture) -> int:
    """How often gRPC said that it failed."""
    return sum(each.name == "grpc._cython.cygrpc" for each in caplog.records)


@pytest.mark.parametrize("closing", [False, True])
async def test_a_path_that_is_not_utf8(caplog: pytest.LogCaptureFixture, *, closing: bool) -> None:
    """After each such request a server listens again, with a warning: links stay, new clients get in; it closes as ever."""
    async with nq.aio.new("grpc", "server", options(nq.NetworkLocation("127.0.0.1", 0))) as server:
        at = server.netloc
        async with nq.aio.new("grpc", options=options(at)) as first:
            await first.ready(PATIENCE)
            for number in range(2):
                await send_request(at.port, caplog)
                async with nq.aio.new("grpc", options=options(at)) as second:
                    await second.ready(PATIENCE)
                    await asyncio.wait_for(second.put(number), PATIENCE)
                    assert (await server.get(timeout=PATIENCE)).data == number
                await asyncio.wait_for(first.put("on"), PATIENCE)
                assert (await server.get(timeout=PATIENCE)).data == "on"
            assert server.netloc == at
            line = next(each for each in caplog.messages if "it is open again" in each)
            assert f"gRPC closed the port of the server at {at}" in line
            assert "UnicodeDecodeError" in line
            assert first._endpoint.node.stats().reconnects == 0
        if closing:
            with socket.create_connection(("127.0.0.1", at.port)) as stranger:
                stranger.sendall(REQUEST)
                await server.close(timeout=PATIENCE)


async def test_a_former_server_ends_with_its_streams(caplog: pytest.LogCaptureFixture) -> None:
    """A server that broke is ended at once without streams, though the stranger stays; else when the last of them ends."""
    async with make(echo) as there, make(listen=False) as node:
        (listener,) = there._carrier._listeners  # type: ignore[attr-defined]
        with socket.create_connection(("127.0.0.1", there.address.port)) as stranger:
            stranger.sendall(REQUEST)
            await until(lambda: failures(caplog) == 1, "failure of gRPC")
            await until(lambda: not listener._broken, "end of the former server")
        await within(node.send(Message(b"", there.address)))
        await send_request(there.address.port, caplog)
        assert len(listener._broken) == 1
        await within(node.request(Message(b"", there.address)))
        assert len(listener._broken) == 1
        await node.stop()
        await until(lambda: not listener._broken, "end of the former server")


async def test_one_that_starts_while_streams_begin(caplog: pytest.LogCaptureFixture) -> None:
    """A server listens again also if streams began at another one of its loop while it started."""
    over = asyncio.Event()

    async def begin_streams(address: Address) -> None:
        while not over.is_set():
            async with make(listen=False) as node:
                await within(node.send(Message(b"", address)))

    async with make(echo) as other:
        beginning = [asyncio.create_task(begin_streams(other.address)) for _ in range(4)]
        for _ in range(4):
            async with make(echo) as there, make(listen=False) as former, make(listen=False) as later:
                await within(former.send(Message(b"", there.address)))
                await send_request(there.address.port, caplog)
                await within(later.send(Message(b"", there.address)))
        over.set()
        await asyncio.gather(*beginning)


async def test_a_port_that_is_taken_meanwhile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that cannot listen again ends: `get`, `ready` and `put` raise what says why."""
    monkeypatch.setattr(listening, "AGAIN", 0.2)
    async with nq.aio.new("grpc", "server", options(nq.NetworkLocation("127.0.0.1", 0))) as server:
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = Address.of_socket(other.getsockname())
            monkeypatch.setattr(listening, "_bindable", lambda _: [taken])
            await send_request(server.netloc.port, caplog)
            # It waits before the end comes; the others are made after it.
            get = partial(server.get, timeout=PATIENCE)
            calls: list[Callable[[], Awaitable[object]]] = [get, server.ready, partial(server.put, "x"), get]
            for call in calls:
                with pytest.raises(ConnectionAbortedError) as caught:
                    await call()
                cause = caught.value.__cause__
                assert isinstance(cause, ConfigError)
                assert "is in use at 127.0.0.1" in str(cause)
    assert any("this server stopped serving" in each for each in caplog.messages)
