"""Messages on their way to threads: taken on the loop in bursts, received by threads one by one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn

from redpoll.blocking.thread_queue import Slot, ThreadQueue

__all__ = ["Inbox"]


class Inbox(ThreadQueue[Any]):
    """What came for the threads of one object, in order.

    The loop gives a burst when a thread finds nothing; what is in it has been received as far as its sender is concerned.

    Args:
        want: Called, on any thread, when one waits and nothing is there: the loop is to `give`, when it can.
        check: Called before a thread waits; raises where that is not allowed.
        name: Whose it is, for errors.

    Attributes:
        pop: Takes the first one, as ``for item in pop``; raises `IndexError` when there is none. An interruption (Ctrl-C)
            comes in where something is called, and a step of a loop calls nothing: it takes one whole or not at all.
    """

    def __init__(self, want: Callable[[], None], check: Callable[[], None], name: str) -> None:
        super().__init__(name)
        self._want = want
        self._may_wait = check
        self.pop: Iterator[Any] = iter(self._ready.popleft, object())

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
        slot: Slot[Any] = Slot()
        try:
            while True:
                try:
                    # Not by `take`, with its lock; and returned with nothing called in between, not even to clean up.
                    for item in self.pop:
                        return item
                except IndexError:
                    pass
                if not self._wait(slot, deadline):
                    self._late(timeout)
        except BaseException:
            self.put_back(slot)
            raise

    def _late(self, timeout: float | None) -> NoReturn:
        raise TimeoutError(f"no message came within {timeout:g} s")

    def _check(self) -> None:
        self._may_wait()

    def _ask(self) -> None:
        self._want()

    def _lose_interest(self) -> None:
        """Tell the loop nothing: it gives what comes next to threads that wait then."""

    def inherit(self) -> None:
        """This is a child of the process: nothing comes here."""
        self._lock = threading.RLock()
        self._waiting.clear()
        self._ready.clear()

    # For the loop

    @property
    def wanted(self) -> bool:
        """Whether more threads wait than there is for. If not, the next one that waits asks again."""
        return self._wanted

    def give(self, items: Collection[Any]) -> None:
        """These came. The loop is to see afterwards whether more are `wanted`."""
        self._give(items)

    def close(self) -> None:
        """Nothing more comes: those that wait are told when nothing is left."""
        self._end()
