"""The operations of a message received by a node for threads. `Received` in base.py adds its node."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from redpoll.blocking.handover import Call
from redpoll.errors import Abandoned
from redpoll.locks import new_lock
from redpoll.node import Received as NodeReceived
from redpoll.platforms import after_fork

__all__ = ["ReceivedMessage"]

DataT = TypeVar("DataT")

_lock = new_lock()


def _new_lock() -> None:
    global _lock  # noqa: PLW0603  # a thread that does not exist in the child may hold the parent's
    _lock = new_lock()


after_fork(_new_lock)


class ReceivedMessage(NodeReceived[DataT]):
    """A received message, and its end; see `Received`."""

    __slots__ = ("_ending", "_given_up", "_read")

    _given_up: threading.Event

    @property
    def ended(self) -> bool:
        """True if it was released or refused."""
        return self.phase != 0 or hasattr(self, "_ending")

    @property
    def cancelled(self) -> threading.Event:  # type: ignore[override]
        """Set when the sender has cancelled or the deadline has passed; threads may wait for it.

        It is also set when the node stops and no longer waits for the handler.
        """
        try:
            return self._given_up
        except AttributeError:
            pass
        made = threading.Event()
        with _lock:
            if not hasattr(self, "_given_up"):
                self._given_up = made
        return self._given_up

    def release(self) -> None:
        """End the message as done: free the slot and acknowledge. Does nothing if the message has ended."""
        if not self.phase and not hasattr(self, "_ending"):
            keeper = self.link.connection.keeper
            keeper.node.handover.post(keeper.completion.release, (self,))
            self._ending = True

    def _refuse(self, code: int, text: str) -> None:
        """Refuse with a code and a text of the library."""
        if not self.ended:
            keeper = self.link.connection.keeper
            keeper.node.handover.post(keeper.completion.refuse, (self, code, text))
            self._ending = True

    def respond(self, data: Any, *, header: bytes = b"") -> Future[None]:  # type: ignore[override]
        """Send the answer. The message must still be ended.

        An answer to a `request` of a redpoll node is done when it is written, and needs no slot there.
        Otherwise it is a `send` of `reply(data)`.

        Returns:
            A future. It need not be awaited; cancelling it does not stop the answer. Until it is done, do not change `data`.
            It fails with `EncodeError`, `MessageTooLarge`, `PeerLost` (the link is lost, and there is no newer one to the
            same node) or `NotConfirmed` (the link was lost before the answer was written); toward a libchirp node, or a
            sender that did not use `request`, as `send` does. An error that is not looked at is not reported.
        """
        keeper = self.link.connection.keeper
        call = Call(keeper.node.handover)
        keeper.node.handover.begin(call, keeper.completion.respond, self, data, header)
        return call

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.release()
        elif not self.ended:
            self.link.connection.keeper.node.handover.post(self._refuse_for, (error,))
            self._ending = True

    # For the library

    def _abandon(self, text: str) -> bool:
        """Refuse the message because its consumer dropped it; return False in a forked child, which cannot refuse."""
        try:
            self._refuse(Abandoned.code, text)
        except ValueError:
            return False
        return True

    def _withdrawn(self, hard: bool) -> None:
        """Apply the sender's withdrawal: refuse the message if no thread has it, else notify its consumer."""
        if not self.link.connection.keeper.node.take_back(self):
            super()._withdrawn(hard)

    def _take_decoded(self, data: Any) -> None:
        """Replace the bytes by the decoded payload, once."""
        # No call in between: a signal handler cannot run within this step.
        frame = self.frame
        self.frame = (*frame[:5], data, *frame[6:])
        self._read = True
