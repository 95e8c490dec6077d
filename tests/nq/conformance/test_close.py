"""Section 2.5 of the contract: how sessions end."""

from __future__ import annotations

import pytest

from redpoll import UsageError
from tests.blocking.support import PATIENCE, in_thread, until
from tests.nq.support import World, begun


def test_a_client_sends_what_it_has_put(world: World) -> None:
    """Row "send FIN after pending data": all puts are confirmed when `close` returns."""
    server, client = world.pair(transport_size=4096)
    puts = [client.put((number, bytes(50_000))) for number in range(50)]
    client.close()
    assert all(put.done() and put.result() is None for put in puts)
    assert [server.get(timeout=0).data[0] for _ in puts] == list(range(50))


def test_a_client_waits_for_what_the_server_has(world: World) -> None:
    """Row "late server messages lost": what the server had put for it is there to be got when `close` returns."""
    server, client = world.pair()
    for number in range(100):
        server.put((number, bytes(10_000)), client.id)
    client.close()
    assert [client.get(timeout=0).data[0] for _ in range(100)] == list(range(100))


def test_a_server_answers_by_itself(world: World) -> None:
    """Row "server answers a client's FIN automatically": nobody has to get, and another may come with the same id."""
    server, client = world.pair()
    client.put("x")
    client.close()
    until(lambda: not server.endpoint.sessions, "the session to be over")
    again = world.met(id=client.id)
    again.close()
    server.close()
    assert server.get().data == "x"


def test_closing_what_is_closed(world: World) -> None:
    """Row "close() is idempotent": once more does nothing, at either end."""
    server, client = world.pair()
    for end in (client, server):
        for _ in range(3):
            end.close()


def test_several_close_at_the_same_time(world: World) -> None:
    """Row "concurrent callers wait": each returns when it is closed."""
    server, client = world.pair()
    closing = [in_thread(server.close) for _ in range(3)]
    until(lambda: server.endpoint.closing, "the server to be closing")
    assert not any(each.done() for each in closing)
    client.close()
    for each in closing:
        each.result(PATIENCE)


def test_a_close_that_is_limited(world: World) -> None:
    """Row "unbounded": a server's close with a timeout ends; what is open then fails, and its clients learn of it."""
    server, client = world.pair(confirm="get", resume=0.2)
    put = server.put("x", client.id)
    getting = in_thread(client.get)
    assert getting.result(PATIENCE).data == "x"
    assert put.result() is None
    open_put = server.put("y", client.id)
    server.close(timeout=0.05)
    error = open_put.exception()
    assert type(error) is ConnectionAbortedError
    assert error.args == (server.id,)
    assert client.get().data == "y"
    with pytest.raises(ConnectionResetError) as caught:
        client.get()
    assert caught.value.args == (server.id,)


def test_a_close_that_waits_for_nobody(world: World) -> None:
    """Beyond row "close": without flush what was not sent is dropped, and says so."""
    client = world.client()
    puts = [client.put(number) for number in range(3)]
    client.close(flush=False)
    for put in puts:
        error = put.exception()
        assert type(error) is ConnectionAbortedError
        assert error.args == (client.id,)


def test_a_server_that_waits_for_nobody(world: World) -> None:
    """Row "a server cannot evict": without flush it sends its clients away, who are told when they get."""
    server = world.server()
    clients = [world.met() for _ in range(2)]
    getting = [in_thread(client.get) for client in clients]
    for client in clients:
        begun(client)
    server.close(flush=False)
    for each in getting:
        error = each.exception(PATIENCE)
        assert type(error) is ConnectionResetError
        assert error.args == (server.id,)


def test_a_server_that_nobody_came_to(world: World) -> None:
    """Row "wait until no connection is left": there is none, so it closes at once."""
    world.server().close()


def test_a_client_without_a_server(world: World) -> None:
    """Row "close": one that has put nothing closes at once; one that has waits as long as for a server that is gone."""
    world.client().close()
    client = world.client(resume=0.05)
    put = client.put("x")
    client.close()
    error = put.exception()
    assert type(error) is ConnectionAbortedError
    assert error.args == (client.id,)


def test_a_client_is_sent_away(world: World) -> None:
    """Row "a server cannot evict a client": it can; what it has put arrives, what the client puts then fails."""
    server, client = world.pair()
    other = world.met()
    server.put("last", client.id)
    server.disconnect(client.id)
    assert client.get().data == "last"
    with pytest.raises(ConnectionResetError) as caught:
        client.get()
    assert caught.value.args == (server.id,)
    error = client.put("x").exception()
    assert type(error) is ConnectionResetError
    assert error.args == (server.id,)
    until(lambda: client.id not in server.endpoint.sessions, "the session to be over")
    assert type(server.put("x", client.id).exception()) is ConnectionResetError
    other.put("still here").result()
    assert server.get(timeout=0).data == "still here"
    client.close()


def test_a_client_is_sent_away_at_once(world: World) -> None:
    """Row "evict": without flush what was not sent for it fails with ConnectionResetError(client)."""
    server, client = world.pair(confirm="get")
    put = server.put("x", client.id)
    server.disconnect(client.id, flush=False)
    error = put.exception()
    assert type(error) is ConnectionResetError
    assert error.args == (client.id,)
    until(lambda: client.id not in server.endpoint.sessions, "the session to be over")


def test_whom_a_server_does_not_know(world: World) -> None:
    """Row "evict": for one that is not there nothing is done, and a client has nobody to send away."""
    server, client = world.pair()
    server.disconnect(server.id)
    with pytest.raises(UsageError, match="a client has no clients"):
        client.disconnect(server.id)


def test_leaving_with_an_error(world: World) -> None:
    """Row "with": an exception in it closes without waiting for what was not sent."""
    client = world.client()
    puts = []

    def work() -> None:
        with client:
            puts.append(client.put("x"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    put = puts[0]
    assert type(put.exception()) is ConnectionAbortedError
    with pytest.raises(ConnectionAbortedError):
        client.get()


def test_both_close_at_the_same_time(world: World) -> None:
    """Row "FIN": whichever is first, both come to their ends with what was put."""
    for _ in range(5):
        server, client = world.pair()
        client.put(1)
        server.put(2, client.id)
        closing = [in_thread(end.close) for end in (server, client)]
        for each in closing:
            each.result(PATIENCE)
        assert (server.get().data, client.get().data) == (1, 2)
