"""A node whose handler runs in threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from redpoll.blocking.base import BlockingNode
from redpoll.blocking.received import Received
from redpoll.checks import is_async
from redpoll.config import Config
from redpoll.errors import ShuttingDown, UsageError
from redpoll.node.dispatch import check_handler
from redpoll.node.received import raised
from redpoll.node.sending import UNSET, Unset

__all__ = ["PoolNode"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # As for `Node`.
    DataT = TypeVar("DataT", default=Any)
else:
    from typing import TypeVar

    DataT = TypeVar("DataT")

#: Whose handlers this thread runs.
_here = threading.local()


class PoolNode(BlockingNode[DataT]):
    """A node that calls a handler with each message that arrives, in a pool of threads.

    Args:
        handler: A plain function, called in one of the threads. When it returns the message is released, which acknowledges
            it; what it returns goes back if an answer is wanted; when it raises the message is refused.
        config: The options; None is all defaults.
        max_workers: Threads at most; None is as `concurrent.futures.ThreadPoolExecutor` has it.
        **options: Fields of `Config` that go before `config`'s. `slots` is `max_workers` unless it is given; `node_slots`
            is never more than that, so that what waits for a thread waits in the inbox; behind a handler that released its
            message and goes on it waits in the pool.

    Use it as a context manager, or call `start` and `stop`. Each handler runs in its own copy of the context that the node
    was started in. With more than one slot a peer's messages are begun in order, and handled side by side.

    Raises:
        ConfigError: An option is unknown or has a value that it cannot have.
        UsageError: The handler is no plain function that can be called with a message alone, or `max_workers` is no number
            above 0.
    """

    def __init__(
        self,
        handler: Callable[[Received[DataT]], Any],
        config: Config | None = None,
        *,
        max_workers: int | None = None,
        **options: Any,
    ) -> None:
        _check(handler)
        if max_workers is None:
            max_workers = min(32, (_cpu_count() or 1) + 4)
        else:
            _check_workers(max_workers)
        config = Config.from_options(config, options)
        config = config.replace(
            slots=max_workers if config.slots is None else config.slots,
            node_slots=min(config.node_slots, max_workers),
        )
        super().__init__(self._handle, config)
        self._handler = handler
        self._max_workers = max_workers
        self._executor: ThreadPoolExecutor
        self._context: Context

    def start(self) -> None:
        """As every node's: see `BlockingNode.start`."""
        with self._life:
            self._node._check_new()
            self._context = copy_context()
            self._executor = ThreadPoolExecutor(self._max_workers, thread_name_prefix="redpoll pool")
            try:
                super().start()
            except BaseException:
                self._executor.shutdown(wait=False)
                raise

    def stop(self, drain: float | Unset | None = UNSET) -> None:
        """As every node's: see `BlockingNode.stop`.

        The draining waits for handlers. After it those that still run have `message.cancelled` set, and their messages are
        refused; what they return is dropped. A handler that goes on delays the end.

        Raises:
            UsageError: Also when it is called by a handler, whose thread would wait for itself.
        """
        if self._thread is not None and getattr(_here, "node", None) is self:
            raise UsageError(
                "a handler cannot stop its own node: it would wait for itself",
                "let it set an event for the thread that started the node",
            )
        try:
            super().stop(drain)
        except KeyboardInterrupt:
            self._executor.shutdown(wait=False, cancel_futures=True)
            raise
        if hasattr(self, "_executor") and not self._is_inherited:
            self._executor.shutdown(cancel_futures=True)

    # On the loop

    async def _handle(self, message: Received[DataT]) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            work = self._executor.submit(self._work, message, done)
        except RuntimeError:  # the program ends, and with it all pools
            self._node.refuse(message, ShuttingDown.code, "the program ended before it was begun")
            return None
        try:
            result, error = await done
        except asyncio.CancelledError:
            message.cancelled.set()
            work.cancel()
            raise
        if error is None:
            return result
        if isinstance(error, Exception):
            raise error
        # What would end a task, or the loop with it, ends this message alone.
        raise RuntimeError(raised(error)) from error

    # In the threads of the pool

    def _work(self, message: Received[DataT], done: asyncio.Future[Any]) -> None:
        _here.node = self
        try:
            result = self._context.copy().run(self._handler, message)
        except BaseException as error:  # noqa: BLE001  # whatever a handler raises ends its message
            self._node.handover.post(_end, (done, None, error))
        else:
            self._node.handover.post(_end, (done, result, None))


def _end(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if not done.done():
        done.set_result((result, error))


def _cpu_count() -> int | None:
    """As ThreadPoolExecutor counts: since Python 3.13 those that this process may use."""
    count: Callable[[], int | None] = getattr(os, "process_cpu_count", os.cpu_count)
    return count()


def _check_workers(number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise UsageError(f"max_workers is a number of threads from 1, or None, not {number!r}")


def _check(handler: Any) -> None:
    check_handler(handler)
    if is_async(handler):
        raise UsageError("a handler that runs in threads is a plain function", "redpoll.Node takes coroutine functions")
