"""Events of the user's: in threads of their own, in order, and not without bound."""

from __future__ import annotations

import sys
import threading
import time
import uuid

import pytest

from redpoll.nq.core import events
from redpoll.nq.core.events import EventThreads

PEER = uuid.UUID(int=7)


def test_they_are_called_in_order() -> None:
    """One thread calls them one after another, and closing waits for all; an exception of one is logged."""
    called: list[tuple[uuid.UUID, int]] = []
    threads = EventThreads(1)
    for _ in range(100):
        threads.tell(lambda peer: called.append((peer, threading.get_ident())), PEER)
    threads.close(10)
    assert len(called) == 100
    assert {peer for peer, _ in called} == {PEER}
    assert len({thread for _, thread in called} - {threading.get_ident()}) == 1


def test_what_raises(caplog: pytest.LogCaptureFixture) -> None:
    """An event that raises is logged, and the next one is called."""
    called: list[uuid.UUID] = []
    threads = EventThreads(1)
    threads.tell(lambda _: uuid.UUID("none"), PEER)
    threads.tell(called.append, PEER)
    threads.close(10)
    assert called == [PEER]
    assert [record.getMessage() for record in caplog.records] == ["an event of a communicator raised"]


def test_several_at_a_time() -> None:
    """With more threads one event does not wait for another."""
    both = threading.Barrier(2)
    met: list[int] = []
    threads = EventThreads(2)
    for _ in range(2):
        threads.tell(lambda _: met.append(both.wait(10)), PEER)
    threads.close(10)
    assert sorted(met) == [0, 1]


def test_an_event_that_closes() -> None:
    """An event may close what called it."""
    closed = threading.Event()
    threads = EventThreads(1)

    def close(_: uuid.UUID) -> None:
        threads.close(10)
        closed.set()

    threads.tell(close, PEER)
    assert closed.wait(10)
    threads.close(10)


def test_an_event_that_does_not_return(caplog: pytest.LogCaptureFixture) -> None:
    """Closing waits for it as long as it is told, which is logged; its thread keeps no program."""
    goes_on = threading.Event()
    threads = EventThreads(1)
    threads.tell(lambda _: goes_on.wait(10), PEER)
    assert all(thread.daemon for thread in threads._threads)
    threads.close(0.01)
    assert [record.getMessage() for record in caplog.records] == [
        "an event of a communicator has not returned after 0.01 s, and is left"
    ]
    goes_on.set()
    threads.close(10)


def test_ending_without_waiting() -> None:
    """The threads end once all events have returned; closing then waits for these."""
    goes_on = threading.Event()
    called: list[uuid.UUID] = []
    threads = EventThreads(2)
    threads.tell(lambda _: goes_on.wait(10), PEER)
    threads.tell(called.append, PEER)
    ending = threads.end()
    assert any(thread.is_alive() for thread in ending)
    goes_on.set()
    threads.close(10)
    for thread in ending:
        thread.join(10)
    assert (called, [thread.is_alive() for thread in ending]) == ([PEER], [False, False])


def test_an_event_for_which_no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called with the next one, and closing waits for both; without a next one there is nothing to wait for."""
    called: list[uuid.UUID] = []
    goes_on = threading.Event()
    threads = EventThreads(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _fails)
        threads.tell(lambda _: called.append(PEER) if goes_on.wait(10) else None, PEER)
    assert threads.end() == []
    threads.tell(called.append, PEER)
    threading.Timer(0.05, goes_on.set).start()
    threads.close(10)
    assert called == [PEER, PEER]


def _fails(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_an_event_that_exits(caplog: pytest.LogCaptureFixture) -> None:
    """`sys.exit` in an event ends that alone."""
    called: list[uuid.UUID] = []
    threads = EventThreads(1)
    threads.tell(lambda _: sys.exit(3), PEER)
    threads.tell(called.append, PEER)
    threads.close(10)
    assert called == [PEER]
    assert [record.getMessage() for record in caplog.records] == ["an event of a communicator raised"]


@pytest.mark.parametrize("workers", [1, 3])
def test_events_that_raise_are_counted(
    workers: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of events that raise the first is logged at once, then at intervals the last one with their number, also the rest."""
    monkeypatch.setattr(events, "_LOG_EVERY", 0.2)

    def fail(_: uuid.UUID) -> None:
        raise ValueError("of an event")

    threads = EventThreads(workers)
    for _ in range(1000):
        threads.tell(fail, PEER)
    end = time.monotonic() + 10
    while sum(_failures(caplog)) < 1000 and time.monotonic() < end:
        time.sleep(0.01)
    before = _failures(caplog)
    assert (before[0], sum(before)) == (1, 1000)
    assert len(before) < 20
    threads.tell(fail, PEER)
    threads.close(10)
    assert sum(_failures(caplog)) == 1001
    assert all(record.exc_info and record.exc_info[0] is ValueError for record in caplog.records)


def _failures(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The number of events that each line tells of."""
    words = [record.getMessage().split()[0] for record in caplog.records]
    return [1 if word == "an" else int(word.replace(",", "")) for word in words]


def test_slow_events_do_not_heap_up(caplog: pytest.LogCaptureFixture) -> None:
    """Ten thousand events wait for one that does not end; further ones are not called, which is logged once."""
    goes_on = threading.Event()
    called: list[uuid.UUID] = []
    threads = EventThreads(1)
    threads.tell(lambda _: goes_on.wait(10), PEER)
    for _ in range(10_005):
        threads.tell(called.append, PEER)
    assert [record.getMessage() for record in caplog.records] == [
        "events of a communicator are not called: 10000 of them wait, or are not done"
    ]
    goes_on.set()
    threads.close(10)
    assert len(called) == 9_999
