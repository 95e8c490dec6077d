"""Listening: where, on which port, and who is let in."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from redpoll import Address, ConfigError, DialFailed
from redpoll.config import Config, is_encrypted
from redpoll.transport import inproc
from redpoll.transport.listen import Listener, _tcp_socket
from tests.interop.raw import DisconnectedError, RawLink
from tests.node.support import elapse, until, within
from tests.ports import free_port

pytestmark = pytest.mark.asyncio


class Guest(asyncio.BufferedProtocol):
    """What an acceptor makes of a connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.lost: list[BaseException | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods only

    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(64)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Acceptor:
    """An acceptor that lets in whom `admit` says, and notes who came."""

    def __init__(self, admit: Callable[[Address], bool] = lambda _: True) -> None:
        self.admit = admit
        self.asked: list[Address] = []
        self.guests: list[Guest] = []

    def admits(self, remote: Address) -> bool:
        self.asked.append(remote)
        return self.admit(remote)

    def accepted(self, remote: Address) -> asyncio.BufferedProtocol:
        self.guests.append(Guest())
        return self.guests[-1]

    @property
    def present(self) -> int:
        return sum(guest.transport is not None for guest in self.guests)

    def all_present(self) -> bool:
        return self.present == len(self.guests)


def anywhere(_: Address) -> None:
    """No address is refused."""


@contextlib.asynccontextmanager
async def listening(
    *hosts: str, port: int = 0, acceptor: Acceptor | None = None, check: Callable[[Address], object] = anywhere
) -> AsyncIterator[Listener]:
    listener = Listener(acceptor or Acceptor(), asyncio.get_running_loop(), backlog=100)
    await listener.open(hosts, port, check)
    listener.accept()
    try:
        yield listener
    finally:
        listener.close()
        await within(listener.wait_closed())
        for guest in acceptor.guests if acceptor is not None else ():
            if guest.transport is not None:
                guest.transport.abort()
                await until(partial(len, guest.lost), "the end of a connection")


def dialled(address: Address) -> socket.socket:
    """A plain connection to an address."""
    if address.kind == "unix":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address.host)
        return sock
    return socket.create_connection((address.host, address.port))


def ended(sock: socket.socket) -> bool:
    """Whether the other end of a socket that does not block is gone."""
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let every name stand for these addresses."""

    async def getaddrinfo(host: object, port: int, **_: Any) -> list[Any]:
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in addresses
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost"])
async def test_host_is_listened_at(host: str) -> None:
    """An IPv4 address, an IPv6 address with or without brackets, and a name are listened at."""
    acceptor = Acceptor()
    async with listening(host, acceptor=acceptor) as listener:
        for address in listener.addresses:
            assert not address.is_name
            assert address.port == listener.port > 0
            with dialled(address):
                await until(lambda: acceptor.present == len(acceptor.asked) > 0, "a guest")
        assert {remote.host for remote in acceptor.asked} == {address.host for address in listener.addresses}


async def test_a_loop_that_has_no_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the loop does not say who is there (Windows), connections are accepted all the same, until it is closed."""

    def refuse(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse, raising=False)
    acceptor = Acceptor()
    async with listening("127.0.0.1", acceptor=acceptor) as listener:
        with dialled(listener.addresses[0]), dialled(listener.addresses[0]):
            await until(lambda: acceptor.present == 2, "two guests")
        address = listener.addresses[0]
    with pytest.raises(ConnectionRefusedError), dialled(address):
        pass
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "redpoll accept"]


async def test_port_is_the_one_asked_for() -> None:
    """A port that was asked for is the one that is listened on."""
    port = free_port()
    async with listening("127.0.0.1", port=port) as listener:
        assert listener.port == port
        assert listener.addresses == [Address("tcp", "127.0.0.1", port)]


async def test_any_port_is_the_same_on_both_families() -> None:
    """Port 0 is a free port, one and the same for IPv4 and IPv6."""
    async with listening("127.0.0.1", "::1") as listener:
        assert [address.host for address in listener.addresses] == ["127.0.0.1", "::1"]
        assert len({address.port for address in listener.addresses}) == 1


async def test_port_taken_in_one_family_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the free port of the first family is taken in the second, both get another one."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        handed_out = iter([taken.getsockname()[1]])

        def first_taken(host: str, port: int, backlog: int) -> socket.socket:
            # The system gives the taken port to the first that asks for any, as it might by chance.
            return _tcp_socket(host, port or next(handed_out, 0), backlog)

        monkeypatch.setattr("redpoll.transport.listen._tcp_socket", first_taken)
        async with listening("127.0.0.1", "::1") as listener:
            ports = {address.port for address in listener.addresses}
            assert len(ports) == 1
            assert ports != {taken.getsockname()[1]}
            assert next(handed_out, None) is None


async def test_addresses_come_in_the_order_of_the_hosts(tmp_path: Path) -> None:
    """Addresses stand in the order in which their hosts were given, whatever their kind."""
    path = tmp_path / "s"
    async with listening(f"unix:{path}", "127.0.0.1", "inproc:order") as listener:
        assert [address.kind for address in listener.addresses] == ["unix", "tcp", "inproc"]
        assert listener.port == listener.addresses[1].port


async def test_port_without_tcp_is_zero(tmp_path: Path) -> None:
    """Where only unix sockets are listened at there is no port."""
    async with listening(f"unix:{tmp_path / 's'}") as listener:
        assert listener.port == 0


async def test_busy_port_is_named() -> None:
    """A port that another process has is a ConfigError that names it and says what to do."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            async with listening("127.0.0.1", port=port):
                pass
    assert str(caught.value) == (
        f"port={port}: is in use at 127.0.0.1 (another process listens there; port=0 takes any free port)"
    )
    assert caught.value.field == "port"
    assert isinstance(caught.value.__cause__, OSError)


async def test_busy_port_in_one_family_leaves_nothing_open() -> None:
    """Where the second family cannot have the port, the first one's socket is closed again."""
    port = free_port()  # in both families, and given to nobody else
    with socket.create_server(("::1", port), family=socket.AF_INET6):
        with pytest.raises(ConfigError, match=f"port={port}: is in use at ::1"):
            async with listening("127.0.0.1", "::1", port=port):
                pass
        with socket.create_server(("127.0.0.1", port)):
            pass


async def test_host_of_another_machine() -> None:
    """An address that this machine does not have is a ConfigError that names it."""
    with pytest.raises(ConfigError) as caught:
        async with listening("192.0.2.1"):
            pass
    assert str(caught.value) == "host='192.0.2.1': cannot listen: Cannot assign requested address"


async def test_unknown_name() -> None:
    """A name that nobody knows is a ConfigError that names it."""
    with pytest.raises(ConfigError, match=r"^host='nowhere\.invalid': cannot be resolved: "):
        async with listening("nowhere.invalid"):
            pass


async def test_privileged_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that this user may not have is a ConfigError with the reason."""

    def refuse(host: str, port: int, backlog: int) -> socket.socket:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("redpoll.transport.listen._tcp_socket", refuse)
    with pytest.raises(ConfigError) as caught:
        async with listening("127.0.0.1", port=80):
            pass
    assert str(caught.value) == "port=80: permission denied (ports below 1024 require privileges)"


async def test_name_may_stand_for_more_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the addresses of a name, those that this machine has are listened at."""
    resolving(monkeypatch, "192.0.2.1", "127.0.0.1")
    async with listening("some-name") as listener:
        assert [address.host for address in listener.addresses] == ["127.0.0.1"]


async def test_name_that_stands_for_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name all of whose addresses are elsewhere cannot be listened at."""
    resolving(monkeypatch, "192.0.2.1")
    with pytest.raises(ConfigError, match=r"host='192\.0\.2\.1': cannot listen"):
        async with listening("some-name"):
            pass


async def test_check_sees_addresses_and_not_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encryption is judged by what a name stands for, before anything is bound."""
    config = Config()
    resolving(monkeypatch, "127.0.0.1")
    async with listening("some-name", check=partial(is_encrypted, config=config)):
        pass
    resolving(monkeypatch, "127.0.0.1", "192.0.2.1")
    with pytest.raises(ConfigError, match=r"^encryption='auto': 192\.0\.2\.1:0 requires TLS"):
        async with listening("some-name", check=partial(is_encrypted, config=config)):
            pass


# Unix sockets


async def test_unix_socket_is_listened_at_and_removed(tmp_path: Path) -> None:
    """A unix socket takes connections, all of one host, and its file is gone after closing."""
    path = tmp_path / "s"
    acceptor = Acceptor()
    async with listening(f"unix:{path}", acceptor=acceptor) as listener:
        with dialled(listener.addresses[0]):
            await until(lambda: acceptor.present, "a guest")
        assert acceptor.asked == [Address("unix", "")]
    assert not path.exists()


async def test_stale_unix_socket_is_replaced(tmp_path: Path) -> None:
    """A socket file that a dead process left behind is no obstacle."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert stat.S_ISSOCK(path.stat().st_mode)
    acceptor = Acceptor()
    async with listening(f"unix:{path}", acceptor=acceptor) as listener:
        with dialled(listener.addresses[0]):
            await until(lambda: acceptor.present, "a guest")


async def test_living_unix_socket_stays(tmp_path: Path) -> None:
    """A socket that somebody listens at is not taken away, not even when its backlog is full."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as living, contextlib.ExitStack() as stack:
        living.bind(str(path))
        living.listen(0)
        for _ in range(2):  # with a backlog of nothing Linux holds one; the second would block
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(str(path))
        with pytest.raises(ConfigError) as caught:
            async with listening(f"unix:{path}"):
                pass
        assert (caught.value.field, caught.value.value) == ("host", f"unix:{path}")
        assert caught.value.problem == "cannot listen: Address already in use"
        assert path.exists()


async def test_other_files_are_not_replaced(tmp_path: Path) -> None:
    """A file that is no socket is left alone, and listening fails."""
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="cannot listen: Address already in use"):
        async with listening(f"unix:{path}"):
            pass
    assert path.read_text() == "precious"


async def test_socket_in_no_folder(tmp_path: Path) -> None:
    """A path in a folder that is not there is a ConfigError."""
    with pytest.raises(ConfigError, match=r"/no/s': cannot listen: No such file or directory"):
        async with listening(f"unix:{tmp_path}/no/s"):
            pass


async def test_socket_of_another_is_not_removed(tmp_path: Path) -> None:
    """Closing removes the file only while it is the one that was bound."""
    path = tmp_path / "s"
    async with listening(f"unix:{path}"):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.exists()


async def test_socket_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    """Closing does not mind that the file, or its folder, is gone."""
    folder = tmp_path / "folder"
    folder.mkdir()
    async with listening(f"unix:{folder / 's'}"):
        (folder / "s").unlink()
        folder.rmdir()


# In this process


async def test_inproc_name_is_taken_and_given_back() -> None:
    """A name belongs to one listener at a time."""
    async with listening("inproc:name"):
        with pytest.raises(ConfigError) as caught:
            async with listening("inproc:name"):
                pass
        assert str(caught.value) == "host='inproc:name': another node of this process listens there"
    async with listening("inproc:name"):
        pass


async def test_failure_gives_all_back(tmp_path: Path) -> None:
    """When one host cannot be had, those before it are given back: name, file and port."""
    path = tmp_path / "s"
    with socket.create_server(("127.0.0.1", 0)) as sock, pytest.raises(ConfigError):
        async with listening("inproc:n", f"unix:{path}", "127.0.0.1", port=sock.getsockname()[1]):
            pass
    assert not path.exists()
    async with listening("inproc:n", f"unix:{path}", "127.0.0.1"):
        with pytest.raises(ConfigError, match="inproc:n"):
            async with listening("127.0.0.1", f"unix:{tmp_path / 't'}", "inproc:n"):
                pass
        assert not (tmp_path / "t").exists()


# Strangers


async def test_stranger_is_turned_away() -> None:
    """A connection that is not admitted is closed without a byte, and the next one is judged anew."""
    acceptor = Acceptor(admit=lambda _: len(acceptor.asked) > 1)
    async with listening("127.0.0.1", acceptor=acceptor) as listener:
        first = await RawLink.dial("127.0.0.1", listener.port)
        with pytest.raises(DisconnectedError) as caught:
            await first.read(1)
        assert caught.value.read == b""
        first.close()
        with dialled(listener.addresses[0]):
            await until(lambda: acceptor.present == 1, "the second guest")


async def test_inproc_stranger_is_turned_away() -> None:
    """A link inside the process is admitted like any other."""
    async with listening("inproc:strict", acceptor=Acceptor(admit=lambda _: False)):
        with pytest.raises(DialFailed) as caught:
            inproc.connect(Address("inproc", "strict"), Guest, asyncio.get_running_loop())
        assert str(caught.value) == "cannot connect to inproc:strict: its node accepts no more links"


async def test_accepted_sockets_are_tuned() -> None:
    """Each accepted TCP connection has no delay for small frames, and the system's own probes."""
    acceptor = Acceptor()
    async with listening("127.0.0.1", acceptor=acceptor) as listener:
        with dialled(listener.addresses[0]):
            await until(lambda: acceptor.present, "a guest")
        transport = acceptor.guests[0].transport
        assert transport is not None
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


async def test_nobody_is_accepted_before_accept() -> None:
    """Between `open` and `accept` connections wait in the backlog."""
    acceptor = Acceptor()
    listener = Listener(acceptor, asyncio.get_running_loop(), backlog=100)
    await listener.open(("127.0.0.1",), 0, anywhere)
    with dialled(listener.addresses[0]):
        for _ in range(10):
            await asyncio.sleep(0)
        assert not acceptor.asked
        listener.accept()
        await until(lambda: acceptor.present, "a guest")
    listener.close()
    transport = acceptor.guests[0].transport
    assert transport is not None
    transport.abort()
    await until(lambda: acceptor.guests[0].lost, "the end of the connection")


class Exhausted(socket.socket):
    """A listening socket of a process that has no file descriptors left, until it has."""

    over = False

    @classmethod
    def instead(cls, host: str, port: int, backlog: int) -> socket.socket:
        return cls(fileno=_tcp_socket(host, port, backlog).detach())

    def accept(self) -> tuple[socket.socket, Any]:
        if not Exhausted.over:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


@pytest.fixture
def exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redpoll.transport.listen._EXHAUSTED_PAUSE", 0.01)
    monkeypatch.setattr("redpoll.transport.listen._tcp_socket", Exhausted.instead)
    monkeypatch.setattr(Exhausted, "over", False)


@pytest.mark.usefixtures("exhausted")
async def test_exhaustion_is_a_pause(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without file descriptors accepting pauses, with a warning, and goes on when there are some again."""
    acceptor = Acceptor()
    async with listening("127.0.0.1", acceptor=acceptor) as listener:
        with dialled(listener.addresses[0]):
            await until(lambda: caplog.messages, "a warning")
            where = listener.addresses[0]
            assert caplog.messages[0] == f"cannot accept at {where}: Too many open files; retrying in 0.01 s"
            assert not acceptor.asked
            monkeypatch.setattr(Exhausted, "over", True)
            await until(lambda: acceptor.present, "a guest")


@pytest.mark.usefixtures("exhausted")
async def test_closing_while_exhausted(caplog: pytest.LogCaptureFixture) -> None:
    """A listener that is closed in that pause does not begin again."""
    async with listening("127.0.0.1") as listener:
        with dialled(listener.addresses[0]):
            await until(lambda: caplog.messages, "a warning")
    # It would fail on the loop, whose errors fail every test.
    await elapse(0.05)
    assert len(caplog.messages) == 1


async def test_connection_that_ends_while_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that fails before it has a transport is closed, and its protocol is told."""

    def fail(sock: socket.socket | None) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr("redpoll.transport.listen.tune", fail)
    acceptor = Acceptor()
    async with listening("127.0.0.1", acceptor=acceptor) as listener:
        with dialled(listener.addresses[0]) as sock:
            await until(lambda: acceptor.guests and acceptor.guests[0].lost, "the end of the connection")
            sock.setblocking(False)
            await until(lambda: ended(sock), "the end at the other side")
        assert acceptor.present == 0


async def test_closing_amid_connections_leaves_none_behind() -> None:
    """Whatever moment it is closed at, each connection has been accepted, or was never."""
    for turns in range(6):
        acceptor = Acceptor()
        async with listening("127.0.0.1", acceptor=acceptor) as listener:
            clients = [dialled(listener.addresses[0]) for _ in range(5)]
            for _ in range(turns):
                await asyncio.sleep(0)
            listener.close()
            await within(listener.wait_closed())
            assert len(acceptor.asked) == len(acceptor.guests)
            await until(acceptor.all_present, "their transports")
        for client in clients:
            client.close()


async def test_burst_is_accepted_whole() -> None:
    """More connections than are accepted in one turn are all accepted."""
    acceptor = Acceptor()
    async with listening("127.0.0.1", acceptor=acceptor) as listener:
        clients = [dialled(listener.addresses[0]) for _ in range(90)]
        await until(lambda: acceptor.present == 90, "all guests")
        for client in clients:
            client.close()
