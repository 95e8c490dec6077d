"""Received messages for threads: the loop takes them in bursts, threads pull them one by one."""

from __future__ import annotations

import asyncio
import time
import warnings
import weakref
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from typing import Any

from redpoll.blocking.handover import Handover
from redpoll.blocking.received import ReceivedMessage
from redpoll.blocking.thread_queue import Slot, ThreadQueue
from redpoll.errors import Abandoned, Closed, Withdrawn
from redpoll.node.completion import Completion
from redpoll.node.pulling import Consumers

__all__ = ["BURST", "GIVE_BACK", "Feed", "Held", "warn_of"]

#: Maximum messages per burst, as far as slots allow. Larger bursts save wake-ups; smaller ones let the sender proceed
#: earlier.
BURST = 32

#: Seconds after which messages that no thread has pulled return to the inbox.
GIVE_BACK = 0.05

#: Parts of the frame of a message without a deadline.
_TIMELESS = 6


class Held(Slot[ReceivedMessage[Any]]):
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

    def abandon(self) -> ReceivedMessage[Any] | None:
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


def warn_of(message: ReceivedMessage[Any]) -> None:
    """Warn that a message was abandoned."""
    warnings.warn(
        f"{message!r} was refused as Abandoned: its consumer dropped it without ending it: release or refuse it first",
        RuntimeWarning,
        stacklevel=3,
    )


class Feed(ThreadQueue[ReceivedMessage[Any]]):
    """Hands the messages of one node to threads.

    When a thread waits and no message is ready, the loop takes as many as slots allow. Until a thread pulls a message, its
    sender can withdraw it, it can expire, and it returns to the inbox if no thread pulls it. A thread that is interrupted
    while it waits has taken nothing.
    """

    def __init__(self) -> None:
        super().__init__("node")
        #: Messages to release; needs no lock.
        self._released: deque[ReceivedMessage[Any]] = deque()
        self._releasing = False
        self._holders: weakref.WeakSet[Held] = weakref.WeakSet()
        # Used by the loop alone
        self._consumers: Consumers
        self._completion: Completion
        self._handover: Handover
        self._decode: Callable[[Any], Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._taken_before = 0
        #: Messages that were refused because the node stopped while a consumer held them.
        self.abandoned: list[ReceivedMessage[Any]] = []

    # For threads

    def hold(self) -> Held:
        """Return a holder for pulled messages; its message is abandoned if the node stops."""
        held = Held(self)
        with self._lock:
            self._holders.add(held)
        return held

    def pull(self, held: Held, timeout: float | None) -> Any:
        """Wait for a message that has a slot, and decode it.

        Args:
            held: The holder that receives it.
            timeout: Seconds; None is no limit.

        Returns:
            The message; None on timeout.

        Raises:
            Closed: The node stopped.
        """
        if self._handover.forked:
            self._handover.check()
        if timeout is None:
            return self.take(held)
        if timeout > 0:
            return self.take(held, time.monotonic() + timeout)
        return self.pull_nowait(held)

    def pull_nowait(self, held: Held) -> Any:
        """Pull a message without waiting for one to arrive."""
        if self._handover.forked:
            self._handover.check()
        message = self.take(held, waits=False)
        if message is None:
            if self._closed:
                raise Closed("node")
            self._handover.run(self._take)
            message = self.take(held, waits=False)
        return message

    def release(self, message: ReceivedMessage[Any]) -> None:
        """Release a message, together with others of the same burst."""
        if message.ended:
            return
        if self._handover.forked:
            self._handover.check()
        try:
            self._released.append(message)
            message._ending = True
            if not self._releasing:
                self._releasing = True
                self._handover.post(self._release_all)
        except BaseException:
            # Ctrl-C, perhaps before the post. Nothing can interrupt between here and this one call.
            start_new_thread(self._handover.post, (self._release_all,))
            raise

    def claim(self) -> None:
        """Note that a loop over the node began: until `unclaim`, no waiting message is refused as unclaimed."""
        self._handover.post(self._count_iterator)

    def unclaim(self) -> None:
        """Note that a loop over the node ended."""
        self._handover.post(self._consumers.iterator_ended)

    def _count_iterator(self) -> None:
        self._consumers.iterators += 1

    def _check(self) -> None:
        self._handover.check_blocking()

    def _ask(self) -> None:
        self._handover.post(self._want)

    def _came_back(self, item: ReceivedMessage[Any]) -> None:
        if self._closed:
            item._refuse(Abandoned.code, "its consumer was interrupted")
        else:
            self._handover.post(self._watch)

    def _is_fit(self, message: ReceivedMessage[Any]) -> bool:
        """Return True if a message's deadline has not passed and the serializer can decode it; refuse it otherwise."""
        if message.ended:  # meanwhile; a thread that was interrupted pulled it before
            return False
        decode = self._decode
        if decode is None and len(message.frame) <= _TIMELESS:
            return True
        deadline = message.deadline
        if deadline is not None and deadline <= time.monotonic():
            message._refuse(Withdrawn.code, "its deadline passed before it began")
            return False
        if decode is None or hasattr(message, "_read"):
            return True
        try:
            data = decode(message.data)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001  # a serializer may raise anything
            self._handover.post(self._completion.unreadable, (message, error))
            return False
        message._take_decoded(data)
        return True

    # For the loop

    def open(
        self, consumers: Consumers, completion: Completion, handover: Handover, decode: Callable[[Any], Any] | None
    ) -> None:
        """Connect to the started node.

        Args:
            consumers: The source of messages.
            completion: Ends messages.
            handover: The way to the loop.
            decode: Decodes payloads; None leaves them as bytes.
        """
        self._consumers = consumers
        self._completion = completion
        self._handover = handover
        self._decode = decode
        consumers.serve(self)

    def _want(self) -> None:
        """Take messages for waiting threads, or wait for messages; stop if no thread waits any more."""
        consumers = self._consumers
        while self._wanted:
            if not self._take():
                consumers.claim(self)
                return
        consumers.unclaim(self)

    def _take(self) -> bool:
        """Take a burst of messages; return False if none is available."""
        batch: list[Any] = self._consumers.take_batch_nowait(BURST)
        if not batch:
            return False
        self._give(batch)
        self._watch()
        return True

    def _watch(self) -> None:
        """Start the timer that returns unpulled messages to the inbox."""
        if self._timer is None and not self._closed:
            self._timer = self._handover.loop.call_later(GIVE_BACK, self._give_back)

    def done(self) -> bool:
        """Return True if no thread waits for a message."""
        return not self._asked

    def set_result(self, result: None, /) -> None:  # noqa: ARG002  # the signature of futures
        """React to an arrival."""
        self._want()

    def _give_back(self) -> None:
        """Return messages to the inbox that no thread has pulled since the last call."""
        self._timer = None
        messages: list[ReceivedMessage[Any]] = []
        with self._lock:
            if self._ready and self._taken == self._taken_before:
                messages = list(self._ready)
                self._ready.clear()
            self._taken_before = self._taken
            more = bool(self._ready)
        if messages:
            self._consumers.put_back(messages)
        elif more:
            self._watch()

    def _release_all(self) -> None:
        """Release the messages that threads are done with, one call per run of messages of one link."""
        self._releasing = False
        released = self._released
        batch: list[Any] = []
        while released:
            message = released.popleft()
            if batch and batch[0].link is not message.link:
                self._completion.release_many(batch)
                batch = []
            batch.append(message)
        if batch:
            self._completion.release_many(batch)

    def take_back(self, message: ReceivedMessage[Any]) -> bool:
        """Refuse a message that its sender withdrew; return False if a thread has pulled it."""
        with self._lock:
            if message not in self._ready:
                return False
            self._ready.remove(message)
        self._completion.refuse(message, Withdrawn.code, "withdrawn by its sender before it was begun")
        return True

    def close(self) -> None:
        """Close with the node: unpulled messages return to the inbox, to be refused; held ones are abandoned."""
        with self._lock:
            self._end()
            messages = list(self._ready)
            self._ready.clear()
            holders = list(self._holders)
        self._consumers.unclaim(self)
        if self._timer is not None:
            self._timer.cancel()
        if messages:
            self._consumers.put_back(messages)
        for held in holders:
            message, held.item = held.item, None
            if message is not None and not message.ended:
                self._completion.refuse(message, Abandoned.code, "the node stopped before its consumer ended it")
                self.abandoned.append(message)
