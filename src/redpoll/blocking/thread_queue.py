"""A queue from the event loop to threads that Ctrl-C may interrupt at any moment: nothing in it is lost by that."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from typing import Generic, TypeVar

from redpoll.blocking.futures import LOOK, time_left
from redpoll.errors import Closed

__all__ = ["Slot", "ThreadQueue"]

ItemT = TypeVar("ItemT")


class Slot(Generic[ItemT]):
    """Where a thread has what it takes from a queue.

    Attributes:
        item: It; None if there is none.
        seen: Whether it was returned to the thread, which Ctrl-C may have kept from that.
        waiter: What wakes the thread.
    """

    __slots__ = ("__weakref__", "item", "seen", "waiter")

    def __init__(self) -> None:
        self.item: ItemT | None = None
        self.seen = False
        self.waiter: threading.Lock | None = None


class ThreadQueue(Generic[ItemT]):
    """Items in order, given by the loop, taken by threads one by one.

    The loop is asked when a thread waits and nothing is there. A thread that is interrupted while it waits has taken nothing.
    A subclass says how the loop is asked, and may refuse items that nobody is to have.

    Args:
        name: Whose it is, for errors.
    """

    def __init__(self, name: str) -> None:
        # Reentrant: a signal's handler may run while its thread is in here.
        self._lock = threading.RLock()
        # What it guards
        self._ready: deque[ItemT] = deque()
        #: Threads that wait, by the lock that wakes each, and whether it was; in order.
        self._waiting: dict[threading.Lock, bool] = {}
        self._asked = False
        self._closed = False
        self._taken = 0
        self._name = name

    # For subclasses

    def _check(self) -> None:
        """Refuse to wait where that would never end. Called by threads."""
        raise NotImplementedError

    def _ask(self) -> None:
        """Have the loop look whether it is `_wanted`, soon. Called by threads, also when one stops waiting."""
        raise NotImplementedError

    def _is_fit(self, item: ItemT) -> bool:  # noqa: ARG002
        """Whether an item is to be taken: if not, this has ended it. Called by the thread that has it."""
        return True

    def _came_back(self, item: ItemT) -> None:
        """An item waits again, as the first, or cannot, since this is closed. Called with the lock."""

    # For threads

    def take(self, slot: Slot[ItemT], deadline: float | None = None, *, waits: bool = True) -> ItemT | None:
        """Take the next item, or the one that the slot has from a time when this was interrupted.

        Args:
            slot: Where it is put, in one step.
            deadline: On the clock of `time.monotonic`; None is no limit.
            waits: False takes what is there.

        Returns:
            The item; None if none came in time.

        Raises:
            Closed: Nothing is left, and nothing more comes.
        """
        ready = self._ready
        try:
            while True:
                with self._lock:
                    item = slot.item
                    if item is None and ready:
                        # One step for a signal's handler: nothing here is a call.
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
        """Have the loop told that somebody waits, and wait; False if the time is over."""
        self._check()
        # Not a Condition: an interruption inside of its `wait` can leave it without its lock, or hold that for ever.
        waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            if slot.waiter is not None:  # from a time when this was interrupted
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
                # In this order: interrupted in between, it is asked twice, and not never.
                self._ask()
                self._asked = True
        waiter.acquire(timeout=min(left, LOOK))
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
            self._ask()

    def put_back(self, slot: Slot[ItemT]) -> None:
        """Nobody saw what was taken: let it be the next; another may have to be woken in this one's place."""
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
        """Whether more threads wait than there is for. If not, the next one that waits asks again."""
        with self._lock:
            self._asked = len(self._waiting) > len(self._ready)
            return self._asked

    def _give(self, items: Collection[ItemT]) -> None:
        """These came."""
        with self._lock:
            self._ready.extend(items)
            self._wake(len(items))

    def _end(self) -> None:
        """Nothing more comes: those that wait are told, when nothing is left."""
        with self._lock:
            self._closed = True
            self._wake(len(self._waiting))
