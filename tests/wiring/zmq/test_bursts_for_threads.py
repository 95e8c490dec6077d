"""From queues to threads: bursts when they wait, queues in turn, numbers and gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from redpoll import Closed
from redpoll.wiring import Gap
from redpoll.wiring.zmq.constants import MESSAGE_DATA, MESSAGE_GAP
from redpoll.wiring.zmq.inbox import BURST, Inbox
from tests.blocking.support import PATIENCE, in_thread, until


class Queue:
    """Has what it is given."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.taken: list[int] = []
        self.closed = False
        self.arrived: Callable[[], object]

    def watch(self, arrived: Callable[[], object]) -> None:
        self.arrived = arrived

    def receive_many_nowait(self, count: int) -> list[Any]:
        found, self.messages = self.messages[:count], self.messages[count:]
        if found:
            self.taken.append(len(found))
        elif self.closed:
            raise Closed("queue")
        return found


def make(count: int = 1, *, numbered: bool = False) -> tuple[Inbox, list[Queue]]:
    """An inbox with some queues; nobody asks it but the test."""
    inbox = Inbox(lambda: None, lambda: None, "object", numbered=numbered)
    queues = [Queue() for _ in range(count)]
    for number, queue in enumerate(queues, 1):
        inbox.add(number, queue)  # type: ignore[arg-type]
    return inbox, queues


def taken(inbox: Inbox) -> list[Any]:
    """What threads have been given."""
    found = []
    try:
        while True:
            found.append(next(inbox.pop))
    except IndexError:
        return found


def test_a_burst_at_a_time() -> None:
    """What is there is given a burst at a time, in order."""
    inbox, (queue,) = make()
    queue.messages = list(range(BURST + 1))
    assert inbox.feed()
    assert taken(inbox) == list(range(BURST))
    assert inbox.feed()
    assert taken(inbox) == [BURST]
    assert not inbox.feed()


def test_only_those_who_wait_are_fed() -> None:
    """Nothing is taken from a queue before a thread waits."""
    inbox, (queue,) = make()
    queue.messages = [b"1", b"2"]
    inbox.want()
    assert not queue.taken
    waiting = in_thread(inbox.wait, None)
    until(lambda: inbox._waiting, "a thread that waits")
    inbox.want()
    assert waiting.result(PATIENCE) == b"1"
    assert taken(inbox) == [b"2"]


@pytest.mark.asyncio
async def test_what_comes_is_given_with_what_comes_with_it() -> None:
    """A thread that waits is given what comes, in one burst if it comes in one turn of the loop."""
    inbox, (queue,) = make()
    waiting = in_thread(inbox.wait, None)
    await asyncio.to_thread(until, lambda: inbox._waiting, "a thread that waits")
    inbox.want()
    for message in (b"1", b"2"):
        queue.messages.append(message)
        queue.arrived()
    assert await asyncio.wrap_future(waiting) == b"1"
    assert queue.taken == [2]
    assert taken(inbox) == [b"2"]
    queue.messages.append(b"3")
    queue.arrived()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert queue.taken == [2]


def test_queues_in_turn() -> None:
    """Of several queues that have messages each gives one in turn, and another one is the first the next time."""
    inbox, (a, b, c) = make(3)
    a.messages, b.messages, c.messages = ["a1", "a2"], ["b1"], ["c1", "c2", "c3"]
    assert inbox.feed()
    first = taken(inbox)
    assert sorted(first) == ["a1", "a2", "b1", "c1", "c2", "c3"]
    assert {each[0] for each in first[:3]} == {"a", "b", "c"}
    assert [each for each in first if each[0] == "c"] == ["c1", "c2", "c3"]
    a.messages, b.messages, c.messages = ["a"], ["b"], ["c"]
    assert inbox.feed()
    assert taken(inbox)[0][0] != first[0][0]


def test_numbers() -> None:
    """With numbers each message has that of its queue, and what it is."""
    inbox, (a, b) = make(2, numbered=True)
    a.messages, b.messages = [b"a"], [b"b"]
    assert inbox.feed()
    assert sorted(taken(inbox)) == [(1, b"a", MESSAGE_DATA), (2, b"b", MESSAGE_DATA)]


def test_gaps() -> None:
    """Gaps are given in their place to who asked for them, and to nobody else."""
    inbox, (queue,) = make(numbered=True)
    gap = Gap("E", 3)
    queue.messages = [b"1", gap, b"2"]
    assert inbox.feed()
    assert taken(inbox) == [(1, b"1", MESSAGE_DATA), (1, b"2", MESSAGE_DATA)]
    inbox.gaps = True
    queue.messages = [b"1", gap, b"2"]
    assert inbox.feed()
    assert taken(inbox) == [(1, b"1", MESSAGE_DATA), (1, gap, MESSAGE_GAP), (1, b"2", MESSAGE_DATA)]


def test_gaps_alone() -> None:
    """Gaps that nobody asked for hide nothing that comes behind them."""
    inbox, (queue,) = make(numbered=True)
    queue.messages = [Gap("E", 1)] * BURST + [b"1"]
    assert inbox.feed()
    assert taken(inbox) == [(1, b"1", MESSAGE_DATA)]


def test_a_closed_queue() -> None:
    """A queue that is closed gives what it has, and then nothing; others go on."""
    inbox, (a, b) = make(2)
    a.messages, a.closed, b.messages = [b"a"], True, [b"b"]
    assert inbox.feed()
    assert sorted(taken(inbox)) == [b"a", b"b"]
    b.messages = [b"c"]
    assert inbox.feed()
    assert taken(inbox) == [b"c"]
