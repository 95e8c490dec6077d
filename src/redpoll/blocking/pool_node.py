"""A node whose handler runs in threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import Any, Unpack

from redpoll.blocking.base import BlockingNode, DataT, Received
from redpoll.checks import is_async
from redpoll.config import Config, ConfigOptions
from redpoll.errors import Busy, ShuttingDown, UsageError
from redpoll.node.dispatch import check_handler
from redpoll.node.received import raised
from redpoll.node.sending import UNSET, Unset

__all__ = ["PoolNode"]

#: The node whose handler this thread runs.
_here = threading.local()


class PoolNode(BlockingNode[DataT]):
    """A node that calls a handler with each received message, in a pool of threads.

    Args:
        handler: A plain function, called in one of the threads. When it returns, the message is released, which acknowledges
            it, and the return value is sent back if an answer is wanted; if it raises, the message is refused.
        config: The options; None is all defaults.
        max_workers: Maximum number of threads; None is the default of `concurrent.futures.ThreadPoolExecutor`.
        **options: Fields of `Config`; they override `config`'s. `slots` defaults to `max_workers`; `node_slots`
            is at most `max_workers`, so that messages without a thread wait in the inbox. If a handler keeps running after it
            released its message, the next one waits in the pool.

    Use it as a context manager, or call `start` and `stop`. Each handler runs in a copy of the context in which the node
    was started. With more than one slot a peer's messages begin in order, and are handled concurrently.

    Raises:
        ConfigError: An option is unknown or has an invalid value.
        UsageError: The handler is not a plain function that can be called with a message alone, or `max_workers` is not a
            positive integer.
    """

    def __init__(
        self,
        handler: Callable[[Received[DataT]], Any],
        config: Config | None = None,
        *,
        max_workers: int | None = None,
        **options: Unpack[ConfigOptions],
    ) -> None:
        check_handler(handler)
        if is_async(handler):
            raise UsageError(
                "expected a plain function as the handler of a PoolNode", "redpoll.Node takes coroutine functions"
            )
        if max_workers is None:
            # As ThreadPoolExecutor does: since Python 3.13, the processors that this process may use.
            count: Callable[[], int | None] = getattr(os, "process_cpu_count", os.cpu_count)
            max_workers = min(32, (count() or 1) + 4)
        elif type(max_workers) is not int or max_workers < 1:
            raise UsageError(f"max_workers is {max_workers!r}; expected a positive integer, or None")
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
        """Start the node: see `BlockingNode.start`."""
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
        """Stop the node: see `BlockingNode.stop`.

        The drain waits for handlers. After it, `message.cancelled` is set for those still running, their messages are
        refused, and their return values dropped. `stop` returns when all handlers have returned.

        Raises:
            UsageError: Also if it is called by a handler, whose thread would wait for itself.
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
        # A thread takes the message from here to begin: if no further thread can be started, the pool raises, and keeps the
        # work for one that runs.
        waiting = [message]
        work: Future[None] | None = None
        try:
            work = self._executor.submit(self._work, waiting, done)
        except RuntimeError as problem:
            if _take(waiting) is not None:
                # The program is exiting, which shuts all pools down; or there are too many threads.
                code = ShuttingDown.code if "shutdown" in str(problem) else Busy.code
                self._node.refuse(message, code, f"the work did not begin: {problem}")
                return None
        try:
            result, error = await done
        except asyncio.CancelledError:
            message.cancelled.set()
            if work is not None:
                work.cancel()
            raise
        if error is None:
            return result
        if isinstance(error, Exception):
            raise error
        # An exception that would end a task or the loop ends this message alone.
        raise RuntimeError(raised(error)) from error

    # In the threads of the pool

    def _work(self, waiting: list[Received[DataT]], done: asyncio.Future[Any]) -> None:
        message = _take(waiting)
        if message is None:  # it was refused
            return
        _here.node = self
        try:
            result = self._context.copy().run(self._handler, message)
        except BaseException as error:  # noqa: BLE001  # any exception of a handler ends its message
            self._node.handover.post(_end, (done, None, error))
        else:
            self._node.handover.post(_end, (done, result, None))


def _take(waiting: list[Received[DataT]]) -> Received[DataT] | None:
    """Take the message in one step; return None if another thread has."""
    try:
        return waiting.pop()
    except IndexError:
        return None


def _end(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if not done.done():
        done.set_result((result, error))
