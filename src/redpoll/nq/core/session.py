"""The session with one peer: its puts, in order, over all links and processes of the peer."""

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
    """The node, as a session uses it."""

    def submit(self, peer: Peer, piece: Piece) -> None:
        """Send a piece."""

    def withdraw(self, piece: Piece) -> None:
        """Withdraw a piece as far as possible."""

    def queued(self, peer: Peer) -> Iterator[Outgoing]:
        """Return the pieces that wait to be sent to a peer, in order."""

    def sendings(self, peer: Peer) -> list[Outgoing]:
        """Return the pieces for a peer that have not ended."""


class _Station(Protocol):
    """The station, as a session uses it."""

    @property
    def id(self) -> UUID:
        """The id of the communicator."""

    @property
    def node(self) -> _Node:
        """The node."""

    @property
    def has_waiters(self) -> bool:
        """True if any call waits for a change of a session."""

    def eased(self, session: Session) -> None:
        """Handle the end of puts."""

    def unlinked(self, session: Session) -> None:
        """Handle the loss of the peer's process: puts wait for the hello of the next one."""


#: Maximum withdrawn puts in the queue beyond the number of waiting ones; then they are removed.
_TOMBSTONES = 1024


class Session:
    """The puts for one peer. The node has them while the peer's process is linked; the ones that it returns wait here.

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
        #: Puts that the node does not have, in order.
        self._waiting: deque[Copy] = deque()
        self._tombstones = 0
        #: Puts that the node returned, not sorted into the queue yet.
        self._given_back: list[Copy] = []
        self.finishing = False
        self.said_fin = False
        self.heard_fin = False

    @property
    def own_id(self) -> UUID:
        """The id of the communicator."""
        return self._station.id

    # Puts

    def submit(self, copy: Copy) -> None:
        """Accept a put; it ends at once if the session has ended, or at a limit."""
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
        # The header of a redelivered message does not count.
        copy.charged = copy.size
        self.bytes += copy.charged
        if self.linked and not self._waiting:
            self._send(copy)
        else:
            self._waiting.append(copy)

    def has_room(self, size: int, count: int = 1) -> bool:
        """Return True if there is room for `count` puts of `size` bytes in all; there is for any if none is open."""
        # A put to an ended session ends at once with its error.
        return self.error is not None or self._fits(self.count, self.bytes, size, count)

    def _fits(self, held: int, held_bytes: int, size: int, count: int = 1) -> bool:
        options = self._options
        if not held:
            return True
        if held + count > options.queue_size:
            return False
        return options.queue_bytes is None or held_bytes + count * size <= options.queue_bytes

    def _make_room(self, copy: Copy) -> bool:
        """Apply `full` at the limit: end the put, or unsent older ones; return whether the put is accepted."""
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
            return True  # `put` has waited for room
        self.refuse(copy)
        return False

    def refuse(self, copy: Copy) -> None:
        """End a put for which there is no room."""
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
        """Return the oldest puts to drop to make room for `size` bytes; none if all of them would not suffice."""
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
        """Yield the unsent puts, in order."""
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
        """Withdraw a put; return False if it is fully sent."""
        if not copy.withdrawable:
            return False
        if copy.number:
            self._take_out(copy)
        # Otherwise it was not submitted yet, and is not counted.
        copy.discard()
        copy.withdrawn()  # type: ignore[attr-defined]  # both kinds of futures have it
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

    # Outcomes at the node

    def settled(self, copy: Copy, error: BaseException | None) -> None:
        """Handle the outcome of a put at the node. Called from within the core."""
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
        """Convert an error of the node into one of the facade."""
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
        """Send the waiting puts, in order, to the peer's process that said hello."""
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
        """End the session: all puts end with an error, those at the node when it returns them."""
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
        """End all puts with an error; the session continues.

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
        """End dropped puts, whose memory is no longer read, since the peer has received all that was written."""
        for copy in self.node_copies():
            if copy.dropped is not None:
                self._station.node.withdraw(copy)
                copy.on_node = False
                copy.end(copy.dropped)

    def reclaim(self) -> None:
        """Withdraw the puts that the former node has not confirmed, for another node."""
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
        """Return the puts at the node, in order."""
        peer = self.peer
        if peer is None:
            return []
        found = self._station.node.sendings(peer)
        mine = [each for each in found if isinstance(each, Copy) and each.session is self]
        return sorted(mine, key=_number)


def _number(copy: Copy) -> int:
    return copy.number


def _refusal(error: BaseException) -> BaseException:
    """Return the refusal that ended a put, also if a resend of it was reported as not confirmed."""
    cause = error.__cause__
    return cause if isinstance(error, NotConfirmed) and isinstance(cause, Refused) else error


def _may_go_again(error: BaseException) -> bool:
    """Return True if a failed put is to be sent to the peer's next process, since it was not refused."""
    error = _refusal(error)
    if isinstance(error, (NoHandler, ShuttingDown)):
        return True
    if isinstance(error, (Refused, QueueFull, Expired)) or not isinstance(error, SendError):
        return False
    return not isinstance(error.__cause__, MessageTooLarge) and isinstance(error, (NotSent, SendError))
