"""Transfers messages from the queues of one object to threads: on the loop, in bursts, when a thread waits."""

from __future__ import annotations

import asyncio
from itertools import chain, repeat, zip_longest
from typing import TYPE_CHECKING, Any, Final

from redpoll.errors import Closed
from redpoll.wiring.names import Gap
from redpoll.wiring.zmq.constants import MESSAGE_DATA, MESSAGE_GAP

if TYPE_CHECKING:
    from redpoll.wiring.queue import Queue
    from redpoll.wiring.zmq.inbox import Inbox

__all__ = ["BURST", "Feeder"]

#: Maximum messages handed to threads at a time; the queue's senders get credit for them once threads have taken them.
BURST: Final = 1024

_NONE: Final = object()


class Feeder:
    """Takes messages from queues, in turn, when threads wait.

    Args:
        inbox: The queue from which threads receive.
        numbered: Hand over messages with the number of their queue, and gaps; if False, bytes only.

    Attributes:
        gaps: Hand over gaps; if False, they are dropped.
    """

    def __init__(self, inbox: Inbox, numbered: bool) -> None:
        self._inbox = inbox
        self._numbered = numbered
        self.gaps = False
        self._queues: dict[int, Queue] = {}
        self._turn = 0
        #: True if threads wait for messages that have not arrived.
        self._hungry = False
        #: True if a call of `want` is scheduled.
        self._soon = False

    def add(self, number: int, queue: Queue) -> None:
        """Add a queue, with its number."""
        self._queues[number] = queue
        queue.watch(self.arrived)

    def want(self) -> None:
        """Hand over available messages, or the next ones to arrive, as threads wait."""
        self._soon = False
        while self._inbox.wanted:
            if not self.feed():
                self._hungry = True
                return
        self._hungry = False

    def arrived(self) -> None:
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
            self._inbox.give(found[0])
        else:
            # One of each queue in turn, beginning with another queue each time.
            self._turn = (self._turn + 1) % len(found)
            mixed = chain.from_iterable(zip_longest(*found[self._turn :], *found[: self._turn], fillvalue=_NONE))
            self._inbox.give([each for each in mixed if each is not _NONE])
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
