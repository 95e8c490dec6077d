"""The life of a bus for threads: entered, closed, forked, dropped, interrupted; and where it may be used."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import warnings
from concurrent.futures import Future
from typing import Any

import pytest

import redpoll.blocking
from redpoll.blocking import connect
from redpoll.bus import EngineState, QueueSpec, Task, Tasks
from redpoll.bus.threads import BlockingTasks
from redpoll.errors import Closed, ConfigError, SpecConflict, UsageError
from redpoll.testing import VirtualTime
from tests.blocking.support import PATIENCE, in_thread, interrupting, run_program, until
from tests.blocking.test_loop_thread import loop_threads
from tests.bus.engines.hub.support import running as hub_running
from tests.bus.threads.support import double, opens, taken
from tests.cli.support import environment


def test_a_bus_is_entered_once() -> None:
    """A bus is open inside of its block, and its verbs are closed before and after; its thread ends with the last one."""
    bus = connect("memory://", max_body=1_000)
    for hint in ("with bus", None):
        with pytest.raises(Closed) as error:
            bus.tasks.submit(1)
        assert (error.value.hint is None) == (hint is None)
        assert not bus.healthy()
        bus.close()
        if hint is None:
            break
        with bus, connect("memory://") as other:
            assert (bus.state, bus.capabilities.max_body, bus.healthy()) == (EngineState.READY, 1_000, True)
            assert len(loop_threads()) == 1
            assert other.queues.names() == []
            with pytest.raises(UsageError, match="entered before"):
                bus.__enter__()
            assert repr(bus) == "<blocking <Bus <MemoryEngine memory:// ready>>>"
    assert bus.state is EngineState.CLOSED
    assert not loop_threads()
    with pytest.raises(ConfigError, match="there is no such engine"):
        connect("gopher://")


def test_queues() -> None:
    """Queues are declared, looked at and deleted as on the loop."""
    with connect("memory://") as bus:
        bus.queues.declare(QueueSpec("night", ttl=5))
        with pytest.raises(SpecConflict):
            bus.queues.declare(QueueSpec("night", ttl=6))
        bus.tasks.submit(1, "night")
        assert bus.queues.inspect("night").ready == 1
        bus.queues.pause("night")
        bus.queues.resume("night")
        assert [bus.queues.purge("night"), bus.queues.names()] == [1, ["night"]]
        bus.queues.delete("night")
        assert bus.queues.names() == []


def test_the_engine_is_asked() -> None:
    """The engine says what no pattern does: schedules, the record of a task, and everything that happens in its queues."""
    seen: list[tuple[str, str]] = []
    with connect("memory://") as bus:
        end = bus.engine.observe(lambda what, queue, *_: seen.append((what, queue)))
        bus.tasks.schedule("sweep", 1, "night", every=60)
        task = bus.tasks.submit(2, "night")
        until(lambda: ("submitted", "night") in seen, "the observer")
        end()
        count = len(seen)
        bus.tasks.submit(3, "night")
        assert [each.name for each in bus.engine.schedules()] == ["sweep"]
        assert (bus.engine.lookup(task.id).state, bus.engine.lookup.future(task.id).result().queue) == (
            "ready",
            "night",
        )
        with pytest.raises(ConfigError, match="callback"):
            bus.engine.observe(None)  # type: ignore[arg-type]
    assert len(seen) == count


def test_verbs_say_what_they_are() -> None:
    """A verb has the signature and the docstring of the one on the loop, and a name."""
    with connect("memory://") as bus:
        parameters = list(inspect.signature(Tasks.submit).parameters)
        assert list(inspect.signature(bus.tasks.submit).parameters) == parameters[1:]
        assert bus.tasks.submit.__doc__ == BlockingTasks.submit.__doc__ == Tasks.submit.__doc__
        assert repr(bus.tasks.submit) == f"<submit of {bus.tasks!r}>"
        with pytest.raises(TypeError):
            bus.tasks.submit()  # type: ignore[call-arg]


def test_the_state_is_watched() -> None:
    """A watch is called in a thread, where it may wait for the bus; a state can be waited for."""
    heard: list[Any] = []
    with connect("memory://") as bus:
        main = threading.current_thread()
        bus.status.watch(lambda state, reason: heard.append((state, threading.current_thread() is main)))
        end = bus.status.watch(lambda state, reason: heard.append("ended"))
        end()
        assert (bus.status.state, bus.status.reason) == (EngineState.READY, "")
        assert bus.status.wait_for(EngineState.READY) is EngineState.READY
        closed = bus.status.wait_for.future(EngineState.CLOSED)
    assert heard == [(EngineState.CLOSED, False)]
    assert closed.done()


@pytest.mark.parametrize("error", [KeyError, SystemExit, asyncio.CancelledError])
def test_a_watch_that_raises(error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """What a watch raises is logged, whatever it is."""

    def watch(state: EngineState, reason: str) -> None:
        raise error

    with connect("memory://") as bus:
        bus.status.watch(watch)
    (record,) = caplog.records
    assert record.getMessage() == "a watch of the engine's state failed"
    assert record.exc_info
    assert record.exc_info[0] is error


def test_what_waits_is_refused_on_the_loop() -> None:
    """A coroutine function and the callback of a future are on the loop: what waits is refused there, `future` is not."""
    told: Future[str] = Future()

    async def handler(task: Task) -> Any:
        for wait in (lambda: bus.tasks.run(1), lambda: next(bus.tasks.each()), lambda: bus.tasks.map([1]).__next__()):
            with pytest.raises(UsageError, match=r"use \.future\(\)"):
                wait()
        for end in (bus.close, connect("memory://").__enter__):
            with pytest.raises(UsageError, match="would block"):
                end()
        return await asyncio.wrap_future(bus.queues.names.future())

    def called(future: Future[Any]) -> None:
        try:
            bus.tasks.run(future.result())
        except UsageError as error:
            told.set_result(str(error.hint))

    with connect("memory://") as bus, bus.tasks.worker(handler):
        future = bus.tasks.run.future(1)
        future.add_done_callback(called)
        assert future.result(PATIENCE) == ["tasks"]
        assert "or another thread" in told.result(PATIENCE)


def test_close_waits_for_what_is_worked_on() -> None:
    """Closing waits for a handler within its time, and no longer; a time that is none is refused."""
    clock = VirtualTime()
    gate = threading.Event()

    def handler(task: Task) -> Any:
        gate.wait(PATIENCE)
        return task.data

    with connect("memory://", clock=clock) as bus:
        for drain in (-1, "x"):
            with pytest.raises(ConfigError, match="drain"):
                bus.close(drain)  # type: ignore[arg-type]
        worker = bus.tasks.worker(handler).__enter__()
        done = bus.tasks.run.future(1)
        until(lambda: worker.running, "the handler")
        closing = in_thread(bus.close, None)
        gate.set()
        closing.result(PATIENCE)
        assert done.result(0) == 1
        worker.close()
    held = connect("memory://").__enter__()
    held.tasks.submit(1)
    claim = held.tasks.next()
    held.close(0.01)
    assert claim.lost
    assert held.state is EngineState.CLOSED


def test_a_callback_closes_the_bus() -> None:
    """A callback may close the bus that calls it; one that blocks does not keep another thread from that."""
    closed, gate = threading.Event(), threading.Event()
    with connect("memory://") as bus:

        def close(_: Any) -> None:
            bus.close()
            closed.set()
            gate.wait(PATIENCE)

        task = bus.tasks.submit(1)
        task.on_progress(close)
        claim = bus.tasks.next()
        claim.progress("now")
        assert closed.wait(PATIENCE)
        bus.close()
        gate.set()


def test_ctrl_c_ends_the_closing() -> None:
    """Ctrl-C where a bus drains ends that, and comes out when the bus is closed."""
    bus = connect("memory://").__enter__()
    bus.tasks.submit(1)
    claim = bus.tasks.next()
    with interrupting(lambda: opens(bus) == 1), pytest.raises(KeyboardInterrupt):
        bus.close(None)
    assert bus.state is EngineState.CLOSED
    assert claim.lost
    assert not loop_threads()
    bus.close()


def test_a_start_that_fails_leaves_nothing() -> None:
    """What entering raises comes out, and no thread is left."""

    class Broken:
        """An engine with nobody there."""

        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

        async def __aenter__(self) -> None:
            raise OSError("nobody there")

    bus = connect("memory://")
    engine: Any = bus._home.bus.engine
    bus._home.bus.engines = (Broken(),)  # type: ignore[assignment]
    with pytest.raises(OSError, match="nobody there"):
        bus.__enter__()
    assert not loop_threads()
    bus.close()


FORK = """
import os, sys
from redpoll.blocking import connect
from redpoll.errors import UsageError
bus = connect("memory://").__enter__()
handle = bus.tasks.submit(1)
subscription = bus.broadcast.subscribe(subject="x").__enter__()
claim = bus.tasks.next()
child = os.fork()
if not child:
    for use in (
        lambda: bus.tasks.submit(2), handle.result, lambda: next(subscription), bus.healthy, handle.state.future,
        lambda: claim.set_result(1), lambda: list(bus.tasks.map([1])), subscription.close, lambda: next(handle.watch()),
    ):
        try:
            use()
        except UsageError as error:
            print(error.args[0])
    bus.close()
    with connect("memory://") as own, own.tasks.worker(lambda task: task.data + 1):
        print(own.tasks.run(1))
    sys.exit()
print(os.waitpid(child, 0)[1])
claim.set_result("the parent goes on")
print(handle.result())
bus.close()
"""


def test_a_child_has_a_bus_of_its_own() -> None:
    """After a fork the bus is the parent's: using it in the child is refused, closing it there does nothing."""
    done = run_program(FORK, "-Werror")
    refused = "this bus belongs to the process that forked this one"
    assert done.stdout.splitlines() == [refused] * 9 + ["2", "0", "the parent goes on"], done.stderr
    assert not done.stderr


DROPPED = """
from redpoll.blocking import connect
bus = connect("memory://").__enter__()
worker = bus.tasks.worker(lambda task: task.data).__enter__()
subscription = bus.broadcast.subscribe(print).__enter__()
print(bus.tasks.run(1))
"""


def test_a_program_that_ends_is_not_kept() -> None:
    """A bus that nobody closed is closed at the end of the program, with a warning."""
    done = run_program(DROPPED, "-Wdefault")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "ResourceWarning: <blocking <Bus <MemoryEngine memory:// ready>>> was not stopped" in done.stderr
    assert "Traceback" not in done.stderr


KILLED = """
import sys, threading
from concurrent.futures import Future
from redpoll.blocking import connect
from redpoll.errors import Closed
bus, other = connect("memory://").__enter__(), connect("memory://").__enter__()
worker = bus.tasks.worker(lambda task: task.data).__enter__()
subscription = bus.broadcast.subscribe().__enter__()
other.queues.declare("tasks")
handle = other.tasks.submit(1, "other")
waits = [other.tasks.next, handle.result, lambda: list(handle.watch()), lambda: list(subscription), other.status.wait_for]
ended = [Future() for _ in waits]
def wait(waiting, future):
    try:
        future.set_result(waiting())
    except Exception as error:
        future.set_result(type(error))
for pair in zip(waits, ended):
    threading.Thread(target=wait, args=pair).start()
while len(bus._home.handover._open) < 3 or not subscription._iteration or not subscription._iteration._steps:
    pass
bus.tasks.run.future(1).add_done_callback(lambda _: sys.exit())
results = [each.result(10) for each in ended]
print([each in (Closed, []) for each in results])
for use in (lambda: bus.tasks.run(1), lambda: list(subscription), other.tasks.submit.future(1).result):
    try:
        print(use())
    except Closed:
        print("closed")
for each in (worker, subscription, bus, other):
    each.close()
with connect("memory://") as new, new.tasks.worker(lambda task: task.data):
    print(new.tasks.run("goes on"))
"""


def test_the_end_of_the_loop_is_told() -> None:
    """When a callback ends the loop, whatever waits on it is told, later calls are, and a new bus has a new loop."""
    done = run_program(KILLED)
    assert done.stdout.splitlines()[0] == str([True] * 5), done.stderr
    assert set(done.stdout.splitlines()[1:4]) <= {"closed", "[]"}
    assert done.stdout.splitlines()[4:] == ["goes on"], done.stderr


@pytest.mark.asyncio
async def test_a_notebook_uses_it_as_well() -> None:
    """A thread that runs a loop of its own waits, and is blocked meanwhile; or awaits a future."""
    with connect("memory://") as bus, bus.tasks.worker(double):
        assert bus.tasks.run(1) == 2
        assert await asyncio.wrap_future(bus.tasks.run.future(2)) == 4


def test_buses_of_one_name_meet() -> None:
    """Two buses on one shared engine work for each other, and each ends for itself."""
    with connect("memory://threads") as one:
        with connect("memory://threads") as two, two.tasks.worker(double):
            assert one.tasks.run(3) == 6
        one.tasks.submit(4)
        assert taken(one) == (1, 0)


def test_a_burst_of_futures_is_slowed() -> None:
    """Beginning more than the loop can take waits for the loop, and all of it is done."""
    with connect("memory://") as bus, bus.tasks.worker(double, concurrency=2):
        futures = [bus.queues.names.future() for _ in range(3_000)]
        assert [each.result(PATIENCE) for each in futures] == [["tasks"]] * 3_000


def test_connect_is_handed_on() -> None:
    """`redpoll.blocking.connect` makes it, and importing `redpoll.blocking` does not import the bus."""
    assert redpoll.blocking.connect is connect
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert connect("memory://").state is EngineState.CONNECTING


ENDING = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from redpoll.blocking import connect

bus = connect(sys.argv[1]).__enter__()
begun = threading.Event()


def handle(value):
    if getattr(value, "data", value) == "last":
        begun.set()
        pool = ThreadPoolExecutor(1)
        try:
            while True:
                pool.submit(int).result()
        except RuntimeError:
            print("ending", flush=True)
        sys.stdin.read()
    return "child"


class Endpoint:
    info = staticmethod(handle)

    def echo(self, value):
        return handle(value)


worker = bus.tasks.worker(handle, queue="q").__enter__()
server = bus.rpc.serve("s", Endpoint()).__enter__()
listener = bus.notifications.listen(Endpoint()).__enter__()
print("ready", flush=True)
begun.wait()
"""


@pytest.mark.asyncio
async def test_what_comes_as_a_program_ends() -> None:
    """A program that ends with an open bus, and waits for a thread, gives back what comes meanwhile: others do it."""
    with hub_running() as hub:
        command = [sys.executable, "-Wignore", "-c", ENDING, hub.url]
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec(*command, env=environment(), stdin=pipe, stdout=pipe)
        async with redpoll.connect(hub.url) as bus:
            notifier = bus.notifier("n")
            assert program.stdout is not None
            assert program.stdin is not None
            assert await program.stdout.readline() == b"ready\n"
            last = await bus.tasks.submit("last", queue="q")
            assert await program.stdout.readline() == b"ending\n"
            heard: asyncio.Queue[Any] = asyncio.Queue()
            task = await bus.tasks.submit(1, queue="q")
            await notifier.info("event", 1)
            call = asyncio.ensure_future(bus.rpc.call("s", "echo", {"value": 1}))

            class Endpoint:
                """The other one."""

                async def echo(self, value: int) -> str:
                    """Answer."""
                    return f"other {value}"

            async def work(task: Task) -> str:
                return f"other {task.data}"

            async def hear(notification: Any) -> None:
                heard.put_nowait(notification.payload)

            async with (
                bus.tasks.worker(work, queue="q"),
                bus.rpc.serve("s", Endpoint()),
                bus.notifications.listen(hear),
                asyncio.timeout(PATIENCE),
            ):
                assert await task.result() == "other 1"
                assert await call == "other 1"
                assert await heard.get() == 1
                program.stdin.close()
                assert await last.result() in {"child", "other last"}
            assert await program.wait() == 0
