"""A queue from the event loop to threads that loses no item if Ctrl-C interrupts a thread at any moment."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from typing import Generic, TypeVar

from redpoll.blocking.futures import LOOK, time_left
from redpoll.errors import Closed
from redpoll.locks import new_lock

__all__ = ["Slot", "ThreadQueue"]

ItemT = TypeVar("ItemT")


class Slot(Generic[ItemT]):
    """Holds the item that a thread takes from a queue.

    Attributes:
        item: The item; None if there is none.
        seen: Whether it was returned to the thread; Ctrl-C may have prevented that.
        waiter: The lock whose release wakes the thread.
    """

    __slots__ = ("__weakref__", "item", "seen", "waiter")

    def __init__(self) -> None:
        self.item: ItemT | None = None
        self.seen = False
        self.waiter: threading.Lock | None = None


class ThreadQueue(Generic[ItemT]):
    """Items in order, added by the loop, taken by threads one by one.

    The loop is asked for items when a thread waits and none is ready. A thread that is interrupted while it waits has taken
    nothing. A subclass defines how to ask the loop, and may drop items instead of handing them out.

    Args:
        name: Its owner, for errors.
    """

    def __init__(self, name: str) -> None:
        self._lock = new_lock()
        # Guarded by the lock
        self._ready: deque[ItemT] = deque()
        #: Waiting threads in order: the lock that wakes each, and whether it was woken.
        self._waiting: dict[threading.Lock, bool] = {}
        self._asked = False
        self._closed = False
        self._taken = 0
        self._name = name

    # For subclasses

    def _check(self) -> None:
        """Raise if waiting on this thread could never end. Called by threads."""
        raise NotImplementedError

    def _ask(self) -> None:
        """Make the loop check `_wanted` soon. Called by threads, also when one stops waiting."""
        raise NotImplementedError

    def _is_fit(self, item: ItemT) -> bool:  # noqa: ARG002
        """Return True to hand an item out; end the item otherwise. Called by the thread that took it."""
        return True

    def _came_back(self, item: ItemT) -> None:
        """React to an item that was put back, or that could not be since the queue is closed. Called with the lock."""

    # For threads

    def take(self, slot: Slot[ItemT], deadline: float | None = None, *, waits: bool = True) -> ItemT | None:
        """Take the next item, or the one that the slot still holds from an interrupted call.

        Args:
            slot: Receives the item, in one step.
            deadline: On the clock of `time.monotonic`; None is no limit.
            waits: Whether to wait for an item.

        Returns:
            The item; None if there was none in time.

        Raises:
            Closed: The queue is closed and empty.
        """
        ready = self._ready
        try:
            while True:
                with self._lock:
                    item = slot.item
                    if item is None and ready:
                        # No call in between: a signal handler cannot run within this step.
                        item = ready[0]
                        del ready[0]
                        slot.item = item
                        slot.seen = False
                        self._taken += 1
                if item is None:
                    if not waits or not self._wait(slot, deadline):
                        return None
                elif self._is_fit(item):
                    return item
                else:
                    slot.item = None
        except BaseException:
            self.put_back(slot)
            raise

    def _wait(self, slot: Slot[ItemT], deadline: float | None) -> bool:
        """Ask the loop for items and wait; return False if the deadline has passed."""
        self._check()
        # Not a Condition: an interruption inside its `wait` can leave its lock released, or held forever.
        waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            if slot.waiter is not None:  # of an interrupted call
                self._waiting.pop(slot.waiter, None)
            slot.waiter = waiter
            if self._ready:
                return True
            if self._closed:
                raise Closed(self._name)
            left = time_left(deadline)
            if left <= 0:
                self._lose_interest()
                return False
            self._waiting[waiter] = False
            if not self._asked:
                # In this order: an interruption in between means asking twice, not never.
                self._ask()
                self._asked = True
        waiter.acquire(timeout=min(left, LOOK))
        with self._lock:
            self._waiting.pop(waiter, None)
        return True

    def _wake(self, count: int) -> None:
        """Wake a number of waiting threads. Called with the lock."""
        for waiter, woken in self._waiting.items():
            if not count:
                return
            if not woken:
                self._waiting[waiter] = True
                waiter.release()
                count -= 1

    def _lose_interest(self) -> None:
        if self._asked and not self._waiting:
            self._ask()

    def put_back(self, slot: Slot[ItemT]) -> None:
        """Put an undelivered item back as the next one, and wake another thread for it."""
        with self._lock:
            if slot.waiter is not None:
                self._waiting.pop(slot.waiter, None)
            item, slot.item = slot.item, None
            if item is not None:
                if not self._closed:
                    self._ready.appendleft(item)
                self._came_back(item)
            if self._ready:
                self._wake(1)
            self._lose_interest()

    # For the loop

    @property
    def _wanted(self) -> bool:
        """True if more threads wait than items are ready. Otherwise the next waiting thread asks again."""
        with self._lock:
            self._asked = len(self._waiting) > len(self._ready)
            return self._asked

    def _give(self, items: Collection[ItemT]) -> None:
        """Add items."""
        with self._lock:
            self._ready.extend(items)
            self._wake(len(items))

    def _end(self) -> None:
        """Close: waiting threads get the remaining items, then `Closed`."""
        with self._lock:
            self._closed = True
            self._wake(len(self._waiting))
