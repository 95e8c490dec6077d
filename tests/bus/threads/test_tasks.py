"""Tasks, for threads: handles, workers, taking one oneself, and what Ctrl-C gives back."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from redpoll.blocking import connect
from redpoll.bus import Requeue, Task
from redpoll.bus.threads import BlockingBus, BlockingClaim, resident
from redpoll.errors import (
    Closed,
    ConfigError,
    EncodeError,
    NoRoute,
    QueueEmpty,
    RemoteError,
    TaskCancelled,
    UsageError,
)
from tests.blocking.support import PATIENCE, in_thread, interrupting, until
from tests.bus.threads.support import double, opens, taken


@pytest.fixture
def bus() -> Iterator[BlockingBus]:
    """A bus of its own."""
    with connect("memory://") as opened:
        yield opened


def test_submit_and_run(bus: BlockingBus) -> None:
    """A task is submitted, found again by its id, and its result waited for; or all of that at once."""
    handle = bus.tasks.submit("a")
    assert (handle.state(), handle.duplicate, handle.over, handle.progress) == ("ready", False, False, None)
    with pytest.raises(TimeoutError):
        handle.result(0.001)
    with bus.tasks.worker(double, concurrency=2) as worker:
        assert (worker.queue, worker.concurrency, worker.active) == ("tasks", 2, True)
        assert handle.result(PATIENCE) == "aa"
        assert handle.over
        assert bus.tasks.handle(handle.id).result() == "aa"
        assert bus.tasks.run(4, timeout=PATIENCE) == 8
    assert (worker.active, worker.running, handle.state()) == (False, 0, "done")
    assert repr(handle) == f"<Handle {handle.id}>"
    assert repr(worker) == "<blocking <Worker of 'tasks', 0 of 2 slots used>>"


def test_many(bus: BlockingBus) -> None:
    """Many are submitted at once, or as results are taken; iterables are asked in this thread, and may call the bus."""
    threads = set()

    def items() -> Iterator[int]:
        for number in range(5):
            threads.add(threading.current_thread())
            bus.queues.names()
            yield number

    with bus.tasks.worker(double):
        handles = bus.tasks.submit_many(items(), dedup=(f"k{number}" for number in range(5)))
        assert [each.result(PATIENCE) for each in handles] == [0, 2, 4, 6, 8]
        assert list(bus.tasks.map(items(), limit=2)) == [0, 2, 4, 6, 8]
    assert threads == {threading.current_thread()}
    with pytest.raises(ConfigError, match="limit"):
        bus.tasks.map([], limit=0)
    with pytest.raises(UsageError, match="one dedup key would make one task of all"):
        bus.tasks.map([], dedup="k")
    with pytest.raises(ConfigError, match="handler=3: must be a function"):
        bus.tasks.worker(3)  # type: ignore[arg-type]
    with pytest.raises(NoRoute):
        bus.tasks.submit_many([1], "nowhere", declare=False)


def test_leaving_a_map_cancels(bus: BlockingBus) -> None:
    """What was submitted and not yielded is cancelled when the iteration is left."""
    bus.queues.declare("tasks")
    mapped = bus.tasks.map(range(3))
    waiting = in_thread(next, mapped)
    until(lambda: taken(bus) == (3, 0), "the tasks to be submitted")
    with bus.tasks.next() as task:
        task.set_result("first")
    assert waiting.result(PATIENCE) == "first"
    mapped.close()
    until(lambda: taken(bus) == (0, 0), "the others to be withdrawn")


def test_progress(bus: BlockingBus) -> None:
    """Progress is iterated, or told to a function, which runs in a thread, may call the bus, and may fail."""
    gate = threading.Event()
    heard: list[Any] = []

    def handler(task: Task) -> str:
        gate.wait(PATIENCE)
        for number in range(3):
            task.progress(number)
        return "done"

    def hear(value: Any) -> None:
        heard.append((value, bus.queues.names()))

    def fail(value: Any) -> None:
        raise ValueError(value)

    handle = bus.tasks.submit(1)
    ends = [handle.on_progress(each) for each in (hear, fail)]
    with bus.tasks.worker(handler):
        watching = handle.watch()
        first = in_thread(next, watching)
        until(lambda: watching._steps, "the watching to begin")
        gate.set()
        assert [first.result(PATIENCE), *watching] == [0, 1, 2]
        assert list(watching) == []
        assert (handle.result(), handle.progress) == ("done", 2)
    until(lambda: len(heard) == 3, "the progress")
    assert heard == [(number, ["tasks"]) for number in range(3)]
    for end in ends:
        end()


def test_callbacks_that_wait_are_bounded(
    bus: BlockingBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind a callback that does not return so many wait and no more; the log says so."""
    monkeypatch.setattr(resident, "EVENTS", 3)
    gate = threading.Event()
    heard: list[int] = []

    def hear(value: int) -> None:
        gate.wait(PATIENCE)
        heard.append(value)

    handle = bus.tasks.submit(1)
    handle.on_progress(hear)
    with bus.tasks.next() as task:
        for number in range(5):
            task.progress(number)
        task.set_result(None)
    handle.result(PATIENCE)
    gate.set()
    bus.close()
    assert heard == [0, 1, 2]
    assert f"a callback for the progress of task {handle.id} is not called: 3 callbacks wait" in caplog.text


def test_a_nested_future_is_a_handle(bus: BlockingBus) -> None:
    """Where the handler returned a future, a handle of that stands in the place of the result, if that is asked for."""
    future: Future[int] = Future()
    with bus.tasks.worker(lambda _: future):
        nested = bus.tasks.submit(1).result(PATIENCE, flat=False)
        future.set_result(4)
        assert nested.result(PATIENCE) == 4


def test_what_came_is_read_without_the_bus() -> None:
    """A result that reached its handle is read once the bus is closed, as is an error; one that did not come is not."""
    with connect("memory://") as bus:
        with bus.tasks.worker(double):
            done, failed = bus.tasks.submit(2), bus.tasks.submit(None)
            assert done.result() == 4
            with pytest.raises(RemoteError):
                failed.result()
        waiting = bus.tasks.submit(3)
        asked, silent = bus.tasks.handle(done.id), bus.tasks.handle(done.id)
        assert asked.result() == 4
    assert (done.result(timeout=5), done.over, asked.result()) == (4, True, 4)
    with pytest.raises(Closed):
        silent.result()
    with pytest.raises(RemoteError, match="NoneType"):
        failed.result()
    with pytest.raises(ConfigError, match="timeout"):
        done.result(timeout=-1)
    with pytest.raises(Closed):
        waiting.result(timeout=5)


def test_cancelling(bus: BlockingBus) -> None:
    """A task is cancelled by its handle; a future of `run` ends the waiting alone."""
    handle = bus.tasks.submit(1)
    waiting = bus.tasks.run.future(2)
    until(lambda: taken(bus) == (2, 0), "the tasks")
    assert handle.cancel() == "withdrawn"
    with pytest.raises(TaskCancelled):
        handle.result()
    assert waiting.cancel()
    assert waiting.cancelled()
    with pytest.raises(CancelledError):
        waiting.result()
    until(lambda: opens(bus) == 0, "the call to end")
    assert taken(bus) == (1, 0)


def test_a_claim_ends_once(bus: BlockingBus) -> None:
    """A task that is taken gets its outcome, by a block or without, and an error of it is told at once."""
    handles = [bus.tasks.submit(number) for number in range(4)]
    with bus.tasks.next() as task:
        assert (task.data, task.attempt, task.tries, task.queue, task.done) == (0, 1, 1, "tasks", False)
        assert task.progress("half")
        with pytest.raises(EncodeError):
            task.set_result(object())
        task.set_result("a")
    assert task.done
    with bus.tasks.next() as task:
        raise Requeue
    task = bus.tasks.next()
    task.set_exception(ValueError("b"))
    assert task.confirmed()
    other = bus.tasks.next()
    assert repr(other).startswith("<Claim ")
    other.dead_letter("c")
    third = bus.tasks.next()
    third.requeue()
    assert handles[0].result(PATIENCE) == "a"
    assert "b" in str(handles[1].result.future().exception(PATIENCE))
    assert handles[2].result.future().exception(PATIENCE) is not None
    assert taken(bus) == (1, 0)


def test_nothing_there(bus: BlockingBus) -> None:
    """An empty queue is QueueEmpty at the timeout; iterating over it is over at once."""
    for timeout in (0, 0.001):
        with pytest.raises(QueueEmpty):
            bus.tasks.next(timeout=timeout)
    assert list(bus.tasks.each()) == []
    bus.tasks.submit_many(range(3))
    for task in bus.tasks.each():
        if task.data == 1:
            with task:
                task.set_result(None)
    until(lambda: taken(bus) == (2, 0), "the others to go back")
    for each in bus.tasks.each():
        assert each.data in {0, 2}
        break
    del each, task
    until(lambda: taken(bus) == (2, 0), "the one that was left to go back")
    for task in bus.tasks.each():
        del task
        break
    until(lambda: taken(bus) == (2, 0), "the one that was left to go back")


def test_ctrl_c_in_next_takes_nothing(bus: BlockingBus) -> None:
    """Who is interrupted while a task is waited for has none: the next one that is submitted stays."""
    bus.queues.declare("tasks")
    with interrupting(lambda: opens(bus) == 1), pytest.raises(KeyboardInterrupt) as kept:
        bus.tasks.next()
    bus.tasks.submit(1)
    assert taken(bus) == (1, 0)
    assert kept.value.__traceback__ is not None


def test_what_nobody_saw_goes_back(bus: BlockingBus) -> None:
    """A task that had come when its taker was interrupted goes back at once, though the traceback refers to it."""
    bus.tasks.submit(1)
    future = bus.tasks.next.future()
    until(lambda: taken(bus) == (0, 1), "the task to be taken")
    until(future.done, "the future")
    claim: Any = future
    bus._home.handover.run(claim.stop)
    until(lambda: taken(bus) == (1, 0), "the task to go back")
    assert claim.done()


def test_a_cancelled_future_of_next_takes_nothing(bus: BlockingBus) -> None:
    """Cancelling the future of `next` leaves the tasks to others."""
    bus.queues.declare("tasks")
    future = bus.tasks.next.future()
    until(lambda: opens(bus) == 1, "the call")
    assert future.cancel()
    bus.tasks.submit(1)
    until(lambda: opens(bus) == 0, "the call to end")
    assert taken(bus) == (1, 0)


def test_ctrl_c_in_a_block_gives_back(bus: BlockingBus) -> None:
    """Ctrl-C in the block of a claim gives its task back, without blame."""
    bus.tasks.submit(1)
    inside = threading.Event()

    def work() -> None:
        with bus.tasks.next():
            inside.set()
            threading.Event().wait(PATIENCE)

    with interrupting(inside.is_set), pytest.raises(KeyboardInterrupt):
        work()
    assert taken(bus) == (1, 0)
    assert bus.tasks.next().attempt == 1


def test_a_dropped_claim_goes_back(bus: BlockingBus) -> None:
    """A claim that is garbage-collected gives its task back."""
    bus.tasks.submit(1)
    claims = [bus.tasks.next()]
    assert taken(bus) == (0, 1)
    claims.clear()
    gc.collect()
    until(lambda: taken(bus) == (1, 0), "the task to go back")


def test_a_claim_goes_back_without_its_finalizer(bus: BlockingBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may keep a finalizer from what it does: a claim that is dropped goes back all the same."""

    def interrupted(_: object) -> None:
        """Do nothing, as one that was interrupted when it began."""

    monkeypatch.setattr(BlockingClaim, "__del__", interrupted)
    bus.tasks.submit(1)
    bus.tasks.next()
    until(lambda: taken(bus) == (1, 0), "the task to go back")
    with bus.tasks.next() as task:
        task.set_result(2)
    del task
    until(lambda: not bus._home._held, "nothing to be held")


def test_a_claim_that_cannot_go_back_keeps_no_other(bus: BlockingBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dropped object whose return fails does not end the looks for dropped ones: the others go back."""

    def fail() -> None:
        raise RuntimeError("it cannot go back")

    class Held:
        """What a thread has."""

    given: list[int] = []
    held = [Held(), Held()]
    look_after = bus._home.look_after
    logged: list[str] = []

    def begin() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: logged.append(str(context["exception"])))
        look_after(held[0], fail)
        look_after(held[1], lambda: given.append(1))

    monkeypatch.setattr(resident, "_LOOK", 0.01)
    bus._home.handover.run(begin)
    del held[0]
    until(lambda: logged, "the failure to be told")
    held.clear()
    until(lambda: given, "the other to go back")
    assert logged == ["it cannot go back"]


def test_a_handler_calls_back(bus: BlockingBus) -> None:
    """A plain handler runs in a thread, and may wait for the same bus, which works on meanwhile."""

    def handler(task: Task) -> Any:
        return task.data if task.data == 0 else bus.tasks.run(task.data - 1) + 1

    with bus.tasks.worker(handler, concurrency=4):
        assert bus.tasks.run(3, timeout=PATIENCE) == 3


def test_a_worker_that_is_closed_after_its_bus_keeps_no_thread(bus: BlockingBus) -> None:
    """The threads of a worker end when it is closed, also where the bus is closed already."""
    with bus.tasks.worker(double):
        assert bus.tasks.run(1) == 2
        bus.close()
    until(lambda: not [each for each in threading.enumerate() if each.name.startswith("redpoll tasks")], "the threads")


def test_ctrl_c_ends_the_draining(bus: BlockingBus) -> None:
    """Ctrl-C where a worker drains stops its handlers, whose tasks go back; one that has just begun leaves none behind."""

    async def forever(task: Task) -> None:
        await bus._home.handover.loop.create_future()

    handle = bus.tasks.submit(1)
    worker = bus.tasks.worker(forever).__enter__()
    until(lambda: worker.running, "the handler")
    with interrupting(lambda: opens(bus) == 1), pytest.raises(KeyboardInterrupt):
        worker.close(None)
    until(lambda: taken(bus) == (1, 0), "the task to go back")
    assert not worker.running
    assert handle.state() == "ready"


def test_closing_ends_what_waits(bus: BlockingBus) -> None:
    """Whatever waits for tasks when the bus is closed is told that it is."""
    handle = bus.tasks.submit(1, "other")
    waiting: list[Future[Any]] = [
        in_thread(bus.tasks.next),
        in_thread(handle.result),
        in_thread(list, handle.watch()),
        handle.result.future(),
    ]
    until(lambda: opens(bus) == 3, "the calls")
    bus.close()
    for each in waiting:
        assert isinstance(each.exception(PATIENCE), Closed)
    with pytest.raises(Closed):
        bus.tasks.submit(1)
