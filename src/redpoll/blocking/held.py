"""The message that a consumer pulled last, which is abandoned if the consumer drops it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from redpoll.blocking.thread_queue import Slot
from redpoll.errors import Abandoned

if TYPE_CHECKING:
    from redpoll.blocking.feed import Feed
    from redpoll.blocking.received import Received

__all__ = ["Held", "warn_of"]


class Held(Slot["Received[Any]"]):
    """The message that a thread or a loop pulled last and has not ended; dropping this object abandons it.

    Attributes:
        feed: The feed that it was pulled from.
        item: The message; None if its consumer no longer has to end it.
    """

    __slots__ = ("feed",)

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self.feed = feed

    def release(self) -> None:
        """Release the message, if the consumer received it."""
        message = self.item
        if message is not None and self.seen:
            self.feed.release(message)
            self.item = None

    def abandon(self) -> Received[Any] | None:
        """Refuse and return the message; return None if there is none, or it has ended."""
        message, self.item = self.item, None
        if message is None or message.ended:
            return None
        message._refuse(Abandoned.code, "its consumer left without ending it")
        return message

    def __del__(self) -> None:
        try:
            left = self.abandon()
        except (ValueError, AttributeError):  # in a child of the process; or interrupted before it was made
            return
        if left is not None:
            warn_of(left)


def warn_of(message: Received[Any]) -> None:
    """Warn that a message was abandoned."""
    warnings.warn(
        f"{message!r} was refused as Abandoned: its consumer dropped it without ending it: release or refuse it first",
        RuntimeWarning,
        stacklevel=3,
    )
