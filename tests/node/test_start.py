"""Start: where a node listens, and what keeps it from it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from redpoll import (
    Address,
    Closed,
    ConfigError,
    Message,
    Node,
    NotSent,
    UsageError,
)
from tests.node.support import (
    Inbox,
    make,
    not_running,
    to,
    turns,
    until,
    within,
)
from tests.ports import free_port
from tests.transport.test_listen import resolving


@pytest.mark.asyncio
async def test_default_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a port a node with a handler takes redpoll's, and one without takes any free one."""
    monkeypatch.setattr("redpoll.node.base.DEFAULT_PORT", port := free_port())
    async with Node(Inbox()) as served, Node() as pulled:
        assert served.address == Address("tcp", "127.0.0.1", port)
        assert pulled.address.port not in {0, port}


@pytest.mark.asyncio
async def test_port_zero_is_any_and_the_same_on_both_families() -> None:
    """Port 0 is one free port for both families, and it is what the node announces."""
    inbox = Inbox()
    async with make(inbox, host=("127.0.0.1", "::1")) as server, make(host=("::1", "127.0.0.1")) as client:
        assert [address.host for address in server.listening] == ["127.0.0.1", "::1"]
        assert len({address.port for address in server.listening}) == 1
        assert server.address == server.listening[0]
        for address in server.listening:
            await within(client.send(Message(b"hello", address)))
        ports = {message.address.port for message in inbox.messages if message.address is not None}
        assert ports == {client.address.port}


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_hosts(host: str) -> None:
    """A node listens at an IPv4 address, an IPv6 address and a name, and is dialled there by its address."""
    inbox = Inbox(answer=b"yes")
    async with make(inbox, host=host) as server, make(listen=False) as client:
        assert not server.address.is_name
        assert (await within(client.request(to(server)))).data == b"yes"


@pytest.mark.asyncio
async def test_unix_socket(tmp_path: Path) -> None:
    """A node listens at a unix socket, over a stale one, and takes it away when it stops."""
    path = tmp_path / "node"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with make(Inbox(answer=b"yes"), host=f"unix:{path}") as server, make(listen=False) as client:
        assert str(server.address) == f"unix:{path}"
        assert (await within(client.request(to(server)))).data == b"yes"
    assert not path.exists()


@pytest.mark.asyncio
async def test_backlog_holds_what_is_not_accepted(tmp_path: Path) -> None:
    """While a node accepts nobody, so many connections wait at its socket, and one; the system turns away the next."""
    path = str(tmp_path / "socket")
    with contextlib.ExitStack() as stack:
        async with make(Inbox(), host=f"unix:{path}", backlog=3) as node:
            strangers = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(5)]
            for stranger in strangers:
                stranger.setblocking(False)
            for stranger in strangers[:4]:
                stranger.connect(path)
            with pytest.raises(BlockingIOError):
                strangers[4].connect(path)
            await until(lambda: node.stats().connections == 4, "those that waited")
            strangers[4].connect(path)


@pytest.mark.asyncio
async def test_any_address_is_dialled_on_loopback() -> None:
    """The address of a node that listens on all interfaces is one that can be dialled."""
    async with make(Inbox(), host="0.0.0.0", encryption=False) as four, make(host="::", encryption=False) as six:
        assert four.address.host == "127.0.0.1"
        assert six.address.host == "::1"
        await within(six.send(to(four)))


@pytest.mark.asyncio
async def test_public_port_is_announced() -> None:
    """A node with a public port announces that one, and names it in its address."""
    public = free_port()
    inbox = Inbox()
    async with make(inbox) as server, make(public_port=public) as client:
        assert client.address.port == public != client.listening[0].port
        await within(client.send(to(server)))
        assert inbox.messages[0].address == Address("tcp", "127.0.0.1", public)


@pytest.mark.asyncio
async def test_node_that_does_not_listen() -> None:
    """A node that does not listen has no address, and is answered over its link."""
    inbox = Inbox(answer=b"over the link")
    async with make(inbox) as server, make(listen=False) as client:
        assert client.listening == ()
        with pytest.raises(Closed, match="the listener is not running"):
            _ = client.address
        with pytest.raises(Closed, match="the node is not running"):
            _ = make().address
        assert (await within(client.request(to(server)))).data == b"over the link"
        sent = server.send(inbox.messages[0].reply(b"later"))
        async with client.take(5) as later:
            assert later.data == b"later"
        await within(sent)
        assert (server.stats().connections, client.stats().connections) == (1, 1)


@pytest.mark.asyncio
async def test_busy_port() -> None:
    """A port that is taken is a ConfigError that names it, and the node may be started again when it is free."""
    first = make()
    await first.start()
    second = make(port=first.address.port)
    with pytest.raises(ConfigError, match=f"port={first.address.port}: is in use at 127.0.0.1"):
        await second.start()
    await first.stop()
    await not_running(second, "start it first: async with node, or await node.start()")
    async with second:
        assert second.address.port


@pytest.mark.asyncio
async def test_off_loopback_needs_encryption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listening or dialling off loopback in the clear has to be asked for, also by a name."""
    with pytest.raises(ConfigError, match="requires TLS, but there are no certificates"):
        await make(host="0.0.0.0").start()
    resolving(monkeypatch, "192.0.2.7")
    with pytest.raises(ConfigError, match=r"192\.0\.2\.7:\d+ requires TLS"):
        await make(host="elsewhere").start()
    async with make() as node:
        with pytest.raises(NotSent, match=r"192\.0\.2\.7:7 requires TLS") as caught:
            await within(node.send(Message(b"x", "elsewhere:7")))
        assert isinstance(caught.value.__cause__, ConfigError)


@pytest.mark.asyncio
async def test_bad_addresses() -> None:
    """What is no address is a UsageError at once; an address nobody can be dialled at as well."""
    async with make() as node:
        for text in ("127.0.0.1", "::1:2998", "127.0.0.1:99999", "unix:", "inproc:"):
            with pytest.raises(UsageError):
                node.send(Message(b"x", text))
        with pytest.raises(UsageError, match="the message has no address"):
            node.send(Message(b"x"))
        with pytest.raises(UsageError, match=r"127\.0\.0\.1:0 cannot be dialled"):
            node.send(Message(b"x", "127.0.0.1:0"))


@pytest.mark.asyncio
async def test_started_once() -> None:
    """A node is started once, also after it has stopped."""
    node = make()
    await node.start()
    with pytest.raises(UsageError, match="this node is running: a node can be started only once"):
        await node.start()
    await node.stop()
    with pytest.raises(UsageError, match="this node is stopped: a node can be started only once"):
        await node.start()


@pytest.mark.asyncio
async def test_cancelled_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that is cancelled while a name is looked up leaves nothing open, and can be made again."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    async def hang(*_: object, **__: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(loop, "getaddrinfo", hang, raising=False)
    node = make(host=("127.0.0.1", "some-name"))
    start = asyncio.ensure_future(node.start())
    await within(asked.wait())
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert "new" in repr(node)


def test_started_outside_asyncio() -> None:
    """Where another library runs the coroutine, as trio does, that is a UsageError that says what a node needs."""
    starting = make().start()
    with pytest.raises(UsageError, match=r"no asyncio event loop is running \(.*anyio_backend"):
        starting.send(None)


def slow_lookup(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Make looking names up wait: it sets the first event when it is asked, and goes on with the second."""
    asked, found = asyncio.Event(), asyncio.Event()

    async def slow(host: str, port: int, **_: object) -> list[Any]:
        asked.set()
        await found.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", slow, raising=False)
    return asked, found


@pytest.mark.asyncio
async def test_started_twice_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two starts at once the second is a UsageError, and the node that runs is the first's."""
    asked, found = slow_lookup(monkeypatch)
    node = make(host="some-name")
    start = asyncio.ensure_future(node.start())
    await within(asked.wait())
    second = asyncio.ensure_future(node.start())
    await turns()
    found.set()
    with pytest.raises(UsageError, match="this node is starting: a node can be started only once"):
        await within(second)
    await within(start)
    assert len(node.listening) == 1
    await within(node.stop())


@pytest.mark.asyncio
async def test_stop_during_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is stopped while it starts does not run afterwards."""
    asked, found = slow_lookup(monkeypatch)
    node = make(host="some-name")
    start = asyncio.ensure_future(node.start())
    await within(asked.wait())
    await node.stop()
    found.set()
    with pytest.raises(Closed):
        await within(start)
    assert node.listening == ()
