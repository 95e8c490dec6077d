"""Blocking calls, one at a time, in a thread that does not keep the process alive."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["Worker"]

ResultT = TypeVar("ResultT")


class Worker:
    """A daemon thread for reads and writes that may block forever, as on a terminal or a pipe.

    asyncio's own executor waits for its threads when the process ends, which a blocked read would prevent.

    Args:
        name: Name of the thread, for debuggers.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Run `function` in the thread and return its result or raise its exception.

        If the await is cancelled, the call continues, and its result is dropped.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ResultT] = loop.create_future()
        self._calls.put(partial(_call, function, future, loop))
        return await future

    def close(self) -> None:
        """End the thread after the running calls, without waiting for it."""
        self._calls.put(None)

    def _serve(self) -> None:
        for call in iter(self._calls.get, None):
            call()


def _call(function: Callable[[], ResultT], future: asyncio.Future[ResultT], loop: asyncio.AbstractEventLoop) -> None:
    settle: Callable[[], None]
    try:
        settle = partial(_settle, future, future.set_result, function())
    except StopIteration as error:
        # A future takes none, and a coroutine raises it as this.
        raised = RuntimeError("the function raised StopIteration")
        raised.__cause__ = error
        settle = partial(_settle, future, future.set_exception, raised)
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets it
        settle = partial(_settle, future, future.set_exception, error)
    # A closed loop has no waiters.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)


def _settle(future: asyncio.Future[Any], how: Callable[[Any], None], value: object) -> None:
    if not future.done():
        how(value)
