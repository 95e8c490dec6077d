"""Our own accept loop: a stranger is counted and may be turned away before anything is spent on it."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from redpoll.address import Address
from redpoll.errors import ConfigError
from redpoll.transport.dial import in_words, tune
from redpoll.transport.inproc import InprocListener

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Door", "Listener"]

_logger = logging.getLogger("redpoll.transport")

#: Seconds to wait when the system has no file descriptors or memory left for another connection.
_EXHAUSTED_PAUSE = 0.2
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

#: What binding fails with where this machine has no such address, though its tables know it by a name.
_NOT_HERE = frozenset((errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT))

#: Connections accepted in a row before the loop gets its turn.
_ACCEPTS_PER_TURN = 64

#: How often another port is tried where the one that the system chose for one family is taken in the other.
_PORT_TRIES = 20


class Door(Protocol):
    """Who decides about strangers."""

    def admits(self, remote: Address) -> bool:
        """Whether a connection from there may come in; False closes it unread."""

    def accepted(self, remote: Address) -> asyncio.BufferedProtocol:
        """Make the protocol for a connection from there, which counts from now on until it is told that it is lost."""


class Listener:
    """Listens at some hosts and accepts for one node, until it is closed."""

    def __init__(self, door: Door, loop: asyncio.AbstractEventLoop, backlog: int) -> None:
        self._door = door
        self._loop = loop
        self._backlog = backlog
        self._sockets: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        #: Accepted connections on their way to a transport.
        self._tasks: set[asyncio.Task[None]] = set()
        self._inproc: list[InprocListener] = []
        #: Their paths, with device and inode.
        self._unix: list[tuple[Path, int, int]] = []
        self.addresses: list[Address] = []

    @property
    def port(self) -> int:
        """The TCP port, the same at all hosts; 0 without any."""
        return next((address.port for address in self.addresses if address.kind == "tcp"), 0)

    @property
    def descriptors(self) -> list[int]:
        """Those of its sockets."""
        return [each.fileno() for each in self._sockets]

    async def open(self, hosts: tuple[str, ...], port: int, check: Callable[[Address], object]) -> None:
        """Bind and listen at all hosts; nobody is accepted before `accept()`.

        Args:
            hosts: As `Config.host` has them.
            port: The TCP port; 0 is any free one.
            check: Called with each address, names resolved, before any is bound; raises what speaks against it.

        Raises:
            ConfigError: A host cannot be resolved or bound, or the port is taken; nothing is left open.
        """
        # Address to whether a name stood for it. Waiting comes first: listening begins everywhere at once.
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
        """Begin to take connections."""
        for sock in self._sockets:
            self._loop.add_reader(sock, self._accept, sock)

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
        """Bind all to one port; of those that a name stands for, those that this machine has."""
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

    # Strangers

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
                # Only this one is lost: it was gone before it could be accepted.
                continue
            remote = Address.of_socket(name) if listening.family != socket.AF_UNIX else Address("unix", "")
            protocol = self._admit(remote)
            if protocol is None:
                sock.close()
                continue
            sock.setblocking(False)
            task = self._loop.create_task(self._connect(sock, protocol), name="redpoll accept")
            self._tasks.add(task)
            task.add_done_callback(partial(self._connected, sock))

    def _admit(self, remote: Address) -> asyncio.BufferedProtocol | None:
        return self._door.accepted(remote) if self._door.admits(remote) else None

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
        _logger.warning(
            "cannot accept at %s: %s; trying again in %s s",
            Address.of_socket(listening.getsockname()),
            in_words(error),
            _EXHAUSTED_PAUSE,
        )
        self._loop.remove_reader(listening)
        self._pauses[listening] = self._loop.call_later(
            _EXHAUSTED_PAUSE, self._loop.add_reader, listening, self._accept, listening
        )

    def close(self) -> None:
        """Stop listening at once; connections that were accepted stay. Unix sockets are removed if still ours."""
        for pause in self._pauses.values():
            pause.cancel()
        for sock in self._sockets:
            self._loop.remove_reader(sock)
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
        """Wait, after `close()`, until each connection that was accepted has its transport."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _tcp_socket(host: str, port: int, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
    """Remove the unix socket that a process left behind; one that somebody listens at stays, and binding fails."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A listener whose backlog is full would hold up a blocking one.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except BlockingIOError:
            pass


def _cannot_listen(address: Address, port: int, error: OSError) -> ConfigError:
    if address.kind == "unix":
        return ConfigError("host", str(address), f"cannot listen there: {error.strerror or error}")
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            "port",
            port,
            f"is in use at {address.host}",
            hint="another process listens there; port=0 takes any free port",
        )
    if error.errno == errno.EACCES:
        return ConfigError(
            "port", port, "may not be listened at by this user", hint="ports below 1024 need a privilege"
        )
    return ConfigError("host", address.host, f"cannot listen there: {error.strerror or error}")
