"""Closing in the midst of everything: who puts and who gets is told, and nobody hangs."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import Any

import pytest

from tests.blocking.support import PATIENCE, in_thread, until
from tests.nq.support import End, Outcome, World, begun

#: Threads that do the same.
MANY = 20

ends = pytest.mark.parametrize("purpose", ["server", "client"])


def _pair(world: World, purpose: str) -> tuple[End, End]:
    """The end that is closed, and the other one."""
    server, client = world.pair(resume=1.0)
    return (server, client) if purpose == "server" else (client, server)


@ends
@pytest.mark.parametrize("flush", [True, False])
def test_many_that_get(world: World, purpose: str, flush: bool) -> None:
    """All threads that get are told of the close, those that get of one peer too, and each that gets later."""
    closed, other = _pair(world, purpose)
    getting = [
        in_thread(lambda peers=peers: closed.get(*peers, timeout=None)) for peers in [(), (other.id,)] * (MANY // 2)
    ]
    begun(closed, MANY)
    closing = in_thread(closed.close, None, flush)
    if purpose == "server" and flush:
        other.close()
    closing.result(PATIENCE)
    for each in getting:
        error = each.exception(PATIENCE)
        assert type(error) in {ConnectionAbortedError, ConnectionResetError}
    for _ in range(100):
        with pytest.raises(ConnectionAbortedError) as caught:
            closed.get(timeout=None)
        assert caught.value.args == (closed.id,)


@ends
def test_many_that_close(world: World, purpose: str) -> None:
    """All threads that close return when it is closed, and so do those that close again."""
    closed, other = _pair(world, purpose)
    closed.put("last")
    closing = [in_thread(closed.close) for _ in range(MANY)]
    assert other.get().data == "last"
    other.close()
    for each in closing:
        each.result(PATIENCE)
    closed.close()


@ends
@pytest.mark.parametrize("way", [{"flush": True}, {"flush": False}, {"timeout": 0.0}])
def test_many_that_put(world: World, purpose: str, way: dict[str, float]) -> None:
    """What threads put while it is closed ends: confirmed, and then it arrived, or with an error that says why not."""
    closed, other = _pair(world, purpose)
    stop = threading.Event()
    puts: list[list[tuple[tuple[int, int], Any]]] = [[] for _ in range(4)]

    def put_on(number: int) -> None:
        count = 0
        while not stop.is_set():
            put = closed.made.put((number, count), other.id)
            puts[number].append(((number, count), put))
            count += 1
            if not count % 50:
                put.exception(PATIENCE)

    putting = [in_thread(put_on, number) for number in range(4)]
    until(lambda: all(len(each) > 50 for each in puts), "some puts")
    closing = in_thread(lambda: closed.made.close(**way))
    until(lambda: closed.endpoint.closing, "the close")
    other_closing = in_thread(other.close)
    closing.result(PATIENCE)
    sizes = [len(each) for each in puts]
    until(lambda: all(len(each) > size + 20 for each, size in zip(puts, sizes, strict=True)), "puts after the close")
    stop.set()
    for each in putting:
        each.result(PATIENCE)
    other_closing.result(PATIENCE)
    arrived = []
    with contextlib.suppress(ConnectionError):
        while True:
            arrived.append(other.get(timeout=PATIENCE).data)
    confirmed = []
    for data, put in (each for several in puts for each in several):
        error = put.exception(PATIENCE)
        if error is None:
            confirmed.append(data)
        else:
            assert type(error) in {ConnectionAbortedError, ConnectionResetError}, error
    assert not Counter(confirmed) - Counter(arrived)
    for number in range(4):
        own = [count for of, count in arrived if of == number]
        assert own == list(range(len(own)))


@ends
def test_puts_after_it(world: World, purpose: str) -> None:
    """A put after close fails, to all, to one and to nobody known; nothing of it arrives."""
    closed, other = _pair(world, purpose)
    closing = in_thread(closed.close)
    other.close()
    closing.result(PATIENCE)
    for peers in ((), (other.id,), (other.id, other.id)):
        error = closed.put("late", *peers).exception()
        assert isinstance(error, ConnectionError), peers
    assert closed.put("late").exception().args == (closed.id,)  # type: ignore[union-attr]
    with pytest.raises(ConnectionAbortedError):
        other.get()


def _ends(world: World, purpose: str) -> tuple[End, End]:
    """The end that is closed, and the other one, which confirms what it gets, and gets nothing yet."""
    server, client = world.pair(confirm="get")
    return (server, client) if purpose == "server" else (client, server)


class Order:
    """What happened, in order: the ends of puts, and the returns of closes, each of which has seen all puts end before."""

    def __init__(self, *puts: Outcome) -> None:
        self._puts = puts

    def close(self, end: End, *how: Any) -> list[bool]:
        """Close, and say which puts had ended when that returned."""
        end.close(*how)
        return [put.done() for put in self._puts]


@ends
def test_a_close_with_a_limit(world: World, purpose: str) -> None:
    """It returns though the other end confirms nothing, when each put has failed; what had arrived is there to be got."""
    closing, other = _ends(world, purpose)
    puts = [closing.put(number) for number in range(3)]
    until(lambda: len(other.made._receive_queue) == 3, "the messages")
    assert Order(*puts).close(closing, 0.05) == [True] * 3
    for put in puts:
        error = put.exception()
        assert type(error) is ConnectionAbortedError
        assert error.args == (closing.id,)
    assert [other.get(timeout=0).data for _ in range(3)] == [0, 1, 2]


@ends
def test_a_close_with_a_limit_that_is_not_reached(world: World, purpose: str) -> None:
    """It returns when all is confirmed and the other end has closed as well."""
    closing, other = _ends(world, purpose)
    puts = [closing.put(number) for number in range(3)]
    ending = in_thread(Order(*puts).close, closing, 3 * PATIENCE)
    assert [other.get().data for _ in range(3)] == [0, 1, 2]
    if purpose == "server":
        other.close()
    assert ending.result(PATIENCE) == [True] * 3
    assert [put.exception() for put in puts] == [None] * 3


@ends
def test_a_close_that_does_not_flush(world: World, purpose: str) -> None:
    """It waits for nobody: each put that is not confirmed fails, and what arrives all the same is the first of them."""
    closing, other = _ends(world, purpose)
    confirmed = closing.put("confirmed")
    assert other.get().data == "confirmed"
    assert confirmed.exception() is None
    puts = [closing.put((number, bytes(100_000))) for number in range(30)]
    assert Order(*puts).close(closing, None, False) == [True] * 30
    assert {type(put.exception()) for put in puts} == {ConnectionAbortedError}
    got = []
    with contextlib.suppress(ConnectionResetError, ConnectionAbortedError, TimeoutError):
        while True:
            got.append(other.get(timeout=0).data[0])
    assert got == list(range(len(got)))


@ends
@pytest.mark.parametrize("sooner", [(0.0,), (0.05,), (None, False)], ids=["at once", "soon", "without flush"])
def test_a_second_close_that_is_sooner(world: World, purpose: str, sooner: tuple[Any, ...]) -> None:
    """It ends the waiting of the first: both return, after each put has failed."""
    closing, other = _ends(world, purpose)
    put = closing.put("x")
    until(lambda: len(other.made._receive_queue), "the message")
    order = Order(put)
    first = in_thread(order.close, closing)
    until(lambda: closing.endpoint.closing and closing.endpoint.has_waiters, "the first to wait")
    assert not first.done()
    assert order.close(closing, *sooner) == [True]
    assert first.result(PATIENCE) == [True]
    assert type(put.exception()) is ConnectionAbortedError
    assert other.get().data == "x"


@ends
def test_a_second_close_that_has_longer(world: World, purpose: str) -> None:
    """It returns with the first, whose time is over sooner."""
    closing, other = _ends(world, purpose)
    put = closing.put("x")
    until(lambda: len(other.made._receive_queue), "the message")
    order = Order(put)
    first, second = in_thread(order.close, closing, 0.3), in_thread(order.close, closing)
    assert [each.result(PATIENCE) for each in (first, second)] == [[True]] * 2
    assert type(put.exception()) is ConnectionAbortedError
