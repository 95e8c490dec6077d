"""The endpoint of a client: whom it takes for its server, what it does without one, and how it ends."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from redpoll import Node, nq
from redpoll.nq.core import client as module
from redpoll.nq.core.endpoint import FIN, HELLO
from redpoll.nq.core.hello import VERSION, hello_body
from redpoll.serializers import msgpack
from redpoll.testing import FaultProxy
from tests.blocking.support import PATIENCE
from tests.node.resuming import killed
from tests.node.support import turns, until, within
from tests.nq.core.test_endpoint import started
from tests.ports import free_port

pytestmark = pytest.mark.asyncio


@pytest.fixture
def location() -> nq.NetworkLocation:
    """Where they meet."""
    return nq.NetworkLocation("127.0.0.1", free_port())


@asynccontextmanager
async def node_there(location: nq.NetworkLocation, handler: Callable[[Any], Any] | None) -> AsyncIterator[Node[Any]]:
    """A node of redpoll where the server should be."""
    async with Node(handler, host=location.host, port=location.port, identity=uuid.uuid4().bytes) as node:
        yield node


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"hello?", "this is no hello of nq"),
        (hello_body(nq.Purpose.CLIENT), "it is no server"),
        (msgpack.encode({"nq": VERSION - 1, "purpose": "server"}), "it speaks version 0"),
    ],
)
async def test_a_server_that_is_none(location: nq.NetworkLocation, answer: bytes, why: str) -> None:
    """Who answers a hello with something else is no server: all that waits for it is told, and what is wrong."""
    async with node_there(location, lambda message: answer):
        client = await started("client", location)
        put, getting = client.put("x"), asyncio.create_task(client.get())
        for told in (client.ready(PATIENCE), put, getting, client.put("y"), client.get()):
            with pytest.raises(ConnectionRefusedError) as caught:
                await within(told)
            assert caught.value.args == (client.id,)
            assert why in str(caught.value.__cause__)
        await client.close()


async def test_a_node_that_refuses_hellos(location: nq.NetworkLocation) -> None:
    """A node whose handler fails is no server."""

    def fail(message: Any) -> None:
        raise ZeroDivisionError

    async with node_there(location, fail):
        client = await started("client", location)
        with pytest.raises(ConnectionRefusedError):
            await client.ready(PATIENCE)
        await client.close()


async def test_a_node_without_a_handler(location: nq.NetworkLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again and again, as it may come to be a server; the close ends that."""
    monkeypatch.setattr(module, "_HELLO_TIMEOUT", 0.01)
    monkeypatch.setattr(module, "_HELLO_PAUSE", 0.001)
    async with node_there(location, None) as node:
        client = await started("client", location)
        hellos = []
        for _ in range(3):
            async with node.take(timeout=PATIENCE) as message:
                hellos.append(message.header)
        assert hellos == [HELLO] * 3
        with pytest.raises(TimeoutError):
            await client.ready(0)
        await client.close(0)


async def test_a_client_where_the_server_should_be(location: nq.NetworkLocation) -> None:
    """What is said to a client by another node it refuses: it takes no clients."""
    server = await started("server", location)
    client = await started("client", location)
    await client.ready(PATIENCE)
    session = server._endpoint.sessions[client.id]
    peer = session.peer
    assert peer is not None
    assert peer.address is None or peer.address.port == 0
    await client.close()
    await server.close()


async def test_another_server_in_its_place(location: nq.NetworkLocation) -> None:
    """When the first is gone what it had is told so, and the one that is there next is met, and named."""
    first = await started("server", location, full="drop")
    client = await started("client", location, resume=0.5)
    await client.ready(PATIENCE)
    put = client.put("lost")
    await until(lambda: first._receive_queue, "the message")
    first._endpoint.receive_queue.release_all = list  # type: ignore[method-assign]  # it goes without confirming
    await first.close(0)
    with pytest.raises(ConnectionResetError) as caught:
        await within(put)
    assert caught.value.args == (first.id,)
    second = await started("server", location)
    await client.ready(PATIENCE)
    await client.put("later", second.id)
    assert (await second.get(timeout=PATIENCE)).data == "later"
    await client.close()
    await second.close()


async def test_a_link_that_breaks(location: nq.NetworkLocation) -> None:
    """What was put before, while it is down and afterwards arrives once and in order, both ways."""
    server = await started("server", location)
    async with FaultProxy(f"127.0.0.1:{location.port}") as proxy:
        client = await started("client", nq.NetworkLocation("127.0.0.1", proxy.address.port))
        await client.ready(PATIENCE)
        puts = []
        for number in range(200):
            puts += [client.put(number), server.put(number, client.id)]
            if number % 40 == 20:
                await turns(3)
                proxy.cut()
        for end in (server, client):
            assert [(await end.get(timeout=PATIENCE)).data for _ in range(200)] == list(range(200))
        await within(asyncio.gather(*puts))
        await client.close()
    await server.close()


async def test_a_server_that_sends_it_away(location: nq.NetworkLocation) -> None:
    """All that comes later is told, with the server's id, and it does not dial again."""
    server = await started("server", location)
    client = await started("client", location)
    await client.ready(PATIENCE)
    server.disconnect(client.id)
    for tell in (client.get, lambda: client.put("x"), client.get):
        with pytest.raises(ConnectionResetError) as caught:
            await within(tell())
        assert caught.value.args == (server.id,)
    await client.close()
    await server.close()


async def test_a_put_that_comes_before_the_answer(location: nq.NetworkLocation) -> None:
    """The answer may have been lost with the link before: what the server puts then is taken, in order, and so is a FIN."""
    told: list[Any] = []

    async def serve(message: Any) -> Any:
        if message.header != HELLO:
            return None
        for number in range(2):
            body = bytes(nq.PickleSerializer().dump(number).tobytes())
            told.append(there[0].send(message.reply(body, header=b"R" if number else b"")))
            await told[-1]
        return hello_body(nq.Purpose.SERVER)

    there: list[Node[Any]] = []
    async with node_there(location, serve) as node:
        there.append(node)
        client = await started("client", location)
        got = [await client.get(timeout=PATIENCE) for _ in range(2)]
        assert [(each.data, each.redelivered) for each in got] == [(0, False), (1, True)]
        await client.ready(PATIENCE)
        await client.put("x")
        await client.close(0)
    assert [each.exception() for each in told] == [None, None]


async def test_whom_it_may_name(location: nq.NetworkLocation) -> None:
    """Nobody before it has met a server, and then that one."""
    client = await started("client", location)
    with pytest.raises(ConnectionResetError):
        await client.put("x", uuid.uuid4())
    with pytest.raises(ConnectionResetError):
        await client.put("x", client.id)
    server = await started("server", location)
    await client.ready(PATIENCE)
    await client.put("x", server.id)
    assert (await server.get(timeout=0)).data == "x"
    with pytest.raises(ConnectionResetError):
        await client.get(uuid.uuid4())
    await client.close()
    await server.close()


async def test_closing_while_it_dials(location: nq.NetworkLocation) -> None:
    """Whatever it is at, nothing is left; what was put has its time, and is then told."""
    client = await started("client", location, resume=0.05)
    put = client.put("x")
    await within(client.close())
    with pytest.raises(ConnectionAbortedError):
        await put
    client = await started("client", location)
    await within(client.close())


async def test_a_server_that_comes_while_it_closes(location: nq.NetworkLocation) -> None:
    """What was put arrives, and the close ends then."""
    client = await started("client", location)
    put = client.put("x")
    closing = asyncio.create_task(client.close())
    await turns()
    server = await started("server", location)
    await within(closing)
    assert put.done()
    await put
    assert (await server.get(timeout=0)).data == "x"
    await server.close()


async def test_a_server_that_goes_while_it_closes(location: nq.NetworkLocation) -> None:
    """The close ends, and what was not confirmed is told."""
    server = await started("server", location, confirm="get", full="drop")
    client = await started("client", location, resume=0.05)
    put = client.put("x")
    await until(lambda: server._receive_queue, "the message")
    server._endpoint.receive_queue.release_all = list  # type: ignore[method-assign]  # it dies without confirming
    closing = asyncio.create_task(client.close())
    await turns()
    await server.close(0)
    await within(closing)
    error = put.exception()
    assert isinstance(error, ConnectionError)


@asynccontextmanager
async def killed_after_fin(location: nq.NetworkLocation, identity: bytes) -> AsyncIterator[nq.aio.Communicator]:
    """A client that closes, and whose server confirmed that and was killed before it could say that it is done as well."""
    told = asyncio.Event()

    def serve(message: Any) -> Any:
        if message.header == HELLO:
            return hello_body(nq.Purpose.SERVER)
        told.set()
        return None

    first = Node(serve, host=location.host, port=location.port, identity=identity, resume=30.0)
    async with killed(first):
        client = await started("client", location, resume=0.5)
        await client.ready(PATIENCE)
        closing = asyncio.create_task(client.close())
        await within(told.wait())
        await until(lambda: not client._endpoint.node.stats().in_flight, "its confirmation")
    yield client
    await within(closing)


@pytest.mark.parametrize("is_same", [False, True])
async def test_a_server_that_is_killed_after_the_fin(location: nq.NetworkLocation, is_same: bool) -> None:
    """The one that is there next, another or the same started again, is told as well: both ends come to an end."""
    identity = uuid.uuid4()
    async with killed_after_fin(location, identity.bytes):
        second = await started("server", location, **({"id": identity} if is_same else {}))
    await within(second.close())


async def test_servers_that_are_killed_one_after_another(location: nq.NetworkLocation) -> None:
    """Who closes, and meets one that is killed before it answers, waits no longer than for one that never came."""
    hello = asyncio.Event()

    async def serve(message: Any) -> None:
        hello.set()
        await asyncio.Event().wait()

    async with killed_after_fin(location, uuid.uuid4().bytes):
        node = Node(serve, host=location.host, port=location.port, identity=uuid.uuid4().bytes, resume=30.0)
        async with killed(node):
            await within(hello.wait())


async def test_a_fin_that_nobody_asked_for(location: nq.NetworkLocation) -> None:
    """A server that says that it is done, and goes, is one that has sent its client away."""

    async def serve(message: Any) -> Any:
        if message.header == HELLO:
            return hello_body(nq.Purpose.SERVER)
        answers.append(message)
        return None

    answers: list[Any] = []
    async with node_there(location, serve) as node:
        client = await started("client", location)
        await client.put("x")
        (message,) = answers
        await node.send(message.reply(b"", header=FIN))
        with pytest.raises(ConnectionResetError):
            await within(client.get())
        await client.close()
