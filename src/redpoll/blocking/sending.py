"""The future that `send` and `request` of nodes for threads return; it is the core's `Outgoing` as well."""

from __future__ import annotations

from typing import Any, Protocol

from redpoll.blocking.handover import Handover, LoopFuture
from redpoll.node.sending import Queued, read_answer

__all__ = ["Sending"]


# The message of a sending that is done.
_GONE: Any = None


class _LoopNode(Protocol):
    """The node on the loop, as its sendings use it."""

    handover: Handover

    def unheard(self, message: Any, error: BaseException, /) -> None:
        """Report a failed send whose future was dropped unseen."""


class _Unheard:
    """Belongs to a failed future: calls the hook if it is dropped before its error was looked at.

    Attributes:
        node: The node with the hook; None once the error was looked at.
    """

    __slots__ = ("_error", "_message", "node")

    def __init__(self, node: _LoopNode, message: Any, error: BaseException) -> None:
        self.node: _LoopNode | None = node
        self._message = message
        self._error = error

    def __del__(self) -> None:
        node = self.node
        if node is not None:
            try:
                node.handover.post(node.unheard, (self._message, self._error))
            except ValueError:  # in a child of the process
                pass


class Sending(LoopFuture, Queued):
    """The outcome of one sending: None for a send, the answer for a request, or an error."""

    #: Reports a failure that is not looked at.
    _unheard: _Unheard | None = None
    #: True if the caller gave no timeout.
    unset = False

    def __init__(self, node: _LoopNode) -> None:
        self._node = node

    @property
    def _handover(self) -> Handover:  # type: ignore[override]
        return self._node.handover

    # For threads

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the outcome.

        Args:
            timeout: Seconds to wait here, apart from the timeout of the sending; None is no limit.

        Returns:
            None for a send, the answer for a request.

        Raises:
            TimeoutError: It has not ended in time; the sending continues.
            CancelledError: It was cancelled.
            UsageError: It has not ended, and this is the thread of the event loop, which would wait for itself; or a forked
                child of the sending process.

        It also raises the errors of `Node.send` and `Node.request`. Ctrl-C interrupts the wait, not the sending.
        """
        if self._state == "FINISHED" and self._exception is None:
            return self._result
        try:
            return super().result(timeout)
        finally:
            self._hear()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; return the error, or None. Otherwise as `result`."""
        try:
            return super().exception(timeout)
        finally:
            self._hear()

    def cancel(self) -> bool:
        """Withdraw the message and cancel the future; return False if it has ended."""
        handover = self._node.handover
        handover.check()
        if not super().cancel():
            return False
        handover.post(self._withdraw)
        return True

    def _hear(self) -> None:
        """Note that the error, if any, was looked at."""
        if self._unheard is not None and self._state == "FINISHED":
            self._unheard.node = None

    # For the loop

    def _withdraw(self) -> None:
        peer = getattr(self, "peer", None)
        if peer is not None:  # else it was not submitted
            peer.withdraw(self, self._node.handover.loop.time(), hard=self.hard)

    def settle(self, answer: Any, error: BaseException | None) -> None:
        """End the future: wake waiting threads and call callbacks."""
        if self._state != "PENDING":
            return
        if error is None:
            if answer is not None and not self._owner.raw and not read_answer(self, answer):
                return
            self.body = self.header = b""
            self.message = _GONE
            self.finish(answer, None)
        else:
            self._unheard = _Unheard(self._node, self.message, error)
            self.finish(None, error)
            if self._exception is not error:  # cancelled meanwhile
                self._unheard.node = None

    def fail(self, error: BaseException) -> None:
        """End with an error before the sending began."""
        # The traceback refers to this object, and would keep it alive.
        self.settle(None, error.with_traceback(None))
