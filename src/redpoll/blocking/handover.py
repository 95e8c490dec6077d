"""Calls from threads to the event loop: they wait in a deque, and a burst of them wakes the loop once."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import sys
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Final, Protocol, TypeVar

from redpoll.blocking.futures import ThreadFuture
from redpoll.errors import Closed, UsageError
from redpoll.locks import check_unlocked, holds_lock
from redpoll.node.lifecycle import forked_error

__all__ = ["BACKLOG", "Call", "Handover", "LoopFuture", "Promise"]

#: Maximum calls per turn of the loop, and maximum waiting calls before a thread that sends is made to wait.
BACKLOG = 1024

#: From Python 3.12 on the first step of a coroutine is done at once, and not in another turn of the loop.
_EAGER: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}

_logger = logging.getLogger("redpoll.blocking")


class Promise(Protocol):
    """The result of a call; it is failed if the call cannot be made, or raises."""

    def fail(self, error: BaseException) -> None:
        """End with an error, unless it has ended."""


SendingT = TypeVar("SendingT", bound=Promise)


class Handover:
    """Runs calls of all threads on one event loop, in the order of posting.

    Posting takes no lock: finalizers and signal handlers post as well.

    Args:
        loop: The event loop; it runs in the thread that creates this object.

    Attributes:
        forked: Whether this is a forked child of the process that created it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._wake = loop.call_soon_threadsafe
        self._thread = threading.get_ident()
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...], Promise | None]] = deque()
        self._woken = False
        self._closed = False
        self.forked = False
        #: Calls whose coroutines are running.
        self._open: set[Call] = set()

    # For every thread

    def post(self, call: Callable[..., object], args: tuple[Any, ...] = (), promise: Promise | None = None) -> None:
        """Schedule a call on the loop.

        Args:
            call: A plain function that returns at once.
            args: Its arguments.
            promise: The result. Without one, an exception of the call is logged, and the call is dropped if the loop has
                ended.

        Raises:
            UsageError: This is a forked child.
        """
        if self.forked:
            self.check()
        try:
            self._calls.append((call, args, promise))
            if not self._woken:
                self._woken = True
                try:
                    self._wake(self._run)
                except RuntimeError:  # the loop is closed, so this is as well
                    self._woken = False
        except BaseException:
            # Ctrl-C, perhaps before the wake-up. Nothing can interrupt before this one call, nor in another thread.
            start_new_thread(self._wake_again, ())
            raise
        if self._closed:
            self._drop()

    def _wake_again(self) -> None:
        try:
            self._wake(self._run)
        except RuntimeError:
            self._drop()

    def post_sending(self, submit: Callable[[SendingT], object], out: SendingT) -> None:
        """Same as `post`, but wait while `BACKLOG` calls wait: a thread may send faster than the loop."""
        self._let_catch_up()
        self.post(submit, (out,), out)

    def _let_catch_up(self) -> None:
        # A signal handler that may not wait for the loop does not.
        if len(self._calls) >= BACKLOG and not self.is_here and not holds_lock():
            self.catch_up()

    def catch_up(self) -> None:
        """Wait until all calls posted before have been made."""
        self.run(_nothing)

    def run(self, function: Callable[..., Any], *args: Any, limit: float | None = None) -> Any:
        """Call a function on the loop, await its result if that is a coroutine, and wait for the outcome.

        Ctrl-C during the wait cancels the coroutine, and is raised when that has ended. A second Ctrl-C is raised at once.

        Args:
            function: The function.
            *args: Its arguments.
            limit: Seconds, since a callback may block the loop; None is no limit.

        Raises:
            UsageError: See `check_blocking`.
            Closed: The loop has ended.
            TimeoutError: It has not ended in time; it continues.
        """
        return self.wait_for(Call(self), limit, function, *args)

    def wait_for(self, call: Call, limit: float | None, function: Callable[..., Any], *args: Any) -> Any:
        """Same as `run`, with a given `Call`, which may undo a result that was not delivered."""
        self.check_blocking()
        try:
            self.post(self._begin, (call, function, args), call)
            return call.result(limit)
        except TimeoutError:
            raise
        except BaseException:
            if call._exception is None:
                # As in `post`: nothing can interrupt before this call.
                start_new_thread(self.post, (call.stop,))
                call.wait()
            raise

    def begin(self, call: Call, function: Callable[..., Any], *args: Any) -> None:
        """Same as `wait_for` without waiting for the result; waits while `BACKLOG` calls wait."""
        self._let_catch_up()
        self.post(self._begin, (call, function, args), call)

    @property
    def is_here(self) -> bool:
        """True on the thread of the loop."""
        return threading.get_ident() == self._thread

    def check(self) -> None:
        """Refuse use in a forked child.

        Raises:
            UsageError: This is a forked child.
        """
        if self.forked:
            raise forked_error()

    def check_blocking(self) -> None:
        """Refuse to wait for the loop where that may never end.

        Raises:
            UsageError: See `check_thread` and `check_unlocked`.
        """
        self.check_thread()
        check_unlocked()

    def check_thread(self) -> None:
        """Refuse to block the loop.

        Raises:
            UsageError: This is the thread of the loop, or a forked child.
        """
        self.check()
        if self.is_here:
            raise UsageError(
                "this would block the thread of the event loop, and with it every node",
                "hooks and callbacks of futures run there: leave the work to another thread",
            )

    # For the loop

    def _run(self) -> None:
        # First: a call posted from here on wakes the loop again, or is taken below.
        self._woken = False
        calls = self._calls
        for _ in range(BACKLOG):
            if not calls:
                return
            call, args, promise = calls.popleft()
            try:
                call(*args)
            except Exception as error:  # noqa: BLE001  # reported to its promise
                _failed(promise, error)
            except BaseException as error:  # it ends the loop
                if promise is not None:
                    promise.fail(error)
                raise
        if calls and not self._woken:
            self._woken = True
            self.loop.call_soon(self._run)

    def _begin(self, call: Call, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if call._state != "PENDING":  # cancelled
            return
        if self._closed and call.awaits:
            call.fail(Closed("node"))
            return
        result = function(*args)
        coroutine = inspect.iscoroutine(result)
        if coroutine and self._closed:
            result.close()
            call.fail(Closed("node"))
        elif coroutine or call.awaits:
            self._open.add(call)
            task = asyncio.Task(result, loop=self.loop, context=call.context, **_EAGER) if coroutine else result
            call.task = task
            if task.done():
                self._ended(call, task)
            else:
                task.add_done_callback(lambda task: self._ended(call, task))
        else:
            call.finish(result, None)

    def _ended(self, call: Call, task: asyncio.Future[Any]) -> None:
        self._open.discard(call)
        if task.cancelled():
            call.cancel()
        elif (error := task.exception()) is not None:
            call.fail(error)
        else:
            call.finish(task.result(), None)
            if call.unseen or call.cancelled():
                call.give_back(task.result())

    def close(self) -> None:
        """Make all waiting calls; running coroutines, and calls posted from now on, fail with `Closed`."""
        self._closed = True
        try:
            while self._calls:
                self._run()
        finally:
            self._drop()
            for call in list(self._open):
                call.fail(Closed("node"))

    def end(self) -> None:
        """Forget the thread of the loop, which is ending: another thread may get its number."""
        self._thread = 0

    def abandon(self) -> None:
        """Mark this as a forked child, in which the loop does not run."""
        self.forked = True

    def _drop(self) -> None:
        """Fail the calls that were posted after the end."""
        while True:
            try:
                _, _, promise = self._calls.popleft()
            except IndexError:
                return
            if promise is not None:
                promise.fail(Closed("node"))


class LoopFuture(ThreadFuture):
    """A future that the loop ends; the loop calls its callbacks in a later turn."""

    _handover: Handover

    def _invoke_callbacks(self) -> None:
        handover = self._handover
        if handover.is_here:
            # Wake waiting threads first: a callback may wait for something that one of them does.
            self.wake_sleepers()
            handover.loop.call_soon(super()._invoke_callbacks)
        else:
            super()._invoke_callbacks()

    def _may_wait(self) -> None:
        self._handover.check_blocking()


class Call(LoopFuture):
    """The result of a call that threads wait for.

    Attributes:
        task: The task, if the call runs a coroutine, or the future that it awaits; cancelling this one does not cancel it.
        awaits: Whether the function returns a future of the loop, which is awaited.
        context: The context of the coroutine; None is that of the loop.
        undo: Called on the loop with a result that was not delivered: the waiting thread was interrupted, or the future
            cancelled.
        unseen: Whether the result will not be delivered.
    """

    task: asyncio.Future[Any] | None = None
    awaits = False
    context: contextvars.Context | None = None
    undo: Callable[[Any], object] | None = None
    unseen = False

    def __init__(self, handover: Handover) -> None:
        self._handover = handover

    def fail(self, error: BaseException) -> None:
        """End with the error of the call, or the reason why it was not made."""
        self.finish(None, error)

    def stop(self) -> None:
        """On the loop: cancel the call, since no thread waits any more; a call that has not begun is not made."""
        self.unseen = True
        if self._state == "FINISHED":
            if self._exception is None:
                self.give_back(self._result)
        elif self.task is not None:
            self.task.cancel()
        else:
            super().cancel()

    def give_back(self, result: Any) -> None:
        """On the loop: undo a result that was not delivered."""
        undo, self.undo = self.undo, None
        if undo is not None:
            undo(result)

    def wait(self) -> None:
        """Wait until it has ended in any way."""
        try:
            self._sleep(None)
        except CancelledError:
            pass


def _failed(promise: Promise | None, error: Exception) -> None:
    if promise is None:
        _logger.error("a call from a thread failed", exc_info=error)
    else:
        promise.fail(error)


def _nothing() -> None:
    pass
