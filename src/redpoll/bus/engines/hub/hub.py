"""A hub in one's own process: the server with its store in a folder."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final, Literal, Self

from redpoll.address import Address
from redpoll.bus.broker import Limits
from redpoll.bus.engines.hub.opening import open_store
from redpoll.bus.engines.hub.server import HubServer
from redpoll.bus.engines.hub.tokens import Tokens
from redpoll.config import Config
from redpoll.errors import Closed, ConfigError, RedpollError, StoreError, UsageError
from redpoll.tls import TLS

__all__ = ["PORT", "Hub"]

PORT: Final = 5683
"""Default port of a hub."""


KEEPALIVE: Final = 3.75
"""That of its node, in seconds: after four of them in silence a client is gone."""


class Hub:
    """A durable bus: programs reach it as ``redpoll://host:port``, and what is confirmed to them is on its disk.

    Queues, tasks, outcomes and the last events of subjects are kept in a folder, which one hub has at a time. Restarted, it
    continues where it was: what waits is there, what workers hold stays theirs if they come back within `Limits.reclaim`.

    Args:
        data: The folder; it is made where there is none.
        port: The port, 5683 by default; 0 is any free one.
        host: The address to listen at, 127.0.0.1 by default. Off loopback `tls` and `tokens` are needed.
        tls: The certificates; None is plain, which off loopback has to be said: ``config=Config(encryption=False)``.
        tokens: The file of the tokens that programs have to show, and of what each allows. It is read again when it
            changes. None: no tokens, on loopback alone. False: no tokens anywhere: every client may do everything.
        limits: What the hub holds at most, and how long it waits.
        config: Further options of its node; a `keepalive` of the default 5 s is 3.75 s here, so that a silent worker is lost
            after 15 s.

    Use it as an async context manager.

    Raises:
        ConfigError: An option cannot be; or it would listen off loopback without encryption or tokens.
        StoreError: The folder is another hub's, cannot be written, is damaged, or of a newer version; raised by `start`.
    """

    def __init__(
        self,
        data: str | os.PathLike[str],
        port: int = PORT,
        host: str = "127.0.0.1",
        *,
        tls: TLS | None = None,
        tokens: str | os.PathLike[str] | Literal[False] | None = None,
        limits: Limits | None = None,
        config: Config | None = None,
    ) -> None:
        self._data = os.fspath(data)
        options: dict[str, Any] = {"host": host, "port": port, "serializer": "raw"}
        if config is None or config.keepalive == Config().keepalive:
            options["keepalive"] = KEEPALIVE
        if tls is not None:
            options |= {"tls": tls, "encryption": True}
        self._config = Config.from_options(config, options)
        if tokens is None and not all(_is_local(each) for each in self._config.hosts):
            raise ConfigError(
                "tokens",
                None,
                "must be given off loopback",
                "pass the file, or tokens=False to allow everything to every client",
            )
        self._tokens = Tokens(tokens) if tokens else None
        self._limits = limits
        self._server: HubServer | None = None
        self._stopped = False

    def __repr__(self) -> str:
        return f"<Hub {self._data} {'new' if self._server is None else self.address}>"

    @property
    def where(self) -> Address:
        """The address that it is to listen at."""
        return Address.of_host(self._config.hosts[0], self._config.port or 0)

    @property
    def address(self) -> Address:
        """The address that it listens at."""
        return self._running().address

    @property
    def url(self) -> str:
        """The URL for programs on this machine."""
        return f"redpoll://{self.address}"

    @property
    def holds(self) -> dict[str, int]:
        """Number of queues, and of tasks and outcomes in them."""
        broker = self._running().broker
        return {
            "queues": len(broker.queues.found),
            "tasks": len(broker.tasks.found),
            "results": len(broker.tasks.results),
        }

    def _running(self) -> HubServer:
        if self._server is None:
            raise Closed("hub")
        return self._server

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop."""
        await self.stop()

    async def start(self) -> None:
        """Open the folder, load what is there, and listen.

        Raises:
            UsageError: It was started before.
        """
        if self._server is not None or self._stopped:
            raise UsageError("this hub was started before", "make another one")
        store = open_store(self._data)
        try:
            server = HubServer(store, self._config, self._limits, tokens=self._tokens)
            await server.start()
        except BaseException:
            await store.close()
            raise
        self._server = server

    async def stop(self, drain: float | None = None) -> None:  # noqa: ARG002  # as of all that listens
        """Confirm what is on its way to the disk, and end. What workers hold stays theirs; they are not waited for."""
        server = self._server
        if server is not None and not self._stopped:
            self._stopped = True
            await server.close()

    async def serve_forever(self) -> None:
        """Serve until `stop`, or until the disk fails.

        Raises:
            StoreError: The disk failed: nothing is stored or confirmed any more.
        """
        server = self._running()
        ended = asyncio.ensure_future(server.node.serve_forever())
        try:
            await asyncio.wait([ended, server.failed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if server.failed.done():
            error = server.failed.exception()
            raise error if isinstance(error, RedpollError) else StoreError(self._data, str(error))


def _is_local(host: str) -> bool:
    address = Address.of_host(host, 0)
    return address.kind != "tcp" or address.host == "localhost" or address.is_loopback
