"""The messages of one peer that were received and have not begun: their order, their memory, and what may wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from redpoll.wire.capabilities import WINDOW_UNIT
from redpoll.wire.inbound import Inbound
from redpoll.wire.link import Link
from redpoll.wire.memory import Memory
from redpoll.wire.settings import Settings
from redpoll.wire.tally import Counters

__all__ = ["OVERHEAD", "Inbox"]

#: Memory counted for a waiting message beside its body, in bytes, so that empty messages count too.
OVERHEAD = 256


class Inbox(deque[Inbound[Any]]):
    """Waiting messages in order of arrival, and empty ones that were withdrawn.

    Attributes:
        withdrawn: Number of withdrawn messages here, or in `Link.arrived` in this iteration.
        irregular: Whether any message here has a deadline, has ended, or may be withdrawn; or it was overrun, or links
            were lost, since it was last empty.
        carried: Number of unreleased messages received over lost links, begun ones too; the window of a new link is
            smaller by these.
        unacked: Unreleased acknowledged messages of an announced peer by serial, which cancel frames and resends refer
            to; those that have begun too.
        charged: Memory that is charged for the messages, in bytes: at least what waits.
        overrun: Whether reading is paused: `add()` returned True, and `end_overrun()` has not since.
    """

    __slots__ = (
        "_counters", "_max_waiting", "_memory", "_resume_at", "_settings", "carried", "charged", "irregular", "overrun",
        "unacked", "withdrawn",
    )  # fmt: skip

    def __init__(self, settings: Settings, memory: Memory, counters: Counters) -> None:
        super().__init__()
        self._settings = settings
        self._memory = memory
        self._counters = counters
        self.withdrawn = 0
        self.irregular = False
        self.unacked: dict[int, Inbound[Any]] = {}
        self.carried = 0
        self.charged = 0
        self.overrun = False
        self._resume_at = 0
        #: Upper bound of the bytes here: messages that have begun since the last count are included.
        self._max_waiting = 0

    @property
    def waiting(self) -> int:
        """Number of messages that wait."""
        return len(self) - self.withdrawn

    def add(self, link: Link) -> bool:
        """Take the messages that a link received, and return True if the peer overran its window.

        Then do not read until `end_overrun()`. While that lasts, True is returned for every link with messages, such as
        one opened meanwhile.
        """
        arrived = link.arrived
        messages = arrived.messages
        if not self:
            # Of the messages of this read, some may have been withdrawn in it.
            self.irregular = self.withdrawn > 0 or self.carried > 0 or self.overrun
            self._max_waiting = 0
            if self.charged:
                self.charge(0)
        if arrived.timed or self.unacked:
            self.irregular = True
            arrived.timed = False
        arrived.messages = []
        self.extend(messages)
        self._counters.received += len(messages)
        link.unreleased += len(messages)
        self._max_waiting += arrived.size
        self.charged += arrived.size
        self._memory.inbox_bytes += arrived.size
        arrived.size = 0
        if self.withdrawn:
            self._compact()
        waiting = len(self) - self.withdrawn
        settings = self._settings
        allowed, limit = 0, settings.lookahead
        if not link.libchirp and not (self._max_waiting > limit and self._memory.full):
            # At the node's memory limit every peer has the allowance of a libchirp peer.
            window = max(settings.window_bytes, WINDOW_UNIT)
            allowed, limit = settings.window, limit + window + window // 4
        if self.overrun:
            return True
        if waiting <= allowed and (self._max_waiting <= limit or waiting < 2):
            return False
        # The sum since the inbox was last empty is too high: recount, and add to that from here on.
        self._max_waiting = sum(message.frame[2] for message in self)
        self.charge(self._max_waiting)
        largest = max(message.frame[2] for message in self)
        if allowed and largest > settings.window_bytes:
            # One message larger than the window may stand beside a window of others.
            self._max_waiting -= largest
        if self._max_waiting <= limit and (
            waiting <= allowed or self._max_waiting + OVERHEAD * len(self) <= settings.lookahead
        ):
            return False
        self.overrun = self.irregular = True
        self._memory.tally.overruns += 1
        self._resume_at = waiting // 2
        return True

    def end_overrun(self) -> bool:
        """End the overrun if half of the messages that waited have begun; return True if it has just ended."""
        if not self.overrun or self.waiting > self._resume_at:
            return False
        self.overrun = False
        return True

    def put_back(self, messages: Sequence[Inbound[Any]]) -> None:
        """Return messages that no one has seen to the front."""
        # One with a deadline may be among them.
        self.irregular = True
        if not self:
            self._max_waiting = 0
            self.charge(0)
        for message in messages:
            message.begun = False
        self.extendleft(reversed(messages))
        size = sum(message.body_size for message in messages)
        self._max_waiting += size
        self.charge(self.charged + size)

    # Withdrawn messages

    def withdraw(self, message: Inbound[Any]) -> None:
        """Empty a message that was withdrawn, here or in what a link received in this iteration."""
        identity, serial, _, _, kind, *_ = message.frame
        message.frame = (identity, serial, 0, 0, kind, b"")
        # It is skipped when its turn comes, unless it is dropped before.
        self.irregular = True
        self.withdrawn += 1
        self._drop_first()

    def take_all(self) -> list[Inbound[Any]]:
        """Remove and return all messages that wait."""
        waiting = [message for message in self if not message.phase]
        self.withdrawn -= len(self) - len(waiting)
        self.clear()
        return waiting

    def _drop_first(self) -> None:
        while self and self[0].phase:
            self.popleft()
            self.withdrawn -= 1

    def _compact(self) -> None:
        """Drop withdrawn messages: those at the front, and all of them when they are half of the inbox."""
        self._drop_first()
        if self.withdrawn > len(self) // 2:
            self.extend(self.take_all())

    # Memory

    def charge(self, size: int) -> None:
        """Charge `size` bytes for the messages."""
        self._memory.inbox_bytes += size - self.charged
        self.charged = size

    def recount(self) -> None:
        """Charge what is here: each read was charged, which is more."""
        if self.charged:
            self.charge(sum(message.frame[2] for message in self))
