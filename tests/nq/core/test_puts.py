"""The futures of puts: to one, to several, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import gc
import threading
import uuid
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError, wait
from typing import Any

import pytest
import pytest_asyncio

from redpoll import UsageError, nq
from redpoll.nq.core.puts import REDELIVERED, LoopBroadcast, LoopDelivery
from tests.blocking.support import PATIENCE, until
from tests.node.support import until as loop_until
from tests.nq.core.support import ME, PEER, Group, Pair, Put
from tests.nq.support import options
from tests.ports import free_port

# What they have in common


def test_a_put_is_an_outgoing() -> None:
    """It asks for a confirmation, has no time of its own, and is for that peer alone."""
    pair = Pair()
    put = Put(pair.session, b"body")
    assert (put.body, put.header, put.size, put.timeout, put.pinned) == (b"body", b"", 4, None, True)
    assert put.untouched


def test_a_put_that_is_sent_again() -> None:
    """It begins anew, marked if it may have arrived; then it is not to be taken back."""
    pair = Pair()
    put = Put(pair.session, b"body")
    put.stage = 1
    put.reload(redelivered=False)
    assert (put.stage, put.header, put.size, put.untouched) == (0, b"", 4, True)
    put.reload(redelivered=True)
    assert (put.header, put.size, put.untouched) == (REDELIVERED, 5, False)
    put.reload(redelivered=False)
    assert put.header == REDELIVERED


def test_a_put_that_ended_holds_nothing() -> None:
    """It lets go of its body and of what it is a part of, so that nothing waits for the collector."""
    pair, group = Pair(), Group()
    put = Put(pair.session, b"body", group)
    group.assemble((put,), None)
    put.end(None)
    kept: list[Any] = [put.body, put.message, put.group]
    assert kept == [b"", None, None]
    assert group.ends == [None]
    gc.collect()
    gc.disable()
    try:
        gone = weakref.ref(group)
        del put, group
        assert gone() is None
    finally:
        gc.enable()


def test_a_put_for_several_ends_with_the_last() -> None:
    """It ends once, when all have, with the error that was first."""
    pair, group = Pair(), Group()
    puts = [Put(pair.session, b"x", group) for _ in range(4)]
    group.assemble(tuple(puts), None)
    first = ConnectionResetError(PEER)
    for put, error in zip(puts, (None, first, ConnectionResetError(ME)), strict=False):
        put.end(error)
    assert group.ends == []
    puts[3].end(None)
    assert group.ends == [first]
    assert group.futures == frozenset(puts)
    assert group.peers == {PEER: puts[3]}


@pytest.mark.parametrize(("taken", "end"), [(3, "withdrawn"), (2, None)])
def test_a_put_for_several_that_is_taken_back(taken: int, end: object) -> None:
    """Taken back whole it is cancelled; in part it ends as the rest does."""
    pair, group = Pair(), Group()
    puts = [Put(pair.session, b"x", group) for _ in range(3)]
    group.assemble(tuple(puts), None)
    for put in puts:
        pair.session.submit(put)
    for put in puts[:taken]:
        assert pair.session.take_back(put)
    for put in puts[taken:]:
        put.end(None)
    assert group.ends == [end]


def test_a_put_for_nobody() -> None:
    """It ends at once, with the error if there is one."""
    for error in (None, ConnectionAbortedError(ME)):
        group = Group()
        group.assemble((), error)
        assert group.ends == [error]
        assert (group.futures, group.peers) == (frozenset(), {})


# Threads


@pytest.fixture
def ends() -> Iterator[tuple[nq.Communicator, list[nq.Communicator]]]:
    """A server and two clients that have met."""
    location = nq.NetworkLocation("127.0.0.1", free_port())
    server = nq.new("tcp", "server", options(location))
    clients = [nq.new("tcp", "client", options(location, confirm="get")) for _ in range(2)]
    for client in clients:
        client.ready(PATIENCE)
    yield server, clients
    for end in (*clients, server):
        end.close(0, flush=False)


def test_they_are_futures(ends: tuple[nq.Communicator, list[nq.Communicator]]) -> None:
    """What waits for futures of the standard library waits for these."""
    server, clients = ends
    puts: list[Any] = [server.put("x"), server.put("y", clients[0].id)]
    done, open_ones = wait(puts, timeout=0)
    assert (done, open_ones) == (set(), set(puts))
    with pytest.raises(TimeoutError):
        puts[0].result(timeout=0)
    for client in clients:
        client.get(timeout=PATIENCE)
    clients[0].get(timeout=PATIENCE)
    done, open_ones = wait(puts, timeout=PATIENCE)
    assert (done, open_ones) == (set(puts), set())
    assert [put.result() for put in puts] == [None, None]


def test_a_broadcast_is_taken_back_whole() -> None:
    """`cancel` is True, and the future cancelled, as each peer's is; None of it arrives, and it ends once."""
    location = nq.NetworkLocation("127.0.0.1", free_port())
    with nq.new("tcp", "client", options(location, resume=0.01)) as client:
        endpoint = client._resident.endpoint
        session = endpoint.recipients()[0]
        put: Any = None

        def make() -> None:
            nonlocal put
            from redpoll.nq.core.puts import ThreadBroadcast, ThreadDelivery

            put = ThreadBroadcast(client._resident.handover)
            deliveries = []
            for _ in range(2):
                delivery = ThreadDelivery(client._resident.handover)
                delivery.assign(session, b"x", put)
                deliveries.append(delivery)
            put.assemble(tuple(deliveries), None)
            endpoint.submit(tuple(deliveries))

        client._resident.handover.run(make)
        assert put.cancel()
        assert put.cancelled()
        assert all(each.cancelled() for each in put.futures)
        assert put.cancel()
        with pytest.raises(CancelledError):
            put.result()
        assert session.count == 0


def test_what_arrived_is_not_taken_back(ends: tuple[nq.Communicator, list[nq.Communicator]]) -> None:
    """A broadcast of which one has it, or may have it, goes on, and says so."""
    server, clients = ends
    put: Any = server.put("x")
    assert clients[0].get(timeout=PATIENCE).data == "x"
    assert not put.cancel()
    assert clients[1].get(timeout=PATIENCE).data == "x"
    assert put.result(PATIENCE) is None
    assert not put.cancel()


def test_callbacks_are_called_outside_of_the_core(ends: tuple[nq.Communicator, list[nq.Communicator]]) -> None:
    """One may take back other puts, which the core is at, and wait for nothing; who waits for the future is woken first."""
    server, clients = ends
    peer = clients[0].id
    told: list[object] = []
    heard = threading.Event()
    puts: list[Any] = [server.put(number, peer) for number in range(3)]

    def callback(_: object) -> None:
        try:
            told.append([put.cancel() for put in puts])
            clients[0].put("x").result(1)
        except UsageError as error:
            told.append(type(error))
        heard.set()

    puts[0].add_done_callback(callback)
    assert clients[0].get(timeout=PATIENCE).data == 0
    puts[0].result(PATIENCE)
    assert heard.wait(PATIENCE)
    assert told == [[False] * 3, UsageError]
    assert [clients[0].get(timeout=PATIENCE).data for _ in range(2)] == [1, 2]


def test_taking_back_at_the_end() -> None:
    """Once the loop is gone there is nothing to take back, and nobody is waited for."""
    location = nq.NetworkLocation("127.0.0.1", free_port())
    client = nq.new("tcp", "client", options(location))
    put = client.put("x")
    client.close(0)
    assert isinstance(put.exception(PATIENCE), ConnectionAbortedError)
    assert not put.cancel()


# Asyncio


@pytest_asyncio.fixture
async def both() -> AsyncIterator[tuple[nq.aio.Communicator, nq.aio.Communicator]]:
    """A server and a client that have met."""
    location = nq.NetworkLocation("127.0.0.1", free_port())
    server = nq.aio.new("tcp", "server", options(location))
    client = nq.aio.new("tcp", "client", options(location, confirm="get"))
    await server.start()
    await client.start()
    await client.ready(PATIENCE)
    yield server, client
    await client.close(0, flush=False)
    await server.close(0, flush=False)


@pytest.mark.asyncio
async def test_an_error_that_nobody_awaits_is_not_logged(
    both: tuple[nq.aio.Communicator, nq.aio.Communicator],
) -> None:
    """A put whose future is dropped is no exception on the loop."""
    server, _ = both
    for put in (server.put("x", uuid.uuid4()), server.put("x", uuid.uuid4(), uuid.uuid4())):
        await asyncio.wait((put,))
    del put
    gc.collect()


@pytest.mark.asyncio
async def test_a_task_that_is_cancelled_takes_its_put_back() -> None:
    """What was not sent does not arrive if the task that awaits it is cancelled."""
    location = nq.NetworkLocation("127.0.0.1", free_port())
    async with nq.aio.new("tcp", "client", options(location)) as client:
        task = asyncio.ensure_future(client.put("taken back"))
        await asyncio.sleep(0)
        kept = client.put("kept")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with nq.aio.new("tcp", "server", options(location)) as server:
            assert (await server.get(timeout=PATIENCE)).data == "kept"
            await kept
            with pytest.raises(TimeoutError):
                await server.get(timeout=0)
            await client.close()


@pytest.mark.asyncio
async def test_a_put_that_was_sent_arrives_though_it_is_cancelled(
    both: tuple[nq.aio.Communicator, nq.aio.Communicator],
) -> None:
    """The future is cancelled, as futures of asyncio are; the message comes all the same, and the next one too."""
    server, client = both
    put = server.put("sent", client.id)
    await loop_until(lambda: client._receive_queue, "the message")
    assert put.cancel()
    assert not put.cancel()
    assert (await client.get(timeout=PATIENCE)).data == "sent"
    assert put.cancelled()
    following = server.put("next")
    assert (await client.get(timeout=PATIENCE)).data == "next"
    await following


@pytest.mark.asyncio
async def test_a_broadcast_is_cancelled(both: tuple[nq.aio.Communicator, nq.aio.Communicator]) -> None:
    """It and each of its futures are, once, and what was not sent is not."""
    _, client = both
    session = client._endpoint.recipients()[0]
    loop = asyncio.get_running_loop()
    group = LoopBroadcast(loop=loop)
    deliveries = []
    for _ in range(2):
        delivery = LoopDelivery(loop=loop)
        delivery.assign(session, b"x", group)
        deliveries.append(delivery)
    group.assemble(tuple(deliveries), None)
    session.linked = False
    for delivery in deliveries:
        session.submit(delivery)
    assert group.cancel()
    assert group.cancelled()
    assert all(delivery.cancelled() for delivery in deliveries)
    assert session.count == 0
    assert not group.cancel()
    session.linked = True


def test_waiting_on_the_loop_is_refused(ends: tuple[nq.Communicator, list[nq.Communicator]]) -> None:
    """The thread of the loop is told instead of standing still."""
    server, clients = ends
    errors: list[type[BaseException]] = []

    def look(put: Any) -> None:
        try:
            put.result()
        except UsageError as error:
            errors.append(type(error))

    handover = server._resident.handover
    handover.run(look, server.put("x", clients[0].id))
    handover.run(look, server.put("x"))
    until(lambda: len(errors) == 2, "both")


def _depth(error: BaseException) -> int:
    trace, depth = error.__traceback__, 0
    while trace is not None:
        trace, depth = trace.tb_next, depth + 1
    return depth


def test_errors_do_not_grow() -> None:
    """However often a client that was refused puts, waits to be ready and gets: each error has a traceback of its own."""
    server = nq.new("tcp", "server", options(nq.NetworkLocation("127.0.0.1", 0)))
    holder = nq.new("tcp", "client", options(server.netloc))
    holder.ready(PATIENCE)
    second = nq.new("tcp", "client", options(server.netloc, id=holder.id))
    for ask in (second.ready, second.get, lambda timeout: second.put("x").result(timeout)):
        depths = []
        for _ in range(5):
            with pytest.raises(ConnectionRefusedError) as caught:
                ask(timeout=PATIENCE)
            assert caught.value.__cause__ is not None
            depths.append(_depth(caught.value))
        assert depths[-1] <= depths[1]
    for end in (second, holder, server):
        end.close(0, flush=False)


@pytest.mark.asyncio
async def test_errors_do_not_grow_on_a_loop() -> None:
    """Nor there."""
    server = nq.aio.new("tcp", "server", options(nq.NetworkLocation("127.0.0.1", 0)))
    await server.start()
    async with nq.aio.new("tcp", "client", options(server.netloc)) as holder:
        await holder.ready(PATIENCE)
        async with nq.aio.new("tcp", "client", options(server.netloc, id=holder.id)) as second:
            depths = []
            for _ in range(5):
                with pytest.raises(ConnectionRefusedError) as caught:
                    await second.put("x")
                depths.append(_depth(caught.value))
            assert depths[-1] <= depths[1]
    await server.close(0, flush=False)
