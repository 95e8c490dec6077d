"""From threads to the loop: order, one wake-up a burst, errors, the bound."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from redpoll import Closed, UsageError
from redpoll.blocking.handover import BACKLOG, Call, Handover
from tests.blocking.support import PATIENCE, in_thread, interrupting, loop_held, make, to, until


class Loop:
    """Notes what it is asked for, and runs it when told to."""

    def __init__(self) -> None:
        self.wakes: list[Callable[[], None]] = []
        self.turns: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.wakes.append(call)

    def call_soon(self, call: Callable[[], None]) -> None:
        self.turns.append(call)


def handover_of(loop: Loop) -> Handover:
    return Handover(loop)  # type: ignore[arg-type]


def begun(handover: Handover, function: Callable[[], Any]) -> Call:
    """Begin a call, and return its future."""
    call = Call(handover)
    handover.begin(call, function)
    return call


def test_a_burst_wakes_the_loop_once() -> None:
    """However many calls wait, the loop is woken for the first alone; after its turn the next wakes it again."""
    loop, done = Loop(), list[int]()
    handover = handover_of(loop)
    for number in range(100):
        handover.post(done.append, (number,))
    assert len(loop.wakes) == 1
    loop.wakes.pop()()
    assert done == list(range(100))
    handover.post(done.append, (100,))
    assert len(loop.wakes) == 1


def test_what_is_posted_meanwhile_is_not_forgotten() -> None:
    """A call that is posted while the loop makes those before it is made in the same turn or wakes the loop."""
    loop, done = Loop(), list[str]()
    handover = handover_of(loop)
    handover.post(lambda: handover.post(done.append, ("second",)))
    loop.wakes.pop(0)()
    for call in loop.wakes:
        call()
    assert done == ["second"]


def test_the_loop_gets_its_turn() -> None:
    """After so many calls the loop does something else, and comes back for the others."""
    loop, done = Loop(), list[int]()
    handover = handover_of(loop)
    for number in range(BACKLOG + 1):
        handover.post(done.append, (number,))
    loop.wakes.pop()()
    assert len(done) == BACKLOG
    loop.turns.pop()()
    assert done == list(range(BACKLOG + 1))


async def _at_once() -> str:
    return "done"


@pytest.mark.asyncio
async def test_a_coroutine_begins_with_its_call() -> None:
    """From Python 3.12 on a coroutine begins as its call is made, not a turn later; one that ends at once is done then."""
    handover = Handover(asyncio.get_running_loop())
    call = begun(handover, _at_once)
    handover._run()
    assert call.done() is (sys.version_info >= (3, 12))
    assert await asyncio.wrap_future(call) == "done"
    handover.close()


def test_an_error_goes_to_whom_the_call_is_for() -> None:
    """What a call raises ends its promise, and the calls behind it are made."""
    loop, done = Loop(), list[int]()
    handover = handover_of(loop)
    call = Call(handover)
    handover.post(int, ("no number",), call)
    handover.post(done.append, (1,))
    loop.wakes.pop()()
    assert isinstance(call.exception(0), ValueError)
    assert done == [1]


def test_an_error_for_nobody_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """What a call raises that is for nobody is in the log."""
    loop = Loop()
    handover_of(loop).post(int, ("no number",))
    with caplog.at_level(logging.ERROR, "redpoll.blocking"):
        loop.wakes.pop()()
    assert "a call from a thread failed" in caplog.text


def test_the_end_makes_the_calls_that_wait() -> None:
    """When the loop ends what was posted is still done."""
    loop, done = Loop(), list[int]()
    handover = handover_of(loop)
    for number in range(BACKLOG + 1):
        handover.post(done.append, (number,))
    handover.close()
    assert len(done) == BACKLOG + 1


def test_the_end_fails_coroutines() -> None:
    """One that runs when the loop ends, or would begin then, fails as Closed."""

    async def for_ever() -> None:
        await asyncio.Event().wait()

    async def begin() -> list[Call]:
        handover = Handover(asyncio.get_running_loop())
        calls = [begun(handover, for_ever)]
        await asyncio.sleep(0)
        calls.append(begun(handover, for_ever))
        handover.close()
        return calls

    for call in asyncio.run(begin()):
        assert isinstance(call.exception(0), Closed)


def test_what_ends_the_loop_ends_its_promise() -> None:
    """A call that exits ends what it was for with that, and then the loop."""
    loop = Loop()
    handover = handover_of(loop)
    call = Call(handover)
    handover.post(sys.exit, (3,), call)
    with pytest.raises(SystemExit):
        loop.wakes.pop()()
    assert isinstance(call.exception(0), SystemExit)


def test_a_future_of_the_loop_is_awaited() -> None:
    """A call may wait for a future of the loop, without a task: for its result, its error, its cancellation."""
    with make() as node:
        handover = node._handover()

        def ended(end: Callable[[asyncio.Future[int]], object], later: bool) -> asyncio.Future[int]:
            future: asyncio.Future[int] = handover.loop.create_future()
            if later:
                handover.loop.call_soon(end, future)
            else:
                end(future)
            return future

        def wait(end: Callable[[asyncio.Future[int]], object], later: bool) -> Any:
            call = Call(handover)
            call.awaits = True
            return handover.wait_for(call, PATIENCE, ended, end, later)

        for later in (False, True):
            assert wait(lambda future: future.set_result(5), later) == 5
            with pytest.raises(OSError, match=r"^no$"):
                wait(lambda future: future.set_exception(OSError("no")), later)
            with pytest.raises(CancelledError):
                wait(lambda future: future.cancel(), later)
        made: list[asyncio.Future[int]] = []
        with interrupting(lambda: made), pytest.raises(KeyboardInterrupt):
            wait(made.append, False)
        assert made[0].cancelled()
        assert not handover._open


def test_a_future_is_not_begun_after_the_end() -> None:
    """A call that would await a future of a loop that has ended is not made, and fails as Closed."""
    done = list[int]()
    handover = handover_of(Loop())
    call = Call(handover)
    call.awaits = True
    handover.begin(call, done.append, 1)
    handover.close()
    assert isinstance(call.exception(0), Closed)
    assert not done


def test_the_end_of_its_thread() -> None:
    """Another thread that gets the number of the loop's is not taken for it."""
    handover = handover_of(Loop())
    assert handover.is_here
    handover.end()
    assert not handover.is_here


def test_ctrl_c_before_a_call_is_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `run` that is interrupted before it began comes to its end, and never begins."""
    begun: list[int] = []
    with make() as node:
        handover = node._handover()
        post = handover.post

        def interrupted(*args: Any) -> None:
            monkeypatch.setattr(handover, "post", post)
            raise KeyboardInterrupt

        monkeypatch.setattr(handover, "post", interrupted)
        with pytest.raises(KeyboardInterrupt):
            handover.run(begun.append, 1)
        handover.catch_up()
    assert not begun


def test_after_the_end_calls_fail() -> None:
    """A call that comes too late fails as Closed, and is not made."""
    loop, done = Loop(), list[int]()
    handover = handover_of(loop)
    call = Call(handover)
    handover.close()
    handover.post(done.append, (1,), call)
    handover.post(done.append, (2,))
    assert isinstance(call.exception(0), Closed)
    assert not done


def test_a_closed_loop_is_as_good_as_none() -> None:
    """Where the loop cannot be woken any more the call fails as Closed."""

    class ClosedLoop(Loop):
        def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
            raise RuntimeError("Event loop is closed")

    handover = handover_of(ClosedLoop())
    call = Call(handover)
    handover.close()
    handover.post(print, (), call)
    assert isinstance(call.exception(0), Closed)


def test_an_interrupted_wake_up_is_made_up_for() -> None:
    """Ctrl-C in the middle of waking the loop does not leave it asleep."""

    class Interrupted(Loop):
        def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
            super().call_soon_threadsafe(call)
            if len(self.wakes) == 1:
                raise KeyboardInterrupt

    loop = Interrupted()
    handover = handover_of(loop)
    with pytest.raises(KeyboardInterrupt):
        handover.post(print)
    until(lambda: len(loop.wakes) == 2, "the loop to be woken again")


def test_a_child_is_told() -> None:
    """In a child of its process nothing is posted, with an error that names the remedy."""
    handover = handover_of(Loop())
    handover.abandon()
    for use in (lambda: handover.post(print), lambda: handover.run(print)):
        with pytest.raises(UsageError, match=r"parent process .*in the child"):
            use()


def test_run_returns_and_raises() -> None:
    """`run` calls a plain function or awaits a coroutine, on the loop, and hands on the result or the error."""

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("k")

    async def sleeps() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    with make() as node:
        handover = node._handover()
        assert handover.run(threading.current_thread).name == "redpoll loop"
        assert handover.run(sleeps) == "redpoll loop"
        with pytest.raises(KeyError):
            handover.run(fails)
        with pytest.raises(ZeroDivisionError):
            handover.run(lambda: 1 // 0)


def test_run_does_not_wait_for_itself() -> None:
    """On the loop `run` raises instead of waiting for ever."""
    with make() as node:
        handover = node._handover()
        with pytest.raises(UsageError, match="would block the thread of the event loop"):
            handover.run(handover.run, print)


def test_ctrl_c_cancels_what_runs() -> None:
    """An interrupted `run` cancels its coroutine, and the interruption comes out when that has ended."""
    told: list[str] = []
    begun = threading.Event()

    async def goes_on() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            told.append("ended")

    with make() as node:
        with interrupting(begun.is_set), pytest.raises(KeyboardInterrupt):
            node._handover().run(goes_on)
        assert told == ["ended"]


def test_a_sending_thread_waits_for_a_loop_that_is_behind() -> None:
    """While the loop does something else a thread can post so many messages, and no more."""
    with make() as node, make(send_queue_limit=5 * BACKLOG, window=2 * BACKLOG) as sender:
        futures: list[Any] = []
        sender.ready(node.address)

        def send() -> None:
            futures.extend(sender.send(to(node)) for _ in range(BACKLOG + 10))

        with loop_held(node):
            sending = in_thread(send)
            calls = sender._handover()._calls
            until(lambda: len(calls) > BACKLOG, "the thread to wait behind the messages that it posted")
            assert len(futures) == BACKLOG
        sending.result(PATIENCE)
        for future in futures:
            future.cancel()
        assert len(futures) == BACKLOG + 10
