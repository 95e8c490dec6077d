"""Awaitables: results that are known already, at the cost of an object; and times of an engine's clock."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from typing import Any, Generic, NoReturn, TypeVar

from redpoll.bus.engine import Clock
from redpoll.bus.envelope import Envelope, Outcome
from redpoll.errors import RedpollError

__all__ = [
    "FALSE",
    "TRUE",
    "Done",
    "Failed",
    "OutcomeFuture",
    "called",
    "close_all",
    "fail",
    "future_of",
    "is_cancelled",
    "of_thread",
    "resolve",
    "sleep",
    "unexpected",
    "with_owner",
]

T_co = TypeVar("T_co", covariant=True)


class Done(Generic[T_co]):
    """A result that is there. It can be awaited more than once.

    Args:
        result: The result.
    """

    __slots__ = ("_result",)

    def __init__(self, result: T_co) -> None:
        self._result = result

    def __await__(self) -> Generator[None, None, T_co]:
        """Return the result."""
        yield from ()
        return self._result


class Failed:
    """An error that is there; it is raised where it is awaited, and nowhere if it is not.

    Args:
        error: The error.
    """

    __slots__ = ("_error",)

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __await__(self) -> Generator[None, None, NoReturn]:
        """Raise the error."""
        yield from ()
        raise self._error


class OutcomeFuture(asyncio.Future[Outcome]):
    """A future, on the running loop, of the outcome of a task, which is the task's watcher too."""

    def progress(self, envelope: Envelope) -> None:
        """Ignore it."""

    def outcome(self, outcome: Outcome) -> None:
        """Take the outcome."""
        if not self.done():
            self.set_result(outcome)

    def gone(self, error: RedpollError) -> None:
        """Take the error for which there is none. It is not awaited where publishing failed with the same."""
        if not self.done():
            self.set_exception(error)
            self.exception()


def is_cancelled() -> bool:
    """Return True if the running task was cancelled; False where what it calls raised a cancellation of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def unexpected(error: GeneratorExit, task: asyncio.Task[None] | None) -> RuntimeError:
    """Return what stands for a `GeneratorExit` that user code raised in a task.

    Args:
        error: The exception.
        task: The task; None inside its first step, where that is done at once.

    Raises:
        GeneratorExit: The coroutine of the task is being closed, as by the end of its loop: nothing may continue.
    """
    if asyncio._get_running_loop() is None or (task is not None and asyncio.current_task() is not task):
        raise error
    return RuntimeError(f"it raised {error!r}")


def with_owner(task: asyncio.Task[None]) -> asyncio.Task[None]:
    """Return a task that may be collected with its owner, which is an engine, or is open on one: that warns, once."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio does with futures that have owners
    return task


def future_of(awaitable: Awaitable[Any]) -> asyncio.Future[Any]:
    """Return a future that ends with an awaitable: its own where it has one, whose result is another one, or a task."""
    own = getattr(awaitable, "future", None)
    return asyncio.ensure_future(awaitable) if own is None else own()


def resolve(future: asyncio.Future[None] | None) -> None:
    """Settle a future, unless it is done."""
    if future is not None and not future.done():
        future.set_result(None)


def fail(future: asyncio.Future[Any], error: Exception) -> None:
    """Settle a future with an error, unless it is done."""
    if not future.done():
        future.set_exception(error)


TRUE = Done(True)
FALSE = Done(False)


def called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function in a thread, for a future.

    Raises:
        RuntimeError: It raised what a future cannot, or what would end the loop: StopIteration, SystemExit and the like.
        BaseException: Otherwise what it raised.
    """
    try:
        return function(*args, **kwargs)
    except (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        raise RuntimeError(f"the function raised {type(error).__name__}: {error}") from error


async def of_thread(future: concurrent.futures.Future[Any]) -> Any:
    """Wait for a future of a thread. Cancelled, the future is cancelled too.

    Raises:
        RuntimeError: The thread raised what a future cannot, or what would end the loop if it were raised here.
        BaseException: Otherwise what the thread raised.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def end(_: concurrent.futures.Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(resolve, ended)

    # Not by `asyncio.wrap_future`, whose future never ends by StopIteration.
    future.add_done_callback(end)
    try:
        await ended
    except asyncio.CancelledError:
        future.cancel()
        raise
    if future.cancelled():
        raise asyncio.CancelledError
    return called(future.result)


async def close_all(closings: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Close several things at the same time. Cancelled, each of them is cancelled too, after it has begun.

    Raises:
        BaseException: The first error of any, when all have ended.
    """
    tasks = [asyncio.ensure_future(each) for each in closings]
    if not tasks:
        return
    try:
        # A cancelled gather() cancels at once, also those that have not begun: they would never be closed.
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    for error in [task.exception() for task in tasks]:
        if error is not None:
            raise error


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait for some seconds of an engine's clock."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_at(clock.time() + seconds, lambda: resolve(future))
    try:
        await future
    finally:
        timer.cancel()
