"""Plain functions in processes. Children take time to start: these tests run on one loop alone."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from redpoll.bus import Envelope, Payloads, QueueSpec, use_headers
from redpoll.bus.tasks.ending import NOTHING, Ending, Way
from redpoll.bus.tasks.processes import Errand, Processes
from redpoll.errors import DeadLettered, EncodeError, TaskCancelled, TimeLimit
from tests.bus.tasks.handlers import compute
from tests.bus.tasks.support import Q, desk, turns
from tests.node.support import until

SIGNALS = sys.platform != "win32"


def on_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on a loop of its own."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        with asyncio.Runner() as runner:
            runner.run(test(**arguments))  # type: ignore[arg-type]

    return run


@on_a_loop
async def test_processes(tmp_path: Path) -> None:
    """A function in a process does all that another can, and processes are used again."""
    async with desk(exceptions=[ValueError]) as bus:
        async with bus.tasks.worker(compute, Q, pool="process", concurrency=1):
            handle = await bus.tasks.submit("progress", Q)
            assert await handle.result() == [True] * 3
            assert handle.progress == 2
            pid = await bus.tasks.run("pid", Q)
            with pytest.raises(ValueError, match="no"):
                await bus.tasks.run("raise", Q)
            assert await bus.tasks.run("requeue", Q, headers={"flag": str(tmp_path / "flag")}) == "second"
            with pytest.raises(DeadLettered, match="hopeless"):
                await bus.tasks.run("dead", Q)
            with pytest.raises(EncodeError):
                await bus.tasks.run("object", Q)
            about = await bus.tasks.submit("about", Q, deadline=9)
            assert await about.result() == [about.id, Q, 1, 1, 9, False, False]
            with use_headers(user="ada"):
                assert await bus.tasks.run("context", Q, deadline=9) == [{"user": "ada"}, 9]
            assert await bus.tasks.run("context", Q) == [{}, None]
            count, large = await bus.tasks.run("large", Q, headers={"big": b"x" * 10_000})
            assert (count, len(large)) == (1, 200_000)
            assert await bus.tasks.run("pid", Q) == pid
        gone = await bus.tasks.submit("pid", Q)
        await turns()
        assert await gone.state() == "ready"


@on_a_loop
async def test_a_process_that_dies_takes_no_other_task_along() -> None:
    """A child that dies is a failed attempt of its own task: the others of the worker end well."""
    async with desk() as bus:
        await bus.queues.declare(QueueSpec(Q, max_attempts=2))
        async with bus.tasks.worker(compute, Q, pool="process", concurrency=2):
            dies = await bus.tasks.submit("die" if SIGNALS else "exit", Q)
            others = await bus.tasks.submit_many(range(6), Q)
            with pytest.raises(DeadLettered, match="2 attempts failed, the last one: its process ended with"):
                await dies.result()
            assert [await each.result() for each in others] == list(range(6))
            assert [info.attempt for info in await bus.queues.browse(Q, "dead")] == [3]


@on_a_loop
async def test_progress_of_many_threads() -> None:
    """What threads of a handler report at the same time arrives; what one reports after the end is no other task's."""
    async with desk() as bus, bus.tasks.worker(compute, Q, pool="process", concurrency=1):
        handle = await bus.tasks.submit("threads", Q)
        assert await handle.result() == "threads"
        assert handle.progress == b"x" * 40_000
        await bus.tasks.run("leave", Q)
        handle = await bus.tasks.submit("left", Q)
        assert await handle.result() is False
        assert handle.progress is None


KILLED = """
import os, signal, redpoll
from tests.bus.tasks.handlers import compute

async def main():
    async with redpoll.connect("memory://") as bus, bus.tasks.worker(compute, "numbers", pool="process"):
        handle = await bus.tasks.submit("sleep", "numbers")
        async for _ in handle.watch():
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    redpoll.run(main())
"""


@pytest.mark.skipif(not SIGNALS, reason="Windows has no SIGKILL")
def test_a_child_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """A handler that never returns ends when the program that started its process was killed."""
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    # Its output ends with the last of its processes.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, program], capture_output=True, timeout=50, env=environment, check=False)
    assert found.returncode == -signal.SIGKILL, found.stderr.decode()


class Fake:
    """A child without a process, which notes what is done to it."""

    def __init__(self, calls: list[tuple[str, Fake]]) -> None:
        self.calls = calls
        self.dead = False

    def work(self, job: Any, say: Any, begin: Any) -> Ending | None:
        """Do a task, unless it is dead."""
        self.calls.append(("work", self))
        return None if self.dead else NOTHING

    def release(self) -> None:
        """Note it."""
        self.calls.append(("release", self))

    def stop(self) -> None:
        """Note it."""
        self.calls.append(("stop", self))


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Fake]]:
    """Children that are no processes; what is done to them."""
    calls: list[tuple[str, Fake]] = []
    monkeypatch.setattr("redpoll.bus.tasks.processes.Child", lambda _: Fake(calls))
    return calls


def errand() -> Any:
    """A task to be done."""
    envelope = Envelope("raw", b"")
    return Errand(SimpleNamespace(id="1", queue=Q, envelope=envelope, attempt=1, left=None, inputs=()))


def test_children_that_died_while_idle(children: list[tuple[str, Fake]]) -> None:
    """A task is not blamed for children that were gone before it began, however many; for two that were started it is."""
    processes = Processes(compute, Payloads(), None)
    idle: Any = processes._idle
    idle.extend(Fake(children) for _ in range(5))
    for child in idle:
        child.dead = True
    assert processes.work(errand(), print, print) is NOTHING
    assert len(children) == 6
    assert idle == [children[-1][1]]


def test_a_task_that_cannot_be_sent_to_a_process(children: list[tuple[str, Fake]]) -> None:
    """A task that cannot be pickled ends with that error: no process is started for it, and it does not come back."""
    processes = Processes(compute, Payloads(), None)
    unfit = errand()
    unfit.delivery.envelope = Envelope("raw", b"", None, {"view": memoryview(b"x")})
    ending = processes.work(unfit, print, print)
    assert ending.way is Way.ERROR
    assert "cannot pickle" in ending.reason
    assert not children


def test_children_end_all_at_once(children: list[tuple[str, Fake]]) -> None:
    """All idle children are let go before the first is waited for; one that ends its task later is ended by that."""
    processes = Processes(compute, Payloads(), None)
    idle: Any = processes._idle
    idle.extend(Fake(children) for _ in range(3))
    processes.close()
    assert [what for what, _ in children] == ["release"] * 3 + ["stop"] * 3
    children.clear()
    assert processes.work(errand(), print, print) is NOTHING
    assert [what for what, _ in children] == ["work", "stop"]


@on_a_loop
async def test_the_loop_turns_while_children_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is closed waits for its children in a thread."""
    turned = threading.Event()
    ended: list[bool] = []
    monkeypatch.setattr(Processes, "work", lambda *_: NOTHING)
    monkeypatch.setattr(Processes, "close", lambda _: ended.append(turned.wait(10)))
    async with desk() as bus:
        async with bus.tasks.worker(compute, Q, pool="process", concurrency=1):
            await bus.tasks.run(1, Q)
            asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(turned.set))
        assert ended == [True]


@on_a_loop
async def test_a_time_limit_counts_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process takes to be started is no time of its task."""
    go, end = threading.Event(), threading.Event()

    def work(_: Processes, __: Errand, ___: Any, begin: Callable[[], object]) -> Ending:
        go.wait(10)
        begin()
        end.wait(10)
        return NOTHING

    monkeypatch.setattr(Processes, "work", work)
    async with desk() as bus, bus.tasks.worker(compute, Q, pool="process", concurrency=1, time_limit=50) as worker:
        handle = await bus.tasks.submit(1, Q)
        await turns()
        await bus.time.advance(60)
        assert await handle.state() == "taken"
        (job,) = worker._jobs
        go.set()
        await until(lambda: job.timer, "the beginning")
        await bus.time.advance(50)
        end.set()
        with pytest.raises(TimeLimit):
            await handle.result()


HANGS = """
import multiprocessing, threading

def handle(task):
    return task.data

if multiprocessing.parent_process() is not None:
    threading.Event().wait()
"""


@on_a_loop
async def test_a_process_that_does_not_start_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child whose imports never end is killed: its task fails, and its slot is free for the next."""
    (tmp_path / "hangs.py").write_text(HANGS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("redpoll.bus.tasks.processes._START_LIMIT", 0.1)
    handle: Any = importlib.import_module("hangs").handle
    async with desk() as bus:
        await bus.queues.declare(QueueSpec(Q, max_attempts=1))
        async with bus.tasks.worker(handle, Q, pool="process", concurrency=1, time_limit=50):
            for _ in range(2):
                with pytest.raises(DeadLettered, match=r"its process did not start: it ended, or took over 0\.1 s"):
                    await asyncio.wait_for(bus.tasks.run(1, Q), 30)


UNGUARDED = """
import redpoll
from redpoll.bus import QueueSpec

def handle(task):
    return task.data

async def main():
    async with redpoll.connect("memory://") as bus:
        await bus.queues.declare(QueueSpec("computing", max_attempts=1))
        async with bus.tasks.worker(handle, "computing", pool="process"):
            await bus.tasks.run(1, "computing")

redpoll.run(main())
"""


def test_a_program_that_its_processes_begin_anew_says_so(tmp_path: Path) -> None:
    """A child that imports a program without a guard says what to write, and its task tells where that is said."""
    program = tmp_path / "unguarded.py"
    program.write_text(UNGUARDED)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "begin it under `if __name__ == '__main__':`" in done.stderr
    assert "its process did not start: it ended, or took over 60 s (standard error" in done.stderr.splitlines()[-1]
    assert "An attempt has been made to start a new process" not in done.stderr


@pytest.mark.parametrize("how", ["cancel", "limit", "close"])
@on_a_loop
async def test_a_process_can_be_stopped(how: str) -> None:
    """A child is killed when its task is cancelled, takes too long, or its worker is closed."""
    async with desk() as bus:
        worker = bus.tasks.worker(compute, Q, pool="process", concurrency=1, time_limit=50, drain=0)
        async with worker:
            handle = await bus.tasks.submit("sleep", Q)
            async for _ in handle.watch():
                break
            if how == "cancel":
                assert await handle.cancel() == "asked"
                with pytest.raises(TaskCancelled):
                    await handle.result()
            elif how == "limit":
                await bus.time.advance(50)
                with pytest.raises(TimeLimit):
                    await handle.result()
            if how != "close":
                assert await bus.tasks.run("next", Q) == "next"
        if how == "close":
            async with bus.tasks.next(Q, 0) as task:
                assert (task.data, task.attempt) == ("sleep", 1)
