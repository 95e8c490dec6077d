"""Section 6 of the contract: what is kept of net-queue, and what is promised beyond it, over links that break."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import numpy as np
import pytest

from redpoll import Address, nq
from redpoll.testing import FaultProxy
from tests.blocking.support import PATIENCE, in_thread, until
from tests.nq.support import LoopThread, World


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    """A loop for what stands between two ends."""
    made = LoopThread()
    yield made
    made.end()


class Between:
    """A proxy between clients and where they dial, that a thread tells what to do."""

    def __init__(self, world: World, loop: LoopThread) -> None:
        self._loop = loop
        self._proxy = FaultProxy(Address("tcp", world.netloc.host, world.netloc.port))
        loop.run(self._proxy.start())
        self.netloc = nq.NetworkLocation("127.0.0.1", self._proxy.address.port)

    def cut(self) -> None:
        """Reset all connections."""
        self._loop.call(self._proxy.cut)

    def freeze(self) -> None:
        """Pass nothing on, over the connections that there are."""
        self._loop.run(self._freeze())

    async def _freeze(self) -> None:
        self._proxy.freeze(to="present")

    def refuse(self) -> None:
        """Let no more come."""
        self._loop.call(self._proxy.refuse)

    def admit(self) -> None:
        """Let them come again."""
        self._loop.call(self._proxy.admit)

    def close(self) -> None:
        """End it."""
        self._loop.run(self._proxy.__aexit__())


@pytest.fixture
def between(world: World, loop: LoopThread) -> Iterator[Between]:
    """One that is ended before the test's ends are."""
    made = Between(world, loop)
    yield made
    made.close()


# Kept


def test_the_example_of_net_queue(world: World) -> None:
    """Names, strings for members, `with`, and the flow of its own script: first the broadcast, then one for each."""
    text = "Hello, World!"
    with world.server() as server:
        clients = [world.client() for _ in range(3)]
        for client in clients:
            client.put(text).result()
        peers = {server.get().peer for _ in clients}
        assert peers == {client.id for client in clients}
        server.put((text, "to all")).result()
        for peer in peers:
            server.put((text, "to one"), peer)
        for client in clients:
            assert [client.get().data for _ in range(2)] == [(text, "to all"), (text, "to one")]
            assert client.id in peers
            client.close()


@pytest.mark.parametrize(
    "data", [None, True, 0, -1.5, "text", b"bytes", bytearray(b"x"), [1, {"a": (2,)}], uuid.UUID(int=7)]
)
def test_values_need_no_options(world: World, data: object) -> None:
    """The default serializer carries values of all kinds, with their types."""
    server, client = world.pair()
    client.put(data).result()
    got = server.get(timeout=0).data
    assert got == data
    assert type(got) is type(data)


def test_arrays_need_no_options(world: World) -> None:
    """Nor do arrays, views of one among them, which can be written to where they came."""
    server, client = world.pair()
    array = np.arange(1 << 18, dtype=np.uint8)
    for size in (0, 1, 100, 1 << 17, 1 << 18):
        client.put(array[:size])
        got = server.get().data
        assert np.array_equal(got, array[:size])
        got[:] = 0


# Beyond


def test_links_that_break(world: World, between: Between) -> None:
    """What is put before, meanwhile and afterwards arrives once and in order, both ways, and each future says so."""
    server = world.server()
    client = world.client(netloc=between.netloc)
    client.ready()
    puts = []
    for number in range(300):
        puts += [client.put(number), server.put(number, client.id)]
        if number % 60 == 30:
            puts[-60].exception()
            between.cut()
    for end in (server, client):
        assert [end.get().data for _ in range(300)] == list(range(300))
    assert [put.exception() for put in puts] == [None] * 600
    with pytest.raises(TimeoutError):
        server.get(timeout=0)


def test_a_put_while_the_link_is_down(world: World, between: Between) -> None:
    """It waits, and arrives once the link is back; nobody that gets is told of anything."""
    server = world.server()
    client = world.client(netloc=between.netloc)
    client.ready()
    getting = in_thread(client.get)
    between.refuse()
    between.cut()
    puts = [client.put("up"), server.put("down", client.id)]
    with pytest.raises(TimeoutError):
        server.get(timeout=0.05)
    between.admit()
    assert server.get().data == "up"
    assert getting.result(PATIENCE).data == "down"
    assert [put.exception() for put in puts] == [None] * 2


def test_a_link_that_stays_down(world: World, between: Between) -> None:
    """After `resume` seconds both ends are told, by puts and by gets, and are still of use to others."""
    server = world.server(resume=0.2)
    client = world.client(netloc=between.netloc, resume=0.2)
    client.ready()
    between.refuse()
    # A put after the end of the session would wait for the next one.
    between.freeze()
    puts = [client.put("x"), server.put("y", client.id)]
    between.cut()
    for put, peer in zip(puts, (server.id, client.id), strict=True):
        error = put.exception()
        assert type(error) is ConnectionResetError
        assert error.args == (peer,)
    with pytest.raises(ConnectionResetError):
        client.get()
    between.admit()
    client.ready()
    client.put("again").result()
    assert server.get(timeout=0).data == "again"


def test_a_link_that_breaks_while_it_closes(world: World, between: Between) -> None:
    """The close waits until what was put is confirmed, over whichever link."""
    server = world.server()
    client = world.client(netloc=between.netloc)
    client.ready()
    puts = [client.put((number, bytes(10_000))) for number in range(50)]
    closing = in_thread(client.close)
    until(lambda: client.endpoint.closing, "the client to be closing")
    between.cut()
    closing.result(PATIENCE)
    assert [put.exception() for put in puts] == [None] * 50
    assert [server.get().data[0] for _ in range(50)] == list(range(50))
    server.close()
