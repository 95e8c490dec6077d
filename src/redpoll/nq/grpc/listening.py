"""Where the streams of a server come in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from redpoll.address import Address
from redpoll.errors import ConfigError
from redpoll.nq.grpc.library import KEPT, load
from redpoll.nq.grpc.link import ENDING_GRACE, ServedLink, refuse
from redpoll.nq.grpc.options import METHOD, server_options
from redpoll.transport.listen import Acceptor, Listener

__all__ = ["GrpcListener", "address_of"]

#: How often another port is tried where one that was free is taken a moment later.
_TRIES = 5

_ALL_IPV4 = "0.0.0.0"  # noqa: S104  # compared with, not bound

#: The coroutines in which a server of gRPC waits for calls, in tasks that it keeps, are methods of this class.
_SERVES = "AioServer."

#: Seconds that links may go on after `close`, in all: the node ends them.
_LONG = 1e6


class GrpcListener:
    """Listens at some hosts for one node, until it is closed."""

    def __init__(
        self,
        acceptor: Acceptor,
        loop: asyncio.AbstractEventLoop,
        size: int,
        *,
        encrypted: bool = False,
        credentials: Any = None,
    ) -> None:
        """Be ready to open.

        Args:
            acceptor: Decides which connections are accepted.
            loop: Where it runs.
            size: Bytes of the largest message that is sent.
            encrypted: Whether it encrypts.
            credentials: Those that it shows.
        """
        self._grpc = load()
        self._acceptor = acceptor
        self._loop = loop
        self._size = size
        self._encrypted = encrypted
        self._credentials = credentials
        self._server: Any = None
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self.addresses: list[Address] = []
        #: gRPC does not tell them.
        self.descriptors: list[int] = []

    @property
    def port(self) -> int:
        """The port, the same at all hosts."""
        return self.addresses[0].port if self.addresses else 0

    @property
    def closed(self) -> bool:
        """Whether it takes no more."""
        return self._stopping is not None

    async def open(self, hosts: tuple[str, ...], port: int, check: Callable[[Address], object]) -> None:
        """Bind at all hosts.

        Args:
            hosts: Names and IP addresses.
            port: 0 is any free one.
            check: Called with each address before any is bound.

        Raises:
            ConfigError: As `Listener.open`; a host is no TCP address; it encrypts, and has nothing to show.
        """
        if self._encrypted and self._credentials is None:
            raise ConfigError("key", None, "a server that encrypts needs a key and its certificate")

        def checked(address: Address) -> None:
            if address.kind != "tcp":
                raise ConfigError("host", str(address), "gRPC links come in at TCP ports alone")
            check(address)

        tries = _TRIES if port == 0 else 1
        while not self.addresses:
            tries -= 1
            # gRPC says neither why it cannot bind nor, without a word on stderr, that it cannot: a socket of our own does.
            probe = Listener(self._acceptor, self._loop, 1)
            await probe.open(hosts, port, checked)
            probe.close()
            server = self._grpc.aio.server(handlers=(_handlers(self._grpc, self._serve),), options=server_options())
            KEPT.add(server)
            try:
                self._bind(server, probe.addresses)
            except RuntimeError as error:
                await _discard(server)
                if not tries:
                    hint = "another process listens there; port=0 takes any free port"
                    raise ConfigError("port", port, f"is in use at {probe.addresses[0].host}", hint) from error
            except BaseException:
                await _discard(server)
                raise
            else:
                self._server = server
                self.addresses = probe.addresses

    def _bind(self, server: Any, addresses: list[Address]) -> None:
        for address in _bindable(addresses):
            if self._encrypted:
                server.add_secure_port(str(address), self._credentials)
            else:
                server.add_insecure_port(str(address))

    def accept(self) -> None:
        """Begin to take streams."""
        self._starting = self._loop.create_task(self._start(), name="redpoll grpc start")

    async def _start(self) -> None:
        await self._server.start()
        _outlast_the_loop()

    def close(self) -> None:
        """Take no more; links that are there stay."""
        if self._server is not None and self._stopping is None:
            if self._starting is None:
                # One that was never started would keep its ports.
                self.accept()
            self._stopping = self._loop.create_task(self._stop(_LONG), name="redpoll grpc stop")

    async def _stop(self, grace: float) -> None:
        server = self._server
        if self._starting is not None:
            # gRPC crashes where it stops before it has started.
            await asyncio.shield(self._starting)
        await server.stop(grace)
        KEPT.discard(server)

    async def wait_closed(self) -> None:
        """Return at once: who is let in has its transport."""

    async def wait_ended(self) -> None:
        """Wait, after `close()` and once the node has given up its links, until their streams have ended."""
        if self._stopping is not None and not self._stopping.done():
            stop = self._loop.create_task(self._stop(ENDING_GRACE), name="redpoll grpc stop")
            await asyncio.wait((stop, self._stopping))
        # Whoever keeps a communicator that is closed is not to keep gRPC's thread and sockets.
        self._server = None

    async def _serve(self, _requests: Any, context: Any) -> None:
        """Run one stream, from its first message to its end."""
        _outlast_the_loop()
        remote = address_of(context.peer())
        if self._stopping is not None or not self._is_meant(remote) or not self._acceptor.admits(remote):
            await refuse(context, self._grpc.StatusCode.RESOURCE_EXHAUSTED, "it takes no more links")
        protocol = self._acceptor.accepted(remote)
        name = (remote.host, remote.port)
        link = ServedLink(self._loop, protocol, self._size, context, {"peername": name})
        await link.run()

    def _is_meant(self, remote: Address) -> bool:
        """Whether it came by a family that is listened at: gRPC takes both at an address that stands for all."""
        return any((":" in each.host) == (":" in remote.host) for each in self.addresses)


def _outlast_the_loop() -> None:
    """Keep `asyncio.run` from cancelling the tasks in which servers wait: they own the memory that gRPC writes a call to."""
    for task in asyncio.all_tasks():
        if getattr(task.get_coro(), "__qualname__", "").startswith(_SERVES):
            asyncio._unregister_task(task)


def _handlers(grpc: Any, serve: Callable[[Any, Any], Any]) -> Any:
    """What a server looks a method up in."""
    handler = grpc.stream_stream_rpc_method_handler(serve)
    service, _, method = METHOD.strip("/").partition("/")
    return grpc.method_handlers_generic_handler(service, {method: handler})


async def _discard(server: Any) -> None:
    """Let a server go that was not started; without that it would keep its ports."""
    await server.start()
    await server.stop(None)
    KEPT.discard(server)


def _bindable(addresses: list[Address]) -> list[Address]:
    """The addresses that gRPC is to bind: at :: it takes 0.0.0.0 as well."""
    hosts = {address.host for address in addresses}
    return [each for each in addresses if each.host != _ALL_IPV4 or "::" not in hosts]


def address_of(peer: str) -> Address:
    """The address in what gRPC says of a peer: "ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711"."""
    kind, _, text = unquote(peer).partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return Address("unix", "")
    host, _, port = text.rpartition(":")
    return Address("tcp", host.strip("[]"), int(port))
