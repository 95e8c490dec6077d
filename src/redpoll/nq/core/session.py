"""What is between this communicator and one peer: its puts, in order, over all links and processes of the peer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from redpoll.errors import (
    Busy,
    Expired,
    MessageTooLarge,
    NoHandler,
    NotConfirmed,
    NotSent,
    QueueFull,
    Refused,
    SendError,
    ShuttingDown,
)
from redpoll.nq.core.puts import Copy
from redpoll.nq.core.words import SIZE_HINT, full_here, full_there

if TYPE_CHECKING:
    from redpoll.node.door import Outgoing, Peer, Piece
    from redpoll.nq.core.arrivals import Source
    from redpoll.nq.core.options import ConnectionOptions

__all__ = ["Session"]


class _Node(Protocol):
    """The node of a communicator, as far as a session sends over it."""

    def submit(self, peer: Peer, piece: Piece) -> None:
        """Send a piece."""

    def withdraw(self, piece: Piece) -> None:
        """Take a piece back, as far as it can be."""

    def queued(self, peer: Peer) -> Iterator[Outgoing]:
        """Return what waits to be sent to a peer, in order."""

    def sendings(self, peer: Peer) -> list[Outgoing]:
        """Return what was submitted for a peer and has not ended."""


class _Station(Protocol):
    """What a session tells its communicator."""

    @property
    def id(self) -> UUID:
        """The communicator's."""

    @property
    def node(self) -> _Node:
        """Where puts are sent."""

    @property
    def has_waiters(self) -> bool:
        """Whether anybody waits for a session."""

    def eased(self, session: Session) -> None:
        """Puts of a session ended."""

    def unlinked(self, session: Session) -> None:
        """Another process runs at a peer, or none: puts wait for its hello."""


#: What is taken back stays in the queue until it is at the front, or so many more than what waits.
_TOMBSTONES = 1024


class Session:
    """Puts for one peer: the node has them while the peer's process is linked; what it gives back is kept here.

    Attributes:
        id: The peer; the communicator's own id while a client has not met its server.
        peer: The node's; None while it is not known.
        linked: Whether the process that runs there now has said hello.
        error: Why the session is over; None while it is not.
        count: Puts that have not ended.
        bytes: Theirs.
        source: What waits here of the peer, once it has said hello.
        finishing: Whether a FIN is to be said, or was, once all puts are confirmed.
    """

    __slots__ = (
        "_given_back",
        "_numbers",
        "_options",
        "_station",
        "_tombstones",
        "_waiting",
        "bytes",
        "count",
        "error",
        "finishing",
        "heard_fin",
        "id",
        "linked",
        "peer",
        "said_fin",
        "source",
    )

    def __init__(self, station: _Station, peer_id: UUID, options: ConnectionOptions) -> None:
        self._station = station
        self._options = options
        self.id = peer_id
        self.peer: Peer | None = None
        self.linked = False
        self.source: Source
        self.error: BaseException | None = None
        self.count = 0
        self.bytes = 0
        self._numbers = 0
        #: Not with the node, in order.
        self._waiting: deque[Copy] = deque()
        self._tombstones = 0
        #: By the node, and not put in their places yet.
        self._given_back: list[Copy] = []
        self.finishing = False
        self.said_fin = False
        self.heard_fin = False

    @property
    def own_id(self) -> UUID:
        """The communicator's."""
        return self._station.id

    @property
    def drained(self) -> bool:
        """Whether no put is open."""
        return not self.count

    # Puts

    def submit(self, copy: Copy) -> None:
        """Take a put; it ends at once if the session is over, or at a bound."""
        if copy.over:
            return
        if self.error is not None or self.finishing:
            copy.end(self.error or ConnectionResetError(self.id))
            return
        self._numbers += 1
        copy.number = self._numbers
        if not self.has_room(copy.size) and not self._make_room(copy):
            return
        self.count += 1
        # A header that says that it comes again is not counted.
        copy.charged = copy.size
        self.bytes += copy.charged
        if self.linked and not self._waiting:
            self._send(copy)
        else:
            self._waiting.append(copy)

    def has_room(self, size: int, count: int = 1) -> bool:
        """Whether so many puts of so many bytes would be taken; any number of them is where none is open."""
        return self.error is not None or self._fits(self.count, self.bytes, size, count)  # an error is to be told

    def _fits(self, held: int, held_bytes: int, size: int, count: int = 1) -> bool:
        options = self._options
        if not held:
            return True
        if held + count > options.queue_size:
            return False
        return options.queue_bytes is None or held_bytes + count * size <= options.queue_bytes

    def _make_room(self, copy: Copy) -> bool:
        """The queue is at its bound: end the put, or, if that is asked for, older ones that were not sent."""
        options = self._options
        if options.full == "drop" and options.drop_oldest:
            dropped = self._in_the_way(copy.size)
            for each in dropped:
                full = self._full(each)
                self._take_out(each)
                each.end(full)
            if dropped:
                return True
        elif options.full == "wait":
            return True  # whoever puts waited for room
        self.refuse(copy)
        return False

    def refuse(self, copy: Copy) -> None:
        """There is no room for a put."""
        full = self._full(copy)
        if self._options.full == "wait":
            full.hint = "give put a longer timeout, or none"
        copy.end(full)

    def _full(self, copy: Copy) -> QueueFull:
        options = self._options
        if options.queue_bytes is None or self.count >= options.queue_size:
            return full_here(copy.message, options.queue_size, "messages")
        return full_here(copy.message, options.queue_bytes, "bytes")

    def _in_the_way(self, size: int) -> list[Copy]:
        """Return the oldest puts without which one of this size has room; none of them where all would be too few."""
        held, held_bytes = self.count, self.bytes
        found: list[Copy] = []
        for copy in self._unsent():
            found.append(copy)
            held -= 1
            held_bytes -= copy.charged
            if self._fits(held, held_bytes, size):
                return found
        return []

    def _unsent(self) -> Iterator[Copy]:
        """Yield the puts of which nothing was sent, in order."""
        if self.peer is not None:
            for piece in self._station.node.queued(self.peer):
                if isinstance(piece, Copy) and piece.session is self and piece.untouched:
                    yield piece
        waiting = self._waiting
        while waiting and waiting[0].over:
            waiting.popleft()
            self._tombstones -= 1
        for copy in waiting:
            if copy.untouched:
                yield copy

    def _send(self, copy: Copy) -> None:
        peer = self.peer
        if peer is None:
            self._waiting.append(copy)
            return
        copy.on_node = True
        self._station.node.submit(peer, copy)

    def take_back(self, copy: Copy) -> bool:
        """Withdraw a put of which not all was sent; False if it is too late."""
        if not copy.withdrawable:
            return False
        if copy.number:
            self._take_out(copy)
        # Else it has not come here yet, and nobody counts it.
        copy.discard()
        copy.withdrawn()  # type: ignore[attr-defined]  # each kind of future has it
        copy.leave(None, withdrawn=True)
        return True

    def _take_out(self, copy: Copy) -> None:
        if copy.on_node and copy.peer is not None:
            self._station.node.withdraw(copy)
            copy.on_node = False
        else:
            copy.discard()
            self._tombstones += 1
            if self._tombstones > max(_TOMBSTONES, len(self._waiting) // 2):
                self._waiting = deque(each for each in self._waiting if not each.over)
                self._tombstones = 0
        self._less(copy)

    def _less(self, copy: Copy) -> None:
        self.count -= 1
        self.bytes -= copy.charged
        if not self.count or self._station.has_waiters:
            self._station.eased(self)

    # What the node says

    def settled(self, copy: Copy, error: BaseException | None) -> None:
        """The node has confirmed a put, or can do nothing more for it. Called from inside of the core."""
        copy.on_node = False
        if copy.dropped is not None:
            copy.end(copy.dropped if error is not None else None)
        elif error is None:
            self._less(copy)
            copy.end(None)
        elif self.error is None and _may_go_again(error):
            copy.reload(redelivered=getattr(error, "sent", False) is True)
            self._given_back.append(copy)
            if self.linked:
                self.linked = False
                self._station.unlinked(self)
        else:
            self._less(copy)
            copy.end(self.error or self._in_words(error))

    def _in_words(self, error: BaseException) -> BaseException:
        """How users know an error."""
        error = _refusal(error)
        if isinstance(error, Busy):
            return full_there(error)
        if isinstance(error, MessageTooLarge):
            error.hint = SIZE_HINT
        if isinstance(error, (QueueFull, MessageTooLarge, Refused)):
            return error
        lost: BaseException = ConnectionResetError(self.id)
        lost.__cause__ = error
        return lost

    # The peer

    def link(self, peer: Peer) -> None:
        """The process that runs there now has said hello: it gets what waits, in order."""
        self.peer = peer
        again = sorted(self._given_back, key=_number)
        self._given_back = []
        self._waiting.extendleft(reversed(again))
        self.linked = True
        waiting, self._waiting = self._waiting, deque()
        self._tombstones = 0
        for copy in waiting:
            if copy.over:
                continue
            if self.linked:
                self._send(copy)
            else:
                self._waiting.append(copy)

    def end(self, error: BaseException) -> None:
        """The session is over: all puts end with an error, those that the node has when it gives them back."""
        if self.error is not None:
            return
        self.error = error
        self.linked = False
        ending = [*sorted(self._given_back, key=_number), *self._waiting]
        self._given_back = []
        self._waiting.clear()
        for copy in ending:
            if not copy.over:
                self._less(copy)
                copy.end(error)

    def drop(self, error: BaseException) -> None:
        """End all puts with an error, and send none further; the session goes on.

        A put that was written to its end waits for the peer, or for the end of the link: until then its memory may be read.
        """
        ending = [*self.node_copies(), *sorted(self._given_back, key=_number), *self._waiting]
        self._given_back = []
        self._waiting.clear()
        self._tombstones = 0
        for copy in ending:
            if copy.over or copy.dropped is not None:
                continue
            self._less(copy)
            if copy.on_node:
                if not copy.withdrawable:
                    copy.dropped = error
                    continue
                self._station.node.withdraw(copy)
                copy.on_node = False
            copy.end(error)

    def end_dropped(self) -> None:
        """The peer has all that was written, so the memory of what was dropped is not read any more."""
        for copy in self.node_copies():
            if copy.dropped is not None:
                self._station.node.withdraw(copy)
                copy.on_node = False
                copy.end(copy.dropped)

    def reclaim(self) -> None:
        """Another node is there: take back what the former one has not confirmed."""
        for copy in self.node_copies():
            sent, body, message = not copy.untouched, copy.body, copy.message
            self._station.node.withdraw(copy)
            copy.on_node = False
            if copy.dropped is not None:
                copy.end(copy.dropped)
                continue
            copy.body, copy.message = body, message
            copy.reload(redelivered=sent)
            self._given_back.append(copy)
        self.linked = False

    def node_copies(self) -> list[Copy]:
        """The puts that the node has, in order."""
        peer = self.peer
        if peer is None:
            return []
        found = self._station.node.sendings(peer)
        mine = [each for each in found if isinstance(each, Copy) and each.session is self]
        return sorted(mine, key=_number)


def _number(copy: Copy) -> int:
    return copy.number


def _refusal(error: BaseException) -> BaseException:
    """The refusal that ended a put, also where that was sent again and is said to be not confirmed."""
    cause = error.__cause__
    return cause if isinstance(error, NotConfirmed) and isinstance(cause, Refused) else error


def _may_go_again(error: BaseException) -> bool:
    """Whether a put that failed is to go to the process that runs there next: that one did not refuse it."""
    error = _refusal(error)
    if isinstance(error, (NoHandler, ShuttingDown)):
        return True
    if isinstance(error, (Refused, QueueFull, Expired)) or not isinstance(error, SendError):
        return False
    return not isinstance(error.__cause__, MessageTooLarge) and isinstance(error, (NotSent, SendError))
