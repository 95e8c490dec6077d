"""The listener of a server: it accepts gRPC streams."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from urllib.parse import unquote

from redpoll.address import Address
from redpoll.errors import ConfigError
from redpoll.node.reports import LogLimit
from redpoll.nq.grpc.library import KEPT, load, tasks_of
from redpoll.nq.grpc.link import ENDING_GRACE, ServedLink, refuse
from redpoll.nq.grpc.options import METHOD, server_options
from redpoll.transport.listen import Acceptor, Listener

__all__ = ["GrpcListener", "address_of"]

#: Maximum attempts with another port, if one that was free is taken a moment later.
_TRIES = 5

_ALL_IPV4 = "0.0.0.0"  # noqa: S104  # compared with, not bound

#: Prefix of the methods of gRPC that run in tasks of a server, the one that accepts calls, and the one that waits for a call.
_SERVES = "AioServer"
_TAKES = "AioServer._server_main_loop"
_WAITS = "AioServer._request_call"

#: The method of gRPC that runs in a task of its own for each served call, beside the one in which the handler runs.
_CALLS = "_schedule_rpc_coro"

#: Seconds in which a failed server is replaced, and seconds between two attempts: its port may close a moment later.
AGAIN = 5.0
_PAUSE = 0.05

#: Seconds that links may continue after `close`: without a limit, as the node ends them.
_LONG = 1e6

_logger = logging.getLogger("redpoll.nq")


class GrpcListener:
    """Listener at some hosts for one node.

    The loop in which gRPC's server accepts calls ends with an error if a peer sends a path that is not UTF-8 (grpcio 1.85),
    and the server closes its port. A new server then listens there; the streams of the failed one continue.
    """

    def __init__(
        self,
        acceptor: Acceptor,
        loop: asyncio.AbstractEventLoop,
        size: int,
        credentials: Any = None,
        given_up: Callable[[ConfigError], object] | None = None,
    ) -> None:
        """Make a listener that `open` binds.

        Args:
            acceptor: Decides which connections are accepted.
            loop: Its event loop.
            size: Maximum size of a sent message, in bytes.
            credentials: The credentials that it presents; None does not encrypt.
            given_up: Called with the reason when it listened and no longer can; None: nothing is called.
        """
        self._grpc = load()
        self._acceptor = acceptor
        self._loop = loop
        self._size = size
        self._credentials = credentials
        self._given_up = given_up
        self._lines = LogLimit(loop)
        self._server: Any = None
        #: The links of that server; each failed one has its own.
        self._links: set[ServedLink] = set()
        #: Tasks of gRPC in which calls are handled: they last a moment longer than the handler.
        self._handling: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        #: Set when a server has no links any more.
        self._emptied = asyncio.Event()
        #: Tasks that wait for the streams of failed servers, by server.
        self._broken: dict[Any, asyncio.Task[None]] = {}
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self.addresses: list[Address] = []
        #: File descriptors: gRPC does not reveal them.
        self.descriptors: list[int] = []

    @property
    def port(self) -> int:
        """The port, the same at all hosts."""
        return self.addresses[0].port if self.addresses else 0

    @property
    def closed(self) -> bool:
        """True if it accepts no more streams."""
        return self._stopping is not None

    async def open(self, hosts: tuple[str, ...], port: int, check: Callable[[Address], object]) -> None:
        """Bind at all hosts.

        Args:
            hosts: Names and IP addresses.
            port: 0 is any free one.
            check: Called with each address before any is bound.

        Raises:
            ConfigError: As `Listener.open`; or a host is no TCP address.
        """

        def checked(address: Address) -> None:
            if address.kind != "tcp":
                raise ConfigError("host", str(address), "gRPC listens at TCP addresses only")
            check(address)

        tries = _TRIES if port == 0 else 1
        while not self.addresses:
            tries -= 1
            try:
                await self._make(hosts, port, checked)
            except RuntimeError as error:
                if not tries:
                    raise _taken(hosts[0], port) from error

    async def _make(self, hosts: tuple[str, ...], port: int, check: Callable[[Address], object]) -> None:
        """Make a server and bind it.

        Raises:
            ConfigError: As `Listener.open`.
            RuntimeError: gRPC cannot bind.
        """
        # gRPC does not report why it cannot bind, and writes to stderr: so a socket of our own is bound first.
        probe = Listener(self._acceptor, self._loop, 1)
        await probe.open(hosts, port, check)
        probe.close()
        links: set[ServedLink] = set()
        serve = partial(self._serve, links)
        server = self._grpc.aio.server(handlers=(_handlers(self._grpc, serve),), options=server_options())
        KEPT.add(server)
        try:
            self._bind(server, probe.addresses)
        except BaseException:
            await _discard(server)
            raise
        self._server, self._links = server, links
        self.addresses = probe.addresses

    def _bind(self, server: Any, addresses: list[Address]) -> None:
        for address in _bindable(addresses):
            if self._credentials is not None:
                server.add_secure_port(str(address), self._credentials)
            else:
                server.add_insecure_port(str(address))

    def accept(self) -> None:
        """Begin to accept streams."""
        self._starting = self._loop.create_task(self._start(), name="redpoll grpc start")

    async def _start(self) -> None:
        server, links = self._server, self._links
        await server.start()
        for task in tasks_of(_TAKES, server._server):
            task.add_done_callback(partial(self._served, server, links))
        _outlast_the_loop(tasks_of(_SERVES, server._server))

    def _served(self, server: Any, links: set[ServedLink], serving: asyncio.Task[Any]) -> None:
        """Replace a server whose accepting task has ended with an error, unless it was closed."""
        if self._stopping is not None or serving.cancelled() or (error := serving.exception()) is None:
            return
        for task in tasks_of(_SERVES, server._server):
            # gRPC closes the port in a task that fails with the same error, which must be retrieved.
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._broken[server] = self._loop.create_task(self._part(server, links), name="redpoll grpc stop")
        self._starting = self._loop.create_task(self._replace(error), name="redpoll grpc start")

    async def _part(self, server: Any, links: set[ServedLink]) -> None:
        """End a failed server as soon as it has no links: a peer cannot make many that wait."""
        while links:
            self._emptied.clear()
            await self._emptied.wait()
        await _end(server, None)
        if self._stopping is None:
            del self._broken[server]

    async def _replace(self, error: BaseException) -> None:
        """Listen again, at the same port."""
        hosts, port = tuple(each.host for each in self.addresses), self.port
        why = f"after a request that it could not take ({type(error).__name__}: {error})"
        end = self._loop.time() + AGAIN
        while self._stopping is None:
            try:
                await self._make(hosts, port, lambda _: None)
            except (ConfigError, RuntimeError) as problem:
                taken = _taken(hosts[0], port)
                # The frames of the traceback refer to gRPC's server, which keeps its sockets as long as it exists.
                taken.__cause__ = problem.with_traceback(None)
            else:
                await self._start()
                if self._lines.may_log():
                    _logger.warning(
                        "gRPC closed the port of the server at %s %s; it is open again", self.addresses[0], why
                    )
                return
            if self._loop.time() >= end:
                _logger.error("this server stopped serving: gRPC closed its port %s, and now: %s", why, taken)
                if self._given_up is not None:
                    self._given_up(taken)
                return
            await asyncio.sleep(_PAUSE)

    def close(self) -> None:
        """Accept no more streams; open links stay."""
        if self._server is not None and self._stopping is None:
            if self._starting is None:
                # A server that was never started would keep its ports.
                self.accept()
            self._stopping = self._loop.create_task(self._stop(_LONG), name="redpoll grpc stop")

    async def _stop(self, grace: float) -> None:
        if self._starting is not None:
            # gRPC crashes if it is stopped before it has started.
            await asyncio.shield(self._starting)
        servers = {self._server, *self._broken}
        await asyncio.gather(*(_end(each, grace) for each in servers))
        # Their links have ended, or were just cancelled.
        await asyncio.gather(*self._broken.values())
        handling = tuple(self._handling)
        if handling:
            # A thread of gRPC ends them, a moment later: one that has not ended with the event loop is kept for ever.
            await asyncio.wait({*handling, *tasks_of(_CALLS, *handling)})

    async def wait_closed(self) -> None:
        """Return at once: accepted links have their transports."""

    async def wait_ended(self) -> None:
        """Wait, after `close()` and once the node has given up its links, until their streams have ended."""
        if self._stopping is not None and not self._stopping.done():
            stop = self._loop.create_task(self._stop(ENDING_GRACE), name="redpoll grpc stop")
            await asyncio.wait((stop, self._stopping))
        # A reference to a closed communicator must not keep gRPC's thread and sockets.
        self._server = None
        self._broken.clear()

    async def _serve(self, links: set[ServedLink], _requests: Any, context: Any) -> None:
        """Run one stream, from its first message to its end."""
        if (handling := asyncio.current_task()) is not None:
            self._handling.add(handling)
        # Of all servers: one that starts meanwhile still has to find its task that accepts calls. With eager tasks gRPC
        # makes the next one that waits for a call when this has run up to its first wait.
        self._loop.call_soon(_let_waiting_outlast)
        remote = address_of(context.peer())
        if self._stopping is not None or not self._is_meant(remote) or not self._acceptor.admits(remote):
            await refuse(context, self._grpc.StatusCode.RESOURCE_EXHAUSTED, "the server accepts no more links")
        protocol = self._acceptor.accepted(remote)
        name = (remote.host, remote.port)
        link = ServedLink(self._loop, protocol, self._size, context, {"peername": name})
        links.add(link)
        try:
            await link.run()
        finally:
            links.discard(link)
            if not links:
                self._emptied.set()

    def _is_meant(self, remote: Address) -> bool:
        """Return True if the peer's address family is one of ours: at a wildcard address gRPC listens for both."""
        return any((":" in each.host) == (":" in remote.host) for each in self.addresses)


def _outlast_the_loop(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Keep `asyncio.run` from cancelling tasks of servers: they own the memory that gRPC writes calls to."""
    for task in tasks:
        asyncio._unregister_task(task)


def _let_waiting_outlast() -> None:
    _outlast_the_loop(tasks_of(_WAITS))


def _taken(host: str, port: int) -> ConfigError:
    return ConfigError(
        "port", port, f"is in use at {host}", "another process listens there; port=0 takes any free port"
    )


def _handlers(grpc: Any, serve: Callable[[Any, Any], Any]) -> Any:
    """Return the table in which a server looks up a method."""
    handler = grpc.stream_stream_rpc_method_handler(serve)
    service, _, method = METHOD.strip("/").partition("/")
    return grpc.method_handlers_generic_handler(service, {method: handler})


async def _discard(server: Any) -> None:
    """End a server that was not started; it would keep its ports otherwise."""
    await server.start()
    await _end(server, None)


async def _end(server: Any, grace: float | None) -> None:
    """Stop a server, whose streams may continue for `grace` seconds."""
    try:
        await server.stop(grace)
    except Exception:  # noqa: BLE001  # the error that it failed with just now: only its port is closed
        await server.stop(grace)
    KEPT.discard(server)


def _bindable(addresses: list[Address]) -> list[Address]:
    """Return the addresses that gRPC is to bind: `::` includes 0.0.0.0."""
    hosts = {address.host for address in addresses}
    return [each for each in addresses if each.host != _ALL_IPV4 or "::" not in hosts]


def address_of(peer: str) -> Address:
    """Parse gRPC's name of a peer: "ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711"."""
    kind, _, text = unquote(peer).partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return Address("unix", "")
    host, _, port = text.rpartition(":")
    return Address("tcp", host.strip("[]"), int(port))
