"""The session with one peer: its puts, in order, over all links and processes of the peer."""

from __future__ import annotations

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
from redpoll.nq.core.errors import SIZE_HINT, caused, full_here, full_there
from redpoll.nq.core.puts import Delivery

if TYPE_CHECKING:
    from redpoll.node.door import Outgoing, Peer, Piece
    from redpoll.nq.core.options import ConnectionOptions
    from redpoll.nq.core.receive_queue import Source

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


class _Endpoint(Protocol):
    """The endpoint, as a session uses it."""

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
        "_endpoint",
        "_given_back",
        "_numbers",
        "_options",
        "_waiting",
        "bytes",
        "count",
        "error",
        "finishing",
        "id",
        "linked",
        "peer",
        "received_fin",
        "sent_fin",
        "source",
    )

    def __init__(self, endpoint: _Endpoint, peer_id: UUID, options: ConnectionOptions) -> None:
        self._endpoint = endpoint
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
        self._waiting: dict[Delivery, None] = {}
        #: Puts that the node returned, not sorted into the queue yet.
        self._given_back: list[Delivery] = []
        self.finishing = False
        self.sent_fin = False
        self.received_fin = False

    @property
    def own_id(self) -> UUID:
        """The id of the communicator."""
        return self._endpoint.id

    # Puts

    def submit(self, delivery: Delivery) -> None:
        """Accept a put; it ends at once if the session has ended, or at a limit."""
        if delivery.over:
            return
        if self.error is not None or self.finishing:
            delivery.end(self.error or ConnectionResetError(self.id))
            return
        self._numbers += 1
        delivery.number = self._numbers
        if not self.has_room(delivery.size) and not self._make_room(delivery):
            return
        self.count += 1
        # The header of a redelivered message does not count.
        delivery.charged = delivery.size
        self.bytes += delivery.charged
        if self.linked and not self._waiting:
            self._send(delivery)
        else:
            self._waiting[delivery] = None

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

    def _make_room(self, delivery: Delivery) -> bool:
        """Apply `full` at the limit: end the put, or unsent older ones; return whether the put is accepted."""
        options = self._options
        if options.full == "drop" and options.drop_oldest:
            dropped = self._in_the_way(delivery.size)
            for each in dropped:
                full = self._full(each)
                self._take_out(each)
                each.end(full)
            if dropped:
                return True
        elif options.full == "wait":
            return True  # `put` has waited for room
        self.refuse(delivery)
        return False

    def refuse(self, delivery: Delivery) -> None:
        """End a put for which there is no room."""
        full = self._full(delivery)
        if self._options.full == "wait":
            full.hint = "give put a longer timeout, or none"
        delivery.end(full)

    def _full(self, delivery: Delivery) -> QueueFull:
        options = self._options
        if options.queue_bytes is None or self.count >= options.queue_size:
            return full_here(delivery.message, options.queue_size, "messages")
        return full_here(delivery.message, options.queue_bytes, "bytes")

    def _in_the_way(self, size: int) -> list[Delivery]:
        """Return the oldest puts to drop to make room for `size` bytes; none if all of them would not suffice."""
        held, held_bytes = self.count, self.bytes
        found: list[Delivery] = []
        for delivery in self._unsent():
            found.append(delivery)
            held -= 1
            held_bytes -= delivery.charged
            if self._fits(held, held_bytes, size):
                return found
        return []

    def _unsent(self) -> Iterator[Delivery]:
        """Yield the unsent puts, in order."""
        if self.peer is not None:
            for piece in self._endpoint.node.queued(self.peer):
                if isinstance(piece, Delivery) and piece.session is self and piece.untouched:
                    yield piece
        for delivery in self._waiting:
            if delivery.untouched:
                yield delivery

    def _send(self, delivery: Delivery) -> None:
        peer = self.peer
        if peer is None:
            self._waiting[delivery] = None
            return
        delivery.on_node = True
        self._endpoint.node.submit(peer, delivery)

    def take_back(self, delivery: Delivery) -> bool:
        """Withdraw a put; return False if it is fully sent."""
        if not delivery.withdrawable:
            return False
        if delivery.number:
            self._take_out(delivery)
        # Otherwise it was not submitted yet, and is not counted.
        delivery.discard()
        delivery.withdrawn()  # type: ignore[attr-defined]  # both kinds of futures have it
        delivery.leave(None, withdrawn=True)
        return True

    def _take_out(self, delivery: Delivery) -> None:
        if delivery.on_node and delivery.peer is not None:
            self._endpoint.node.withdraw(delivery)
            delivery.on_node = False
        else:
            delivery.discard()
            self._waiting.pop(delivery, None)
        self._less(delivery)

    def _less(self, delivery: Delivery) -> None:
        self.count -= 1
        self.bytes -= delivery.charged
        if not self.count or self._endpoint.has_waiters:
            self._endpoint.eased(self)

    # Outcomes at the node

    def settled(self, delivery: Delivery, error: BaseException | None) -> None:
        """Handle the outcome of a put at the node. Called from within the core."""
        delivery.on_node = False
        if delivery.dropped is not None:
            delivery.end(delivery.dropped if error is not None else None)
        elif error is None:
            self._less(delivery)
            delivery.end(None)
        elif self.error is None and _may_go_again(error):
            delivery.reload(redelivered=getattr(error, "sent", False) is True)
            self._given_back.append(delivery)
            if self.linked:
                self.linked = False
                self._endpoint.unlinked(self)
        else:
            self._less(delivery)
            delivery.end(self.error or self._in_words(error))

    def _in_words(self, error: BaseException) -> BaseException:
        """Convert an error of the node into one of the facade."""
        error = _refusal(error)
        if isinstance(error, Busy):
            return full_there(error)
        if isinstance(error, MessageTooLarge):
            error.hint = SIZE_HINT
        if isinstance(error, (QueueFull, MessageTooLarge, Refused)):
            return error
        return caused(ConnectionResetError(self.id), error)

    # The peer

    def link(self, peer: Peer) -> None:
        """Send the waiting puts, in order, to the peer's process that said hello."""
        self.peer = peer
        waiting = self._take_waiting()
        self.linked = True
        for delivery in waiting:
            if delivery.over:
                continue
            if self.linked:
                self._send(delivery)
            else:
                self._waiting[delivery] = None

    def _take_waiting(self) -> list[Delivery]:
        """Remove and return the puts that the node does not have, in order."""
        found = [*sorted(self._given_back, key=_number), *self._waiting]
        self._given_back = []
        self._waiting = {}
        return found

    def end(self, error: BaseException) -> None:
        """End the session: all puts end with an error, those at the node when it returns them."""
        if self.error is not None:
            return
        self.error = error
        self.linked = False
        for delivery in self._take_waiting():
            if not delivery.over:
                self._less(delivery)
                delivery.end(error)

    def drop(self, error: BaseException) -> None:
        """End all puts with an error; the session continues.

        A put that was written to its end waits for the peer, or for the end of the link: until then its memory may be read.
        """
        for delivery in [*self.node_deliveries(), *self._take_waiting()]:
            if delivery.over or delivery.dropped is not None:
                continue
            self._less(delivery)
            if delivery.on_node:
                if not delivery.withdrawable:
                    delivery.dropped = error
                    continue
                self._endpoint.node.withdraw(delivery)
                delivery.on_node = False
            delivery.end(error)

    def end_dropped(self) -> None:
        """End dropped puts, whose memory is no longer read, since the peer has received all that was written."""
        for delivery in self.node_deliveries():
            if delivery.dropped is not None:
                self._endpoint.node.withdraw(delivery)
                delivery.on_node = False
                delivery.end(delivery.dropped)

    def reclaim(self) -> None:
        """Withdraw the puts that the former node has not confirmed, for another node."""
        for delivery in self.node_deliveries():
            sent, body, message = not delivery.untouched, delivery.body, delivery.message
            self._endpoint.node.withdraw(delivery)
            delivery.on_node = False
            if delivery.dropped is not None:
                delivery.end(delivery.dropped)
                continue
            delivery.body, delivery.message = body, message
            delivery.reload(redelivered=sent)
            self._given_back.append(delivery)
        self.linked = False

    def node_deliveries(self) -> list[Delivery]:
        """Return the puts at the node, in order."""
        peer = self.peer
        if peer is None:
            return []
        found = self._endpoint.node.sendings(peer)
        mine = [each for each in found if isinstance(each, Delivery) and each.session is self]
        return sorted(mine, key=_number)


def _number(delivery: Delivery) -> int:
    return delivery.number


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
