"""From threads to the event loop: calls wait in a deque, and a burst of them wakes the loop once."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Protocol, TypeVar

from redpoll.blocking.futures import ThreadFuture
from redpoll.errors import Closed, UsageError
from redpoll.node.lifecycle import forked_error

__all__ = ["BACKLOG", "Call", "Handover", "LoopFuture", "Promise"]

#: Calls that run before the loop gets its turn, and that may wait for it before a thread that sends waits as well.
BACKLOG = 1024

_logger = logging.getLogger("redpoll.blocking")


class Promise(Protocol):
    """What a call is for: it is told if the call cannot be made, or raises."""

    def fail(self, error: BaseException) -> None:
        """End with an error, unless it has ended."""


SendingT = TypeVar("SendingT", bound=Promise)


class Handover:
    """Takes calls for one event loop from all threads.

    They run in the order of posting. Posting takes no lock: finalizers and signal handlers post as well.

    Args:
        loop: Whose they are; it runs in the thread that makes this.

    Attributes:
        forked: Whether this is a child of the process that it was made in.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._wake = loop.call_soon_threadsafe
        self._thread = threading.get_ident()
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...], Promise | None]] = deque()
        self._woken = False
        self._closed = False
        self.forked = False
        #: Coroutines that run for threads.
        self._open: set[Call] = set()

    # For every thread

    def post(self, call: Callable[..., object], args: tuple[Any, ...] = (), promise: Promise | None = None) -> None:
        """Have a call made on the loop.

        Args:
            call: A plain function that returns at once.
            args: Its arguments.
            promise: What it is for; None: an error of it is logged, and nobody minds if it is too late to be made.

        Raises:
            UsageError: This is a child of the process that made it.
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
            # Ctrl-C, maybe before it was woken. No second one comes before the one call here, nor in another thread.
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
        """As `post`, for what a thread can make faster than the loop can send it: waits while `BACKLOG` calls wait."""
        if len(self._calls) >= BACKLOG and not self.is_here:
            self.catch_up()
        self.post(submit, (out,), out)

    def catch_up(self) -> None:
        """Wait until what was posted before has been done."""
        self.run(_nothing)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function on the loop, await what it returns if that is a coroutine, and wait for the result.

        An exception that interrupts the waiting (Ctrl-C) cancels the coroutine, and comes out when that has ended. A second
        one comes out at once.

        Raises:
            UsageError: It is called on the loop itself, which would wait for itself; or in a child of the process.
            Closed: The loop has ended.
        """
        return self.run_within(None, function, *args)

    def run_within(self, limit: float | None, function: Callable[..., Any], *args: Any) -> Any:
        """As `run`, and wait so many seconds at most, where the loop may be blocked.

        Raises:
            TimeoutError: It has not ended by then, and goes on.
        """
        self.check_blocking()
        return self.wait_for(Call(self), limit, function, *args)

    def wait_for(self, call: Call, limit: float | None, function: Callable[..., Any], *args: Any) -> Any:
        """As `run_within`, with the future of the result, which says what becomes of one that nobody saw."""
        try:
            self.post(self._begin, (call, function, args), call)
            return call.result(limit)
        except TimeoutError:
            raise
        except BaseException:
            if call._exception is None:
                # As in `post`: nothing comes before this call.
                start_new_thread(self.post, (call.stop,))
                call.wait()
            raise

    def submit(self, function: Callable[..., Any], *args: Any) -> Call:
        """As `run`, without waiting: the future of the result."""
        call = Call(self)
        self.begin(call, function, *args)
        return call

    def begin(self, call: Call, function: Callable[..., Any], *args: Any) -> None:
        """As `wait_for`, without waiting, but while `BACKLOG` calls wait."""
        if len(self._calls) >= BACKLOG and not self.is_here:
            self.catch_up()
        self.post(self._begin, (call, function, args), call)

    @property
    def is_here(self) -> bool:
        """Whether this is the loop's thread."""
        return threading.get_ident() == self._thread

    def check(self) -> None:
        """Refuse use in a child of the process that it was made in.

        Raises:
            UsageError: This is one.
        """
        if self.forked:
            raise forked_error()

    def check_blocking(self) -> None:
        """Refuse to block the loop.

        Raises:
            UsageError: This is its thread; or this is a child of its process.
        """
        self.check()
        if self.is_here:
            raise UsageError(
                "this would block the thread of the event loop, and with it every node",
                "hooks and callbacks of futures run there: leave the work to another thread",
            )

    # For the loop

    def _run(self) -> None:
        # First: what is posted from here on wakes the loop again, or is seen below.
        self._woken = False
        calls = self._calls
        for _ in range(BACKLOG):
            if not calls:
                return
            call, args, promise = calls.popleft()
            try:
                call(*args)
            except Exception as error:  # noqa: BLE001  # told to whom it is for
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
        result = function(*args)
        if inspect.iscoroutine(result) and self._closed:
            result.close()
            call.fail(Closed("node"))
        elif inspect.iscoroutine(result):
            self._open.add(call)
            call.task = self.loop.create_task(result, context=call.context)
            call.task.add_done_callback(lambda task: self._ended(call, task))
        else:
            call.finish(result, None)

    def _ended(self, call: Call, task: asyncio.Task[Any]) -> None:
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
        """Make the calls that wait; those that are posted from now on, and coroutines that run, fail as `Closed`."""
        self._closed = True
        try:
            while self._calls:
                self._run()
        finally:
            self._drop()
            for call in list(self._open):
                call.fail(Closed("node"))

    def end(self) -> None:
        """The loop's thread ends: another may get its number."""
        self._thread = 0

    def abandon(self) -> None:
        """This is a child of the process: there is no loop here."""
        self.forked = True

    def _drop(self) -> None:
        """Fail what was posted after the end."""
        while True:
            try:
                _, _, promise = self._calls.popleft()
            except IndexError:
                return
            if promise is not None:
                promise.fail(Closed("node"))


class LoopFuture(ThreadFuture):
    """A future that the loop ends; its callbacks are called by the loop, and not inside of what ended it."""

    _handover: Handover

    def _invoke_callbacks(self) -> None:
        handover = self._handover
        if handover.is_here:
            # Waiting threads first: a callback may wait for what one of them does then.
            self.wake_sleepers()
            handover.loop.call_soon(super()._invoke_callbacks)
        else:
            super()._invoke_callbacks()

    def _may_wait(self) -> None:
        self._handover.check_blocking()


class Call(LoopFuture):
    """The result of a call that threads wait for.

    Attributes:
        task: What runs it, if that is a coroutine; cancelling the future leaves it alone.
        context: The variables with which a coroutine runs; None are those of the loop.
        undo: Called on the loop with a result that nobody saw: who waited was interrupted, or the future cancelled.
        unseen: Whether nobody will see the result.
    """

    task: asyncio.Task[Any] | None = None
    context: contextvars.Context | None = None
    undo: Callable[[Any], object] | None = None
    unseen = False

    def __init__(self, handover: Handover) -> None:
        self._handover = handover

    def fail(self, error: BaseException) -> None:
        """It raised, or could not be made."""
        self.finish(None, error)

    def stop(self) -> None:
        """On the loop: nobody waits. Cancel what runs; its end is this one's. What was not posted will not be."""
        self.unseen = True
        if self._state == "FINISHED":
            if self._exception is None:
                self.give_back(self._result)
        elif self.task is not None:
            self.task.cancel()
        else:
            super().cancel()

    def give_back(self, result: Any) -> None:
        """On the loop: nobody saw the result."""
        undo, self.undo = self.undo, None
        if undo is not None:
            undo(result)

    def wait(self) -> None:
        """Wait for the end, whatever it is."""
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
