"""The endpoint of a server: who may come, who may come back, and how it ends."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from redpoll import Busy, Message, Node, RedpollError, Refused, ShuttingDown, nq
from redpoll.nq.core import server as module
from redpoll.nq.core.endpoint import HELLO
from redpoll.nq.core.hello import VERSION, hello_body
from redpoll.serializers import msgpack
from redpoll.testing import FaultProxy
from tests.blocking.support import PATIENCE
from tests.node.support import turns, until, within
from tests.nq.core.test_endpoint import Ends, session_of, started
from tests.ports import free_port

pytestmark = pytest.mark.asyncio


@pytest.fixture
def location() -> nq.NetworkLocation:
    """Where they meet."""
    return nq.NetworkLocation("127.0.0.1", free_port())


@pytest_asyncio.fixture
async def ends(location: nq.NetworkLocation) -> AsyncIterator[Ends]:
    """A server and a client that have met."""
    server, client = await started("server", location), await started("client", location)
    await client.ready(PATIENCE)
    yield server, client
    for end in (client, server):
        await end.close(0, flush=False)


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (hello_body(nq.Purpose.SERVER), "it is no client"),
        (msgpack.encode({"nq": VERSION - 1, "purpose": "client"}), "it speaks version 0"),
        (b"", "this is no hello of nq"),
    ],
)
async def test_hellos_that_are_refused(ends: Ends, hello: Any, why: str) -> None:
    """Who says something else than a client's hello is told what is wrong, and has no session."""
    server, _ = ends
    async with Node(listen=False, identity=uuid.uuid4().bytes) as node:
        with pytest.raises(Refused, match=why):
            await within(node.request(Message(hello, str(server.netloc), header=HELLO)))
    assert len(server._endpoint.sessions) == 1


async def test_a_plain_node_may_say_hello(ends: Ends) -> None:
    """Any redpoll node that says it is a client: what it sends is put, and its goodbye ends its session."""
    server, _ = ends
    own = uuid.uuid4()
    async with Node(listen=False, identity=own.bytes) as node:
        answer = await within(node.request(Message(hello_body(nq.Purpose.CLIENT), str(server.netloc), header=HELLO)))
        assert msgpack.decode(answer.data) == {"nq": VERSION, "purpose": "server"}
        await within(node.send(Message(bytes(nq.PickleSerializer().dump("x").tobytes()), str(server.netloc))))
        assert await server.get(timeout=0) == nq.Message(own, "x")
    await until(lambda: own not in server._endpoint.sessions, "the session to be over")


async def test_a_hello_that_is_said_again(ends: Ends) -> None:
    """It is answered again, and changes nothing."""
    server, client = ends
    session = session_of(server)
    endpoint: Any = client._endpoint
    for _ in range(3):
        await within(endpoint.node.request(Message(hello_body(nq.Purpose.CLIENT), endpoint.address, header=HELLO)))
    assert session_of(server) is session
    await client.put("x")
    assert (await server.get(timeout=0)).data == "x"


async def test_a_server_that_closes_takes_nobody(ends: Ends) -> None:
    """A hello that comes then is refused, as one that may be said again elsewhere."""
    server, _ = ends
    closing = asyncio.create_task(server.close())
    await turns()
    async with Node(listen=False, identity=uuid.uuid4().bytes) as node:
        with pytest.raises(ShuttingDown):
            await within(node.request(Message(hello_body(nq.Purpose.CLIENT), str(server.netloc), header=HELLO)))
    assert not closing.done()


async def test_a_second_client_of_an_id(ends: Ends, location: nq.NetworkLocation) -> None:
    """While the first is linked it is refused for good; once that has closed another may come."""
    server, client = ends
    second = await started("client", location, id=client.id)
    with pytest.raises(ConnectionRefusedError) as caught:
        await second.ready(PATIENCE)
    assert "another client has this id" in str(caught.value.__cause__)
    with pytest.raises(ConnectionRefusedError):
        await second.put("x")
    await second.close()
    await client.close()
    third = await started("client", location, id=client.id)
    await third.put("y")
    assert (await server.get(timeout=0)).data == "y"
    await third.close()


async def test_a_client_that_starts_again(location: nq.NetworkLocation) -> None:
    """With its id and secret it gets what its former self had not confirmed, marked, before all else; that one is told."""
    server = await started("server", location)
    own = uuid.uuid4()
    former = await started("client", location, id=own, secret=b"s" * 16, confirm="get")
    await former.ready(PATIENCE)
    puts = [server.put(number, own) for number in range(3)]
    assert (await former.get(timeout=PATIENCE)).data == 0
    await within(puts[0])
    latter = await started("client", location, id=own, secret=b"s" * 16)
    got = [await latter.get(timeout=PATIENCE) for _ in range(2)]
    assert [(each.data, each.redelivered) for each in got] == [(1, True), (2, True)]
    for put in puts:
        await within(put)
    for _ in range(len(former._receive_queue)):
        await former.get(timeout=0)
    with pytest.raises(ConnectionAbortedError):
        await former.get(timeout=PATIENCE)
    await former.close()
    await latter.put("still here")
    assert (await server.get(timeout=PATIENCE)).data == "still here"
    await latter.close()
    await server.close()


async def test_a_client_whose_last_word_is_lost(location: nq.NetworkLocation) -> None:
    """It was done and so was the server: nobody waits `resume` seconds for its confirmation of the server's FIN."""
    server = await started("server", location)
    async with FaultProxy(str(server.netloc)) as proxy:
        client = await started("client", nq.NetworkLocation("127.0.0.1", proxy.address.port))
        await client.ready(PATIENCE)
        await client.put("x")
        endpoint = client._endpoint
        control = endpoint._control

        def no_more(*args: Any) -> Any:
            proxy.freeze("forward")
            return control(*args)

        endpoint._control = no_more  # type: ignore[assignment, method-assign]
        await within(client.close())
        assert not endpoint.sessions
        assert server._endpoint.sessions
        proxy.refuse()
        proxy.cut()
        await within(server.close())
    assert (await server.get(timeout=0)).data == "x"


async def test_whoever_is_not_there(ends: Ends) -> None:
    """A peer that is unknown is not there: puts for it fail, getting of it as well, and it is not sent away."""
    server, client = ends
    stranger = uuid.uuid4()
    assert not server._endpoint.is_there(stranger)
    assert server._endpoint.is_there(client.id)
    with pytest.raises(ConnectionResetError):
        await server.get(stranger)
    server.disconnect(stranger)
    with pytest.raises(ConnectionResetError):
        await server.put("x", stranger)


async def test_who_gets_of_a_client_that_leaves_is_told(ends: Ends) -> None:
    """And who gets of another, or of all, is not."""
    server, client = ends
    mine, all_of_them = (asyncio.create_task(server.get(*peers)) for peers in ((client.id,), ()))
    await turns()
    await client.close()
    with pytest.raises(ConnectionResetError) as caught:
        await within(mine)
    assert caught.value.args == (client.id,)
    assert not all_of_them.done()
    all_of_them.cancel()
    with pytest.raises(asyncio.CancelledError):
        await all_of_them


@pytest.mark.parametrize("flush", [True, False])
async def test_sending_a_client_away_twice(ends: Ends, flush: bool) -> None:
    """Once more does nothing; nor does the client's own FIN, which crosses."""
    server, client = ends
    server.disconnect(client.id, flush)
    server.disconnect(client.id, flush)
    closing = asyncio.create_task(client.close())
    await within(closing)
    await until(lambda: not server._endpoint.sessions, "the session to be over")


async def test_a_close_sees_later_puts_fail(ends: Ends) -> None:
    """Clients that are still there when a server was closed in time are told when they put and when they get."""
    server, client = ends
    await server.close(0)
    with pytest.raises(ConnectionResetError):
        await client.get(timeout=PATIENCE)


async def test_a_close_that_is_cancelled(ends: Ends) -> None:
    """It drops what was not sent, and the cancellation comes out when it is closed."""
    server, _ = ends
    closing = asyncio.create_task(server.close())
    await turns()
    beside = asyncio.create_task(server.close())
    await turns()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(closing)
    await within(beside)
    with pytest.raises(ConnectionAbortedError):
        await server.get()
    await server.close()


async def test_a_client_that_is_gone_before_it_is_answered(
    location: nq.NetworkLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session ends as one that had begun: no put is for it, and the close waits for nobody."""
    server = await started("server", location, resume=0.1)
    endpoint: Any = server._endpoint
    hello = endpoint._hello
    opened: list[uuid.UUID] = []

    def cut(message: Any) -> Any:
        message.link.connection.transport.abort()
        answer = hello(message)
        opened.extend(endpoint.sessions)
        return answer

    monkeypatch.setattr(endpoint, "_hello", cut)
    async with Node(listen=False, identity=uuid.uuid4().bytes) as node:
        with pytest.raises(RedpollError):
            await within(node.request(Message(hello_body(nq.Purpose.CLIENT), str(location), header=HELLO), timeout=0.2))
        assert opened
    put = server.put("to all")
    await until(lambda: not endpoint.sessions, "the session to be over")
    assert isinstance(await within(asyncio.gather(put, return_exceptions=True)), list)
    await within(server.close())


async def test_clients_that_are_gone_and_have_left_something(
    location: nq.NetworkLocation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At so many of them no further client is let in until some of it is got; nothing of theirs is lost, and it is told."""
    monkeypatch.setattr(module, "MAX_LEFT", 2)
    server = await started("server", location)
    lasting = await started("client", location)
    await lasting.ready(PATIENCE)
    left = [await started("client", location) for _ in range(2)]
    for number, client in enumerate(left):
        for _ in range(2):
            await client.put(number)
        await client.close()
    late = await started("client", location)
    put = late.put(2)
    await until(lambda: isinstance(late._endpoint.last_error, Busy), "its word")
    with pytest.raises(TimeoutError, match="messages of 2 former clients were not got"):
        await late.ready(0)
    assert [record.levelname for record in caplog.records if "refuses new clients" in record.message] == ["WARNING"]
    await lasting.put("here")
    again = await started("client", location, id=left[0].id)
    await again.ready(PATIENCE)
    await again.close()
    assert [(await server.get()).data for _ in range(2)] == [0, 0]
    await within(put)
    assert [(await server.get()).data for _ in range(4)] == [1, 1, "here", 2]
    for end in (late, lasting, server):
        await end.close()
