"""What the tests of nodes for threads share: nodes on free ports, work in threads, interruptions, waiting with a bound."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from redpoll import Message
from redpoll.blocking import PoolNode, QueueNode, Received
from tests.cli.support import environment

#: Seconds after which a test gives up; nothing here takes a tenth of it.
PATIENCE = 10.0

T = TypeVar("T")


def make(**options: Any) -> QueueNode[Any]:
    """A node on a free port of 127.0.0.1."""
    return QueueNode(**{"port": 0, **options})


def to(node: QueueNode[Any] | PoolNode[Any], data: Any = b"x", **options: Any) -> Message[Any]:
    """A message to a node."""
    return Message(data, node.address, **options)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for what no event tells of; fail with its name if it does not come."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.001)


def in_thread(function: Callable[..., T], *args: Any) -> Future[T]:
    """Call a function in a thread of its own; one that hangs fails its test, and does not keep the process of tests."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            result = function(*args)
        except BaseException as error:  # noqa: BLE001  # it is raised where the result is read
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=work, name="test work", daemon=True).start()
    return future


def is_open(message: Received[Any]) -> bool:
    """Whether a message has not ended (a call, as a checker takes an attribute for what it was before)."""
    return not message.ended


def waits(node: QueueNode[Any], count: int = 1) -> bool:
    """Whether so many threads wait for a message, and the loop knows."""
    feed = node._node.feed
    assert feed is not None
    return len(feed._waiting) == count and node._node._peers.receiver.claiming


@contextlib.contextmanager
def interrupting(when: Callable[[], object]) -> Iterator[None]:
    """Raise KeyboardInterrupt in this thread, as Ctrl-C does, as soon as something is so."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    def watch() -> None:
        until(when, "the moment to interrupt")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    watching = in_thread(watch)
    try:
        yield
    finally:
        watching.result(PATIENCE)
        signal.signal(signal.SIGUSR1, before)


@contextlib.contextmanager
def loop_held(node: QueueNode[Any] | PoolNode[Any]) -> Iterator[None]:
    """Keep the loop thread busy with something else."""
    gate, held = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        gate.wait(PATIENCE)

    node._handover().post(hold)
    assert held.wait(PATIENCE)
    try:
        yield
    finally:
        gate.set()


def run_program(text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own; what it forked ends with it, if it does not end in time."""
    command = [sys.executable, *options, "-c", text]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=40)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)
