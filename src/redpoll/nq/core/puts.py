"""Puts: the future of each, and its copies for the peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from redpoll.blocking.handover import LoopFuture
from redpoll.errors import Closed
from redpoll.message import Message
from redpoll.node.door import PIECE_FIELDS, Payload, Piece
from redpoll.nq.core.words import again

if TYPE_CHECKING:
    from redpoll.blocking.handover import Handover

__all__ = ["REDELIVERED", "Broadcast", "Copy", "LoopBroadcast", "LoopCopy", "ThreadBroadcast", "ThreadCopy", "divide"]

#: Header of a message that an earlier process of the same peer may have received.
REDELIVERED = b"R"


class _Session(Protocol):
    """The session of the peer that a put is for."""

    @property
    def id(self) -> UUID:
        """The peer's."""

    @property
    def own_id(self) -> UUID:
        """The communicator's."""

    def submit(self, copy: Any) -> None:
        """Take a put."""

    def has_room(self, size: int, count: int = 1) -> bool:
        """Whether so many puts of so many bytes would be taken."""

    def refuse(self, copy: Any) -> None:
        """There is no room for a put."""

    def settled(self, copy: Any, error: BaseException | None) -> None:
        """The node has confirmed a put, or can do nothing more for it."""

    def take_back(self, copy: Any) -> bool:
        """Withdraw a put of which not all was sent; False if it is too late."""


class Copy(Piece):
    """A put on its way to one peer: a future, and the node's sending at the same time.

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
        """Be one that has not begun."""
        self.session = session
        self.number = 0
        self.group = group
        self.on_node = False
        self.dropped = None
        self.load(b"", body, message=Message(None))

    def reload(self, *, redelivered: bool) -> None:
        """Be sent again from the beginning, to another process of the peer."""
        header = REDELIVERED if redelivered else self.message.header
        self.load(header, self.body, message=Message(None, header=header))

    def settle(self, answer: Any, error: BaseException | None) -> None:  # noqa: ARG002  # Piece's
        """The node has done what it can."""
        self.session.settled(self, error)

    def end(self, error: BaseException | None) -> None:
        """End for good, and let go of the body."""
        self.discard()
        self.finish(None, error)
        self.leave(error)

    def leave(self, error: BaseException | None, *, withdrawn: bool = False) -> None:
        """Tell the put that it is a part of that it has ended."""
        group, self.group = self.group, None
        if group is not None:
            group.ended(error, withdrawn=withdrawn)

    @property
    def untouched(self) -> bool:
        """Whether nothing of it was ever sent, to no process of the peer."""
        return not self.header and super().untouched

    @property
    def withdrawable(self) -> bool:
        """Whether not all of it was ever sent."""
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
    """A put for several peers, or for none: it ends when all its copies have, with the first error."""

    _copies: tuple[Any, ...]
    _left: int
    _withdrawn: int
    _error: BaseException | None

    def assemble(self, copies: tuple[Any, ...], error: BaseException | None) -> None:
        """Consist of these, of which none has ended; without any it ends at once, with the error if there is one."""
        self._copies = copies
        self._left = len(copies)
        self._withdrawn = 0
        self._error = None
        if not copies:
            self.finish(None, error)

    def ended(self, error: BaseException | None, *, withdrawn: bool = False) -> None:
        """One of them has, or was taken back: with the last one it ends as well, cancelled if all were taken back."""
        if error is not None and self._error is None:
            self._error = error
        self._left -= 1
        self._withdrawn += withdrawn
        if self._left:
            return
        if self._withdrawn == len(self._copies):
            self.withdrawn()
        else:
            self.finish(None, self._error)

    def withdrawn(self) -> None:
        """All of it was taken back."""
        raise NotImplementedError

    def finish(self, result: Any, error: BaseException | None) -> None:
        """End the future, unless it has ended."""
        raise NotImplementedError

    @property
    def futures(self) -> frozenset[Any]:
        """The futures of all peers."""
        return frozenset(self._copies)

    @property
    def peers(self) -> dict[UUID, Any]:
        """The futures by the id of the peer."""
        return {each.session.id: each for each in self._copies}


# For threads


class _ThreadPut(LoopFuture):
    """What both kinds have in common."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover

    def finish(self, result: Any, error: BaseException | None) -> None:
        """End, unless it has ended; the error of a session ends many."""
        LoopFuture.finish(self, result, None if error is None else again(error))

    def withdrawn(self) -> None:
        """It was taken back."""
        LoopFuture.cancel(self)


class ThreadCopy(_ThreadPut, Copy):
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
        except Closed:  # by another thread, and with that it has ended
            return False
        return taken

    def fail(self, error: BaseException) -> None:
        """It could not be handed to the loop."""
        self.end(error if isinstance(error, ConnectionError) else ConnectionAbortedError(self.session.own_id))


class ThreadBroadcast(_ThreadPut, Broadcast):
    """The future of a put to several peers, for threads."""

    def cancel(self) -> bool:
        """Withdraw the copies that are not fully sent; return True if these were all.

        It waits for the loop thread; on that thread it does not.

        Raises:
            UsageError: This is a forked child.
        """
        for copy in self._copies:
            copy.cancel()
        return self.cancelled()

    def fail(self, error: BaseException) -> None:
        """It could not be handed to the loop."""
        for copy in self._copies:
            copy.fail(error)


# For asyncio


class _LoopFuture(asyncio.Future[Any]):
    """A future whose error need not be looked at: who does not, is told by the log."""

    __slots__ = ()

    def finish(self, result: Any, error: BaseException | None) -> None:
        """End, unless it has ended."""
        if self.done():
            return
        if error is None:
            self.set_result(result)
        else:
            self.set_exception(again(error))  # that of a session ends many
            self._log_traceback = False


class LoopCopy(_LoopFuture, Copy):
    """The future of a put to one peer, for asyncio. Cancelling it withdraws the message if that is not fully sent."""

    __slots__ = (*PIECE_FIELDS, "charged", "dropped", "group", "number", "on_node", "session")

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the future, and withdraw the message; a fully sent one is delivered."""
        if self.done():
            return False
        self.session.take_back(self)
        return self.cancelled() or super().cancel(msg)

    def withdrawn(self) -> None:
        """It was taken back."""
        super().cancel()


class LoopBroadcast(_LoopFuture, Broadcast):
    """The future of a put to several peers, for asyncio. Cancelling it withdraws copies that are not fully sent."""

    __slots__ = ("_copies", "_error", "_left", "_withdrawn")

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the future and each copy."""
        if not super().cancel(msg):
            return False
        for copy in self._copies:
            copy.cancel(msg)
        return True

    def withdrawn(self) -> None:
        """All of it was taken back."""
        super().cancel()


# For both

CopyT = TypeVar("CopyT", bound=Copy)
BroadcastT = TypeVar("BroadcastT", bound=Broadcast)


def divide(
    sessions: tuple[_Session, ...],
    body: Payload,
    copy: Callable[[], CopyT],
    broadcast: Callable[[], BroadcastT],
    closed: BaseException | None,
) -> tuple[CopyT | BroadcastT, tuple[CopyT, ...]]:
    """Make one put: its future, and the copies of which each goes to its session.

    Args:
        sessions: Of those that it is for.
        body: Its bytes.
        copy: Makes what goes to one; for one alone it is the future as well.
        broadcast: Makes the future of several, or of none.
        closed: How a put for nobody ends.
    """
    if len(sessions) == 1:
        only = copy()
        only.assign(sessions[0], body, None)
        return only, (only,)
    group = broadcast()
    copies = tuple(copy() for _ in sessions)
    for each, session in zip(copies, sessions, strict=True):
        each.assign(session, body, group)
    group.assemble(copies, closed)
    return group, copies
