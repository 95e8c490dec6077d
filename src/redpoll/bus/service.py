"""Services: their start and end, and the work that they began."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from types import CoroutineType
from typing import Any, Final, Protocol, Self, TypeVar

from redpoll.bus.awaitables import called, close_all, of_thread
from redpoll.bus.context import CURRENT, Context

__all__ = ["FUTURES", "ProgramEnds", "Service", "Source", "spawner", "submitted"]

T = TypeVar("T")

_log = logging.getLogger("redpoll.bus")

FUTURES: Final = (asyncio.Future, concurrent.futures.Future, CoroutineType)
"""The types of results of a coroutine function that are awaited."""

_EAGER: Final = sys.version_info >= (3, 12)


def spawner(loop: asyncio.AbstractEventLoop) -> Callable[..., asyncio.Task[None]]:
    """Return a function that runs a coroutine in a task, in a given context; from Python 3.12 on it starts eagerly."""
    # Not create_task(): the loop's debugging and its factory of tasks are of no use here, and cost as much as the task.
    options: dict[str, Any] = {"eager_start": True} if _EAGER else {}
    return partial(asyncio.Task, loop=loop, **options)


class ProgramEnds(Exception):  # noqa: N818  # no failure of the work, of which nothing ran
    """Raised for work that no thread begins any more: the program ends, and did not close its bus."""


def submitted(executor: concurrent.futures.Executor, call: Callable[[], T]) -> concurrent.futures.Future[T]:
    """Submit a call to an executor.

    Raises:
        ProgramEnds: It takes none.
    """
    try:
        return executor.submit(call)
    except RuntimeError as error:
        # Otherwise no thread could be started, and the call may be done by another one.
        if str(error).startswith("cannot schedule new futures"):
            raise ProgramEnds("the program ends") from error
        raise


class Source(Protocol):
    """The source of a service's work: a consumer or a subscription."""

    async def close(self) -> None:
        """Receive no more."""


class Service:
    """Takes work while it runs; used as an async context manager, or by `start`, `stop` and `wait`.

    These may be called in any order and by several tasks at a time: each step is done once.

    Args:
        concurrency: Threads at most for plain functions.
        drain: Seconds that work has to end when the context is left; None is no limit.
        running: The set that it is in while it runs, for its owner.
    """

    def __init__(self, concurrency: int, drain: float | None, running: set[Service]) -> None:
        self.concurrency = concurrency
        self._drain = drain
        self._running = running
        self._order = asyncio.Lock()
        self._sources: list[Source] = []
        # The running work, and its messages.
        self._tasks: dict[asyncio.Task[None], Any] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._executor: concurrent.futures.ThreadPoolExecutor | None = None
        self._variables: Variables = copy_context()

    @property
    def active(self) -> bool:
        """True if it takes work, as far as the engine knows: False while it reconnects."""
        return bool(self._sources) and all(getattr(each, "active", True) for each in self._sources)

    @property
    def in_place(self) -> bool:
        """True if it takes work, or is stopped."""
        return self.active or not self._sources

    async def _open(self, sources: list[Source]) -> None:
        """Begin to take work, and note from where, each as soon as it is open."""
        raise NotImplementedError

    def _stopping(self) -> None:
        """Drop work that was not begun, once the sources are closed."""

    def _unbegun(self, item: Any) -> None:
        """Give back the message of work that was cancelled before its first step: nothing of it ran."""
        raise NotImplementedError

    # -- lifecycle

    async def start(self) -> None:
        """Begin to receive work. A stopped service can be started again; running work continues.

        Raises:
            SpecConflict: A queue of it is there and differs, or a consumer has it exclusively.
            NotAuthorized: It may not.

        Cancelled, it takes nothing.
        """
        async with self._order:
            if self._sources:
                return
            self._loop = asyncio.get_running_loop()
            self._spawn = spawner(self._loop)
            self._variables = copy_context()
            self._variables.run(CURRENT.set, Context())
            opened: list[Source] = []
            try:
                await self._open(opened)
            except BaseException:
                await close_all(self._abandon(each) for each in opened)
                raise
            self._idle.clear()
            self._sources = opened
            self._running.add(self)

    async def _abandon(self, source: Source) -> None:
        try:
            await source.close()
        except Exception:  # noqa: BLE001  # logged; the error of the start counts
            _log.exception("%r could not close a source", self)

    async def stop(self) -> None:
        """Receive no more; running work continues. See `wait`.

        Where it is cancelled or raises, closing each source has begun; those that are not closed are closed by another stop.
        """
        async with self._order:
            await close_all(self._close_source(each) for each in tuple(self._sources))
            self._stopping()
            self._rest()

    async def _close_source(self, source: Source) -> None:
        await source.close()
        self._sources.remove(source)

    async def wait(self) -> None:
        """Wait until it is stopped and all work has ended; return at once if it was never started."""
        await self._idle.wait()

    async def reset(self) -> None:
        """Stop, wait for running work, and start again."""
        await self.stop()
        await self.wait()
        await self.start()

    async def close(self, drain: float | None = 0.0) -> None:
        """Stop, and wait for running work; work that does not end in time is cancelled.

        Args:
            drain: Seconds to wait; None is no limit.

        Cancelled, it cancels running work at once.
        """
        try:
            await self.stop()
            if self._tasks and drain != 0:
                await asyncio.wait(self._tasks, timeout=drain)
        finally:
            left = tuple(self._tasks)
            for task in left:
                self._cancel(task)
            if left:
                await asyncio.wait(left)
            # Some may have been cancelled by others, as the end of a loop does.
            for task in left:
                self._drop(task)

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop, and wait for running work."""
        await self.close(self._drain)

    # -- work

    def _begin(self, work: Coroutine[Any, Any, None], item: Any) -> asyncio.Task[None] | None:
        """Run work in a task of its own, which calls `_ended` at its end; return None if that is done already.

        Args:
            work: The work.
            item: The work's message, for `_unbegun`.
        """
        task = self._spawn(work, context=self._variables.copy())
        if task.done():
            return None
        self._tasks[task] = item
        return task

    def _cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel work. Before Python 3.12 it may not have begun: nothing of it runs then, its end neither."""
        task.cancel()
        if inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_CREATED:  # type: ignore[arg-type]
            self._drop(task)

    def _drop(self, task: asyncio.Task[None]) -> None:
        if task in self._tasks:
            item = self._tasks.pop(task)
            try:
                self._unbegun(item)
            finally:
                self._rest()

    def _ended(self, task: asyncio.Task[None] | None) -> None:
        """Note that work has ended. Not by a callback of its task: that takes a turn of the loop."""
        if task is not None:
            self._tasks.pop(task, None)
            if not self._sources:
                self._rest()

    def _rest(self) -> None:
        """Note the end of all work, if no work is left."""
        if self._tasks or self._sources:
            return
        self._idle.set()
        self._running.discard(self)
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _in_thread(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Call a plain function in a thread, in this context.

        Raises:
            ProgramEnds: No thread begins it.
        """
        if self._executor is None:
            self._executor = concurrent.futures.ThreadPoolExecutor(self.concurrency, "redpoll-bus")
        call = partial(called, function, *args, **kwargs)
        return asyncio.wrap_future(submitted(self._executor, partial(copy_context().run, call)), loop=self._loop)

    @staticmethod
    async def _awaited(result: Any) -> Any:
        """Return a handler's result; await it, and its result, as long as that can be awaited."""
        while result is not None:
            if isinstance(result, concurrent.futures.Future):
                result = await of_thread(result)
            elif type(result) is CoroutineType or inspect.isawaitable(result):
                result = await result
            else:
                break
        return result
