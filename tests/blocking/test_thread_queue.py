"""A queue from the loop to threads: in order, none lost by who is interrupted, and those that wait are told of the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from redpoll import Closed
from redpoll.blocking.thread_queue import Slot, ThreadQueue
from tests.blocking.support import PATIENCE, in_thread, interrupting, until


class Numbers(ThreadQueue[int]):
    """A queue of numbers, whose loop is the test."""

    def __init__(self, fit: Callable[[int], bool] = lambda _: True) -> None:
        super().__init__("test")
        self.asks = 0
        self.returned: list[int] = []
        self._fit = fit

    def _check(self) -> None:
        pass

    def _ask(self) -> None:
        self.asks += 1

    def _is_fit(self, item: int) -> bool:
        return self._fit(item)

    def _came_back(self, item: int) -> None:
        self.returned.append(item)

    def waits(self, count: int) -> bool:
        """Whether so many threads wait."""
        return len(self._waiting) == count


def _wanted(queue: Numbers) -> bool:
    """Whether the loop is to give more (a call, as a checker takes an attribute for what it was before)."""
    return queue._wanted


def test_items_come_in_order_and_are_asked_for_once() -> None:
    """Threads that wait are given what comes, and the loop is asked by the first of them."""
    queue = Numbers()
    takers = [in_thread(queue.take, Slot()) for _ in range(2)]
    until(lambda: queue.waits(2), "two threads to wait")
    assert queue.asks == 1
    assert _wanted(queue)
    queue._give([1, 2, 3])
    assert sorted(filter(None, (each.result(PATIENCE) for each in takers))) == [1, 2]
    assert not _wanted(queue)
    assert queue.take(Slot(), waits=False) == 3
    assert queue.take(Slot(), waits=False) is None


def test_time_ends_a_wait() -> None:
    """Nothing in time is None, and the loop hears that nobody waits any more."""
    queue = Numbers()
    assert queue.take(Slot(), time.monotonic() + 0.01) is None
    assert queue.asks == 2
    assert not queue._wanted


def test_an_interrupted_thread_has_taken_nothing() -> None:
    """Ctrl-C while it waits, or between two steps, leaves the items where they are."""
    queue = Numbers()
    with interrupting(lambda: queue.waits(1)), pytest.raises(KeyboardInterrupt):
        queue.take(Slot())
    queue._give([1, 2])

    def stop(item: int) -> bool:
        raise KeyboardInterrupt

    queue._fit = stop
    with pytest.raises(KeyboardInterrupt):
        queue.take(Slot())
    assert queue.returned == [1]
    queue._fit = lambda _: True
    assert [queue.take(Slot()) for _ in range(2)] == [1, 2]


def test_what_was_put_back_wakes_another() -> None:
    """One that a thread gives up is given to a thread that waits."""
    queue = Numbers()
    slot: Slot[int] = Slot()
    queue._give([1])
    queue.take(slot)
    other = in_thread(queue.take, Slot())
    until(lambda: queue.waits(1), "a thread to wait")
    queue.put_back(slot)
    assert other.result(PATIENCE) == 1


def test_one_who_was_woken_and_left_wakes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is interrupted just when it was woken wakes the next one, which does not find the item by looking."""
    monkeypatch.setattr("redpoll.blocking.thread_queue.LOOK", 10 * PATIENCE)
    queue = Numbers()
    others = []

    def meanwhile() -> bool:
        if not queue.waits(1):
            return False
        others.append(in_thread(queue.take, Slot()))
        until(lambda: queue.waits(2), "another thread")
        # The first one is woken, and interrupted before it can have noticed.
        with queue._lock:
            queue._ready.append(1)
            queue._waiting[next(iter(queue._waiting))] = True
        return True

    with pytest.raises(KeyboardInterrupt), interrupting(meanwhile):
        queue.take(Slot())
    assert [other.result(PATIENCE) for other in others] == [1]


def test_a_slot_keeps_what_it_has() -> None:
    """A thread that comes again with an item in its slot is given that one, unless it does not fit any more."""
    wanted = [1]
    queue = Numbers(lambda item: item in wanted)
    slot: Slot[int] = Slot()
    queue._give([1, 2, 3])
    assert queue.take(slot) == 1
    assert queue.take(slot) == 1
    wanted[:] = [3]
    assert queue.take(slot) == 3
    assert queue.returned == []


def test_the_end_is_told() -> None:
    """Threads that wait when it ends are told, and so are those that come when nothing is left."""
    queue = Numbers()
    takers = [in_thread(queue.take, Slot()) for _ in range(3)]
    until(lambda: queue.waits(3), "three threads to wait")
    queue._end()
    for each in takers:
        assert isinstance(each.exception(PATIENCE), Closed)
    queue._give([1])
    assert queue.take(Slot()) == 1
    with pytest.raises(Closed, match="test is not running"):
        queue.take(Slot())
    slot: Slot[int] = Slot()
    slot.item = 5
    queue.put_back(slot)
    assert queue.returned == [5]
    assert not queue._ready


def test_many_threads_share_it() -> None:
    """However many threads take, each item is taken once."""
    queue = Numbers()
    taken: list[int] = []

    def take() -> None:
        try:
            while (item := queue.take(Slot())) is not None:
                taken.append(item)
        except Closed:
            pass

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1, 500):
        queue._give([number])
    until(lambda: len(taken) == 499, "all items")
    queue._end()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(taken) == list(range(1, 500))
