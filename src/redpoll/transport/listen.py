"""The accept loop: connections are counted and may be rejected before any resources are spent on them."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from redpoll.address import Address
from redpoll.errors import ConfigError
from redpoll.platforms import UNIX_SOCKETS, bind_alone, is_unix
from redpoll.transport.dial import in_words, tune
from redpoll.transport.inproc import InprocListener

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Acceptor", "Listener"]

_logger = logging.getLogger("redpoll.transport")

#: Pause in seconds when the system has no file descriptors or memory for another connection.
_EXHAUSTED_PAUSE = 0.2
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

#: Errors of binding to an address that a name resolves to and this machine does not have.
_NOT_HERE = frozenset((errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT))

#: Maximum connections accepted in a row before the event loop gets its turn.
_ACCEPTS_PER_TURN = 64

#: Maximum attempts to find a free port where the one chosen for one family is taken in the other.
_PORT_TRIES = 20


class Acceptor(Protocol):
    """Decides which connections are accepted."""

    def admits(self, remote: Address) -> bool:
        """Return True if a connection from `remote` may be accepted; False closes it unread."""

    def accepted(self, remote: Address) -> asyncio.BufferedProtocol:
        """Make the protocol for a connection, which counts from now on until `connection_lost` is called."""


class Listener:
    """Listens at some hosts and accepts connections for one node, until it is closed."""

    def __init__(self, acceptor: Acceptor, loop: asyncio.AbstractEventLoop, backlog: int) -> None:
        self._acceptor = acceptor
        self._loop = loop
        self._backlog = backlog
        self._sockets: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        #: The tasks that accept, if the loop cannot watch a listening socket (Windows).
        self._waiting: dict[socket.socket, asyncio.Task[None]] = {}
        #: Accepted connections that have no transport yet.
        self._tasks: set[asyncio.Task[None]] = set()
        self._inproc: list[InprocListener] = []
        #: The paths of unix sockets, with device and inode.
        self._unix: list[tuple[Path, int, int]] = []
        self.addresses: list[Address] = []

    @property
    def port(self) -> int:
        """The TCP port, the same at all hosts; 0 if there is none."""
        return next((address.port for address in self.addresses if address.kind == "tcp"), 0)

    @property
    def descriptors(self) -> list[int]:
        """The file descriptors of its sockets."""
        return [each.fileno() for each in self._sockets]

    async def open(self, hosts: tuple[str, ...], port: int, check: Callable[[Address], object]) -> None:
        """Bind and listen at all hosts; no connection is accepted before `accept()`.

        Args:
            hosts: As in `Config.host`.
            port: The TCP port; 0 is any free one.
            check: Called with each address, names resolved, before any is bound; raises an error to refuse it.

        Raises:
            ConfigError: A host cannot be resolved or bound, or the port is taken; nothing is left open.
        """
        # Address to whether a name resolved to it. All waiting is done first: listening begins everywhere at once.
        found: dict[Address, bool] = {}
        for host in hosts:
            address = Address.of_host(host, port)
            for each in await self._lookup(address):
                found[each] = found.get(each, True) and address.is_name
        for address in found:
            check(address)
        try:
            tcp = self._bind_tcp({address: named for address, named in found.items() if address.kind == "tcp"}, port)
            for address in found:
                if address.kind == "unix":
                    self._bind_unix(address)
                elif address.kind == "inproc":
                    self._inproc.append(InprocListener(address.host, partial(self._admit, address), self._loop))
                elif address not in tcp:
                    continue
                self.addresses.append(Address.of_socket(tcp[address].getsockname()) if address in tcp else address)
        except BaseException:
            self.close()
            raise

    def accept(self) -> None:
        """Start accepting connections."""
        for sock in self._sockets:
            self._watch(sock)

    def _watch(self, listening: socket.socket) -> None:
        try:
            self._loop.add_reader(listening, self._accept, listening)
        except NotImplementedError:
            self._waiting[listening] = self._loop.create_task(self._wait(listening), name="redpoll accept")

    async def _lookup(self, address: Address) -> list[Address]:
        if not address.is_name:
            return [address]
        try:
            found = await self._loop.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except OSError as error:
            raise ConfigError("host", address.host, f"cannot be resolved: {error.strerror or error}") from error
        return [Address.of_socket(sockaddr) for _, _, _, _, sockaddr in found]

    def _bind_tcp(self, addresses: dict[Address, bool], port: int) -> dict[Address, socket.socket]:
        tries = _PORT_TRIES
        while True:
            bound: dict[Address, socket.socket] = {}
            try:
                self._bind_each(addresses, port, bound)
            except ConfigError as error:
                for sock in bound.values():
                    sock.close()
                tries -= 1
                taken = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
                if port or not tries or not bound or not taken:
                    raise
            else:
                self._sockets += bound.values()
                return bound

    def _bind_each(self, addresses: dict[Address, bool], port: int, bound: dict[Address, socket.socket]) -> None:
        """Bind all addresses to one port; of those that a name resolves to, the ones that this machine has."""
        failure: ConfigError | None = None
        for address, named in addresses.items():
            try:
                sock = bound[address] = _tcp_socket(address.host, port, self._backlog)
            except OSError as error:
                failure = _cannot_listen(address, port, error)
                failure.__cause__ = error
                if not named or error.errno not in _NOT_HERE:
                    raise failure from error
            else:
                port = sock.getsockname()[1]
        if failure is not None and not bound:
            raise failure

    def _bind_unix(self, address: Address) -> None:
        if not UNIX_SOCKETS:
            raise ConfigError("host", str(address), "this system has no unix sockets")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        path = Path(address.host)
        try:
            _remove_stale(path)
            sock.bind(address.host)
            sock.listen(self._backlog)
            status = path.stat()
        except OSError as error:
            sock.close()
            raise _cannot_listen(address, 0, error) from error
        self._unix.append((path, status.st_dev, status.st_ino))
        self._sockets.append(sock)

    # Accepting

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, name = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause(listening, error)
                    return
                # The connection closed before it could be accepted.
                continue
            self._take(listening, sock, name)

    async def _wait(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, name = await self._loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    _warn(listening, error)
                    await asyncio.sleep(_EXHAUSTED_PAUSE)
                continue
            self._take(listening, sock, name)

    def _take(self, listening: socket.socket, sock: socket.socket, name: Any) -> None:
        remote = Address("unix", "") if is_unix(listening) else Address.of_socket(name)
        protocol = self._admit(remote)
        if protocol is None:
            sock.close()
            return
        sock.setblocking(False)
        task = self._loop.create_task(self._connect(sock, protocol), name="redpoll accept")
        self._tasks.add(task)
        task.add_done_callback(partial(self._connected, sock))

    def _admit(self, remote: Address) -> asyncio.BufferedProtocol | None:
        return self._acceptor.accepted(remote) if self._acceptor.admits(remote) else None

    async def _connect(self, sock: socket.socket, protocol: asyncio.BufferedProtocol) -> None:
        try:
            tune(sock)
            await self._loop.connect_accepted_socket(lambda: protocol, sock)
        except OSError as error:
            _logger.debug("a connection ended while it was accepted: %s", error)
            sock.close()
            protocol.connection_lost(error)

    def _connected(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            sock.close()

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        _warn(listening, error)
        self._loop.remove_reader(listening)
        self._pauses[listening] = self._loop.call_later(_EXHAUSTED_PAUSE, self._watch, listening)

    def close(self) -> None:
        """Stop listening at once; accepted connections stay. Unix sockets are removed if still ours."""
        for pause in self._pauses.values():
            pause.cancel()
        for sock in self._sockets:
            task = self._waiting.pop(sock, None)
            if task is None:
                self._loop.remove_reader(sock)
            else:
                task.cancel()
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            sock.close()
        self._sockets.clear()
        for listener in self._inproc:
            listener.close()
        for path, device, inode in self._unix:
            try:
                status = path.stat()
                if (status.st_dev, status.st_ino) == (device, inode):
                    path.unlink()
            except OSError as error:
                _logger.debug("the unix socket %s was not removed: %s", path, error)
        self._unix.clear()

    async def wait_closed(self) -> None:
        """Wait, after `close()`, until each accepted connection has its transport."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _warn(listening: socket.socket, error: OSError) -> None:
    _logger.warning(
        "cannot accept at %s: %s; retrying in %s s",
        Address.of_socket(listening.getsockname()),
        in_words(error),
        _EXHAUSTED_PAUSE,
    )


def _tcp_socket(host: str, port: int, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        bind_alone(sock)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)[0][4])
        else:
            sock.bind((host, port))
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


def _remove_stale(path: Path) -> None:
    """Remove a unix socket that a process left behind; one with a listener stays, and binding fails."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A listener with a full backlog would stall a blocking socket.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except BlockingIOError:
            pass


def _cannot_listen(address: Address, port: int, error: OSError) -> ConfigError:
    if address.kind == "unix":
        return ConfigError("host", str(address), f"cannot listen: {error.strerror or error}")
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            "port",
            port,
            f"is in use at {address.host}",
            hint="another process listens there; port=0 takes any free port",
        )
    if error.errno == errno.EACCES:
        return ConfigError("port", port, "permission denied", hint="ports below 1024 require privileges")
    return ConfigError("host", address.host, f"cannot listen: {error.strerror or error}")
