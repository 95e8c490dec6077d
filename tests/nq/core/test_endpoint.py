"""What both ends are on their loop: messages that are no puts, waiting, closing, and what a process leaves behind."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from redpoll import Message, Node, NoHandler, QueueFull, Refused, nq
from redpoll.nq.core.endpoint import FIN, HELLO
from redpoll.nq.core.making import AnyEndpoint
from redpoll.nq.core.puts import LoopDelivery
from tests.blocking.support import PATIENCE
from tests.node.support import turns, until, within
from tests.nq.support import options
from tests.ports import free_port

pytestmark = pytest.mark.asyncio

Ends = tuple[nq.aio.Communicator, nq.aio.Communicator]


async def started(purpose: str, location: nq.NetworkLocation, **given: Any) -> nq.aio.Communicator:
    """An end that runs."""
    made = nq.aio.new("tcp", purpose, options(location, **given))
    await made.start()
    return made


@pytest.fixture
def location() -> nq.NetworkLocation:
    """Where they meet."""
    return nq.NetworkLocation("127.0.0.1", free_port())


@pytest_asyncio.fixture
async def ends(location: nq.NetworkLocation) -> AsyncIterator[Ends]:
    """A server and a client that have met."""
    server, client = await started("server", location), await started("client", location, resume=0.1)
    await client.ready(PATIENCE)
    yield server, client
    for end in (client, server):
        await end.close(0, flush=False)


def session_of(end: nq.aio.Communicator) -> Any:
    """The one session of an end."""
    (session,) = end._endpoint.sessions.values()
    return session


# Messages


async def test_what_is_no_put_is_refused(ends: Ends) -> None:
    """Of a peer that has said hello as well: any other header, which a later version may mean something by."""
    server, client = ends
    node = client._endpoint.node
    with pytest.raises(NoHandler, match="takes puts"):
        await node.send(Message(b"x", client._endpoint.address, header=b"rejected"))  # type: ignore[union-attr]  # a client's
    await client.put("x")
    assert (await server.get(timeout=0)).data == "x"


async def test_a_node_without_a_hello_is_refused(ends: Ends) -> None:
    """Puts and FINs of who did not say hello are told so; nothing arrives."""
    server, _ = ends
    address = str(server.netloc)
    async with Node(listen=False) as node:
        for header in (b"", b"R", FIN):
            with pytest.raises(NoHandler, match="say hello first"):
                await within(node.send(Message(b"x", address, header=header)))
        with pytest.raises(Refused, match="no hello of nq"):
            await within(node.request(Message(b"x", address, header=HELLO)))
    with pytest.raises(TimeoutError):
        await server.get(timeout=0)


async def test_what_comes_after_a_fin_is_refused(ends: Ends) -> None:
    """Who has said that it is done puts no more."""
    server, client = ends
    address = client._endpoint.address  # type: ignore[union-attr]  # a client's
    await client._endpoint.node.send(Message(b"", address, header=FIN))
    with pytest.raises(NoHandler):
        await client._endpoint.node.send(Message(b"x", address))
    await until(lambda: not server._endpoint.sessions, "the session to be over")


# Waiting


async def test_waiting_for_what_is_so(ends: Ends) -> None:
    """It returns at once; what is not so yet is waited for, and a wait that is cancelled leaves nothing."""
    endpoint: AnyEndpoint = ends[0]._endpoint
    state = [True]
    await endpoint.wait(lambda: state[0])
    state[0] = False
    waiting, cancelled = (asyncio.create_task(endpoint.wait(lambda: state[0])) for _ in range(2))
    await turns()
    assert endpoint.has_waiters
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    endpoint.look()
    assert not waiting.done()
    state[0] = True
    endpoint.look()
    await within(waiting)
    assert not endpoint.has_waiters


async def test_what_is_so_for_a_moment(ends: Ends) -> None:
    """Who was woken looks itself, and waits on if it is not so any more."""
    endpoint: AnyEndpoint = ends[0]._endpoint
    state = [False]
    waiting = asyncio.create_task(endpoint.wait(lambda: state[0]))
    await turns()
    state[0] = True
    endpoint.look()
    state[0] = False
    await turns()
    assert not waiting.done()
    state[0] = True
    endpoint.look()
    await within(waiting)


# Puts and bounds


async def test_a_fin_does_not_pass_puts(ends: Ends) -> None:
    """A session that is finishing says so when its last put was confirmed, and not before."""
    server, client = ends
    session = session_of(server)
    copy = LoopDelivery(loop=asyncio.get_running_loop())
    copy.assign(session, b"x", None)
    session.linked = False
    session.submit(copy)
    server.disconnect(client.id)
    await turns()
    assert not session.sent_fin
    session.linked = True
    session.take_back(copy)
    await until(lambda: session.sent_fin, "the FIN")
    await until(lambda: not server._endpoint.sessions, "the session to be over")


async def test_the_queue_is_bounded_over_sessions(location: nq.NetworkLocation) -> None:
    """What waits of a client counts when it comes again with its id."""
    server = await started("server", location, queue_size=2)
    own = uuid.uuid4()
    for number in range(2):
        client = await started("client", location, id=own)
        await client.put(number)
        await client.close()
    client = await started("client", location, id=own)
    with pytest.raises(QueueFull):
        await client.put(2)
    assert (await server.get(timeout=0)).data == 0
    await client.put(3)
    await client.close()
    await server.close()
    assert [(await server.get()).data for _ in range(2)] == [1, 3]


async def test_what_is_dropped_was_not_confirmed(location: nq.NetworkLocation) -> None:
    """A queue that drops its oldest tells the put of that, by bytes as by messages."""
    server = await started("server", location, queue_bytes=100, full="drop")
    client = await started("client", location)
    puts = [client.put("x" * 60) for _ in range(3)]
    for put in puts[:2]:
        with pytest.raises(QueueFull):
            await within(put)
    assert not puts[2].done()
    assert (await server.get()).data == "x" * 60
    await within(puts[2])
    await client.close()
    await server.close()


# Closing


async def test_closing_confirms_what_is_held(location: nq.NetworkLocation) -> None:
    """What came, and is confirmed when it is got, is confirmed by the close, and can be got after it."""
    server = await started("server", location, confirm="get")
    client = await started("client", location)
    put = client.put("x")
    await until(lambda: server._receive_queue, "the message")
    assert not put.done()
    closing = asyncio.create_task(server.close())
    await within(put)
    await client.close()
    await within(closing)
    assert (await server.get()).data == "x"


async def test_what_comes_while_it_closes_is_confirmed(location: nq.NetworkLocation) -> None:
    """Where messages are confirmed when they are got what comes then is so at once, and is not dropped for newer ones."""
    server = await started("server", location, full="drop", queue_size=2)
    client = await started("client", location)
    await client.ready(PATIENCE)
    closing = asyncio.create_task(server.close())
    await turns()
    for number in range(2):
        await within(client.put(number))
    with pytest.raises(QueueFull):
        await within(client.put(2))
    await within(client.close())
    await within(closing)
    assert [(await server.get()).data for _ in range(2)] == [0, 1]


async def test_nothing_is_left_of_a_session(ends: Ends) -> None:
    """One that is over is held by nobody once what came of it was got."""
    server, client = ends
    await client.put("x")
    await client.close()
    await until(lambda: not server._endpoint.sessions, "the session to be over")
    assert not server._endpoint._by_peer
    assert (await server.get()).data == "x"
    gc.collect()
    assert len(server._receive_queue._sources) == 0


async def test_two_events_a_session(location: nq.NetworkLocation) -> None:
    """Each end is told once that a peer came and once that it went, in this order; one that raises is logged."""
    told: list[tuple[str, str, uuid.UUID]] = []

    def events(who: str) -> nq.EventOptions:
        return nq.EventOptions(
            ini=lambda peer: told.append((who, "ini", peer)), fin=lambda peer: told.append((who, "fin", peer))
        )

    server = await started("server", location, events=events("server"))
    client = await started("client", location, events=events("client"))
    await client.ready()
    await client.close()
    await server.close()
    assert sorted(told) == sorted(
        [
            ("client", "ini", server.id),
            ("client", "fin", server.id),
            ("server", "ini", client.id),
            ("server", "fin", client.id),
        ]
    )
    assert told.index(("client", "ini", server.id)) < told.index(("client", "fin", server.id))
    assert told.index(("server", "ini", client.id)) < told.index(("server", "fin", client.id))


async def test_an_event_that_raises(location: nq.NetworkLocation, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and nothing else happens."""

    def fail(peer: uuid.UUID) -> None:
        raise ZeroDivisionError

    server = await started("server", location, events=nq.EventOptions(ini=fail, fin=fail))
    client = await started("client", location)
    await client.put("x")
    await client.close()
    await server.close()
    assert (await server.get()).data == "x"
    assert [record.message for record in caplog.records] == ["an event of a communicator raised"] * 2
