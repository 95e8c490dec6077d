"""From threads to the event loop: calls wait in a deque, and a burst of them wakes the loop once."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Protocol, TypeVar

from redpoll.blocking.futures import ThreadFuture
from redpoll.errors import Closed, UsageError

__all__ = ["BACKLOG", "Call", "Handover", "Promise"]

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
        self._calls.append((call, args, promise))
        if not self._woken:
            self._woken = True
            try:
                self._wake(self._run)
            except RuntimeError:  # the loop is closed, so this is as well
                self._woken = False
            except BaseException:  # Ctrl-C, maybe before it was woken
                self._wake(self._run)
                raise
        if self._closed:
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

        An exception that interrupts the waiting (Ctrl-C) cancels the coroutine, and comes out when that has ended.

        Raises:
            UsageError: It is called on the loop itself, which would wait for itself; or in a child of the process.
            Closed: The loop has ended.
        """
        self.check_blocking()
        call = self.submit(function, *args)
        try:
            return call.result()
        except BaseException:
            if not call.done():
                self.post(call.stop)
                call.wait()
            raise

    def submit(self, function: Callable[..., Any], *args: Any) -> Call:
        """As `run`, without waiting: the future of the result."""
        call = Call(self)
        self.post(self._begin, (call, function, args), call)
        return call

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
            raise UsageError(
                "this node belongs to the process that forked this one", "start a node of its own in the child"
            )

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
        if calls and not self._woken:
            self._woken = True
            self.loop.call_soon(self._run)

    def _begin(self, call: Call, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        result = function(*args)
        if inspect.iscoroutine(result):
            self._open.add(call)
            call.task = self.loop.create_task(result)
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

    def close(self) -> None:
        """Make the calls that wait; those that are posted from now on fail as `Closed`."""
        self._closed = True
        while self._calls:
            self._run()

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


class Call(ThreadFuture):
    """The result of a call that threads wait for.

    Attributes:
        task: What runs it, if that is a coroutine; cancelling the future leaves it alone.
    """

    task: asyncio.Task[Any] | None = None

    def __init__(self, handover: Handover) -> None:
        self._handover = handover

    def fail(self, error: BaseException) -> None:
        """It raised, or could not be made."""
        self.finish(None, error)

    def stop(self) -> None:
        """On the loop: cancel what runs; its end is this one's."""
        if self.task is not None:
            self.task.cancel()

    def wait(self) -> None:
        """Wait for the end, whatever it is."""
        try:
            self._sleep(None)
        except CancelledError:
            pass

    def _may_wait(self) -> None:
        self._handover.check_blocking()


def _failed(promise: Promise | None, error: Exception) -> None:
    if promise is None:
        _logger.error("a call from a thread failed", exc_info=error)
    else:
        promise.fail(error)


def _nothing() -> None:
    pass
