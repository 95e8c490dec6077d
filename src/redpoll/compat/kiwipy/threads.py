"""The communicator for threads: on the event loop that `redpoll.blocking` has for all of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar, cast

import kiwipy

from redpoll.blocking.verbs import call, wait
from redpoll.bus.awaitables import called, of_thread
from redpoll.bus.threads.resident import BusResident
from redpoll.checks import is_async
from redpoll.compat.kiwipy import defaults
from redpoll.compat.kiwipy.communicator import RmqCommunicator
from redpoll.compat.kiwipy.connection import Connection, kiwipy_errors
from redpoll.compat.kiwipy.tasks import RmqIncomingTask, RmqTaskQueue

__all__ = ["RmqThreadCommunicator", "RmqThreadIncomingTask", "RmqThreadTaskQueue", "connect"]

P = ParamSpec("P")
R = TypeVar("R")


class _Loop:
    """The way of the objects of one communicator to the loop.

    Args:
        communicator: The communicator on the loop.
        timeout: Seconds for each step.
    """

    def __init__(self, communicator: RmqCommunicator, timeout: float | None) -> None:
        # A home opens and closes what it has; a communicator is opened and closed as a bus is.
        self.home = BusResident(cast("Any", communicator))
        self._timeout = timeout

    def wait(self, method: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Wait for a coroutine method.

        Raises:
            TimeoutError: It took too long, and was cancelled.
        """

        async def within() -> R:
            async with asyncio.timeout(self._timeout):
                result = await method(*args, **kwargs)
            return cast("R", _for_threads(result)) if asyncio.isfuture(result) else result

        with kiwipy_errors():
            return wait(self.home, within)


def _for_threads(future: asyncio.Future[Any]) -> Future[Any]:
    """On the loop: return a future for threads that ends as another one; results that are futures are treated likewise."""
    made: Future[Any] = Future()

    def done(future: asyncio.Future[Any]) -> None:
        with suppress(InvalidStateError):  # it was cancelled
            if future.cancelled():
                made.cancel()
            elif (error := future.exception()) is not None:
                made.set_exception(error)
            else:
                result = future.result()
                made.set_result(_for_threads(result) if asyncio.isfuture(result) else result)

    future.add_done_callback(done)
    return made


class RmqThreadCommunicator(kiwipy.Communicator):  # type: ignore[misc]  # it has no types
    """Tasks, calls and broadcasts for threads, as kiwiPy's, on any engine. It is connected when it is made.

    Subscribers that are plain functions are called one after the other in one thread of the communicator, and may use it;
    a result that comes from elsewhere is returned as a `kiwipy.Future`. Coroutine functions run on the event loop.

    Args:
        connection_params: The URL of an engine, as text or as ``{"url": …}`` with options of the engine.
        connection_factory: Without effect.
        *args: The further arguments of `RmqCommunicator`, as the keywords.
        async_task_timeout: Seconds that each method waits at most; None is no limit.
        **options: Those of `RmqCommunicator`: the exchanges, the queue of tasks, encoder and decoder, testing_mode.

    Raises:
        ConfigError: There is no such engine, or option.
        DialFailed: The engine was not reached.
    """

    TASK_TIMEOUT = 5.0

    def __init__(
        self,
        connection_params: str | Mapping[str, Any] | None = None,
        connection_factory: object = None,  # noqa: ARG002  # kiwiPy's
        *args: Any,
        async_task_timeout: float | None = TASK_TIMEOUT,
        **options: Any,
    ) -> None:
        given = {"url": connection_params} if isinstance(connection_params, str) else dict(connection_params or {})
        communicator = RmqCommunicator(Connection(**given), *args, **options)
        communicator.call, communicator.face = self._call, self
        self._communicator = communicator
        self._thread = ThreadPoolExecutor(1, "redpoll communicator")
        self._closed = False
        self._way = _Loop(communicator, async_task_timeout)
        self._way.home.enter()
        self._loop = communicator.loop

    @classmethod
    def connect(cls, *args: Any, **options: Any) -> RmqThreadCommunicator:
        """Return a connected communicator. The arguments are those of the class."""
        return cls(*args, **options)

    async def _call(self, subscriber: Callable[..., Any], *args: Any) -> Any:
        if is_async(subscriber):
            return await subscriber(*args)
        result = await of_thread(self._thread.submit(called, subscriber, *args))
        return await result if inspect.iscoroutine(result) else result

    def _wait(self, method: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._closed:
            raise kiwipy.CommunicatorClosed
        return self._way.wait(method, *args, **kwargs)

    # -- life

    @property
    def server_properties(self) -> dict[str, Any]:
        """See `Connection.server_properties`."""
        return self._communicator.server_properties

    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop on which the communication is done."""
        return self._loop

    def is_closed(self) -> bool:
        """Return True if it was closed."""
        return self._closed

    def close(self) -> None:
        """Close: calls that have begun get half a second, tasks that are worked on go back. Closing twice does nothing."""
        if not self._closed:
            self._closed = True
            self._way.home.close(0.0)
            self._thread.shutdown(wait=False)

    def add_close_callback(self, callback: Callable[..., object], weak: bool = False) -> None:
        """Call a plain function on the loop when the connection was lost or closed. See `RmqCommunicator`.

        Raises:
            CommunicatorClosed: It is closed, as for the methods below.
        """
        if self._closed:
            raise kiwipy.CommunicatorClosed
        call(self._way.home, self._communicator.add_close_callback, callback, weak)

    # -- the verbs

    def add_rpc_subscriber(self, subscriber: Callable[..., Any], identifier: Any = None) -> Any:
        """Serve a recipient. See `RmqCommunicator.add_rpc_subscriber`."""
        return self._wait(self._communicator.add_rpc_subscriber, subscriber, identifier)

    def remove_rpc_subscriber(self, identifier: Any) -> None:
        """Serve a recipient no longer. See `RmqCommunicator.remove_rpc_subscriber`."""
        self._wait(self._communicator.remove_rpc_subscriber, identifier)

    def add_task_subscriber(self, subscriber: Callable[..., Any], identifier: Any = None) -> Any:
        """Add a subscriber for tasks. See `RmqTaskSubscriber.add_task_subscriber`."""
        return self._wait(self._communicator.add_task_subscriber, subscriber, identifier)

    def remove_task_subscriber(self, identifier: Any) -> None:
        """Remove a subscriber for tasks. See `RmqTaskSubscriber.remove_task_subscriber`."""
        self._wait(self._communicator.remove_task_subscriber, identifier)

    def add_broadcast_subscriber(self, subscriber: Callable[..., Any], identifier: Any = None) -> Any:
        """Add a subscriber for broadcasts. See `RmqCommunicator.add_broadcast_subscriber`."""
        return self._wait(self._communicator.add_broadcast_subscriber, subscriber, identifier)

    def remove_broadcast_subscriber(self, identifier: Any) -> None:
        """Remove a subscriber for broadcasts. See `RmqCommunicator.remove_broadcast_subscriber`."""
        self._wait(self._communicator.remove_broadcast_subscriber, identifier)

    def task_send(self, task: Any, no_reply: bool = False) -> Future[Any] | None:
        """Send a task; return a `kiwipy.Future`. See `RmqTaskPublisher.task_send`."""
        return cast("Future[Any] | None", self._wait(self._communicator.task_send, task, no_reply))

    def rpc_send(self, recipient_id: Any, msg: Any) -> Future[Any]:
        """Call a recipient; return a `kiwipy.Future`. See `RmqCommunicator.rpc_send`."""
        return cast("Future[Any]", self._wait(self._communicator.rpc_send, recipient_id, msg))

    def broadcast_send(self, body: Any, sender: Any = None, subject: Any = None, correlation_id: Any = None) -> bool:
        """Send a broadcast. See `RmqCommunicator.broadcast_send`."""
        return self._wait(self._communicator.broadcast_send, body, sender, subject, correlation_id)

    def task_queue(
        self,
        queue_name: str,
        prefetch_size: int = defaults.TASK_PREFETCH_SIZE,
        prefetch_count: int = defaults.TASK_PREFETCH_COUNT,
    ) -> RmqThreadTaskQueue:
        """Return another queue of tasks. See `RmqCommunicator.task_queue`."""
        queue = self._wait(self._communicator.task_queue, queue_name, prefetch_size, prefetch_count)
        return RmqThreadTaskQueue(queue, self._wait)


class RmqThreadTaskQueue:
    """A queue of tasks for threads. Made by `RmqThreadCommunicator.task_queue`, and closed with the communicator."""

    def __init__(self, task_queue: RmqTaskQueue, wait: Callable[..., Any]) -> None:
        self._queue = task_queue
        self._wait = wait

    def task_send(self, task: Any, no_reply: bool = False) -> Future[Any] | None:
        """Send a task; return a `kiwipy.Future`. See `RmqTaskPublisher.task_send`."""
        return cast("Future[Any] | None", self._wait(self._queue.task_send, task, no_reply))

    def add_task_subscriber(self, subscriber: Callable[..., Any], identifier: Any = None) -> Any:
        """Add a subscriber. See `RmqTaskSubscriber.add_task_subscriber`."""
        return self._wait(self._queue.add_task_subscriber, subscriber, identifier)

    def remove_task_subscriber(self, identifier: Any) -> None:
        """Remove a subscriber. See `RmqTaskSubscriber.remove_task_subscriber`."""
        self._wait(self._queue.remove_task_subscriber, identifier)

    def __iter__(self) -> Iterator[RmqThreadIncomingTask]:
        """Take all tasks that are there; those that nobody worked on go back at the end."""
        tasks: list[RmqIncomingTask] = []
        try:
            while (task := self._wait(self._queue.subscriber.take)) is not None:
                tasks.append(task)
                yield RmqThreadIncomingTask(task, self._wait)
        finally:
            for each in tasks:
                self._wait(each.leave)

    @contextmanager
    def next_task(
        self,
        timeout: float = defaults.TASK_FETCH_TIMEOUT,  # noqa: ARG002  # that of the communicator counts
        fail: bool = True,
    ) -> Generator[RmqThreadIncomingTask]:
        """Take a task; it goes back at the end of the block if nobody worked on it.

        Args:
            timeout: Without effect: an empty queue does not wait, and each method has the time of the communicator.
            fail: False for None in place of an exception.

        Raises:
            QueueEmpty: There is no task.
        """
        task = self._wait(self._queue.subscriber.take)
        if task is None:
            if fail:
                raise kiwipy.QueueEmpty("the queue is empty")
            yield None  # type: ignore[misc]  # where it is asked for
            return
        try:
            yield RmqThreadIncomingTask(task, self._wait)
        finally:
            self._wait(task.leave)


class RmqThreadIncomingTask:
    """A task that was taken by a thread. See `RmqIncomingTask`."""

    def __init__(self, task: RmqIncomingTask, wait: Callable[..., Any]) -> None:
        self._task = task
        self._wait = wait

    @property
    def body(self) -> Any:
        """The task."""
        return self._task.body

    @property
    def no_reply(self) -> bool:
        """True if its sender wants no reply."""
        return self._task.no_reply

    @property
    def state(self) -> str:
        """One of pending, processing, finished and requeued."""
        return self._task.state

    def process(self) -> Future[Any]:
        """Begin to work on it; return the future of its outcome. See `RmqIncomingTask.process`."""
        return self._task.begin(Future())

    def requeue(self) -> None:
        """Give it back; it is in the queue when this returns."""
        self._wait(self._task.requeue)

    @contextmanager
    def processing(self) -> Generator[Future[Any]]:
        """Work on it in a block. See `RmqIncomingTask.processing`."""
        self._task.claim()
        outcome: Future[Any] = Future()
        try:
            yield outcome
        except Exception as error:
            if not outcome.done():
                outcome.set_exception(error)
            raise
        finally:
            self._wait(self._task.end, outcome)


def connect(*args: Any, **options: Any) -> RmqThreadCommunicator:
    """Return a connected communicator for threads, which is used as a context manager, or closed by `close`.

    The arguments are those of `RmqThreadCommunicator`.
    """
    return RmqThreadCommunicator(*args, **options)
