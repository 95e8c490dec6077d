"""Pulling by a `for` loop and by a `with` block, which end their messages themselves."""

from __future__ import annotations

from _thread import start_new_thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from redpoll.blocking.base import DataT, Received, hand_out
from redpoll.errors import Closed

if TYPE_CHECKING:
    from redpoll.blocking.feed import Feed

__all__ = ["Messages", "Take"]


class Messages(Generic[DataT]):
    """One `for` loop over a node: each message is released when the next is requested."""

    __slots__ = ("_counted", "_feed", "_held", "_mode")

    def __init__(self, feed: Feed, mode: bool | str) -> None:
        self._feed = feed
        self._mode = mode
        self._counted = False
        self._held = feed.hold()
        feed.claim()
        self._counted = True

    def __iter__(self) -> Messages[DataT]:
        return self

    def __next__(self) -> Received[DataT]:
        """Release the former message and wait for the next; end when the node stops."""
        held = self._held
        held.release()
        try:
            message: Received[DataT] | None = self._feed.pull(held, None)
        except Closed:
            self._uncount()
            raise StopIteration from None
        if message is None:
            raise StopIteration
        if self._mode is not True:
            message = hand_out(message, self._mode)
            held.item = None
        held.seen = True
        return message

    def _uncount(self) -> None:
        if self._counted:
            self._counted = False
            self._feed.unclaim()

    def __del__(self) -> None:
        try:
            self._uncount()
        except ValueError:  # in a child of the process
            pass


class Take(Generic[DataT]):
    """The block of `QueueNode.take`."""

    __slots__ = ("_feed", "_held", "_mode", "_timeout")

    def __init__(self, feed: Feed, mode: bool | str, timeout: float | None) -> None:
        self._feed = feed
        self._mode = mode
        self._timeout = timeout
        self._held = feed.hold()

    def __enter__(self) -> Received[DataT]:
        try:
            message: Received[DataT] | None = self._feed.pull(self._held, self._timeout)
        except BaseException:
            if self._held.item is not None:
                # Ctrl-C, twice. No third one can interrupt before this one call.
                start_new_thread(self._feed.put_back, (self._held,))
            raise
        if message is None:
            raise TimeoutError(f"no message arrived within {self._timeout:g} s")
        if self._mode is not True:
            message = hand_out(message, self._mode)
            self._held.item = None
        return message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        message: Any = self._held.item
        if message is not None:
            message.__exit__(kind, error, traceback)
        self._held.item = None
