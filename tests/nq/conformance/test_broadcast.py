"""Section 2.3 of the contract: puts for all, and for some."""

from __future__ import annotations

import pytest

from redpoll import nq
from tests.blocking.support import until
from tests.nq.support import World


def test_all_that_are_there_get_it(world: World) -> None:
    """Row "snapshot of currently connected peers": each client that is there gets it once, in the order of the puts."""
    server = world.server()
    clients = [world.met() for _ in range(3)]
    for number in range(20):
        server.put(number)
    for client in clients:
        assert [client.get().data for _ in range(20)] == list(range(20))
        with pytest.raises(TimeoutError):
            client.get(timeout=0)


def test_late_ones_get_nothing(world: World) -> None:
    """Row "zero clients": what is put then is for nobody, and for who comes later neither."""
    server = world.server()
    server.put("nobody").result()
    early = world.met()
    server.put("one").result()
    late = world.met()
    server.put("two").result()
    assert [early.get(timeout=0).data for _ in range(2)] == ["one", "two"]
    assert late.get(timeout=0).data == "two"


def test_only_who_said_hello_gets_it(world: World) -> None:
    """Row "includes connections that have not identified themselves": it does not."""
    server, client = world.pair()
    put = server.put("x")
    assert set(put.future.peers) == {client.id}
    put.result()


def test_it_is_serialized_once(world: World) -> None:
    """Row "serialized once": whatever the number of peers; each has data of its own."""
    buffers = nq.BufferSerializer()
    calls = []

    def dump(data: object) -> nq.Stream:
        calls.append(data)
        return buffers.dump(data)

    serialization = nq.SerializationOptions(buffers.load, dump)
    server = world.server(serialization=serialization)
    clients = [world.met(serialization=serialization) for _ in range(4)]
    server.put(b"x" * 100_000).result()
    assert len(calls) == 1
    got = [client.get(timeout=0).data for client in clients]
    got[0][:1] = b"y"
    assert [bytes(each[:2]) for each in got] == [b"yx", b"xx", b"xx", b"xx"]


def test_some_get_it(world: World) -> None:
    """Row "put(x, a, b) same with an explicit list": those get it, and nobody else."""
    server = world.server()
    a, b, c = (world.met() for _ in range(3))
    server.put("x", a.id, c.id).result()
    server.put("y").result()
    assert [a.get(timeout=0).data, a.get(timeout=0).data] == ["x", "y"]
    assert b.get(timeout=0).data == "y"
    assert [c.get(timeout=0).data, c.get(timeout=0).data] == ["x", "y"]


def test_who_is_named_twice_gets_it_twice(world: World) -> None:
    """Row "duplicates are sent twice": and there is a future for each."""
    server, client = world.pair()
    put = server.put("x", client.id, client.id)
    put.result()
    assert len(put.future.futures) == 2
    assert [client.get(timeout=0).data for _ in range(2)] == ["x", "x"]


def test_a_broadcast_is_never_partial(world: World) -> None:
    """Row "a broadcast that races with one disconnect is partial": who is still there gets all of them, in order."""
    server = world.server()
    stays = [world.met() for _ in range(2)]
    goes = world.met()
    puts = []
    for number in range(200):
        puts.append(server.put(number))
        if number == 100:
            goes.close()
    for client in stays:
        assert [client.get().data for _ in range(200)] == list(range(200))
        assert all(put.peers[client.id].result() is None for put in puts)
    until(lambda: len(server.endpoint.sessions) == 2, "the session to be over")
    assert all(put.exception() is None or goes.id in put.peers for put in puts)


def test_a_client_may_name_its_server(world: World) -> None:
    """Row "client.put(x, peer)": it is for the server if that is its id."""
    server, client = world.pair()
    client.put("x", server.id).result()
    assert server.get(timeout=0).data == "x"
