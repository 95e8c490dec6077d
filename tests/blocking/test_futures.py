"""The future that threads wait for: ends once, wakes all that wait, however they do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import pytest

from redpoll.blocking import futures as module
from redpoll.blocking.futures import ThreadFuture
from tests.blocking.support import PATIENCE, in_thread, interrupting, until


def sleepers(future: ThreadFuture) -> int:
    """How many threads wait for it."""
    return len(future._sleepers or ())


def test_result_and_exception() -> None:
    """A future that ended has a result or an error, and ends once."""
    done, failed = ThreadFuture(), ThreadFuture()
    done.finish(1, None)
    done.finish(2, None)
    failed.finish(None, KeyError("k"))
    assert (done.result(), done.exception(), done.done(), done.cancel()) == (1, None, True, False)
    assert isinstance(failed.exception(0), KeyError)
    with pytest.raises(KeyError):
        failed.result(0)


@pytest.mark.parametrize("callback", [False, True])
def test_all_that_wait_are_woken(callback: bool) -> None:
    """The end wakes every thread, with and without callbacks, which are called once."""
    future, called = ThreadFuture(), list[Future[Any]]()
    if callback:
        future.add_done_callback(called.append)
    waiting = [in_thread(future.result, PATIENCE), in_thread(future.exception, PATIENCE)]
    until(lambda: sleepers(future) == 2, "the threads to wait")
    future.finish("end", None)
    assert [each.result(PATIENCE) for each in waiting] == ["end", None]
    assert called == [future] * callback
    assert wait([future]).done == {future}


@pytest.mark.parametrize("end", [lambda future: future.finish(1, None), ThreadFuture.cancel])
def test_a_callback_may_wait_for_who_waits(end: Callable[[ThreadFuture], object]) -> None:
    """Threads are woken before callbacks are called, whatever those do."""
    future, seen = ThreadFuture(), list[bool]()
    waiting = in_thread(future.exception, PATIENCE)
    until(lambda: sleepers(future), "the thread to wait")
    future.add_done_callback(lambda _: seen.append(bool(wait([waiting], timeout=1).done)))
    end(future)
    assert seen == [True]


@pytest.mark.parametrize("callback", [False, True])
def test_a_cancelled_one(callback: bool) -> None:
    """Cancelling wakes all that wait, and an end that comes later changes nothing."""
    future, called = ThreadFuture(), list[Future[Any]]()
    if callback:
        future.add_done_callback(called.append)
    waiting = in_thread(future.exception, PATIENCE)
    until(lambda: sleepers(future), "the thread to wait")
    assert future.cancel()
    future.finish(1, None)
    assert isinstance(waiting.exception(PATIENCE), CancelledError)
    assert called == [future] * callback
    with pytest.raises(CancelledError):
        future.result(0)


def test_a_timeout_leaves_nothing() -> None:
    """Who waited in vain is forgotten, and the future goes on."""
    future = ThreadFuture()
    for timeout in (0, 0.001, -1):
        with pytest.raises(TimeoutError):
            future.result(timeout)
    assert sleepers(future) == 0
    future.finish(1, None)
    assert future.result(0) == 1


def test_an_interrupted_one() -> None:
    """Ctrl-C ends the waiting of one thread; the future can end, and be waited for again."""
    future = ThreadFuture()
    with interrupting(lambda: sleepers(future)), pytest.raises(KeyboardInterrupt):
        future.result()
    other = in_thread(future.result, PATIENCE)
    until(lambda: sleepers(future) == 2, "the other thread to wait")
    future.finish(1, None)
    assert other.result(PATIENCE) == 1


def test_a_wake_up_that_is_lost() -> None:
    """A thread that nobody wakes, as who was to do so was interrupted, looks by itself."""
    future = ThreadFuture()
    waiting = in_thread(future.result, PATIENCE)
    until(lambda: sleepers(future), "the thread to wait")
    future._state = "FINISHED"
    assert waiting.result(PATIENCE) is None


def test_an_interrupted_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Ctrl-C left the lock of futures held, as it can inside of the library's `wait`, they end all the same."""
    future, called = ThreadFuture(), list[Future[Any]]()
    future.add_done_callback(called.append)
    monkeypatch.setattr(module, "_condition", module._Condition())
    monkeypatch.setattr(module, "_STUCK", 0.01)
    in_thread(module._condition.acquire).result(PATIENCE)
    for _ in range(2):
        future.finish(1, None)
    assert called == [future]


def test_it_is_watched_when_that_is_needed() -> None:
    """Neither ending nor waiting makes what callbacks need; one that comes late is called at once."""
    future, called = ThreadFuture(), list[Future[Any]]()
    other = in_thread(future.result, PATIENCE)
    until(lambda: sleepers(future), "the thread to wait")
    future.finish(1, None)
    assert other.result(PATIENCE) == 1
    assert not future._watched
    future.add_done_callback(called.append)
    assert called == [future]
    assert future._watched
