"""What a put's future says across lost links and restarted processes, as docs/explanation/promises.md has it."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from redpoll import nq
from redpoll.testing import FaultProxy, Faults

pytestmark = pytest.mark.asyncio

PATIENCE = 20.0
#: Short, so that what is gone is found soon.
KEEPALIVE = 0.2


def at(
    port: int, *, secret: bytes | None = None, who: uuid.UUID | None = None, resume: float = 30.0
) -> nq.CommunicatorOptions:
    """Options of one at a port."""
    return nq.CommunicatorOptions(
        id=who or uuid.uuid4(),
        netloc=nq.NetworkLocation(port=port),
        connection=nq.ConnectionOptions(keepalive=KEEPALIVE, resume=resume),
        secret=secret,
    )


@pytest_asyncio.fixture
async def server() -> AsyncIterator[nq.aio.Communicator]:
    """One at any free port, which nobody has to close for."""
    async with nq.aio.new(purpose="server", options=at(0)) as made:
        yield made
        await made.close(0)


async def test_lost_links(server: nq.aio.Communicator) -> None:
    """Over links that are cut again and again each put is confirmed, and each message comes once and in order, both ways."""
    numbers = range(400)
    async with FaultProxy(str(server.netloc), faults=Faults(cut_after=6_000)) as proxy:
        async with nq.aio.new(options=at(proxy.address.port)) as client:
            await client.ready(PATIENCE)
            for few in (numbers[first : first + 20] for first in range(0, len(numbers), 20)):
                puts = [put for number in few for put in (client.put(number), server.put(number, client.id))]
                async with asyncio.timeout(PATIENCE):
                    await asyncio.gather(*puts)
            assert proxy.stats().rst > 0
            assert [(await server.get(timeout=0)).data for _ in numbers] == list(numbers)
            assert [(await client.get(timeout=0)).data for _ in numbers] == list(numbers)
            proxy.set()


async def test_a_client_that_does_not_come_back() -> None:
    """What is put for a client that vanished waits for it, and fails when its time is over."""
    async with nq.aio.new(purpose="server", options=at(0, resume=0.5)) as server:
        async with FaultProxy(str(server.netloc)) as proxy:
            client = nq.aio.new(options=at(proxy.address.port))
            await client.start()
            await client.ready(PATIENCE)
            proxy.refuse()
            proxy.cut()
            gone = server.put("into the void", client.id)
            with pytest.raises(ConnectionResetError) as caught:
                await asyncio.wait_for(gone, PATIENCE)
            assert caught.value.args == (client.id,)
            await client.close(0)


async def test_a_client_that_is_started_again(server: nq.aio.Communicator) -> None:
    """One with the id and secret of an earlier one gets what that had not confirmed, in order and marked."""
    who, secret = uuid.uuid4(), secrets.token_bytes(16)
    async with FaultProxy(str(server.netloc)) as proxy:
        former = nq.aio.new(options=at(proxy.address.port, who=who, secret=secret))
        await former.start()
        await former.ready(PATIENCE)
        await asyncio.wait_for(server.put("confirmed", who), PATIENCE)
        proxy.cut("silence")
        puts = [server.put(number, who) for number in range(3)]
        async with nq.aio.new(options=at(server.netloc.port, who=who, secret=secret)) as later:
            messages = [await later.get(timeout=PATIENCE) for _ in puts]
            assert [message.data for message in messages] == [0, 1, 2]
            assert all(message.redelivered for message in messages)
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*puts)
            assert (await former.get(timeout=0)).data == "confirmed"
            assert not (await _got(server, later)).redelivered
        await former.close(0)


async def _got(server: nq.aio.Communicator, client: nq.aio.Communicator) -> nq.Message[object]:
    server.put("new", client.id)
    return await client.get(timeout=PATIENCE)


async def test_a_client_that_still_runs_is_cut_off(server: nq.aio.Communicator) -> None:
    """The earlier of two with one id and one secret is told that it is over; what it puts fails."""
    who, secret = uuid.uuid4(), secrets.token_bytes(16)
    async with nq.aio.new(options=at(server.netloc.port, who=who, secret=secret)) as former:
        await former.ready(PATIENCE)
        async with nq.aio.new(options=at(server.netloc.port, who=who, secret=secret)) as later:
            await later.ready(PATIENCE)
            with pytest.raises(ConnectionAbortedError):
                await former.get(timeout=PATIENCE)
            with pytest.raises(ConnectionAbortedError):
                await former.put("too late")
            await asyncio.wait_for(server.put("to the later one", who), PATIENCE)
            assert (await later.get(timeout=PATIENCE)).data == "to the later one"


async def test_confirmed_when_it_is_got() -> None:
    """Where the receiver said `confirm="get"` a put is done when its `get` returned the message, and not before."""
    netloc = nq.NetworkLocation(port=0)
    connection = nq.ConnectionOptions(confirm="get")
    options = nq.CommunicatorOptions(netloc=netloc, connection=connection)
    async with nq.aio.new(purpose="server", options=options) as server:
        async with nq.aio.new(options=at(server.netloc.port)) as client:
            first, second = client.put(1), client.put(2)
            assert (await server.get(timeout=PATIENCE)).data == 1
            await asyncio.wait_for(first, PATIENCE)
            assert not second.done()
            assert (await server.get(timeout=PATIENCE)).data == 2
            await asyncio.wait_for(second, PATIENCE)
            # The hello ended too: closing would wait for it.
            assert server._endpoint.node.stats().slots_used == 0
