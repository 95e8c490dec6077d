"""What the tests of the proxy share: a server that keeps what it gets, and clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Self

from redpoll import Address
from redpoll.testing import FaultProxy
from tests.node.support import until


@dataclass
class Conversation:
    """One connection as an end sees it: what came, in which pieces, and how it ended."""

    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader
    pieces: list[bytes] = field(default_factory=list)
    end: str = ""

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)

    async def listen(self) -> None:
        """Read until the end."""
        try:
            while data := await self.reader.read(1 << 20):
                self.pieces.append(data)
            self.end = "eof"
        except ConnectionError:
            self.end = "reset"

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Server:
    """Takes connections; `reads` says whether it reads them."""

    def __init__(self, *, reads: bool = True) -> None:
        self._reads = reads
        self._tasks: list[asyncio.Task[None]] = []
        self.conversations: list[Conversation] = []
        self.server: asyncio.Server

    @property
    def address(self) -> Address:
        return Address.of_socket(self.server.sockets[0].getsockname())

    async def __aenter__(self) -> Self:
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 16)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for conversation in self.conversations:
            await conversation.close()
        await asyncio.gather(*self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = Conversation(writer, reader)
        self.conversations.append(conversation)
        if self._reads:
            self._tasks.append(asyncio.create_task(conversation.listen()))

    async def first(self) -> Conversation:
        return await self.nth(1)

    async def nth(self, number: int) -> Conversation:
        await until(lambda: len(self.conversations) >= number, f"connection {number}")
        return self.conversations[number - 1]


@contextlib.asynccontextmanager
async def dialled(proxy: FaultProxy) -> AsyncIterator[Conversation]:
    """A client's connection to a proxy, which reads all that comes."""
    # In the same thread the system takes the connection before the proxy can reset it: so that is never seen as a failure
    # to connect.
    sock = socket.create_connection((proxy.address.host, proxy.address.port))
    reader, writer = await asyncio.open_connection(sock=sock)
    conversation = Conversation(writer, reader)
    task = asyncio.create_task(conversation.listen())
    try:
        yield conversation
    finally:
        await conversation.close()
        await task


@contextlib.asynccontextmanager
async def pair(proxy: FaultProxy, server: Server) -> AsyncIterator[tuple[Conversation, Conversation]]:
    """A connection through a proxy: the client's end and the server's."""
    async with dialled(proxy) as client:
        yield client, await server.nth(len(server.conversations) + 1)
