"""Messages on their way to threads: taken on the loop in bursts, pulled by threads one by one."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from redpoll.blocking.handover import Handover
from redpoll.blocking.held import Held
from redpoll.blocking.received import Received
from redpoll.errors import Abandoned, Closed, Withdrawn
from redpoll.node.ends import Ends
from redpoll.node.pulling import Consumers

__all__ = ["BURST", "GIVE_BACK", "Feed"]

#: Messages that are taken at a time, at most, as slots allow: enough for a wake-up to cost little, and few enough that the
#: first are acknowledged, and their sender goes on, while the next are handled.
BURST = 32

#: Seconds after which messages that were taken and that no thread came for go back to wait where others do.
GIVE_BACK = 0.05

#: Parts of the frame of a message without a deadline.
_TIMELESS = 6


class Feed:
    """Gives the messages of one node to threads.

    The loop takes as many as slots allow when a thread asks and none is ready; what no thread has pulled is still the
    library's: it can be withdrawn, expires, and goes back to the inbox when nobody comes. A thread that is interrupted
    while it waits has taken nothing.
    """

    def __init__(self) -> None:
        # Reentrant: a signal's handler may run while its thread is in here.
        self._lock = threading.RLock()
        # What it guards
        self._ready: deque[Received[Any]] = deque()
        #: Threads that wait, by the lock that wakes each, and whether it was; in order.
        self._waiting: dict[threading.Lock, bool] = {}
        self._asked = False
        self._closed = False
        self._pulled = 0
        #: Those to be released, which need no lock.
        self._released: deque[Received[Any]] = deque()
        self._releasing = False
        self._holders: weakref.WeakSet[Held] = weakref.WeakSet()
        # What belongs to the loop
        self._consumers: Consumers
        self._ends: Ends
        self._handover: Handover
        self._decode: Callable[[Any], Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pulled_before = 0
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
        if timeout is None:
            return self._pull(held, None, True)
        if timeout > 0:
            return self._pull(held, time.monotonic() + timeout, True)
        return self.pull_nowait(held)

    def pull_nowait(self, held: Held) -> Received[Any] | None:
        """As `pull`, for a message that is there; the loop is asked for it."""
        message = self._pull(held, None, False)
        if message is None:
            if self._closed:
                raise Closed("node")
            self._handover.run(self._take)
            message = self._pull(held, None, False)
        return message

    def release(self, message: Received[Any]) -> None:
        """Release a message, together with others of the same burst."""
        if message.ended:
            return
        try:
            self._released.append(message)
            message._ending = True
            if not self._releasing:
                self._releasing = True
                self._handover.post(self._release_all)
        except BaseException:  # Ctrl-C, maybe before it was posted
            self._handover.post(self._release_all)
            raise

    def claim(self) -> None:
        """A loop over the node begins: until `unclaim` nothing that waits is refused for want of a consumer."""
        self._handover.post(self._count_iterator)

    def unclaim(self) -> None:
        """A loop over the node ended."""
        self._handover.post(self._consumers.iterator_ended)

    def _count_iterator(self) -> None:
        self._consumers.iterators += 1

    def _pull(self, held: Held, deadline: float | None, waits: bool) -> Received[Any] | None:
        if self._handover.forked:
            self._handover.check()
        ready = self._ready
        plain = self._decode is None
        try:
            while True:
                with self._lock:
                    if ready:
                        # One step for a signal's handler: nothing here is a call.
                        message = ready[0]
                        del ready[0]
                        held.message = message
                        self._pulled += 1
                    else:
                        message = None
                if message is None:
                    if not waits or not self._wait(held, deadline):
                        return None
                elif (plain and len(message.frame) <= _TIMELESS) or self._is_fit(message):
                    return message
                else:
                    held.message = None
        except BaseException:
            self._interrupted(held)
            raise

    def _wait(self, held: Held, deadline: float | None) -> bool:
        """Have the loop told that somebody waits, and wait; False if the time is over."""
        self._handover.check_blocking()
        # Not a Condition: an interruption inside of its `wait` can leave it without its lock, or hold that for ever.
        waiter = held.waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            if self._ready:
                return True
            if self._closed:
                raise Closed("node")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                self._lose_interest()
                return False
            self._waiting[waiter] = False
            if not self._asked:
                # In this order: interrupted in between, it is asked twice, and not never.
                self._handover.post(self._want)
                self._asked = True
        waiter.acquire(timeout=-1 if left is None else left)
        with self._lock:
            self._waiting.pop(waiter, None)
        return True

    def _wake(self, count: int) -> None:
        """Wake so many of those that wait; the lock is held."""
        for waiter, woken in self._waiting.items():
            if not count:
                return
            if not woken:
                self._waiting[waiter] = True
                waiter.release()
                count -= 1

    def _lose_interest(self) -> None:
        if self._asked and not self._waiting:
            self._handover.post(self._want)

    def _interrupted(self, held: Held) -> None:
        """What was pulled was not seen: let it be the next; another may have to be woken in this one's place."""
        with self._lock:
            if held.waiter is not None:
                self._waiting.pop(held.waiter, None)
            message, held.message = held.message, None
            if message is not None and not self._closed:
                self._ready.appendleft(message)
                self._handover.post(self._watch)
            elif message is not None:
                message._refuse(Abandoned.code, "its consumer was interrupted")
            if self._ready:
                self._wake(1)
            self._lose_interest()

    def _is_fit(self, message: Received[Any]) -> bool:
        """Whether a message is to be handled: its deadline has not passed, and the serializer can read it."""
        deadline = message.deadline
        if deadline is not None and deadline <= time.monotonic():
            message._refuse(Withdrawn.code, "its deadline passed before it was begun")
            return False
        decode = self._decode
        if decode is None or hasattr(message, "_read"):
            return True
        try:
            data = decode(message.data)
        except Exception as error:  # noqa: BLE001  # a serializer may be anybody's
            self._handover.post(self._ends.unreadable, (message, error))
            return False
        message._take_decoded(data)
        return True

    # For the loop

    def open(self, consumers: Consumers, ends: Ends, handover: Handover, decode: Callable[[Any], Any] | None) -> None:
        """The node was started.

        Args:
            consumers: Where messages are taken from.
            ends: Ends them.
            handover: Leads to the loop.
            decode: Makes a payload of bytes; None leaves them.
        """
        self._consumers = consumers
        self._ends = ends
        self._handover = handover
        self._decode = decode
        consumers.serve(self)

    def _want(self) -> None:
        """Threads wait, or have stopped to: take what is there, or wait for it."""
        consumers = self._consumers
        while True:
            with self._lock:
                lacking = len(self._waiting) > len(self._ready)
                if not lacking:
                    self._asked = False
            if not lacking:
                consumers.unclaim(self)
                return
            if not self._take():
                consumers.claim(self)
                return

    def _take(self) -> bool:
        """Take what is there; False if nothing is."""
        batch: list[Any] = self._consumers.take_batch_nowait(BURST)
        if not batch:
            return False
        with self._lock:
            self._ready.extend(batch)
            self._wake(len(batch))
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
            if self._ready and self._pulled == self._pulled_before:
                messages = list(self._ready)
                self._ready.clear()
            self._pulled_before = self._pulled
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
                self._ends.release_many(batch)
                batch = []
            batch.append(message)
        if batch:
            self._ends.release_many(batch)

    def take_back(self, message: Received[Any]) -> bool:
        """Refuse a message that its sender withdrew, if no thread has it yet."""
        with self._lock:
            if message not in self._ready:
                return False
            self._ready.remove(message)
        self._ends.refuse(message, Withdrawn.code, "withdrawn by its sender before it was begun")
        return True

    def close(self) -> None:
        """The node closes: what no thread has waits again, to be refused; what one holds is abandoned."""
        with self._lock:
            self._closed = True
            messages = list(self._ready)
            self._ready.clear()
            holders = list(self._holders)
            self._wake(len(self._waiting))
        self._consumers.unclaim(self)
        if self._timer is not None:
            self._timer.cancel()
        if messages:
            self._consumers.put_back(messages)
        for held in holders:
            message, held.message = held.message, None
            if message is not None and not message.ended:
                self._ends.refuse(message, Abandoned.code, "the node stopped before its consumer ended it")
                self.abandoned.append(message)
