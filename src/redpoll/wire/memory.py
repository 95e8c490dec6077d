"""Bytes that one node holds in all, and what its limit means for them: what goes on, what waits, who is to go.

Nothing here looks at small messages one by one: an inbox is charged by the read, and counted anew before anything is
decided that a charge too high would make wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redpoll.wire.frames import Kind
from redpoll.wire.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from redpoll.wire.assembly import Assembly
    from redpoll.wire.link import Link

__all__ = ["PATIENCE", "PROGRESS", "TLS_LINK", "WAIT", "Memory"]

#: What a link with TLS costs, bytes, as it is charged: OpenSSL's state and its two buffers.
TLS_LINK = 64 * 1024

#: Seconds at the limit after which who does not move is closed.
PATIENCE = 5.0

#: Seconds after which what waits is refused: later than that, so that who does not move goes first.
WAIT = 8.0

#: Bytes in `PATIENCE`, and in `transfer_timeout`, that count as progress of what is under way: less is as good as none.
PROGRESS = 16 * 1024

#: Where there is no limit: more than there can be.
_NO_LIMIT = 2**63

_ANSWER = int(Kind.ANSWER)


class Memory:
    """The bytes that all links and peers of one node hold.

    At the limit no body above `bodies.LARGE` begins, and of those that have begun one goes on, the one with the most bytes
    here, and beside it the oldest answer, which somebody here waits for; so both come to an end. The others wait, and their
    links with them.

    Attributes:
        limit: Bytes that may be held.
        bodies: Memory of large bodies that are here in part.
        inboxes: What waits for a slot, at most.
        queues: What waits to be sent.
        outputs: Answers, acknowledgements and the like that wait for other ends which do not read.
        links: The fixed charge of links.
        unfinished: The bodies in part, oldest first, and the links that they come over.
        waiting: Links that stand still because of the limit, and since when: seconds on the owner's clock.
        tally: What the node turned away.
        recount: Set by the owner: counts the inboxes anew.
    """

    __slots__ = (
        "_favourite", "_marks", "bodies", "inboxes", "limit", "links", "outputs", "queues", "recount", "tally", "unfinished",
        "unread", "waiting",
    )  # fmt: skip

    def __init__(self, limit: int | None = None) -> None:
        self.limit = _NO_LIMIT if limit is None else limit
        self.bodies = self.inboxes = self.queues = self.outputs = self.links = 0
        self.unfinished: dict[Assembly, Link] = {}
        self.waiting: dict[Link, float] = {}
        #: Links in `outputs`, and how much of that is each one's.
        self.unread: dict[Link, int] = {}
        self.tally = Tally()
        self.recount: Callable[[], None] = _nothing
        #: The body that goes on at the limit.
        self._favourite: Assembly | None = None
        #: What a link had brought, and what it had not read, when it was last seen to move, and when that was.
        self._marks: dict[Link, tuple[int, int, float]] = {}

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return self.bodies + self.inboxes + self.queues + self.outputs + self.links

    @property
    def full(self) -> bool:
        """Whether the limit is reached. Links alone do not count as that: what passes them one by one would stand still."""
        return self.held >= self.limit and self.held > self.links

    # Bodies

    def take(self, body: Assembly, link: Link) -> None:
        """A large body begins to arrive; from here on it tells how it grows."""
        body.memory = self
        self.unfinished[body] = link
        self.bodies += len(body.buffer)

    def drop(self, body: Assembly) -> None:
        """A body is whole, or given up; nothing happens twice."""
        if self.unfinished.pop(body, None) is not None:
            self.bodies -= len(body.buffer)
            body.memory = None
            if self._favourite is body:
                self._favourite = None

    def may_begin(self, kind: int) -> bool:
        """Whether a large body of a type may begin."""
        return not self.full or (kind & _ANSWER != 0 and self._oldest_answer() is None)

    def may_grow(self, body: Assembly) -> bool:
        """Whether a body that was begun may have more memory."""
        if not self.full or (body.kind & _ANSWER and self._oldest_answer() is body):
            return True
        if self._favourite not in self.unfinished:
            self._favourite = max(self.unfinished, key=lambda each: len(each.buffer), default=None)
        return self._favourite is body

    def _oldest_answer(self) -> Assembly | None:
        return next((body for body in self.unfinished if body.kind & _ANSWER), None)

    # Output

    def heaps_up(self, link: Link, size: int) -> None:
        """So many bytes wait now that were added to a link's full transport."""
        self.outputs += size - self.unread.pop(link, 0)
        if size:
            self.unread[link] = size

    # At the limit

    def admits(self, size: int, *, large: bool) -> bool:
        """Whether so much more may be queued.

        All that is queued keeps within the limit, so that no peer can make this node's small sends fail; a large body has
        to wait for the rest as well. One message of any size fits where nothing is.
        """
        if self.queues and self.queues + size > self.limit:
            return False
        if large and self.full:
            self.recount()
            return not self.full
        return True

    def wait(self, link: Link, now: float) -> None:
        """A link stands still from now on, if it did not before."""
        if link not in self.waiting:
            self.waiting[link] = now
            self.tally.memory_waits += 1

    def forget(self, link: Link) -> None:
        """A link is gone."""
        self.heaps_up(link, 0)
        self.waiting.pop(link, None)
        self._marks.pop(link, None)

    def overdue(self, now: float) -> list[Link]:
        """The links that have waited for `WAIT`: what they wait with is to be refused."""
        return [link for link, since in self.waiting.items() if now - since >= WAIT]

    def stalled(self, now: float) -> Link | None:
        """The link that holds the most of what is unfinished, or not read, of those that did not move for `PATIENCE`."""
        holding = dict(self.unread)
        for body, link in self.unfinished.items():
            holding[link] = holding.get(link, 0) + len(body.buffer)
        marks: dict[Link, tuple[int, int, float]] = {}
        worst: Link | None = None
        for link, size in holding.items():
            unread = self.unread.get(link, 0)
            brought, owed, since = self._marks.get(link, (0, 0, now))
            moved = link.bytes_received - brought >= PROGRESS if not unread else owed - unread >= PROGRESS
            excused = not unread and (link in self.waiting or link.stands_still)
            if link not in self._marks or moved or excused:
                brought, owed, since = link.bytes_received, unread, now
            marks[link] = brought, owed, since
            if now - since >= PATIENCE and (worst is None or size > holding[worst]):
                worst = link
        self._marks = marks
        return worst

    def begin_again(self, now: float) -> None:
        """The limit is not reached any more, or this process did not run when it should have: all times count from here."""
        self._favourite = None
        self._marks.clear()
        self.waiting = dict.fromkeys(self.waiting, now)


def _nothing() -> None:
    pass
