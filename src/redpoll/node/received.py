"""The operations of a received message: it is answered, released or refused. `Received` in node.py adds its node."""

from __future__ import annotations

import asyncio
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from redpoll.errors import Abandoned, Cancelled, HandlerFailed, Refused, UsageError
from redpoll.wire.frames import RETRY, WANTED
from redpoll.wire.inbound import Inbound, Phase

if TYPE_CHECKING:
    from redpoll.wire.link import Link

__all__ = ["HandedOut", "ReceivedMessage", "raised"]

DataT = TypeVar("DataT")


class ReceivedMessage(Inbound[DataT]):
    """A received message, and its end; see `Received`."""

    __slots__ = ("_cancelled", "_task")

    _cancelled: asyncio.Event
    #: The task that handles it, if it did not end at once, for a cancellation to reach.
    _task: asyncio.Task[Any]

    @property
    def wanted(self) -> bool:
        """True if the sender asked for an answer, with `request`. False for a libchirp sender, which cannot say."""
        return self.kind & WANTED != 0

    @property
    def redelivered(self) -> bool:
        """True if it was resent after a link was lost, so that an earlier run may have seen it."""
        return self.kind & RETRY != 0

    @property
    def ended(self) -> bool:
        """True if it was released or refused."""
        return self.phase == Phase.ENDED

    @property
    def cancelled(self) -> asyncio.Event:
        """An event, set when the sender stopped waiting: its await was cancelled or its deadline passed."""
        try:
            return self._cancelled
        except AttributeError:
            self._cancelled = asyncio.Event()
            return self._cancelled

    def release(self) -> None:
        """Free the slot and acknowledge the message: the work is done. Do nothing if the message has ended."""
        if self.phase != Phase.ENDED:
            self.link.connection.keeper.completion.release(self)

    def refuse(self, reason: str = "") -> None:
        """Free the slot and tell the sender that the work is not done: its `send` raises `Refused` with the reason.

        Do nothing if the message has ended. A libchirp sender cannot be told; it gets no acknowledgement.

        Args:
            reason: A short text; it is cut to 1,024 bytes.

        Raises:
            UsageError: The reason is not text.
        """
        if not isinstance(reason, str):
            raise UsageError(f"a reason must be text, not {type(reason).__name__}")
        self._refuse(Refused.code, reason)

    def _refuse(self, code: int, text: str) -> None:
        """Refuse the message with a reason of the library."""
        self.link.connection.keeper.completion.refuse(self, code, text)

    async def respond(self, data: Any, *, header: bytes = b"") -> None:
        """Send the answer that the sender wants. The message still has to end.

        Toward a redpoll node that used `request` this is done when the answer was written; it waits for no slot there.
        Otherwise it is a `send` of `reply(data)`.

        Raises:
            EncodeError: The serializer cannot encode `data`.
            MessageTooLarge: It exceeds the limit of this node or of the peer.
            PeerLost: The link was lost, and there is no newer one to the same node.
            NotConfirmed: The link was lost before the answer was written.
            SendError: As for `Node.send`, where the sender is a libchirp node or did not ask.
        """
        await self.link.connection.keeper.completion.respond(self, data, header)

    def _withdrawn(self, hard: bool) -> None:
        """Tell the handler that the sender withdrew the message."""
        self.cancelled.set()
        task = getattr(self, "_task", None)
        if task is not None and (hard or self.link.connection.keeper.config.cancel_handlers) and not task.cancelling():
            # Only once, however often it is withdrawn: the clean-up of the handler must not be cancelled as well.
            task.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.release()
        else:
            self._refuse_for(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _refuse_for(self, error: BaseException) -> None:
        """Refuse the message because of what the work raised."""
        code, text = HandlerFailed.code, ""
        if isinstance(error, asyncio.CancelledError):
            code, text = Cancelled.code, "its handling was cancelled"
        elif isinstance(error, GeneratorExit):
            code, text = Abandoned.code, "its consumer left"
        self.link.connection.keeper.completion.refuse(self, code, text or raised(error))

    def _abandon(self, text: str) -> bool:
        """Refuse the message because its consumer is gone; on the loop, as the garbage collector calls this anywhere.

        Returns:
            False if it cannot be refused: once the loop is closed, or in a forked child.
        """
        keeper = self.link.connection.keeper
        if keeper.node._state == "inherited":
            return False
        try:
            keeper.loop.call_soon_threadsafe(self._refuse, Abandoned.code, text)
        except RuntimeError:
            return False
        return True


class HandedOut:
    """A message that its consumer has to end: if dropped before that, it refuses the message and warns.

    A mixin for `Received`. The node refers to a message until that ends, so the message alone would never be dropped.
    """

    if not TYPE_CHECKING:  # a type checker would take these for all attributes
        __slots__ = ()

    _message: Any

    def __init__(self, message: Any) -> None:
        self._message = message
        self.frame = message.frame

    @property
    def link(self) -> Link:
        """The link that it arrived on, or was resent over."""
        return self._message.link  # type: ignore[no-any-return]

    @property
    def phase(self) -> int:
        """The phase, as a number: whether it has ended."""
        return self._message.phase  # type: ignore[no-any-return]

    @property
    def ended(self) -> bool:
        """True if it was released or refused."""
        return self._message.ended  # type: ignore[no-any-return]

    @property
    def cancelled(self) -> Any:
        """An event, set when the sender stopped waiting: its await was cancelled or its deadline passed."""
        return self._message.cancelled

    def release(self) -> None:
        """Free the slot and acknowledge the message: the work is done. Do nothing if the message has ended."""
        self._message.release()

    def _refuse(self, code: int, text: str) -> None:
        self._message._refuse(code, text)

    def respond(self, data: Any, *, header: bytes = b"") -> Any:
        """Send the answer that the sender wants. The message still has to end."""
        return self._message.respond(data, header=header)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._message.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        return repr(self._message)

    def __del__(self) -> None:
        message = self._message
        if not message.ended and message._abandon("its consumer dropped it without ending it"):
            warnings.warn(
                f"{message!r} was dropped before it ended, and refused as Abandoned: release or refuse it, or take it in "
                "a with block",
                RuntimeWarning,
                stacklevel=2,
            )


def raised(error: BaseException) -> str:
    """Return the type and text of an exception; never raise, whatever user code raised."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # noqa: BLE001  # its __str__ is user code too
        return name
