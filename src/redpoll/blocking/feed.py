"""Messages on their way to threads: taken on the loop in bursts, pulled by threads one by one."""

from __future__ import annotations

import asyncio
import time
import weakref
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from typing import Any

from redpoll.blocking.handover import Handover
from redpoll.blocking.held import Held
from redpoll.blocking.received import Received
from redpoll.blocking.thread_queue import ThreadQueue
from redpoll.errors import Abandoned, Closed, Withdrawn
from redpoll.node.completion import Completion
from redpoll.node.pulling import Consumers

__all__ = ["BURST", "GIVE_BACK", "Feed"]

#: Messages that are taken at a time, at most, as slots allow: enough for a wake-up to cost little, and few enough that the
#: first are acknowledged, and their sender goes on, while the next are handled.
BURST = 32

#: Seconds after which messages that were taken and that no thread came for go back to wait where others do.
GIVE_BACK = 0.05

#: Parts of the frame of a message without a deadline.
_TIMELESS = 6


class Feed(ThreadQueue[Received[Any]]):
    """Gives the messages of one node to threads.

    The loop takes as many as slots allow when a thread asks and none is ready; what no thread has pulled is still the
    library's: it can be withdrawn, expires, and goes back to the inbox when nobody comes. A thread that is interrupted
    while it waits has taken nothing.
    """

    def __init__(self) -> None:
        super().__init__("node")
        #: Those to be released, which need no lock.
        self._released: deque[Received[Any]] = deque()
        self._releasing = False
        self._holders: weakref.WeakSet[Held] = weakref.WeakSet()
        # What belongs to the loop
        self._consumers: Consumers
        self._completion: Completion
        self._handover: Handover
        self._decode: Callable[[Any], Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._taken_before = 0
        #: Messages that were refused because the node stopped while somebody held them.
        self.abandoned: list[Received[Any]] = []

    # For threads

    def hold(self) -> Held:
        """Where a thread or a loop keeps what it pulled; if the node stops before, it is abandoned."""
        held = Held(self)
        with self._lock:
            self._holders.add(held)
        return held

    def pull(self, held: Held, timeout: float | None) -> Received[Any] | None:
        """Wait for a message, in a slot, and decoded.

        Args:
            held: Where it is put.
            timeout: Seconds; None is no limit.

        Returns:
            The message; None if none came in time.

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

    def pull_nowait(self, held: Held) -> Received[Any] | None:
        """As `pull`, for a message that is there; the loop is asked for it."""
        if self._handover.forked:
            self._handover.check()
        message = self.take(held, waits=False)
        if message is None:
            if self._closed:
                raise Closed("node")
            self._handover.run(self._take)
            message = self.take(held, waits=False)
        return message

    def release(self, message: Received[Any]) -> None:
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
            # Ctrl-C, maybe before it was posted. Nothing comes in between before this one call.
            start_new_thread(self._handover.post, (self._release_all,))
            raise

    def claim(self) -> None:
        """A loop over the node begins: until `unclaim` nothing that waits is refused for want of a consumer."""
        self._handover.post(self._count_iterator)

    def unclaim(self) -> None:
        """A loop over the node ended."""
        self._handover.post(self._consumers.iterator_ended)

    def _count_iterator(self) -> None:
        self._consumers.iterators += 1

    def _check(self) -> None:
        self._handover.check_blocking()

    def _ask(self) -> None:
        self._handover.post(self._want)

    def _came_back(self, item: Received[Any]) -> None:
        if self._closed:
            item._refuse(Abandoned.code, "its consumer was interrupted")
        else:
            self._handover.post(self._watch)

    def _is_fit(self, message: Received[Any]) -> bool:
        """Whether a message is to be handled: its deadline has not passed, and the serializer can read it."""
        if message.ended:  # meanwhile; it was pulled before, by who was interrupted
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
        except Exception as error:  # noqa: BLE001  # a serializer may be anybody's
            self._handover.post(self._completion.unreadable, (message, error))
            return False
        message._take_decoded(data)
        return True

    # For the loop

    def open(
        self, consumers: Consumers, completion: Completion, handover: Handover, decode: Callable[[Any], Any] | None
    ) -> None:
        """The node was started.

        Args:
            consumers: Where messages are taken from.
            completion: Ends them.
            handover: Leads to the loop.
            decode: Makes a payload of bytes; None leaves them.
        """
        self._consumers = consumers
        self._completion = completion
        self._handover = handover
        self._decode = decode
        consumers.serve(self)

    def _want(self) -> None:
        """Threads wait, or have stopped to: take what is there, or wait for it."""
        consumers = self._consumers
        while self._wanted:
            if not self._take():
                consumers.claim(self)
                return
        consumers.unclaim(self)

    def _take(self) -> bool:
        """Take what is there; False if nothing is."""
        batch: list[Any] = self._consumers.take_batch_nowait(BURST)
        if not batch:
            return False
        self._give(batch)
        self._watch()
        return True

    def _watch(self) -> None:
        """See to it that nothing stays here for long."""
        if self._timer is None and not self._closed:
            self._timer = self._handover.loop.call_later(GIVE_BACK, self._give_back)

    def done(self) -> bool:
        """Whether no thread waits that has nothing to come for."""
        return not self._asked

    def set_result(self, result: None, /) -> None:  # noqa: ARG002  # as futures have it
        """Something may be there."""
        self._want()

    def _give_back(self) -> None:
        """Let wait where others do what no thread came for since the last time."""
        self._timer = None
        messages: list[Received[Any]] = []
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
        """Release what threads are done with, the messages of one link in one go."""
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

    def take_back(self, message: Received[Any]) -> bool:
        """Refuse a message that its sender withdrew, if no thread has it yet."""
        with self._lock:
            if message not in self._ready:
                return False
            self._ready.remove(message)
        self._completion.refuse(message, Withdrawn.code, "withdrawn by its sender before it was begun")
        return True

    def close(self) -> None:
        """The node closes: what no thread has waits again, to be refused; what one holds is abandoned."""
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
