"""Section 2 of the contract: what putting, getting and closing promise, a row a test."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import Future

import pytest

from redpoll import nq
from tests.blocking.support import PATIENCE, in_thread, until
from tests.nq.support import End, World, begun

BUFFERS = nq.SerializationOptions(nq.BufferSerializer().load, nq.BufferSerializer().dump)


def test_making_one_does_not_block(world: World) -> None:
    """Row "The constructor never blocks": a client is made, and puts, with nobody there, and arrives when somebody is."""
    client = world.client()
    first = client.put("early")
    server = world.server()
    assert server.get().data == "early"
    assert first.result() is None


def test_a_port_that_is_taken_is_told_at_once(world: World) -> None:
    """Row "The constructor never blocks": a server that cannot listen raises the system's error where it is made."""
    if world.protocol == "mqtt":
        pytest.skip("the broker listens")
    world.server()
    with pytest.raises(OSError, match=str(world.netloc.port)):
        world.server()


def test_one_communicator_has_an_id(world: World) -> None:
    """Row "One communicator per id": a second one that claims an id whose client is linked is refused, and told so."""
    server, client = world.pair()
    second = world.client(id=client.id)
    with pytest.raises(ConnectionError) as caught:
        second.ready()
    assert caught.value.args == (client.id,)
    client.put("still the first").result()
    assert server.get().data == "still the first"


def test_an_id_that_is_used_again_keeps_what_waits(world: World) -> None:
    """Row "reusing an id keeps server queues": what a client put before it closed is got, and first."""
    server, client = world.pair()
    for number in range(5):
        client.put(number)
    client.close()
    again = world.met(id=client.id)
    again.put(5).result()
    assert [(server.get().peer, server.get().data) for _ in range(3)] == [(client.id, 2 * n + 1) for n in range(3)]


def test_putting_does_not_block(world: World) -> None:
    """Row "put never blocks": with nobody there to take them thousands of puts wait, and arrive in order."""
    client = world.client()
    puts = [client.put(number) for number in range(2000)]
    assert not any(put.done() for put in puts)
    server = world.server()
    assert [server.get().data for _ in puts] == list(range(2000))
    assert all(put.result() is None for put in puts)


def test_putting_does_not_wait_for_who_does_not_get(world: World) -> None:
    """Row "put never blocks": nor do puts for a peer whose program gets nothing."""
    server, client = world.pair()
    puts = [client.put(bytes(100_000)) for _ in range(500)]
    assert all(put.result() is None for put in puts)
    assert sum(len(server.get().data) for _ in puts) == 50_000_000


def test_data_is_free_when_the_future_is_done(world: World) -> None:
    """Row "Data must not be mutated until the future resolves": from then on changing it changes nothing at the peer."""
    server, client = world.pair(serialization=BUFFERS)
    data = bytearray(b"a" * 300_000)
    client.put(data).result()
    data[:] = b"b" * 300_000
    assert bytes(server.get().data) == b"a" * 300_000


def test_a_future_that_is_done_means_that_it_is_there(world: World) -> None:
    """Row "Resolved future = peer received": what is confirmed can be got without waiting."""
    server, client = world.pair()
    for number in range(50):
        client.put(number).result()
        assert server.get(timeout=0).data == number
        server.put(number, client.id).result()
        assert client.get(timeout=0).data == number


def test_a_peer_that_is_not_there_is_told_by_the_future(world: World) -> None:
    """Row "ConnectionError = peer gone": always by the future, never by `put`."""
    server, client = world.pair()
    stranger = uuid.uuid4()
    for end in (server, client):
        error = end.put("x", stranger).exception()
        assert type(error) is ConnectionResetError
        assert error.args == (stranger,)


def test_getting_waits(world: World) -> None:
    """Row "get always blocks": until something comes, whenever that is."""
    server, client = world.pair()
    getting = in_thread(server.get)
    begun(server)
    client.put("late").result()
    assert getting.result(PATIENCE).data == "late"


def test_getting_has_a_limit(world: World) -> None:
    """Beyond row "get always blocks": a timeout raises TimeoutError, 0 only looks, and nothing is lost."""
    server, client = world.pair()
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError, match="no message came within"):
            server.get(timeout=timeout)
    client.put(1).result()
    assert server.get(timeout=0).data == 1


def test_getting_of_some_peers(world: World) -> None:
    """Beyond row "get": of the peers that it names, in their order; the others' stay where they are."""
    server = world.server()
    a, b, c = (world.met() for _ in range(3))
    for number in range(2):
        for end in (a, b, c):
            end.put((str(end.id), number)).result()
    assert [server.get(b.id).data[1] for _ in range(2)] == [0, 1]
    with pytest.raises(TimeoutError):
        server.get(b.id, timeout=0)
    assert [server.get(c.id, a.id).peer for _ in range(2)] == [a.id, c.id]
    assert [server.get().peer for _ in range(2)] == [a.id, c.id]


def test_a_closed_one_gives_what_came(world: World) -> None:
    """Row "after close get drains then raises": all that came, then ConnectionAbortedError(id), however often it is asked."""
    server, client = world.pair()
    for number in range(3):
        client.put(number)
    client.close()
    server.close()
    assert [server.get().data for _ in range(3)] == [0, 1, 2]
    for end in (server, client):
        for timeout in (None, None, 0, 1):
            with pytest.raises(ConnectionAbortedError) as caught:
                end.get(timeout=timeout)
            assert caught.value.args == (end.id,)


def test_who_gets_is_told_of_the_close(world: World) -> None:
    """Row "get returns or raises ConnectionError": those that wait when it is closed are told, all of them."""
    server, client = world.pair()
    getting = [in_thread(end.get) for end in (server, client) for _ in range(3)]
    begun(server, 3)
    begun(client, 3)
    client.close()
    server.close()
    for end, each in zip((server,) * 3 + (client,) * 3, getting, strict=True):
        error = each.exception(PATIENCE)
        assert type(error) is ConnectionAbortedError
        assert error.args == (end.id,)


def test_a_server_waits_for_its_clients(world: World) -> None:
    """Row "close blocks; server waits for clients": until the last one has closed, and gets what they put meanwhile."""
    server, first = world.pair()
    second = world.met()
    closing = in_thread(server.close)
    until(lambda: server.endpoint.closing, "the server to be closing")
    first.put("late")
    first.close()
    assert not closing.done()
    second.close()
    closing.result(PATIENCE)
    assert server.get().data == "late"


def test_order_is_kept_between_two(world: World) -> None:
    """Row "FIFO per (sender, receiver) pair", whatever the sizes, in both directions at once."""
    server, client = world.pair(transport_size=4096)
    sizes = [0, 70_000, 1, 5000, 0, 300_000, 10] * 20
    for number, size in enumerate(sizes):
        client.put((number, bytes(size)))
        server.put((number, bytes(size)), client.id)
    for end in (server, client):
        got = [end.get().data for _ in sizes]
        assert [(number, len(body)) for number, body in got] == list(enumerate(sizes))


def test_order_of_arrival_across_peers(world: World) -> None:
    """Row "Across peers get() follows arrival order": what was confirmed before is got before."""
    server = world.server()
    clients = [world.met() for _ in range(3)]
    turns = [clients[number % 3] for number in range(12)]
    for number, each in enumerate(turns):
        each.put(number).result()
    assert [(server.get(timeout=0).data) for _ in turns] == list(range(12))


def test_broadcasts_of_two_threads_keep_the_order_of_each(world: World) -> None:
    """Row "Concurrent broadcasts from two threads": each client has each thread's in its order."""
    server = world.server()
    clients = [world.met() for _ in range(2)]

    def work(name: str) -> None:
        for number in range(100):
            server.put((name, number))

    working: list[Future[None]] = [in_thread(work, name) for name in "ab"]
    for each in working:
        each.result(PATIENCE)
    for client in clients:
        got = [client.get().data for _ in range(200)]
        assert [number for name, number in got if name == "a"] == list(range(100))
        assert [number for name, number in got if name == "b"] == list(range(100))


def test_a_moment_without_a_server(world: World) -> None:
    """Beyond the constructor: `ready` waits for the server, and says in time that none came."""
    client: End = world.client()
    with pytest.raises(TimeoutError, match="no server answered within"):
        client.ready(0.01)
    waiting = in_thread(client.ready)
    before = time.monotonic()
    server = world.server()
    server.ready(0)
    waiting.result(PATIENCE)
    assert time.monotonic() >= before
