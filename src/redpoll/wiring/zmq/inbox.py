"""Messages on their way to threads: taken on the loop in bursts, received by threads one by one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NoReturn

from redpoll.errors import Closed

__all__ = ["LOOK", "Inbox"]

#: Seconds after which a thread that waits looks for Ctrl-C: one that comes just before it sleeps does not wake it.
LOOK: Final = 0.5


class Inbox:
    """What came for the threads of one object, in order.

    The loop gives a burst when a thread finds nothing; what is in it has been received as far as its sender is concerned.

    Args:
        want: Called, on any thread, when one waits and nothing is there: the loop is to `give`, when it can.
        check: Called before a thread waits; raises where that is not allowed.

    Attributes:
        pop: Takes the first one, as ``for item in pop``; raises `IndexError` when there is none. An interruption (Ctrl-C)
            comes in where something is called, and a step of a loop calls nothing: it takes one whole or not at all.
        name: Whose it is, for errors.
    """

    def __init__(self, want: Callable[[], None], check: Callable[[], None], name: str) -> None:
        self._want = want
        self._check = check
        self.name = name
        self._ready: deque[Any] = deque()
        self.pop: Iterator[Any] = iter(self._ready.popleft, object())
        # Reentrant: a signal's handler may run while its thread is in here.
        self._lock = threading.RLock()
        #: Threads that wait, by the lock that wakes each, and whether it was; in order.
        self._waiting: dict[threading.Lock, bool] = {}
        self._asked = False
        self._closed = False

    # For threads

    def wait(self, timeout: float | None) -> Any:
        """Wait for one.

        Args:
            timeout: Seconds; None is no limit, 0 is for what the loop has.

        Raises:
            TimeoutError: None came in time.
            Closed: Nothing is left, and nothing more comes.

        One who is interrupted has taken nothing.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        waiter: threading.Lock | None = None
        try:
            while True:
                try:
                    # What is taken here is returned with nothing called in between, not even to clean up.
                    for item in self.pop:
                        return item
                except IndexError:
                    pass
                self._check()
                waiter = threading.Lock()
                waiter.acquire()
                self._enter(waiter)
                if not self._woken(waiter, deadline):
                    self._late(timeout)
        except BaseException:
            if waiter is not None:
                self._leave(waiter)
            raise

    def _enter(self, waiter: threading.Lock) -> None:
        """Be one of those who are woken, and have the loop asked."""
        with self._lock:
            if self._ready:
                waiter.release()
                return
            if self._closed:
                raise Closed(self.name)
            self._waiting[waiter] = False
            if not self._asked:
                # In this order: interrupted in between, it is asked twice, and not never.
                self._want()
                self._asked = True

    def _woken(self, waiter: threading.Lock, deadline: float | None) -> bool:
        """Wait; False if the time is over and nothing is there."""
        woken = False
        left = LOOK
        while not woken and left > 0:
            if deadline is not None:
                left = min(LOOK, max(0.0, deadline - time.monotonic()))
            woken = waiter.acquire(timeout=left)
        with self._lock:
            self._waiting.pop(waiter, None)
            return woken or bool(self._ready)

    def _late(self, timeout: float | None) -> NoReturn:
        raise TimeoutError(f"no message came within {timeout:g} s")

    def _leave(self, waiter: threading.Lock) -> None:
        """One goes, and may have been woken for what it does not take: another is."""
        with self._lock:
            self._waiting.pop(waiter, None)
            if self._ready:
                self._wake(1)

    def _wake(self, count: int) -> None:
        """Wake so many of those that wait; the lock is held."""
        for waiter, woken in self._waiting.items():
            if not count:
                return
            if not woken:
                self._waiting[waiter] = True
                waiter.release()
                count -= 1

    def inherit(self) -> None:
        """This is a child of the process: nothing comes here."""
        self._lock = threading.RLock()
        self._waiting.clear()
        self._ready.clear()

    # For the loop

    @property
    def wanted(self) -> bool:
        """Whether more threads wait than there is for. If not, the next one that waits asks again."""
        with self._lock:
            self._asked = len(self._waiting) > len(self._ready)
            return self._asked

    def give(self, items: Collection[Any]) -> None:
        """These came. The loop is to see afterwards whether more are `wanted`."""
        # At once, so that no thread sees one and asks for more.
        self._ready.extend(items)
        with self._lock:
            self._wake(len(items))

    def close(self) -> None:
        """Nothing more comes: those that wait are told."""
        with self._lock:
            self._closed = True
            self._wake(len(self._waiting))
