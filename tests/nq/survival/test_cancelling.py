"""Ten thousand puts and as many cancellations: each future says what became of it, and what was not taken back arrives."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any

import pytest

from redpoll import QueueFull
from tests.blocking.support import PATIENCE
from tests.nq.support import World

MANY = 10_000

ORDERS = ["first to last", "last to first", "at random"]

orders = pytest.mark.parametrize("order", ORDERS)


def arranged(puts: list[Any], order: str) -> list[Any]:
    """The puts in the order in which they are cancelled."""
    if order == "at random":
        return random.Random(0).sample(puts, len(puts))
    return puts if order == "first to last" else puts[::-1]


def _arrive(puts: list[Future[None]], end: Any, last: str) -> None:
    """What was not taken back arrives in order, and the futures say so."""
    arrived = []
    while (got := end.get().data) != last:
        arrived.append(got)
    assert arrived == [number for number, put in enumerate(puts) if not put.cancelled()]
    for put in puts:
        assert put.cancelled() or put.exception(PATIENCE) is None


@orders
def test_of_what_waits_for_a_server(world: World, order: str) -> None:
    """All is taken back that waits for a server, but for a few; those arrive when there is one."""
    client = world.client()
    puts = [client.made.put(number) for number in range(MANY)]
    kept = set(range(0, MANY, 1000))
    assert all(put.cancel() for put in arranged([put for n, put in enumerate(puts) if n not in kept], order))
    assert [n for n, put in enumerate(puts) if not put.cancelled()] == sorted(kept)
    client.put("last")
    _arrive(puts, world.server(), "last")
    assert all(session.count == 0 for session in client.endpoint.recipients())


@orders
@pytest.mark.parametrize("purpose", ["server", "client"])
def test_of_what_is_on_its_way(world: World, order: str, purpose: str) -> None:
    """What is taken back while all travels does not arrive, and all else does, in order."""
    server, client = world.pair()
    putter, getter = (server, client) if purpose == "server" else (client, server)
    puts = [putter.made.put(number) for number in range(MANY)]
    for put in arranged(puts, order):
        assert put.cancel() == put.cancelled()
    putter.put("last")
    _arrive(puts, getter, "last")
    client.close()


@orders
def test_on_the_loop(world: World, order: str) -> None:
    """What callbacks put and cancel, before the loop has looked at it too, is taken back; the end is not upset by it."""
    server, client = world.pair()
    puts: list[Future[None]] = []
    taken: list[bool] = []

    def put_and_cancel() -> None:
        puts.extend(client.made.put(number) for number in range(MANY))
        taken.extend(put.cancel() for put in arranged(puts, order))

    client.on_loop(put_and_cancel)
    assert all(taken)
    assert all(put.cancelled() for put in puts)
    client.put("last").result()
    assert server.get().data == "last"
    assert all(session.count == 0 for session in client.endpoint.recipients())
    client.close()


@orders
def test_on_the_loop_of_broadcasts(world: World, order: str) -> None:
    """Broadcasts are taken back as a whole, each of their copies."""
    server = world.server()
    clients = [world.met() for _ in range(3)]
    puts: list[Any] = []

    def put_and_cancel() -> None:
        puts.extend(server.made.put(number) for number in range(MANY // 10))
        for put in arranged(puts, order):
            assert put.cancel()

    server.on_loop(put_and_cancel)
    assert all(put.cancelled() and all(each.cancelled() for each in put.futures) for put in puts)
    server.put("last").result()
    assert [client.get().data for client in clients] == ["last"] * 3
    assert all(session.count == 0 for session in server.endpoint.sessions.values())


def test_dropping_the_oldest(world: World) -> None:
    """Ten thousand puts beyond a bound of as many drop those before them, each of which is told."""
    client = world.client(queue_size=MANY, full="drop")
    puts = [client.made.put(number) for number in range(2 * MANY)]
    client.on_loop(lambda: None)
    assert all(isinstance(put.exception(PATIENCE), QueueFull) for put in puts[:MANY])
    assert not any(put.done() for put in puts[MANY:])
    server = world.server()
    assert [server.get().data for _ in range(MANY)] == list(range(MANY, 2 * MANY))
