"""Messages on their way to threads: taken from queues on the loop in bursts, received by threads one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn

from redpoll.blocking.thread_queue import Slot, ThreadQueue
from redpoll.locks import new_lock

__all__ = ["Inbox"]


class Inbox(ThreadQueue[Any]):
    """Received messages for the threads of one object, in order.

    The loop hands over a burst when a thread finds no message; for their sender, the messages in it have been received.

    Args:
        want: Called, on any thread, when one waits and there is no message: the loop is to `give` when it can.
        check: Called before a thread waits; raises if waiting is not allowed.
        name: Name of the object, for errors.

    Attributes:
        pop: Takes the first message, as ``for item in pop``; raises `IndexError` if there is none. Ctrl-C interrupts at
            calls, and a step of a loop makes none: it takes a message completely or not at all.
    """

    def __init__(self, want: Callable[[], None], check: Callable[[], None], name: str) -> None:
        super().__init__(name)
        self._want = want
        self._may_wait = check
        self.pop: Iterator[Any] = iter(self._ready.popleft, object())

    # For threads

    def wait(self, timeout: float | None) -> Any:
        """Wait for a message.

        Args:
            timeout: Seconds; None is no limit, 0 does not wait.

        Raises:
            TimeoutError: No message arrived in time.
            Closed: No message is left, and none follows.

        An interrupted call has taken no message.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        slot: Slot[Any] = Slot()
        try:
            while True:
                try:
                    # Not by `take`, which locks; and returned with no call in between, not even to clean up.
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
        """Do nothing: the loop hands later messages to threads that wait then."""

    def inherit(self) -> None:
        """Empty it in a forked child."""
        self._lock = new_lock()
        self._waiting.clear()
        self._ready.clear()

    # For the loop

    @property
    def wanted(self) -> bool:
        """True if more threads wait than there are messages. If not, the next one that waits asks again."""
        return self._wanted

    def give(self, items: Collection[Any]) -> None:
        """Hand messages over. The loop checks afterwards whether more are `wanted`."""
        self._give(items)

    def close(self) -> None:
        """End: waiting threads are told once no message is left."""
        self._end()
