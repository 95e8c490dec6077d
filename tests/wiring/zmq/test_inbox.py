"""Messages on their way to threads: order, one wish a burst, waking, interruptions, the end."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from redpoll import Closed
from redpoll.wiring.zmq.inbox import Inbox
from tests.blocking.support import PATIENCE, in_thread, interrupting, until


class Loop:
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.desired = 0
        self.inbox = Inbox(self.want, lambda: None, "object")

    def want(self) -> None:
        self.desired += 1

    def waiting(self, count: int = 1) -> bool:
        return len(self.inbox._waiting) == count


def wanted(inbox: Inbox) -> bool:
    """What it says (a call, as a checker takes an attribute for what it was before)."""
    return inbox._wanted


def test_order() -> None:
    """What is given is taken in that order, one by one, without asking the loop."""
    loop = Loop()
    loop.inbox._give([b"1", b"2"])
    loop.inbox._give([b"3"])
    assert [loop.inbox.wait(0) for _ in range(3)] == [b"1", b"2", b"3"]
    assert not loop.desired


def test_pop_takes_what_is_there() -> None:
    """A step of the loop over `pop` is one message; with none it raises, and goes on when there is one."""
    loop = Loop()
    for _ in range(2):
        with pytest.raises(IndexError):
            next(loop.inbox.pop)
        loop.inbox._give([b"1"])
        assert next(loop.inbox.pop) == b"1"


def test_one_wish_for_all_who_wait() -> None:
    """The loop is asked once, however many wait, and again when they find nothing after a burst."""
    loop = Loop()
    takers = [in_thread(loop.inbox.wait, None) for _ in range(3)]
    until(lambda: loop.waiting(3), "three threads that wait")
    assert loop.desired == 1
    assert wanted(loop.inbox)
    loop.inbox._give([b"1"])
    until(lambda: loop.waiting(2), "one that took it")
    assert wanted(loop.inbox)
    assert loop.desired == 1
    loop.inbox._give([b"2", b"3"])
    assert sorted(taker.result(PATIENCE) for taker in takers) == [b"1", b"2", b"3"]
    assert not wanted(loop.inbox)
    later = in_thread(loop.inbox.wait, None)
    until(loop.waiting, "one more")
    assert loop.desired == 2
    loop.inbox._give([b"4"])
    assert later.result(PATIENCE) == b"4"


def test_a_limit() -> None:
    """Who waits so long and no longer is told, and does not count as waiting after that."""
    loop = Loop()
    with pytest.raises(TimeoutError, match=r"no message came within 0\.01 s"):
        loop.inbox.wait(0.01)
    assert loop.waiting(0)
    assert not loop.inbox._wanted


def test_the_end() -> None:
    """What came before the end is still taken; then all who wait, and who comes, are told."""
    loop = Loop()
    waiting = [in_thread(loop.inbox.wait, None) for _ in range(2)]
    until(lambda: loop.waiting(2), "two threads that wait")
    loop.inbox.close()
    for each in waiting:
        with pytest.raises(Closed, match="the object is not running"):
            each.result(PATIENCE)
    loop.inbox._give([b"last"])
    assert loop.inbox.wait(None) == b"last"
    with pytest.raises(Closed):
        loop.inbox.wait(None)


def test_check_comes_before_waiting() -> None:
    """Where waiting is not allowed what is there is taken, and no more."""

    def refuse() -> None:
        raise RuntimeError("not here")

    inbox = Inbox(lambda: None, refuse, "object")
    inbox._give([b"1"])
    assert inbox.wait(None) == b"1"
    with pytest.raises(RuntimeError, match="not here"):
        inbox.wait(None)


def test_an_interruption_takes_nothing() -> None:
    """Ctrl-C ends the waiting; what comes after it is for the next."""
    loop = Loop()
    with pytest.raises(KeyboardInterrupt), interrupting(loop.waiting):
        loop.inbox.wait(None)
    assert loop.waiting(0)
    loop.inbox._give([b"1"])
    assert loop.inbox.wait(0) == b"1"


def test_nothing_is_called_with_a_message_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a message is taken it is returned with no call in between, where Ctrl-C could come."""
    loop = Loop()
    monkeypatch.setattr(loop.inbox, "put_back", None)
    monkeypatch.setattr(loop.inbox, "_check", lambda: None)
    waiting = in_thread(loop.inbox.wait, None)
    until(loop.waiting, "a thread that waits")
    loop.inbox._give([b"1"])
    assert waiting.result(PATIENCE) == b"1"


def test_one_who_was_woken_and_left_wakes_another() -> None:
    """A thread that is interrupted just when it was woken leaves what it was woken for to one that waits."""
    loop = Loop()
    other = None

    def meanwhile() -> bool:
        nonlocal other
        if not loop.waiting():
            return False
        other = in_thread(loop.inbox.wait, None)
        until(lambda: loop.waiting(2), "another thread")
        # The first one is woken, and interrupted before it can have noticed.
        with loop.inbox._lock:
            loop.inbox._ready.append(b"1")
            loop.inbox._waiting[next(iter(loop.inbox._waiting))] = True
        return True

    with pytest.raises(KeyboardInterrupt), interrupting(meanwhile):
        loop.inbox.wait(None)
    assert other is not None
    assert other.result(PATIENCE) == b"1"


def test_many_threads_take_each_once() -> None:
    """However many take and give at once, each is taken once, and nobody is left waiting."""
    inbox: Inbox
    asked = threading.Semaphore(0)
    inbox = Inbox(asked.release, lambda: None, "object")
    count, found = 3000, Counter[int]()
    lock = threading.Lock()

    def take() -> None:
        while (item := inbox.wait(None)) is not None:
            with lock:
                found[item] += 1

    takers = [in_thread(take) for _ in range(4)]
    given = 0
    while given < count:
        assert asked.acquire(timeout=PATIENCE)
        while inbox._wanted and given < count:
            burst = min(1 + given % 7, count - given)
            inbox._give(range(given, given + burst))
            given += burst
    inbox._give([None] * len(takers))
    for taker in takers:
        taker.result(PATIENCE)
    assert found == Counter(range(count))
