"""The future that `send` and `request` return to threads, the core's `Outgoing` at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redpoll.blocking.futures import ThreadFuture
from redpoll.node.sending import Queued
from redpoll.wire.inbound import Inbound
from redpoll.wire.outgoing import Stage

if TYPE_CHECKING:
    from redpoll.blocking.loop_node import LoopNode

__all__ = ["Sending"]


class Sending(ThreadFuture, Queued):
    """How one sending ends: None for a send, the answer for a request, or an error."""

    _heard = False
    #: Whether the caller gave no timeout.
    unset = False

    def __init__(self, node: LoopNode) -> None:
        self._node = node

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
        if self._state == "FINISHED" and self._exception is None:
            return self._result
        self._heard = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end; the error if it is one, else None. Otherwise as `result`."""
        self._heard = True
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Withdraw the message and cancel the future; False if it has ended."""
        handover = self._node.handover
        handover.check()
        if not super().cancel():
            return False
        handover.post(self._withdraw)
        return True

    def _may_wait(self) -> None:
        self._node.handover.check_blocking()

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
        if self._state != "PENDING":
            return
        if error is None:
            if answer is not None and not self._owner.raw:
                try:
                    self._owner.ends.decode(answer)
                except Exception as problem:  # noqa: BLE001  # a serializer may be anybody's
                    answer, error = None, problem
            self.let_go()
        self.finish(answer, error)

    def fail(self, error: BaseException) -> None:
        """End with an error before it began."""
        # Its traceback refers to this, and would keep it from being dropped.
        self.settle(None, error.with_traceback(None))
