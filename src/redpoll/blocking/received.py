"""A received message as threads see it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from redpoll.errors import Abandoned
from redpoll.node import Received as NodeReceived
from redpoll.node.received import HandedOut
from redpoll.platforms import after_fork

if TYPE_CHECKING:
    from redpoll.blocking.base import BlockingNode

__all__ = ["Received", "Taken", "hand_out"]

DataT = TypeVar("DataT")

_lock = threading.Lock()


def _new_lock() -> None:
    global _lock  # noqa: PLW0603  # a thread that is not in the child may hold the parent's
    _lock = threading.Lock()


after_fork(_new_lock)


class Received(NodeReceived[DataT]):
    """A message that arrived at a node for threads. It ends once: released (the work is done) or refused.

    All of it may be called from any thread. As a context manager it releases on leaving and refuses on an exception, unless
    it had ended before. `data` stays yours after the end. `deadline` is on the clock of `time.monotonic()`.
    """

    __slots__ = ("_ending", "_given_up", "_read")

    _given_up: threading.Event

    @property
    def node(self) -> BlockingNode[Any]:  # type: ignore[override]
        """The node that received it."""
        facade: BlockingNode[Any] = self.link.connection.keeper.node.facade
        return facade

    @property
    def ended(self) -> bool:
        """Whether it was released or refused."""
        return self.phase != 0 or hasattr(self, "_ending")

    @property
    def cancelled(self) -> threading.Event:  # type: ignore[override]
        """Set when its sender gave up waiting: it was cancelled there, or its deadline passed; threads may wait for it.

        Also when its node stops waiting for its handler.
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
        """The work is done: give the slot back and acknowledge. Does nothing if the message has ended."""
        if not self.phase and not hasattr(self, "_ending"):
            keeper = self.link.connection.keeper
            keeper.node.handover.post(keeper.completion.release, (self,))
            self._ending = True

    def _refuse(self, code: int, text: str) -> None:
        """Refuse with a reason of the library's."""
        if not self.ended:
            keeper = self.link.connection.keeper
            keeper.node.handover.post(keeper.completion.refuse, (self, code, text))
            self._ending = True

    def respond(self, data: Any, *, header: bytes = b"") -> Future[None]:  # type: ignore[override]
        """Send the answer that the sender wants. The message has still to end.

        Toward a redpoll node that asked with `request` it is done when it was written; it waits for no slot there.
        Otherwise it is a `send` of `reply(data)`.

        Returns:
            A future; it need not be waited for, and cancelling it stops no answer. Until it is done `data` is the library's.
            It fails with `EncodeError`, `MessageTooLarge`, `PeerLost` (the link is gone, and no newer one to the same node
            is there), `NotConfirmed` (the link was lost before it was written); where the sender is a libchirp node or did
            not ask as `send` does. An error that nobody looks at is told to nobody.
        """
        keeper = self.link.connection.keeper
        return keeper.node.handover.submit(keeper.completion.respond, self, data, header)  # type: ignore[no-any-return]

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
        """Refuse it because its consumer is gone; False in a child of the process, where it cannot be."""
        try:
            self._refuse(Abandoned.code, text)
        except ValueError:
            return False
        return True

    def _withdrawn(self, hard: bool) -> None:
        """Its sender gave it up: one that no thread has is refused, else whoever works on it is told."""
        if not self.link.connection.keeper.node.take_back(self):
            super()._withdrawn(hard)

    def _take_decoded(self, data: Any) -> None:
        """Put what the serializer made of the bytes in their place, once."""
        # One step for a signal's handler: nothing here is a call.
        frame = self.frame
        self.frame = (*frame[:5], data, *frame[6:])
        self._read = True


class Taken(HandedOut, Received[DataT]):  # type: ignore[override]  # what is set of a Received is set in its message
    """What a node for threads hands out, or gives to its handler, that ends no messages itself."""

    __slots__ = ("_message",)


def hand_out(message: Received[DataT], mode: bool | str) -> Received[DataT]:
    """What a thread gets that pulled a message which is not to be released by the library later on.

    Args:
        message: What was pulled.
        mode: `Config.auto_release`, "get" or False.
    """
    if mode == "get":
        message.release()
        return message
    return Taken(message)
