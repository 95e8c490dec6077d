"""Gives threads what came to the queues of one object: on the loop, a burst when one of them waits."""

from __future__ import annotations

import asyncio
from itertools import chain, repeat, zip_longest
from typing import TYPE_CHECKING, Any, Final

from redpoll.errors import Closed
from redpoll.wiring.gap import Gap
from redpoll.wiring.zmq.constants import MESSAGE_DATA, MESSAGE_GAP

if TYPE_CHECKING:
    from redpoll.wiring.queue import Queue
    from redpoll.wiring.zmq.inbox import Inbox

__all__ = ["BURST", "Feeder"]

#: Messages that threads are given at a time, at most: until they have taken these, the queue's senders are not told of them.
BURST: Final = 1024

_NONE: Final = object()


class Feeder:
    """Takes from queues, in turn, when threads wait.

    Args:
        inbox: The threads'.
        numbered: Whether they get messages with the number of the queue, and gaps; else bytes alone.

    Attributes:
        gaps: Whether gaps are given; they are dropped if not.
    """

    def __init__(self, inbox: Inbox, numbered: bool) -> None:
        self._inbox = inbox
        self._numbered = numbered
        self.gaps = False
        self._queues: dict[int, Queue] = {}
        self._turn = 0
        #: Whether threads wait for what has not come yet.
        self._hungry = False
        #: Whether `want` is about to be called.
        self._soon = False

    def add(self, number: int, queue: Queue) -> None:
        """There is a queue, with a number of its own."""
        self._queues[number] = queue
        queue.watch(self.arrived)

    def want(self) -> None:
        """Threads wait: give them what is there, or what comes next."""
        self._soon = False
        while self._inbox.wanted:
            if not self.feed():
                self._hungry = True
                return
        self._hungry = False

    def arrived(self) -> None:
        """Something came, or a queue is closed."""
        if self._hungry and not self._soon:
            # What comes with it is given with it; and who brings it has not finished.
            self._soon = True
            asyncio.get_running_loop().call_soon(self.want)

    def feed(self) -> bool:
        """Give a burst of what is there; False if nothing is."""
        found = [taken for number, queue in self._queues.items() if (taken := self._take(number, queue))]
        if not found:
            return False
        if len(found) == 1:
            self._inbox.give(found[0])
        else:
            # One of each queue in turn, and another first the next time.
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
            # Gaps alone, which nobody asked for, are nothing yet.
            if found:
                return found
