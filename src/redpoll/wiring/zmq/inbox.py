"""Messages on their way to threads: taken from queues on the loop in bursts, received by threads one by one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, Final

from redpoll.blocking.thread_queue import Slot, ThreadQueue
from redpoll.errors import Closed
from redpoll.locks import new_lock
from redpoll.wiring.names import Gap
from redpoll.wiring.queue import Queue
from redpoll.wiring.receiver import alternate
from redpoll.wiring.zmq.constants import MESSAGE_DATA, MESSAGE_GAP

__all__ = ["BURST", "Inbox"]

#: Maximum messages handed to threads at a time; the queue's senders get credit for them once threads have taken them.
BURST: Final = 1024


class Inbox(ThreadQueue[Any]):
    """Received messages for the threads of one object, in order; those of several queues in turn.

    The loop hands over a burst when a thread finds no message; for their sender, the messages in it have been received.

    Args:
        ask: Called, on any thread, when one waits and there is no message: `want` is to be called on the loop.
        check: Called before a thread waits; raises if waiting is not allowed.
        name: Name of the object, for errors.
        numbered: Hand over messages with the number of their queue, and gaps; if False, bytes only.

    Attributes:
        gaps: Hand over gaps; if False, they are dropped.
        pop: Takes the first message, as ``for item in pop``; raises `IndexError` if there is none. Ctrl-C interrupts at
            calls, and a step of a loop makes none: it takes a message completely or not at all.
    """

    def __init__(
        self, ask: Callable[[], None], check: Callable[[], None], name: str, *, numbered: bool = False
    ) -> None:
        super().__init__(name)
        # Called as methods of the base.
        self._ask = ask  # type: ignore[method-assign]
        self._check = check  # type: ignore[method-assign]
        self._numbered = numbered
        self.gaps = False
        self.pop: Iterator[Any] = iter(self._ready.popleft, object())
        self._queues: dict[int, Queue] = {}
        self._turn = 0
        #: True if threads wait for messages that have not arrived; True if a call of `want` is scheduled.
        self._hungry = False
        self._soon = False

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
                    raise TimeoutError(f"no message came within {timeout:g} s")  # noqa: TRY301  # it has taken none
        except BaseException:
            self.put_back(slot)
            raise

    def _lose_interest(self) -> None:
        """Do nothing: the loop hands later messages to threads that wait then."""

    def inherit(self) -> None:
        """Empty it in a forked child."""
        self._lock = new_lock()
        self._waiting.clear()
        self._ready.clear()

    # For the loop

    def add(self, number: int, queue: Queue) -> None:
        """Add a queue, with its number."""
        self._queues[number] = queue
        queue.watch(self._arrived)

    def want(self) -> None:
        """Hand over available messages, or the next ones to arrive, while threads wait."""
        self._soon = False
        while self._wanted:
            if not self.feed():
                self._hungry = True
                return
        self._hungry = False

    def _arrived(self) -> None:
        """Note new messages, or the end of a queue."""
        if self._hungry and not self._soon:
            # Later, so that messages of the same turn are handed over together.
            self._soon = True
            asyncio.get_running_loop().call_soon(self.want)

    def feed(self) -> bool:
        """Hand over a burst of available messages; return False if there are none."""
        found = [taken for number, queue in self._queues.items() if (taken := self._take(number, queue))]
        if not found:
            return False
        if len(found) == 1:
            self._give(found[0])
        else:
            # One of each queue in turn, beginning with another queue each time.
            self._turn = (self._turn + 1) % len(found)
            self._give(alternate(found[self._turn :] + found[: self._turn]))
        return True

    def _take(self, number: int, queue: Queue) -> list[Any]:
        while True:
            try:
                taken: list[Any] = queue.receive_many_nowait(BURST)
            except Closed:
                return []
            if not taken or not self._numbered:
                return taken
            if Gap not in set(map(type, taken)):
                return list(zip(repeat(number), taken, repeat(MESSAGE_DATA)))
            found = [
                (number, each, MESSAGE_GAP if isinstance(each, Gap) else MESSAGE_DATA)
                for each in taken
                if self.gaps or not isinstance(each, Gap)
            ]
            # Gaps alone, which were not requested, do not count.
            if found:
                return found

    def close(self) -> None:
        """End: waiting threads are told once no message is left."""
        self._end()
