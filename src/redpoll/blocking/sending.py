"""The future that `send` and `request` return to threads, the core's `Outgoing` at the same time."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any

from redpoll.node.sending import Queued
from redpoll.wire.inbound import Inbound
from redpoll.wire.outgoing import Stage

if TYPE_CHECKING:
    from redpoll.blocking.loop_node import LoopNode

__all__ = ["Sending"]

_PENDING = "PENDING"
_FINISHED = "FINISHED"

#: Held while a future that nobody waits for ends, or while the first one begins to wait for it. One thread may come here
#: twice: by a signal's handler, or a finalizer.
_lock = threading.RLock()


def _new_lock() -> None:
    global _lock  # noqa: PLW0603  # a thread that is not in the child may hold the parent's
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


class Sending(Future[Any], Queued):
    """How one sending ends: None for a send, the answer for a request, or an error.

    A `concurrent.futures.Future` in every respect, but for its condition: that is made when somebody waits, which for
    most messages of a burst is never.
    """

    # What `Future.__init__` sets, which is not called: it makes the condition. These are written once, at the end.
    _state = _PENDING
    _result: Any = None
    _exception: BaseException | None = None
    _made: threading.Condition | None = None
    _heard = False
    #: Whether the caller gave no timeout.
    unset = False

    def __init__(self, node: LoopNode) -> None:
        self._node = node

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

    # For threads

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end.

        Args:
            timeout: Seconds to wait here, beside what the sending itself has; None is no limit.

        Returns:
            None for a send, the answer for a request.

        Raises:
            TimeoutError: It has not ended by then; it goes on.
            CancelledError: It was cancelled.
            UsageError: It has not ended, and this is the thread of the event loop, which would wait for itself; or a child
                of the process that sends it.

        It fails with the errors of `Node.send` and `Node.request`. Ctrl-C interrupts the waiting, not the sending.
        """
        if self._state == _FINISHED:
            error = self._exception
            if error is None:
                return self._result
            self._heard = True
            try:
                raise error
            finally:
                # Else the error's traceback would refer to this frame, and this frame to the error.
                del error, self
        self._heard = True
        if self._state == _PENDING:
            self._node.handover.check_blocking()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end; the error if it is one, else None. Otherwise as `result`."""
        self._heard = True
        if self._state == _PENDING:
            self._node.handover.check_blocking()
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Withdraw the message and cancel the future; False if it has ended."""
        self._node.handover.check()
        if not super().cancel():
            return False
        with self._condition:
            if self._state == "CANCELLED":
                self.set_running_or_notify_cancel()  # those who `wait()` look for nothing less
        self._node.handover.post(self._withdraw)
        return True

    def __del__(self) -> None:
        if self._exception is not None and not self._heard:
            # Nobody looked at the error: that is for the hook.
            self._heard = True
            try:
                self._node.handover.post(self._node.unheard, (self,))
            except ValueError:  # in a child of the process
                pass

    # For the loop

    def _withdraw(self) -> None:
        peer = getattr(self, "peer", None)
        if peer is not None and self.stage != Stage.ENDED:
            peer.withdraw(self, self._node.handover.loop.time(), hard=self.hard)

    def settle(self, answer: Inbound[Any] | None, error: BaseException | None) -> None:
        """End: whoever waits is woken, and callbacks are called."""
        if self._state != _PENDING:
            return
        if error is None:
            if answer is not None and not self._owner.raw:
                try:
                    self._owner.ends.decode(answer)
                except Exception as problem:  # noqa: BLE001  # a serializer may be anybody's
                    answer, error = None, problem
            self.let_go()
        with _lock:
            if self._made is None:
                self._result = answer
                self._exception = error
                self._state = _FINISHED
                return
        try:
            if error is None:
                self.set_result(answer)
            else:
                self.set_exception(error)
        except InvalidStateError:  # cancelled meanwhile
            pass

    def fail(self, error: BaseException) -> None:
        """End with an error before it began."""
        # Its traceback refers to this, and would keep it from being dropped.
        self.settle(None, error.with_traceback(None))
