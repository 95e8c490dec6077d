"""A received message as users see it: a `Message` that can be answered, released and refused."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from redpoll.errors import Abandoned, Cancelled, HandlerFailed, Refused, UsageError
from redpoll.wire.frames import Kind
from redpoll.wire.inbound import Inbound, Phase

if TYPE_CHECKING:
    from redpoll.node.node import Node

__all__ = ["Received", "raised"]

DataT = TypeVar("DataT")

_WANTED = int(Kind.WANTED)


class Received(Inbound[DataT]):
    """A message that arrived. It ends once: released (the work is done) or refused (it is not, and why).

    As an async context manager (and as a plain one) it releases on leaving and refuses on an exception, unless it had
    ended before. `data` stays yours after the end.
    """

    __slots__ = ("_cancelled", "_task")

    _cancelled: asyncio.Event

    @property
    def node(self) -> Node[Any]:
        """The node that received it."""
        node: Node[Any] = self.link.owner.keeper.node
        return node

    @property
    def wanted(self) -> bool:
        """Whether its sender asked for an answer, with `request`. A libchirp sender cannot say, so it is False."""
        return self.kind & _WANTED != 0

    @property
    def redelivered(self) -> bool:
        """Whether it was sent again after a link was lost, so that an earlier run may have seen it."""
        return self.kind & Kind.RETRY != 0

    @property
    def ended(self) -> bool:
        """Whether it was released or refused."""
        return self.phase == Phase.ENDED

    @property
    def cancelled(self) -> asyncio.Event:
        """Set when its sender gave up waiting: its await was cancelled or its deadline passed."""
        try:
            return self._cancelled
        except AttributeError:
            self._cancelled = asyncio.Event()
            return self._cancelled

    def release(self) -> None:
        """The work is done: give the slot back and acknowledge. Does nothing if the message has ended."""
        if self.phase != Phase.ENDED:
            self.link.owner.keeper.ends.release(self)

    def refuse(self, reason: str = "") -> None:
        """The work is not done: give the slot back and tell the sender, whose `send` raises `Refused` with the reason.

        Does nothing if the message has ended. A libchirp sender cannot be told; it gets no acknowledgement.

        Args:
            reason: A short text; of a longer one 1,024 bytes arrive.

        Raises:
            UsageError: The reason is no text.
        """
        if not isinstance(reason, str):
            raise UsageError(f"a reason is text, not {type(reason).__name__}")
        self._refuse(Refused.code, reason)

    def _refuse(self, code: int, text: str) -> None:
        """Refuse with a reason of the library's."""
        self.link.owner.keeper.ends.refuse(self, code, text)

    async def respond(self, data: Any, *, header: bytes = b"") -> None:
        """Send the answer that the sender wants. The message has still to end.

        Toward a redpoll node that asked with `request` it is done when it was written; it waits for no slot there.
        Otherwise it is a `send` of `reply(data)`.

        Raises:
            EncodeError: The serializer cannot carry `data`.
            MessageTooLarge: It is above what this node may send or the other takes.
            PeerLost: The link is gone, and no newer one to the same node is there.
            NotConfirmed: The link was lost before it was written.
            SendError: As for `Node.send`, where the sender is a libchirp node or did not ask.
        """
        await self.link.owner.keeper.ends.respond(self, data, header)

    def _withdrawn(self, hard: bool) -> None:
        """Its sender gave it up: tell whoever works on it."""
        self.cancelled.set()
        task = getattr(self, "_task", None)
        if task is not None and (hard or self.node.config.cancel_handlers):
            task.cancel()

    def _run_by(self, task: asyncio.Task[Any]) -> None:
        """Note the task that handles it, which a cancellation may reach."""
        self._task = task

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
        """Refuse because of what the work raised."""
        if isinstance(error, asyncio.CancelledError):
            self.link.owner.keeper.ends.refuse(self, Cancelled.code, "its handling was cancelled")
        elif isinstance(error, GeneratorExit):
            self.link.owner.keeper.ends.refuse(self, Abandoned.code, "its consumer left")
        else:
            self.link.owner.keeper.ends.refuse(self, HandlerFailed.code, raised(error))


def raised(error: BaseException) -> str:
    """What an exception says, behind its type; whatever user code raised, this does not raise."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # noqa: BLE001  # its __str__ is user code too
        return name
