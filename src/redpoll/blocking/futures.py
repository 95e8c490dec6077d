"""A `concurrent.futures.Future` that is cheap while no thread waits for it, and safe to interrupt by Ctrl-C."""

from __future__ import annotations

import _thread
import math
import threading
import time
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any

from redpoll.locks import new_lock, noted
from redpoll.platforms import after_fork

__all__ = ["LOOK", "ThreadFuture", "time_left"]

#: Seconds between checks of a waiting thread: Ctrl-C just before it sleeps does not
#: wake it, and the thread that should wake it may have been interrupted.
LOOK = 0.5

#: Seconds after which a held condition is assumed to be leaked by an interrupted thread.
_STUCK = 5.0

_PENDING = "PENDING"
_CANCELLED = "CANCELLED"
_FINISHED = "FINISHED"

#: Guards the end of a future, and the beginning of a wait.
_lock = new_lock()


class _Condition(_thread.RLock):  # type: ignore[misc]  # it is final for checkers alone
    """The condition of a future, as far as `concurrent.futures` uses it.

    `with` enters the lock itself. `threading.Condition` enters it by a Python function, which Ctrl-C can leave with the lock
    held.
    """

    def notify_all(self) -> None:
        """Do nothing: no thread waits on it."""


#: Shared by all futures with callbacks, and those given to `concurrent.futures.wait`.
_condition = noted(_Condition())


def _new_lock() -> None:
    global _lock, _condition  # noqa: PLW0603  # a thread that does not exist in the child may hold the parent's
    _lock = new_lock()
    _condition = noted(_Condition())


def _free_condition() -> None:
    """Replace the condition if Ctrl-C left it held: `concurrent.futures.wait` acquires it once per future."""
    global _condition  # noqa: PLW0603  # one for all
    if _condition.acquire(timeout=_STUCK):
        _condition.release()
    else:
        _condition = noted(_Condition())


after_fork(_new_lock)


class ThreadFuture(Future[Any]):
    """A `concurrent.futures.Future` without a condition of its own.

    It uses the shared one once a callback or a `wait` needs it, which most messages of a burst never do. `result` and
    `exception` wait without it: an interruption inside `threading.Condition.wait` can leave its lock held, and the thread
    that ends the future would then wait forever.
    """

    # The attributes that `Future.__init__` sets; it is not called.
    _state = _PENDING
    _result: Any = None
    _exception: BaseException | None = None
    _watched = False
    _sleepers: list[threading.Lock] | None = None

    def __init__(self) -> None:
        """Create a pending future."""

    @property
    def _condition(self) -> _Condition:  # type: ignore[override]
        if not self._watched:
            with _lock:
                if not self._watched:
                    self._waiters: list[Any] = []
                    self._done_callbacks: list[Any] = []
                    self._watched = True
        return _condition

    def done(self) -> bool:
        """Return True if it has ended."""
        return self._state not in {_PENDING, "RUNNING"}

    def result(self, timeout: float | None = None) -> Any:
        """Wait until it has ended; return the result, or raise the error."""
        if self._state != _FINISHED:
            self._sleep(timeout)
        error = self._exception
        if error is None:
            return self._result
        try:
            raise error
        finally:
            # Otherwise the traceback refers to this frame, and this frame to the error.
            del error, self

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until it has ended; return the error, or None."""
        if self._state != _FINISHED:
            self._sleep(timeout)
        return self._exception

    def cancel(self) -> bool:
        """Cancel the future; return False if it has ended."""
        if not super().cancel():
            return False
        with self._condition:
            if self._state == _CANCELLED:
                self.set_running_or_notify_cancel()  # `concurrent.futures.wait` expects this state
        return True

    def finish(self, result: Any, error: BaseException | None) -> None:
        """End the future, unless it has ended: wake waiting threads, call callbacks."""
        with _lock:
            if self._state != _PENDING:
                return
            plain = not self._watched
            if plain:
                if result is not None:
                    self._result = result
                if error is not None:
                    self._exception = error
                self._state = _FINISHED
        if not plain:
            _free_condition()
            try:
                if error is None:
                    self.set_result(result)
                else:
                    self.set_exception(error)
            except InvalidStateError:  # cancelled meanwhile
                pass
        elif self._sleepers is not None:
            self.wake_sleepers()

    def wake_sleepers(self) -> None:
        """Wake the threads that wait, since the future has ended."""
        with _lock:
            sleepers, self._sleepers = self._sleepers, []
        for waiter in sleepers or ():
            waiter.release()

    def _invoke_callbacks(self) -> None:
        # First: a callback may wait for something that a woken thread does.
        self.wake_sleepers()
        super()._invoke_callbacks()  # type: ignore[misc]  # typeshed leaves it out

    def _may_wait(self) -> None:
        """Raise if waiting on this thread could never end."""

    def _sleep(self, timeout: float | None) -> None:
        """Wait until it has ended.

        Raises:
            TimeoutError: It has not ended in time.
            CancelledError: It was cancelled.
        """
        if self._state == _PENDING:
            self._may_wait()
            waiter = threading.Lock()
            waiter.acquire()
            deadline = None if timeout is None else time.monotonic() + timeout
            with _lock:
                if self._sleepers is None:
                    self._sleepers = []
                self._sleepers.append(waiter)
            while self._state == _PENDING:
                left = time_left(deadline)
                if waiter.acquire(timeout=min(left, LOOK)) or left <= LOOK:
                    break
            with _lock:
                if waiter in self._sleepers:
                    self._sleepers.remove(waiter)
            if self._state == _PENDING:
                raise TimeoutError
        if self._state != _FINISHED:
            raise CancelledError


def time_left(deadline: float | None) -> float:
    """Return the seconds until a deadline on the clock of `time.monotonic`, at least 0; None is never."""
    return math.inf if deadline is None else max(0.0, deadline - time.monotonic())
