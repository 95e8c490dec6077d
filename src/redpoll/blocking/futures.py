"""A future that threads wait for: of `concurrent.futures`, cheap while nobody waits, and safe to interrupt."""

from __future__ import annotations

import os
import threading
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any

__all__ = ["ThreadFuture"]

_PENDING = "PENDING"
_CANCELLED = "CANCELLED"
_FINISHED = "FINISHED"

#: Held while a future ends that nobody waits for, or while somebody begins to wait. One thread may come here twice: by a
#: signal's handler, or a finalizer.
_lock = threading.RLock()


def _new_lock() -> None:
    global _lock  # noqa: PLW0603  # a thread that is not in the child may hold the parent's
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


class ThreadFuture(Future[Any]):
    """A `concurrent.futures.Future` in every respect, but for its condition.

    That is made when a callback or a `wait` needs it, which for most messages of a burst is never. `result` and `exception`
    wait without it: an interruption inside of the library's own `Condition.wait` can leave its lock held, and who ends the
    future would then wait for ever.
    """

    # What `Future.__init__` sets, which is not called.
    _state = _PENDING
    _result: Any = None
    _exception: BaseException | None = None
    _made: threading.Condition | None = None
    _sleepers: list[threading.Lock] | None = None

    def __init__(self) -> None:
        """Be pending."""

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        made = self._made
        if made is None:
            made = threading.Condition()
            with _lock:
                if self._made is None:
                    self._waiters: list[Any] = []
                    self._done_callbacks: list[Any] = []
                    self._made = made
                else:
                    made = self._made
        return made

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
            plain = self._made is None
            if plain:
                if result is not None:
                    self._result = result
                if error is not None:
                    self._exception = error
                self._state = _FINISHED
        if not plain:
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
            with _lock:
                if self._sleepers is None:
                    self._sleepers = []
                self._sleepers.append(waiter)
                pending = self._state == _PENDING
            if pending and not waiter.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
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
