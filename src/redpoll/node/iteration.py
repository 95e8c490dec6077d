"""Async iterators over a node, by message or by batch; each step ends what the step before returned."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from redpoll.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redpoll.node.pulling import Consumers

__all__ = ["Batches", "Messages"]

MessageT = TypeVar("MessageT")


class _Iteration(Generic[MessageT]):
    """One `async for` over a node: while it is alive, a consumer claims what arrives, also between two steps.

    Args:
        consumers: Where it takes messages from.
        auto_release: As in the Config.
        hand_out: Wraps a message that its consumer has to end.
        limit: Maximum messages of a step.
    """

    __slots__ = ("_completion", "_consumers", "_counted", "_hand_out", "_held", "_limit", "_releasing")

    def __init__(
        self, consumers: Consumers, auto_release: bool | str, hand_out: Callable[[Any], MessageT], limit: int = 1
    ) -> None:
        self._hand_out = hand_out
        self._consumers = consumers
        self._completion = consumers.completion
        self._releasing = auto_release
        self._limit = limit
        #: The message, or the messages, of the last step, which the next step releases.
        self._held: Any = None
        self._counted = True
        consumers.iterators += 1

    def __aiter__(self) -> Self:
        return self

    async def _wait(self, taking: Awaitable[Any]) -> Any:
        """Wait for the next step; end the iteration if the node stopped."""
        try:
            return await taking
        except Closed:
            if self._counted:
                self._counted = False
                self._consumers.iterator_ended()
            raise StopAsyncIteration from None

    def __del__(self) -> None:
        held = self._held or []
        left = [message for message in (held if isinstance(held, list) else [held]) if not message.phase]
        # Before the warning, which may be turned into an exception that ends this method.
        for message in left:
            message._abandon("its consumer left the loop without ending it")
        if self._counted:
            self._consumers.iterator_dropped()
        if left:
            what = f"its last message ended; {left[0]!r} was"
            if len(left) > 1:
                what = f"{len(left)} messages of its last batch ended; they were"
            warnings.warn(
                f"a loop over a node was left before {what} refused as Abandoned: release or refuse before the break",
                RuntimeWarning,
                stacklevel=2,
            )


class Messages(_Iteration[MessageT]):
    """One `async for` over a node: each message is released when the next one is requested."""

    __slots__ = ()

    async def __anext__(self) -> MessageT:
        """Release the previous message, and wait for the next.

        Raises:
            StopAsyncIteration: The node stopped.
        """
        last = self._held
        message: Any = None
        consumers = self._consumers
        if last is not None and not last.phase:
            link = last.link
            inbox = link.peer.slots.inbox
            frame = last.frame
            if inbox and not (inbox.irregular or frame[4] or len(consumers.ready) > 1) and consumers.raw:
                # Both are unacknowledged, and no other peer has its turn: the next one gets the slot.
                self._held = message = inbox.popleft()
                if not inbox:
                    consumers.ready.pop(link.peer, None)
                last.phase = 1
                link.unreleased -= 1
                if link.receive_window.ended(1, frame[2]):
                    link.credit(0, 0)
                    link.connection.wake()
                return message  # type: ignore[no-any-return]  # of the class that the node's links make
            self._completion.release(last)
            message = consumers.take_nowait()
        if message is None:
            self._held = None
            message = await self._wait(consumers.take(None))
        if self._releasing is True:
            self._held = message
        elif self._releasing == "get":
            self._completion.release(message)
        else:
            return self._hand_out(message)
        return message  # type: ignore[no-any-return]  # of the class that the node's links make


class Batches(_Iteration[MessageT]):
    """One `async for` over lists of messages: a list is released when the next one is requested."""

    __slots__ = ()

    async def __anext__(self) -> list[MessageT]:
        """Release the previous batch, and wait for the waiting messages of one peer, at least one.

        Raises:
            StopAsyncIteration: The node stopped.
        """
        last, self._held = self._held, None
        if last:
            self._completion.release_many(last)
        batch: list[Any] = await self._wait(self._consumers.take_batch(self._limit))
        if self._releasing is True:
            # A copy is the consumer's, which may empty it.
            self._held = batch
            return batch.copy()
        if self._releasing == "get":
            self._completion.release_many(batch)
            return batch
        return [self._hand_out(message) for message in batch]
