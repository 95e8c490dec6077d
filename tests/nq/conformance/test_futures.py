"""Section 2.2 of the contract: what the futures of puts say."""

from __future__ import annotations

import asyncio
import threading
import uuid

import pytest

from redpoll import UsageError
from tests.nq.support import World


def test_a_broadcast_is_done_when_all_have_it(world: World) -> None:
    """Row "helper merge()": the future of a put for several is done when each has it, not when some has."""
    server = world.server()
    clients = [world.met(confirm="get") for _ in range(3)]
    put = server.put("x")
    for number, client in enumerate(clients):
        assert put.peers[client.id].done() is False
        assert put.done() is False
        assert client.get().data == "x"
        assert put.peers[client.id].result() is None
        assert len([each for each in put.futures if each.done()]) == number + 1
    assert put.result() is None


def test_futures_are_those_of_each_peer(world: World) -> None:
    """Row ".futures": one for each peer, by peer as well; of a put for one it is the future itself."""
    server = world.server()
    clients = [world.met() for _ in range(2)]
    put = server.put("x")
    assert isinstance(put.future.futures, frozenset)
    assert set(put.future.peers) == {client.id for client in clients}
    assert set(put.future.peers.values()) == put.future.futures
    assert [each.result() for each in put.futures] == [None, None]
    single = clients[0].put("y")
    assert single.future.futures == {single.future}
    assert single.future.peers == {server.id: single.future}


def test_a_put_for_nobody_is_done(world: World) -> None:
    """Row "with zero peers": the future is done, and has no futures."""
    put = world.server().put("x")
    assert put.result() is None
    assert put.future.futures == frozenset()
    assert put.future.peers == {}


def test_errors_are_not_swallowed(world: World) -> None:
    """Row "swallows the individual errors": the first error is the future's, and each peer's future has its own."""
    server, client = world.pair()
    strangers = uuid.uuid4(), uuid.uuid4()
    put = server.put("x", strangers[0], client.id, strangers[1])
    error = put.exception()
    assert type(error) is ConnectionResetError
    assert error.args == (strangers[0],)
    assert put.peers[client.id].result() is None
    assert client.get(timeout=0).data == "x"
    for stranger in strangers:
        each = put.peers[stranger].exception()
        assert isinstance(each, ConnectionResetError)
        assert each.args == (stranger,)


def test_what_is_queued_can_be_taken_back(world: World) -> None:
    """Row "cancel() is always False": what was not sent is taken back, never arrives, and the others keep their order."""
    client = world.client()
    puts = [client.put(number) for number in range(10)]
    for put in puts[::3]:
        assert put.cancel()
        assert put.cancelled()
    server = world.server()
    assert [server.get().data for _ in range(6)] == [1, 2, 4, 5, 7, 8]
    for put in puts:
        assert put.cancelled() or put.result() is None
    client.put("end").result()
    assert server.get(timeout=0).data == "end"


@pytest.mark.parametrize("purpose", ["server", "client"])
def test_what_is_being_sent_can_be_taken_back(world: World, purpose: str) -> None:
    """Row "once buffered": a large put is taken back until its last byte was written, and its memory is the caller's."""
    server, client = world.pair()
    putter, getter = (server, client) if purpose == "server" else (client, server)
    body = bytearray(32 * 1024 * 1024)
    put = putter.put(body)
    assert put.cancel()
    assert put.cancelled()
    body[:] = bytes([1]) * len(body)
    putter.put("end").result()
    assert getter.get(timeout=0).data == "end"


def test_what_has_arrived_cannot_be_taken_back(world: World) -> None:
    """Row "cancel()": it is False once the put has ended, which stays as it was."""
    server, client = world.pair()
    put = client.put("x")
    put.result()
    assert not put.cancel()
    assert not put.cancelled()
    assert server.get(timeout=0).data == "x"


def test_ten_thousand_are_put_and_taken_back(world: World) -> None:
    """Row "message cancelling": ten thousand puts that are taken back leave nothing behind, and what is put then arrives."""
    client = world.client()
    kept = []
    for number in range(10_000):
        put = client.put(number)
        if number % 1000 == 999:
            kept.append(number)
        else:
            assert put.cancel()
    session = client.endpoint.recipients()[0]
    assert client.on_loop(lambda: session.count) == len(kept)
    assert client.on_loop(lambda: len(session._waiting)) == len(kept)
    server = world.server()
    assert [server.get().data for _ in kept] == kept
    with pytest.raises(TimeoutError):
        server.get(timeout=0)


def test_callbacks_may_put_and_never_wait(world: World) -> None:
    """Row "one single event thread": a callback may put; one that would wait there is refused, and nothing stands still."""
    server, client = world.pair()
    told: list[object] = []
    heard = threading.Event()

    def callback(_: object) -> None:
        following = client.made.put("second")
        try:
            following.result()
        except (UsageError, asyncio.InvalidStateError) as error:
            told.append(error)
        finally:
            heard.set()

    first = client.put("first")
    first.result()
    if world.facade == "threads":
        client.on_loop(first.future.add_done_callback, callback)
    else:
        first.future.get_loop().call_soon_threadsafe(first.future.add_done_callback, callback)
    assert heard.wait(10)
    assert len(told) == 1
    assert [server.get().data for _ in range(2)] == ["first", "second"]
