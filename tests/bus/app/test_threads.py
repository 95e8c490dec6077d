"""An app in threads without an event loop."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from redpoll import App, Middleware
from redpoll.bus.app import Work
from redpoll.bus.app.middleware import Proceed
from redpoll.errors import RemoteError, UsageError


class Noting(Middleware):
    """Notes what is submitted."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def submit(self, work: Work, proceed: Proceed) -> Any:
        """Note it."""
        self.names.append(work.name)
        return await proceed(work)


NOTING = Noting()
app = App(f"memory://app-{secrets.token_hex(4)}", middleware=[NOTING])


@app.task
async def double(number: int) -> int:
    """Double a number."""
    if number < 0:
        raise ValueError("below 0")
    return 2 * number


@app.call
async def add(a: int, b: int) -> int:
    """Add two."""
    return a + b


@contextmanager
def working() -> Iterator[None]:
    """Work on the app, on the loop of another thread."""
    ready, ended = threading.Event(), asyncio.Event()

    async def work() -> None:
        async with app, app.work():
            ready.set()
            await ended.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(work()))
    thread.start()
    assert ready.wait(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def test_threads_wait_for_what_is_awaited_elsewhere() -> None:
    """Tasks, calls, chains and results are waited for in any thread, by one connection, with types and middleware."""
    found: list[int] = []
    NOTING.names.clear()
    with working(), app:
        handle = app.wait(double.submit(2))
        assert app.wait(handle.result(timeout=10)) == 4
        assert app.wait(add.call(1, b=2)) == 3
        assert app.wait(double.chain(1).then(double).run(timeout=10)) == 4
        threads = [threading.Thread(target=lambda: found.append(app.wait(double.run(5)))) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert found == [10] * 4
        with pytest.raises(RemoteError, match="below 0"):
            app.wait(double.run(-1))
    assert NOTING.names.count("tasks:double") == 6
    # Left, it connects anew.
    with app:
        assert app.wait(double.submit(1)).id


async def _blocks() -> None:
    with pytest.raises(UsageError, match="block the thread of the event loop"):
        app.wait(double.run(1))


def test_a_loop_is_not_blocked() -> None:
    """On the thread of an event loop it is refused, and nothing is begun."""
    asyncio.run(_blocks())


def _child(way: Any) -> None:
    app.wait(double.submit(3))
    way.send(os.getpid())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork")
def test_a_forked_process_connects_anew() -> None:
    """The child of a process that has a connection makes one of its own, and leaves that one alone."""
    with app:
        app.wait(double.submit(1))
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=_child, args=(theirs,))
        child.start()
        assert ours.poll(20)
        assert ours.recv() == child.pid
        child.join()
        assert child.exitcode == 0
        assert app.wait(double.submit(1)).id
