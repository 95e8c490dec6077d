"""Closing in the midst of everything: who puts and who gets is told, and nobody hangs."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import Any

import pytest

from tests.blocking.support import PATIENCE, in_thread, until
from tests.nq.support import End, World, begun

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
    until(lambda: closed.station.closing, "the close")
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
