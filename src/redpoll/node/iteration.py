"""Async iterators over a node, by message or by batch; each step ends what the step before returned."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from redpoll.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Callable

    from redpoll.node.completion import Completion
    from redpoll.node.pulling import Consumers
    from redpoll.node.received import Received

__all__ = ["Batches", "Messages"]


class _Iteration:
    """One `async for` over a node: while it is alive, a consumer claims what arrives, also between two steps."""

    __slots__ = ("_completion", "_consumers", "_counted", "_hand_out", "_releasing")

    def __init__(
        self,
        consumers: Consumers,
        completion: Completion,
        auto_release: bool | str,
        hand_out: Callable[[Any], Received[Any]],
    ) -> None:
        """Count the iteration as a consumer.

        Args:
            consumers: Where it takes messages from.
            completion: Ends them.
            auto_release: As in the Config.
            hand_out: Wraps a message that its consumer has to end.
        """
        self._hand_out = hand_out
        self._consumers = consumers
        self._completion = completion
        self._releasing = auto_release
        self._counted = True
        consumers.iterators += 1

    def _uncount(self) -> None:
        if self._counted:
            self._counted = False
            self._consumers.iterator_ended()

    def _held(self) -> list[Received[Any]]:
        """Return the messages of the last step, which the next step releases."""
        raise NotImplementedError

    def __del__(self) -> None:
        left = [message for message in self._held() if not message.phase]
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


class Messages(_Iteration):
    """One `async for` over a node: each message is released when the next one is requested."""

    __slots__ = ("_message",)

    def __init__(
        self,
        consumers: Consumers,
        completion: Completion,
        auto_release: bool | str,
        hand_out: Callable[[Any], Received[Any]],
    ) -> None:
        super().__init__(consumers, completion, auto_release, hand_out)
        self._message: Received[Any] | None = None

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> Received[Any]:
        """Release the previous message, and wait for the next.

        Raises:
            StopAsyncIteration: The node stopped.
        """
        last = self._message
        message: Received[Any] | None = None
        if last is not None:
            self._message = None
            if not last.phase:
                message = self._consumers.step(last)
        if message is None:
            try:
                message = await self._consumers.take(None)
            except Closed:
                self._uncount()
                raise StopAsyncIteration from None
        if self._releasing is True:
            self._message = message
        elif self._releasing == "get":
            self._completion.release(message)
        else:
            return self._hand_out(message)
        return message

    def _held(self) -> list[Received[Any]]:
        return [] if self._message is None else [self._message]


class Batches(_Iteration):
    """One `async for` over lists of messages: a list is released when the next one is requested."""

    __slots__ = ("_batch", "_limit")

    def __init__(
        self,
        consumers: Consumers,
        completion: Completion,
        auto_release: bool | str,
        hand_out: Callable[[Any], Received[Any]],
        limit: int,
    ) -> None:
        super().__init__(consumers, completion, auto_release, hand_out)
        self._limit = limit
        self._batch: list[Received[Any]] = []

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> list[Received[Any]]:
        """Release the previous batch, and wait for the waiting messages of one peer, at least one.

        Raises:
            StopAsyncIteration: The node stopped.
        """
        if self._batch:
            batch, self._batch = self._batch, []
            self._completion.release_many(batch)
        try:
            batch = await self._consumers.take_batch(self._limit)
        except Closed:
            self._uncount()
            raise StopAsyncIteration from None
        if self._releasing is True:
            self._batch = batch
        elif self._releasing == "get":
            self._completion.release_many(batch)
        else:
            return [self._hand_out(message) for message in batch]
        return batch

    def _held(self) -> list[Received[Any]]:
        return self._batch
