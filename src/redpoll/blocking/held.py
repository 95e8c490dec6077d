"""What a thread or a loop pulled last, and what becomes of it if it is left there."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

from redpoll.errors import Abandoned

if TYPE_CHECKING:
    from redpoll.blocking.feed import Feed
    from redpoll.blocking.received import Received

__all__ = ["Held", "warn_of"]


class Held:
    """The message that a thread or a loop pulled last and has not ended; whoever drops it abandons that.

    Attributes:
        feed: Where from.
        message: It; None if it is no longer to be ended by who pulled it.
        waiter: What wakes who waits for it.
    """

    __slots__ = ("__weakref__", "feed", "message", "waiter")

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.message: Received[Any] | None = None
        self.waiter: threading.Lock | None = None

    def release(self) -> None:
        """End the message as done."""
        message = self.message
        if message is not None:
            self.feed.release(message)
            self.message = None

    def abandon(self) -> Received[Any] | None:
        """Refuse the message, if there is one that has not ended; return it."""
        message, self.message = self.message, None
        if message is None or message.ended:
            return None
        message._refuse(Abandoned.code, "its consumer left without ending it")
        return message

    def __del__(self) -> None:
        try:
            left = self.abandon()
        except ValueError:  # in a child of the process
            return
        if left is not None:
            warn_of(left)


def warn_of(message: Received[Any]) -> None:
    """Say that a message was abandoned."""
    warnings.warn(
        f"{message!r} was refused as Abandoned: whoever pulled it left without ending it; release or refuse it before",
        RuntimeWarning,
        stacklevel=3,
    )
