"""What answers at an address: TLS, something else, or nothing."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from redpoll import Address
from redpoll.nq.core import probing
from redpoll.nq.core.probing import answers, speaks_tls
from redpoll.testing.certificates import Certificates
from tests.node.support import within
from tests.ports import free_port

pytestmark = pytest.mark.asyncio

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


@asynccontextmanager
async def listening(answer: Answer | None, context: ssl.SSLContext | None = None) -> AsyncIterator[Address]:
    """Listen, and treat each connection so; None says nothing."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if answer is not None:
            answer(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    try:
        yield Address("tcp", "127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        for writer in writers:
            writer.transport.abort()
        server.close()
        await server.wait_closed()


async def test_tls_is_known(redpoll_pki: Certificates) -> None:
    """Whatever its certificate; also where it rejects the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(redpoll_pki.issue("somebody"))
    async with listening(None, context) as address:
        assert await within(speaks_tls(address))
    async with listening(lambda _, writer: writer.write(b"\x15\x03\x01\x00\x02\x02\x28")) as address:
        assert await within(speaks_tls(address))


@pytest.mark.parametrize(
    "answer", [lambda _, writer: writer.write(b"HTTP/1.1 400 Bad Request"), lambda _, writer: writer.close()]
)
async def test_what_is_no_tls(answer: Answer) -> None:
    """Another protocol, or an end without a word."""
    async with listening(answer) as address:
        assert not await within(speaks_tls(address))


async def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that nobody listens at says nothing, and one that says nothing is not waited for."""
    assert not await within(speaks_tls(Address("tcp", "127.0.0.1", free_port())))
    monkeypatch.setattr(probing, "_PATIENCE", 0.05)
    async with listening(None) as address:
        assert not await within(answers(address, b"?", b"!"))


async def test_one_answer_of_several() -> None:
    """It begins with one of those that are expected."""
    async with listening(lambda _, writer: writer.write(b"two and more")) as address:
        assert await within(answers(address, b"?", b"one", b"two"))
        assert not await within(answers(address, b"?", b"one"))
