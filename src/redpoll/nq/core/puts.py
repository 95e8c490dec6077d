"""Puts: the future of each, and its deliveries for the peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from redpoll.blocking.handover import LoopFuture
from redpoll.errors import Closed
from redpoll.message import Message
from redpoll.node.door import PIECE_FIELDS, Payload, Piece
from redpoll.nq.core.errors import again

if TYPE_CHECKING:
    from redpoll.blocking.handover import Handover

__all__ = [
    "REDELIVERED",
    "Broadcast",
    "Delivery",
    "LoopBroadcast",
    "LoopDelivery",
    "ThreadBroadcast",
    "ThreadDelivery",
    "divide",
]

#: Header of a message that an earlier process of the same peer may have received.
REDELIVERED = b"R"


class _Session(Protocol):
    """The session of the peer that a put is for."""

    @property
    def id(self) -> UUID:
        """The id of the peer."""

    @property
    def own_id(self) -> UUID:
        """The id of the communicator."""

    def submit(self, delivery: Any) -> None:
        """Accept a put."""

    def has_room(self, size: int, count: int = 1) -> bool:
        """Return True if there is room for `count` puts of `size` bytes in all."""

    def refuse(self, delivery: Any) -> None:
        """End a put for which there is no room."""

    def settled(self, delivery: Any, error: BaseException | None) -> None:
        """Handle the outcome of a put at the node."""

    def take_back(self, delivery: Any) -> bool:
        """Withdraw a put; return False if it is fully sent."""


class Delivery(Piece):
    """The delivery of a put for one peer: a future, and the sending of the node.

    Attributes:
        session: Whose peer it is for.
        number: Its place among the puts for that peer.
        group: What it is a part of, if it was put for several peers.
        on_node: Whether the node has it, and will settle it.
        charged: Bytes that the session counts it with, as long as it has not ended.
        dropped: What it ends with unless the peer confirms it: the session does not count it any more.
    """

    if not TYPE_CHECKING:  # as Piece
        __slots__ = ()

    session: _Session
    number: int
    group: Broadcast | None
    on_node: bool
    charged: int
    dropped: BaseException | None

    def assign(self, session: Any, body: Payload, group: Broadcast | None) -> None:
        """Initialize a delivery that has not begun."""
        self.session = session
        self.number = 0
        self.group = group
        self.on_node = False
        self.dropped = None
        self.load(b"", body, message=Message(None))

    def reload(self, *, redelivered: bool) -> None:
        """Prepare to be resent from the beginning, to another process of the peer."""
        header = REDELIVERED if redelivered else self.message.header
        self.load(header, self.body, message=Message(None, header=header))

    def settle(self, answer: Any, error: BaseException | None) -> None:  # noqa: ARG002  # as `Piece` declares it
        """Pass the outcome at the node to the session."""
        self.session.settled(self, error)

    def end(self, error: BaseException | None) -> None:
        """End the future, and drop the body."""
        self.discard()
        self.finish(None, error)
        self.leave(error)

    def leave(self, error: BaseException | None, *, withdrawn: bool = False) -> None:
        """Tell the broadcast of this delivery that it has ended."""
        group, self.group = self.group, None
        if group is not None:
            group.ended(error, withdrawn=withdrawn)

    @property
    def untouched(self) -> bool:
        """True if nothing of it was ever sent to any process of the peer."""
        return not self.header and super().untouched

    @property
    def withdrawable(self) -> bool:
        """True if it was never fully sent."""
        return not self.header and (self.untouched or self.unfinished)

    def finish(self, result: Any, error: BaseException | None) -> None:
        """End the future, unless it has ended."""
        raise NotImplementedError

    @property
    def futures(self) -> frozenset[Any]:
        """The futures of all peers: here itself."""
        return frozenset((self,))

    @property
    def peers(self) -> dict[UUID, Any]:
        """The futures by the id of the peer."""
        return {self.session.id: self}


class Broadcast:
    """A put for several peers, or for none: it ends when all deliveries have ended, with the first error."""

    _deliveries: tuple[Any, ...]
    _left: int
    _withdrawn: int
    _error: BaseException | None

    def assemble(self, deliveries: tuple[Any, ...], error: BaseException | None) -> None:
        """Set the deliveries, of which none has ended; without any it ends at once, with the error if there is one."""
        self._deliveries = deliveries
        self._left = len(deliveries)
        self._withdrawn = 0
        self._error = None
        if not deliveries:
            self.finish(None, error)

    def ended(self, error: BaseException | None, *, withdrawn: bool = False) -> None:
        """Note the end or withdrawal of a delivery; end with the last one, cancelled if all were withdrawn."""
        if error is not None and self._error is None:
            self._error = error
        self._left -= 1
        self._withdrawn += withdrawn
        if self._left:
            return
        if self._withdrawn == len(self._deliveries):
            self.withdrawn()
        else:
            self.finish(None, self._error)

    def withdrawn(self) -> None:
        """Cancel the future, since all deliveries were withdrawn."""
        raise NotImplementedError

    def finish(self, result: Any, error: BaseException | None) -> None:
        """End the future, unless it has ended."""
        raise NotImplementedError

    @property
    def futures(self) -> frozenset[Any]:
        """The futures of all peers."""
        return frozenset(self._deliveries)

    @property
    def peers(self) -> dict[UUID, Any]:
        """The futures by the id of the peer."""
        return {each.session.id: each for each in self._deliveries}


# For threads


class _ThreadPut(LoopFuture):
    """The base of both futures for threads."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover

    def finish(self, result: Any, error: BaseException | None) -> None:
        """End the future, unless it has ended, with a copy of the error, which may end many."""
        LoopFuture.finish(self, result, None if error is None else again(error))

    def withdrawn(self) -> None:
        """Cancel the future, since the put was withdrawn."""
        LoopFuture.cancel(self)


class ThreadDelivery(_ThreadPut, Delivery):
    """The future of a put to one peer, for threads."""

    def cancel(self) -> bool:
        """Withdraw the put; return False if it is fully sent, or has ended.

        It waits for the loop thread; on that thread it does not.

        Raises:
            UsageError: This is a forked child.
        """
        if self.done():
            return self.cancelled()
        handover = self._handover
        if handover.is_here:
            return self.session.take_back(self)
        try:
            taken: bool = handover.run(self.session.take_back, self)
        except Closed:  # closed by another thread, which has ended the put
            return False
        return taken

    def fail(self, error: BaseException) -> None:
        """End the future, since the put could not be handed to the loop."""
        self.end(error if isinstance(error, ConnectionError) else ConnectionAbortedError(self.session.own_id))


class ThreadBroadcast(_ThreadPut, Broadcast):
    """The future of a put to several peers, for threads."""

    def cancel(self) -> bool:
        """Withdraw the deliveries that are not fully sent; return True if these were all.

        It waits for the loop thread; on that thread it does not.

        Raises:
            UsageError: This is a forked child.
        """
        for delivery in self._deliveries:
            delivery.cancel()
        return self.cancelled()

    def fail(self, error: BaseException) -> None:
        """End the future, since the put could not be handed to the loop."""
        for delivery in self._deliveries:
            delivery.fail(error)


# For asyncio


class _LoopFuture(asyncio.Future[Any]):
    """A future whose error need not be retrieved."""

    __slots__ = ()

    def finish(self, result: Any, error: BaseException | None) -> None:
        """End the future, unless it has ended."""
        if self.done():
            return
        if error is None:
            self.set_result(result)
        else:
            self.set_exception(again(error))  # the error of a session ends many
            self._log_traceback = False

    def withdrawn(self) -> None:
        """Cancel the future, since the put was withdrawn."""
        asyncio.Future.cancel(self)


class LoopDelivery(_LoopFuture, Delivery):
    """The future of a put to one peer, for asyncio. Cancelling it withdraws the message if that is not fully sent."""

    __slots__ = (*PIECE_FIELDS, "charged", "dropped", "group", "number", "on_node", "session")

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the future, and withdraw the message; a fully sent one is delivered."""
        if self.done():
            return False
        self.session.take_back(self)
        return self.cancelled() or super().cancel(msg)


class LoopBroadcast(_LoopFuture, Broadcast):
    """The future of a put to several peers, for asyncio. Cancelling it withdraws deliveries that are not fully sent."""

    __slots__ = ("_deliveries", "_error", "_left", "_withdrawn")

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the future and each delivery."""
        if not super().cancel(msg):
            return False
        for delivery in self._deliveries:
            delivery.cancel(msg)
        return True


# For both

DeliveryT = TypeVar("DeliveryT", bound=Delivery)
BroadcastT = TypeVar("BroadcastT", bound=Broadcast)


def divide(
    sessions: tuple[_Session, ...],
    body: Payload,
    delivery: Callable[[], DeliveryT],
    broadcast: Callable[[], BroadcastT],
    closed: BaseException | None,
) -> tuple[DeliveryT | BroadcastT, tuple[DeliveryT, ...]]:
    """Make a put: its future, and a delivery for each session.

    Args:
        sessions: The sessions of the receivers.
        body: The encoded data.
        delivery: Makes a delivery; for a single receiver it is the future as well.
        broadcast: Makes the future for several receivers, or none.
        closed: The error of a put without receivers.
    """
    if len(sessions) == 1:
        only = delivery()
        only.assign(sessions[0], body, None)
        return only, (only,)
    group = broadcast()
    deliveries = tuple(delivery() for _ in sessions)
    for each, session in zip(deliveries, sessions, strict=True):
        each.assign(session, body, group)
    group.assemble(deliveries, closed)
    return group, deliveries
