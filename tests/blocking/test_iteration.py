"""An asynchronous iterator for threads: a step when one waits, none lost, closed when it is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from redpoll import Closed
from redpoll.blocking import QueueNode
from redpoll.blocking.handover import Handover
from redpoll.blocking.iteration import Iteration
from tests.blocking.support import PATIENCE, in_thread, interrupting, make, until


class Source:
    """Gives numbers, one for each that is let through, and raises what it is told to."""

    def __init__(self, handover: Handover) -> None:
        self.handover = handover
        self.asked = 0
        self.closed = threading.Event()
        self.items: list[Any] = []

    def put(self, *items: Any) -> None:
        """Let some through."""
        self.items += items

    async def numbers(self) -> AsyncIterator[Any]:
        """The iterator."""
        try:
            while True:
                self.asked += 1
                while not self.items:
                    await _turn()
                item = self.items.pop(0)
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.closed.set()


async def _turn() -> None:
    """Let others go on."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def node() -> Iterator[QueueNode[Any]]:
    """What keeps the loop."""
    with make() as running:
        yield running


@pytest.fixture
def source(node: QueueNode[Any]) -> Source:
    """What is iterated."""
    return Source(node._handover())


def iterate(source: Source) -> Iteration[Any]:
    """Its iteration, which doubles what comes."""
    return Iteration(source.handover, source.handover.check_blocking, source.numbers(), "test", lambda item: item * 2)


def test_a_step_is_begun_when_a_thread_waits(source: Source) -> None:
    """Nothing is read ahead; values are wrapped; the end is the end, also for who asks again."""
    iteration = iterate(source)
    source.put(1, 2, None)
    assert iter(iteration) is iteration
    assert next(iteration) == 2
    assert source.asked == 1
    assert list(iteration) == [4]
    assert list(iteration) == []
    assert source.closed.wait(PATIENCE)


@pytest.mark.parametrize("kind", [ValueError, GeneratorExit])
def test_what_it_raises_is_raised(source: Source, kind: type[BaseException]) -> None:
    """An error comes out of the step where it was raised, and ends the iteration as it ended the iterator."""
    iteration = iterate(source)
    source.put(1, kind("here"))
    assert next(iteration) == 2
    with pytest.raises(kind, match="here"):
        in_thread(next, iteration).result(PATIENCE)
    assert list(iteration) == []


def test_threads_share_it(source: Source) -> None:
    """Threads that wait at the same time have one value each."""
    iteration = iterate(source)
    threads = [in_thread(next, iteration) for _ in range(3)]
    until(lambda: len(iteration._waiting) == 3, "three threads to wait")
    source.put(1, 2, 3)
    assert sorted(each.result(PATIENCE) for each in threads) == [2, 4, 6]


def test_ctrl_c_loses_nothing(source: Source) -> None:
    """What comes after a step was interrupted is the value of the next one."""
    iteration = iterate(source)
    with interrupting(lambda: source.asked), pytest.raises(KeyboardInterrupt):
        next(iteration)
    source.put(1, 2)
    until(lambda: iteration._ready, "the value")
    assert [next(iteration), next(iteration)] == [2, 4]


@pytest.mark.parametrize("way", ["close", "with", "drop"])
def test_leaving_closes_the_iterator(source: Source, way: str) -> None:
    """Closed, left or dropped, also within a step that nobody waits for any more, the iterator is closed."""
    iteration = iterate(source)
    with interrupting(lambda: source.asked), pytest.raises(KeyboardInterrupt):
        next(iteration)
    if way == "drop":
        del iteration
    elif way == "close":
        iteration.close()
        iteration.close()
        assert list(iteration) == []
    else:
        with iteration:
            pass
    assert source.closed.wait(PATIENCE)


def test_who_waits_is_told_that_it_is_closed(source: Source) -> None:
    """Another thread's step ends the iteration there; at the end of the loop it is an error."""
    iteration = iterate(source)
    waiting: Future[list[Any]] = in_thread(list, iteration)
    until(lambda: source.asked, "the step")
    iteration.close()
    assert waiting.result(PATIENCE) == []


def test_closing_while_a_step_is_about_to_begin(source: Source) -> None:
    """Closed after a thread asked for a step, and before the loop began it, it begins none, and closes the iterator."""
    iteration = iterate(source)
    source.put(1)
    assert next(iteration) == 2
    blocked, go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        go_on.wait(PATIENCE)

    source.handover.post(block)
    assert blocked.wait(PATIENCE)
    waiting: Future[list[Any]] = in_thread(list, iteration)
    until(lambda: iteration._asked, "the thread to ask")
    iteration.close()
    go_on.set()
    assert waiting.result(PATIENCE) == []
    assert source.closed.wait(PATIENCE)


def test_the_end_of_the_loop_is_an_error() -> None:
    """Who waits when the loop ends is told, and so is who comes after that."""
    with make() as node:
        source = Source(node._handover())
        iteration, unused = iterate(source), iterate(source)
        waiting = in_thread(next, iteration)
        until(lambda: source.asked, "the step")
    for each in (waiting.exception(PATIENCE), in_thread(next, unused).exception(PATIENCE)):
        assert isinstance(each, Closed)
