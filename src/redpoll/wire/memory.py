"""The memory limit of one node: what it counts, and which bodies continue, wait or are rejected at the limit.

Small messages are not looked at one by one: an inbox is charged per read, and recounted before a decision that too high
a charge would make wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from redpoll.wire.frames import ANSWER
from redpoll.wire.liveness import MIN_PROGRESS
from redpoll.wire.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from redpoll.wire.assembly import Assembly

__all__ = ["NO_LIMIT", "PAUSE_TIMEOUT", "STALL_TIMEOUT", "TLS_LINK_SIZE", "Holder", "Memory"]

#: Memory charged for a TLS link, in bytes: OpenSSL's state and its two buffers.
TLS_LINK_SIZE = 64 * 1024

#: Seconds at the limit after which a link without progress is closed.
STALL_TIMEOUT = 5.0

#: Seconds after which a message that waits for memory is refused; longer, so that stalled links are closed first.
PAUSE_TIMEOUT = 8.0

#: In place of no limit: more than there can be.
NO_LIMIT = 2**63


class Holder(Protocol):
    """A holder of memory, a `Link`: whether it makes progress decides which is closed."""

    bytes_received: int
    connection: Any

    @property
    def reading_paused(self) -> bool:
        """True if this end has paused reading."""


@dataclass(slots=True, eq=False)
class Memory:
    """Memory held by all links and peers of one node, in bytes.

    At the limit no body above `bodies.LARGE` begins. Of those that have begun, the one with the most bytes continues,
    and beside it the oldest answer, since a request waits for it; so both come to an end. The others wait, and their
    links are paused.
    """

    #: Maximum memory.
    limit: int = NO_LIMIT
    #: Memory of large bodies that have arrived in part.
    body_bytes: int = field(init=False, default=0)
    #: Upper bound of the messages that wait for a slot.
    inbox_bytes: int = field(init=False, default=0)
    #: Messages that wait to be sent.
    queue_bytes: int = field(init=False, default=0)
    #: Answers, acknowledgements and control frames that the other ends do not read, in all and of each link.
    unread_bytes: int = field(init=False, default=0)
    unread: dict[Holder, int] = field(init=False, default_factory=dict)
    #: Fixed charge of links.
    link_bytes: int = field(init=False, default=0)
    #: Partial bodies, oldest first, with their links.
    unfinished: dict[Assembly, Holder] = field(init=False, default_factory=dict)
    #: Links paused at the limit, and since when, in seconds on the owner's clock.
    paused: dict[Holder, float] = field(init=False, default_factory=dict)
    #: Counters of what the node rejected.
    tally: Tally = field(init=False, default_factory=Tally)
    #: Recounts the inboxes; set by the owner.
    recount: Callable[[], None] = field(init=False, default=lambda: None)
    #: The body that continues at the limit.
    _favourite: Assembly | None = field(init=False, default=None)
    #: By link: received bytes, unread bytes and time at its last progress.
    _progress: dict[Holder, tuple[int, int, float]] = field(init=False, default_factory=dict)

    @property
    def total(self) -> int:
        """Total memory held, in bytes."""
        return self.body_bytes + self.inbox_bytes + self.queue_bytes + self.unread_bytes + self.link_bytes

    @property
    def full(self) -> bool:
        """True at the limit. Links alone do not reach it: the bodies that pass them one by one would wait forever."""
        return self.total >= self.limit and self.total > self.link_bytes

    # Bodies

    def take(self, body: Assembly, link: Holder) -> None:
        """Count a large body that begins to arrive; it reports its growth itself."""
        body.memory = self
        self.unfinished[body] = link
        self.body_bytes += len(body.buffer)

    def drop(self, body: Assembly) -> None:
        """Stop counting a body that is complete or discarded; without effect if it is not counted."""
        if self.unfinished.pop(body, None) is not None:
            self.body_bytes -= len(body.buffer)
            body.memory = None
            if self._favourite is body:
                self._favourite = None

    def may_begin(self, kind: int) -> bool:
        """Return True if a large body of a type may begin."""
        return not self.full or (kind & ANSWER != 0 and self._oldest_answer() is None)

    def may_grow(self, body: Assembly) -> bool:
        """Return True if a body that has begun may have more memory."""
        if not self.full or (body.kind & ANSWER and self._oldest_answer() is body):
            return True
        if self._favourite not in self.unfinished:
            self._favourite = max(self.unfinished, key=lambda each: len(each.buffer), default=None)
        return self._favourite is body

    def _oldest_answer(self) -> Assembly | None:
        return next((body for body in self.unfinished if body.kind & ANSWER), None)

    # Output

    def set_unread(self, link: Holder, size: int) -> None:
        """Set how many bytes were added to the full transport of a link, and wait."""
        self.unread_bytes += size - self.unread.pop(link, 0)
        if size:
            self.unread[link] = size

    # At the limit

    def admits(self, size: int, *, large: bool) -> bool:
        """Return True if `size` more bytes may be queued.

        Queues are within the limit by themselves, so that no peer can make this node's small sends fail; a large body
        is counted together with everything else. An empty queue takes one message of any size.
        """
        if self.queue_bytes and self.queue_bytes + size > self.limit:
            return False
        if large and self.full:
            self.recount()
            return not self.full
        return True

    def pause(self, link: Holder, now: float) -> None:
        """Note that a link is paused."""
        if link not in self.paused:
            self.paused[link] = now
            self.tally.memory_waits += 1

    def forget(self, link: Holder) -> None:
        """Drop all state of a link that is lost."""
        self.set_unread(link, 0)
        self.paused.pop(link, None)
        self._progress.pop(link, None)

    def overdue(self, now: float) -> list[Holder]:
        """Return the links paused for `PAUSE_TIMEOUT`, whose waiting message is to be refused."""
        return [link for link, since in self.paused.items() if now - since >= PAUSE_TIMEOUT]

    def find_stalled(self, now: float) -> Holder | None:
        """Return the link to close: of those without progress for `STALL_TIMEOUT`, the one that holds the most memory."""
        holding = dict(self.unread)
        for body, link in self.unfinished.items():
            holding[link] = holding.get(link, 0) + len(body.buffer)
        progress: dict[Holder, tuple[int, int, float]] = {}
        worst: Holder | None = None
        for link, size in holding.items():
            unread = self.unread.get(link, 0)
            received, waiting, since = self._progress.get(link, (0, 0, now))
            moved = link.bytes_received - received >= MIN_PROGRESS if not unread else waiting - unread >= MIN_PROGRESS
            excused = not unread and (link in self.paused or link.reading_paused)
            if link not in self._progress or moved or excused:
                received, waiting, since = link.bytes_received, unread, now
            progress[link] = received, waiting, since
            if now - since >= STALL_TIMEOUT and (worst is None or size > holding[worst]):
                worst = link
        self._progress = progress
        return worst

    def restart_timers(self, now: float) -> None:
        """Restart all timeouts: the node is below its limit, or the process stalled."""
        self._favourite = None
        self._progress.clear()
        self.paused = dict.fromkeys(self.paused, now)
