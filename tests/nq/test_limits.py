"""What peers, and the program itself, can make grow with the facade, and what happens at the bound."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redpoll import nq
from redpoll.errors import MessageTooLarge, QueueFull
from redpoll.nq.core.making import config_of
from redpoll.testing import FaultProxy
from tests.node.support import until
from tests.ports import free_port

pytestmark = pytest.mark.asyncio

PATIENCE = 10.0
HERE = "127.0.0.1"


def options(port: int, **connection: Any) -> nq.CommunicatorOptions:
    """Options of one at a port, with options of its connection."""
    return nq.CommunicatorOptions(netloc=nq.NetworkLocation(HERE, port), connection=nq.ConnectionOptions(**connection))


def server(**connection: Any) -> nq.aio.Communicator:
    """A server at any free port."""
    return nq.aio.new(purpose="server", options=options(0, **connection))


@contextlib.asynccontextmanager
async def client_of(server: nq.aio.Communicator, **connection: Any) -> AsyncIterator[nq.aio.Communicator]:
    """A client that has met its server."""
    async with nq.aio.new(options=options(server.netloc.port, **connection)) as client:
        await client.ready(PATIENCE)
        yield client


async def ended(*puts: asyncio.Future[None]) -> list[str]:
    """How puts ended: by the names of their errors, "" for those that were confirmed."""
    outcomes = await asyncio.wait_for(asyncio.gather(*puts, return_exceptions=True), PATIENCE)
    return ["" if outcome is None else type(outcome).__name__ for outcome in outcomes]


async def got(server: nq.aio.Communicator) -> list[Any]:
    """The data of all that waits to be got."""
    found = []
    with contextlib.suppress(TimeoutError):
        while True:
            found.append((await server.get(timeout=0)).data)
    return found


async def test_puts_that_nobody_takes() -> None:
    """As many puts wait for a peer as `queue_size` says; the next one fails, and those that wait stay."""
    alone = nq.aio.new(options=options(free_port(), queue_size=3))
    await alone.start()
    puts = [alone.put(number) for number in range(5)]
    assert await ended(*puts[3:]) == ["QueueFull", "QueueFull"]
    assert not any(put.done() for put in puts[:3])
    await alone.close(flush=False)
    assert await ended(*puts[:3]) == ["ConnectionAbortedError"] * 3


async def test_bytes_that_nobody_takes() -> None:
    """As many bytes wait for a peer as `queue_bytes` says; one message of any size always does."""
    alone = nq.aio.new(options=options(free_port(), queue_bytes=1000))
    await alone.start()
    large = alone.put(b"x" * 5000)
    assert await ended(alone.put(b"x")) == ["QueueFull"]
    assert not large.done()
    await alone.close(flush=False)


@pytest.mark.parametrize(("oldest", "kept"), [(True, [2, 3]), (False, [0, 1])])
async def test_puts_that_are_dropped(oldest: bool, kept: list[int]) -> None:
    """With `full="drop"` as many wait: one is dropped for each that is too many, whose put is told."""
    port = free_port()
    drops = {"queue_size": 2, "full": "drop", "drop_oldest": oldest}
    async with nq.aio.new(options=options(port, **drops)) as client:
        puts = [client.put(number) for number in range(4)]
        dropped = [put for number, put in enumerate(puts) if number not in kept]
        assert await ended(*dropped) == ["QueueFull", "QueueFull"]
        async with nq.aio.new(purpose="server", options=options(port)) as there:
            assert [(await there.get(timeout=PATIENCE)).data for _ in kept] == kept
            await client.close()


async def test_messages_that_nobody_gets() -> None:
    """As many messages of a peer wait to be got as `queue_size` says; the next one is refused, and its put says so."""
    async with server(queue_size=2) as there:
        async with client_of(there) as client:
            assert await ended(*[client.put(number) for number in range(4)]) == ["", "", "QueueFull", "QueueFull"]
            assert await got(there) == [0, 1]
            assert await ended(client.put("room again")) == [""]
            async with client_of(there) as other:
                assert await ended(other.put("another's")) == [""]


async def test_bytes_that_nobody_gets() -> None:
    """As many bytes of a peer wait to be got as `queue_bytes` says; one message of any size always fits."""
    async with server(queue_bytes=1000) as there, client_of(there) as client:
        assert await ended(client.put(b"x" * 5000), client.put(b"x")) == ["", "QueueFull"]
        assert len(await got(there)) == 1


async def test_messages_that_are_dropped() -> None:
    """With `full="drop"` the oldest of that peer makes room for the new one, and its put is told."""
    async with server(queue_size=2, full="drop") as there:
        async with client_of(there) as client:
            puts = [client.put(number) for number in range(4)]
            assert await ended(*puts[:2]) == ["QueueFull", "QueueFull"]
            assert await got(there) == [2, 3]
            assert await ended(*puts[2:]) == ["", ""]


async def test_messages_that_are_held() -> None:
    """With `confirm="get"` what waits is held, and never more than 65,535 of a peer: the rest waits at its sender."""
    assert config_of(options(1, confirm="get"), server=True, encrypts=True).effective_window == 65_535
    async with server(confirm="get") as there, client_of(there) as client:
        puts = [client.put(number) for number in range(3)]
        for number, put in enumerate(puts):
            assert not put.done()
            assert (await there.get(timeout=PATIENCE)).data == number
            await asyncio.wait_for(put, PATIENCE)


async def test_a_message_that_is_too_large() -> None:
    """A message of `message_size` bytes is put, one of a byte more is not; nor is one that only the peer finds too large."""
    raw = nq.BytesSerializer()
    carried = nq.SerializationOptions(load=raw.load, dump=raw.dump)

    def bounded(port: int, size: int) -> nq.CommunicatorOptions:
        connection = nq.ConnectionOptions(message_size=size)
        netloc = nq.NetworkLocation(HERE, port)
        return nq.CommunicatorOptions(netloc=netloc, connection=connection, serialization=carried)

    async with nq.aio.new(purpose="server", options=bounded(0, 1000)) as there:
        async with nq.aio.new(options=bounded(there.netloc.port, 2000)) as client:
            with pytest.raises(MessageTooLarge):
                client.put(b"x" * 2001)
            await client.ready(PATIENCE)
            too_large = client.put(b"x" * 2000)
            assert await ended(too_large, client.put(b"x" * 1000)) == ["MessageTooLarge", ""]
            assert "raise message_size at both ends" in str(too_large.exception())
            assert await got(there) == [b"x" * 1000]


async def test_puts_that_were_taken_back() -> None:
    """Puts that are taken back behind one that waits are forgotten."""
    alone = nq.aio.new(options=options(free_port()))
    await alone.start()
    first = alone.put("first")
    for number in range(5000):
        alone.put(number).cancel()
    session = alone._endpoint.recipients()[0]
    assert session.count == 1
    assert len(session._waiting) == 1
    assert not first.done()
    await alone.close(flush=False)


async def test_a_full_queue_says_which() -> None:
    """`QueueFull` names the limit, and whose it is: this end's, or the peer's."""
    async with server(queue_size=1) as there, client_of(there, queue_size=5) as client:
        puts = [client.put(number) for number in range(7)]
        errors = await asyncio.wait_for(asyncio.gather(*puts, return_exceptions=True), PATIENCE)
        assert errors[0] is None
        texts = [str(error) for error in errors[1:] if isinstance(error, QueueFull)]
        assert len(texts) == 6
        assert ["the queue of the peer is full: 1 messages wait" in text for text in texts] == [True] * 4 + [False] * 2
        here = 'the limit is 5 messages (wait for the futures of earlier puts, or give full="wait")'
        assert [here in text for text in texts] == [False] * 4 + [True] * 2


async def test_clients_that_may_come_back() -> None:
    """As many are waited for as may be linked, what was put for each with them; then the longest gone is given up."""
    async with server(resume=30.0) as there:
        sessions = there._endpoint.node._peers.sessions
        gone_ones = sessions._lost
        assert (gone_ones._limit, gone_ones._limit_of_host) == (10_000, 10_000)
        gone_ones._limit = 2
        puts = []
        for gone in range(1, 5):
            async with FaultProxy(f"{HERE}:{there.netloc.port}") as proxy:
                client = nq.aio.new(options=options(proxy.address.port))
                await client.start()
                await client.ready(PATIENCE)
            await until(lambda: len(sessions) == min(gone, 2), "the loss of its link")  # noqa: B023  # awaited here
            await until(lambda: not there._endpoint.node.stats().connections, "the end of its link")
            with contextlib.suppress(ConnectionError):
                await client.close(0, flush=False)
            puts.append(there.put("x", client.id))
        assert await ended(*puts[:2]) == ["ConnectionResetError"] * 2
        assert not any(put.done() for put in puts[2:])
        assert len(there._endpoint.sessions) == 2
        await there.close(0, flush=False)
    assert await ended(*puts[2:]) == ["ConnectionAbortedError"] * 2
