"""Making one connection to one address."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from redpoll import Address, DialFailed
from redpoll.transport.dial import dial, in_words, resolve, tune
from tests.node.support import turns, until, within
from tests.ports import free_port
from tests.transport.test_listen import ended, resolving

pytestmark = pytest.mark.asyncio


class Caller(asyncio.BufferedProtocol):
    """Notes that it is connected."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    async def hang_up(self) -> None:
        assert self.transport is not None
        self.transport.abort()
        await until(lambda: self.lost, "the end of the connection")


@contextlib.asynccontextmanager
async def connected(address: Address) -> AsyncIterator[Caller]:
    caller = Caller()
    await within(dial(address, lambda: caller, asyncio.get_running_loop()))
    try:
        yield caller
    finally:
        await caller.hang_up()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_tcp(host: str) -> None:
    """An IP address is dialled."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        async with connected(Address.of_socket(server.getsockname())) as caller:
            assert caller.transport is not None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_tuning(host: str) -> None:
    """A TCP link has no delay for small frames, and the system's probes."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server, socket.socket(family) as sock:
        sock.connect(server.getsockname())
        tune(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


async def test_unix(tmp_path: Path) -> None:
    """A unix socket is dialled by its path."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        async with connected(Address("unix", str(tmp_path / "s"))) as caller:
            assert caller.transport is not None


async def test_nobody_listens() -> None:
    """A refused connection is a DialFailed with the address and the system's words, the same on both loops."""
    port = free_port()
    with pytest.raises(DialFailed) as caught:
        await within(dial(Address("tcp", "127.0.0.1", port), Caller, asyncio.get_running_loop()))
    assert str(caught.value) == f"cannot connect to 127.0.0.1:{port}: Connection refused"
    assert caught.value.address == Address("tcp", "127.0.0.1", port)
    assert isinstance(caught.value.__cause__, OSError)


async def test_no_such_unix_socket(tmp_path: Path) -> None:
    """A path where nothing is says so; a file that nobody listens at refuses."""
    with pytest.raises(DialFailed) as caught:
        await within(dial(Address("unix", str(tmp_path / "s")), Caller, asyncio.get_running_loop()))
    assert str(caught.value) == f"cannot connect to unix:{tmp_path}/s: No such file or directory"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    with pytest.raises(DialFailed, match=r"Connection refused$"):
        await within(dial(Address("unix", str(tmp_path / "s")), Caller, asyncio.get_running_loop()))


async def test_no_such_inproc_name() -> None:
    """A name that no node of the process has is a DialFailed as well."""
    with pytest.raises(DialFailed, match="no node of this process listens there"):
        await dial(Address("inproc", "nobody"), Caller, asyncio.get_running_loop())


@pytest.mark.parametrize("progress", range(5))
async def test_cancelled_dialling_leaves_nothing_unseen(progress: int) -> None:
    """Cancelled at whatever moment, the socket is closed, at the latest when the protocol hangs up."""
    caller = Caller()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = Address.of_socket(server.getsockname())
        task = asyncio.ensure_future(dial(address, lambda: caller, asyncio.get_running_loop()))
        await turns(progress)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await within(task)
        await turns()
        if caller.transport is not None:
            # Not that connection_lost follows: uvloop has closed it then without a word.
            caller.transport.abort()
        with contextlib.suppress(BlockingIOError), server.accept()[0] as sock:
            sock.setblocking(False)
            await until(lambda: ended(sock), "the end at the other side")


async def test_addresses_need_no_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no name is returned as it is, without asking anybody."""

    async def fail(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fail, raising=False)
    for text in ("127.0.0.1:80", "[::1]:80", "unix:/tmp/s", "inproc:n"):
        address = Address.parse(text)
        assert await resolve(address, asyncio.get_running_loop()) == [address]


async def test_name_stands_for_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is looked up anew each time; each address is there once, in the resolver's order, of both families in turn."""
    loop = asyncio.get_running_loop()
    name = Address("tcp", "some-name", 7)
    resolving(monkeypatch, "::1", "127.0.0.1", "::1")
    assert await resolve(name, loop) == [Address("tcp", "::1", 7), Address("tcp", "127.0.0.1", 7)]
    resolving(monkeypatch, "127.0.0.2")
    assert await resolve(name, loop) == [Address("tcp", "127.0.0.2", 7)]
    resolving(monkeypatch, "::1", "::2", "::3", "127.0.0.1")
    assert [each.host for each in await resolve(name, loop)] == ["::1", "127.0.0.1", "::2", "::3"]
    resolving(monkeypatch)
    assert await resolve(name, loop) == []


async def test_localhost() -> None:
    """The name localhost resolves to loopback addresses."""
    found = await resolve(Address("tcp", "localhost", 7), asyncio.get_running_loop())
    assert found
    assert all(address.is_loopback and address.port == 7 for address in found)


async def test_unknown_name() -> None:
    """A name that nobody knows is a DialFailed that names it."""
    with pytest.raises(DialFailed, match=r"^cannot connect to nowhere\.invalid:7: the name cannot be resolved: "):
        await resolve(Address("tcp", "nowhere.invalid", 7), asyncio.get_running_loop())


async def test_what_failed_is_told_in_words() -> None:
    """An error has the system's words, unless its number is that of a failed look-up; one without a text has its class."""
    assert (
        in_words(ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('::1', 1)")) == "Connection refused"
    )
    assert "Name or service not known" in in_words(socket.gaierror(-2, "Name or service not known"))
    assert in_words(TimeoutError()) == "TimeoutError"


async def test_tuning_leaves_other_sockets_alone() -> None:
    """Unix sockets, and transports without a socket, are not touched."""
    tune(None)
    with socket.socket(socket.AF_UNIX) as sock:
        tune(sock)
