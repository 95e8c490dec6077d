"""Blocking calls beside the loop."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial

import pytest

from redpoll.cli.worker import Worker

pytestmark = pytest.mark.asyncio


async def test_results_and_errors_come_back() -> None:
    """A call returns what the function returns and raises what it raises, and the worker lives on."""
    worker = Worker("test")
    try:
        assert await worker.call(lambda: 17) == 17
        with pytest.raises(OSError, match="Bad file descriptor"):
            await worker.call(partial(os.read, 1 << 20, 1))
        assert await worker.call(threading.current_thread) is not threading.current_thread()
    finally:
        worker.close()


async def test_a_cancelled_call_goes_on() -> None:
    """Cancelling the await ends the wait; the function ends in its own time and the next call waits for it."""
    worker = Worker("test")
    gate = threading.Event()
    done: list[int] = []
    call = asyncio.ensure_future(worker.call(lambda: done.append(int(gate.wait(30)))))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    gate.set()
    assert await worker.call(lambda: list(done)) == [1]
    worker.close()


async def test_the_thread_does_not_keep_the_process_alive() -> None:
    """The thread is a daemon, so a read that never returns does not hold up the end."""
    worker = Worker("test")
    assert (await worker.call(threading.current_thread)).daemon
    worker.close()


async def test_a_function_that_raises_stop_iteration() -> None:
    """A StopIteration, which no future takes, comes back as the error that a coroutine makes of it."""
    worker = Worker("test")
    try:
        async with asyncio.timeout(10):
            with pytest.raises(RuntimeError, match="StopIteration") as caught:
                await worker.call(partial(next, iter(())))
        assert isinstance(caught.value.__cause__, StopIteration)
        assert await worker.call(lambda: 17) == 17
    finally:
        worker.close()
