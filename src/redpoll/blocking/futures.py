"""A future that threads wait for: of `concurrent.futures`, cheap while nobody waits, and safe to interrupt."""

from __future__ import annotations

import _thread
import math
import threading
import time
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any

from redpoll.platforms import after_fork

__all__ = ["LOOK", "ThreadFuture", "time_left"]

#: Seconds after which a thread that waits looks whether it still has to: Ctrl-C that comes just before it sleeps does not
#: wake it, and the thread that was to wake it may have been interrupted.
LOOK = 0.5

#: Seconds that what the library does with futures may take, before it was interrupted.
_STUCK = 5.0

_PENDING = "PENDING"
_CANCELLED = "CANCELLED"
_FINISHED = "FINISHED"

#: Held while a future ends that nobody waits for, or while somebody begins to wait. One thread may come here twice: by a
#: signal's handler, or a finalizer.
_lock = threading.RLock()


class _Condition(_thread.RLock):  # type: ignore[misc]  # it is final for checkers alone
    """What `concurrent.futures` has of the condition of a future.

    A `with` enters the lock itself: the library's is entered by a function, which Ctrl-C can leave with the lock held.
    """

    def notify_all(self) -> None:
        """Nobody waits for this."""


#: For all futures with callbacks, or that somebody is to `wait` for.
_condition = _Condition()


def _new_lock() -> None:
    global _lock, _condition  # noqa: PLW0603  # a thread that is not in the child may hold the parent's
    _lock = threading.RLock()
    _condition = _Condition()


def _free_condition() -> None:
    """Have another condition where Ctrl-C left this one held: `concurrent.futures.wait` takes it once for each future."""
    global _condition  # noqa: PLW0603  # one for all
    if _condition.acquire(timeout=_STUCK):
        _condition.release()
    else:
        _condition = _Condition()


after_fork(_new_lock)


class ThreadFuture(Future[Any]):
    """A `concurrent.futures.Future` in every respect, but for its condition.

    It has none before a callback or a `wait` needs it, which for most messages of a burst is never. `result` and `exception`
    wait without it: an interruption inside of the library's own `Condition.wait` can leave its lock held, and who ends the
    future would then wait for ever.
    """

    # What `Future.__init__` sets, which is not called.
    _state = _PENDING
    _result: Any = None
    _exception: BaseException | None = None
    _watched = False
    _sleepers: list[threading.Lock] | None = None

    def __init__(self) -> None:
        """Be pending."""

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
        """Whether it has ended."""
        return self._state not in {_PENDING, "RUNNING"}

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end; return the result, or raise the error."""
        if self._state != _FINISHED:
            self._sleep(timeout)
        error = self._exception
        if error is None:
            return self._result
        try:
            raise error
        finally:
            # Else the error's traceback would refer to this frame, and this frame to the error.
            del error, self

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end; return the error, or None."""
        if self._state != _FINISHED:
            self._sleep(timeout)
        return self._exception

    def cancel(self) -> bool:
        """Cancel the future; False if it has ended."""
        if not super().cancel():
            return False
        with self._condition:
            if self._state == _CANCELLED:
                self.set_running_or_notify_cancel()  # those who `wait()` look for nothing less
        return True

    def finish(self, result: Any, error: BaseException | None) -> None:
        """End, unless it has ended: whoever waits is woken, and callbacks are called."""
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
            self._wake()

    def wake_sleepers(self) -> None:
        """It has ended: wake those that wait for that."""
        if self._sleepers is not None:
            self._wake()

    def _invoke_callbacks(self) -> None:
        # Before them: one of them may wait for what a thread does then.
        self.wake_sleepers()
        super()._invoke_callbacks()  # type: ignore[misc]  # typeshed leaves it out

    def _may_wait(self) -> None:
        """Refuse to wait where that would never end."""

    def _sleep(self, timeout: float | None) -> None:
        """Wait for the end.

        Raises:
            TimeoutError: It has not come in time.
            CancelledError: It is a cancellation.
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

    def _wake(self) -> None:
        with _lock:
            sleepers, self._sleepers = self._sleepers, []
        for waiter in sleepers or ():
            waiter.release()


def time_left(deadline: float | None) -> float:
    """Return the seconds until a deadline on the clock of `time.monotonic`, at least 0; None is never."""
    return math.inf if deadline is None else max(0.0, deadline - time.monotonic())
