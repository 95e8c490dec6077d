"""The door of a node for the layers above it: all that wiring, nq and a hub use of it beside its public methods.

A layer subclasses `LayerNode`. It is given, in one call, the messages of a peer that may be handled in this turn of the
loop, and learns when the session of a peer began, was resumed and ended. It posts records without a future each; a `Piece`
is a record that a layer keeps books of. All of it is plain calls on the loop of the node, which return at once.

The flow is the layer's own. In: a message that it has not released keeps its place in the window of its sender, so a
layer that releases what it has room for says by that when it takes more. Out: `room` is how much would be written at
once, `when_room` tells when there is some again, and `withdraw` takes back a piece that was not sent.

A `Peer` is what the layer knows the remote node by. It is the same object as long as that node is known; a layer reads
its `identity`, `address`, `last_error` and `last_heard`, and hands it back. Everything else of it belongs to the core.
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from redpoll.address import Address
from redpoll.errors import RedpollError, Refused, UsageError
from redpoll.message import Message
from redpoll.node.dispatch import TurnDispatcher
from redpoll.node.node import Node, Received
from redpoll.node.sending import Queued, submit
from redpoll.wire.capabilities import MESSAGE_UNIT
from redpoll.wire.frames import REQ_ACK, RETRY
from redpoll.wire.identity import proves
from redpoll.wire.outgoing import OUTGOING_FIELDS, Outgoing, Payload, Stage
from redpoll.wire.peer import Peer

if TYPE_CHECKING:
    from redpoll.config import Config
    from redpoll.transport.carrier import Carrier
    from redpoll.wire.inbound import Inbound

__all__ = [
    "MESSAGE_UNIT",
    "PIECE_FIELDS",
    "LayerNode",
    "Outgoing",
    "Payload",
    "Peer",
    "Piece",
    "ask",
    "has_key_of",
    "host_of",
    "is_linked",
    "local_host",
    "peer_at",
    "peer_of",
    "remote_of",
    "why_unreachable",
]


#: The message of a piece.
_NOTHING = Message(None)

# The peer of a piece that the node was not given.
_NO_PEER: Any = None

#: Slots of a class that is a `Piece` and has another base with slots.
PIECE_FIELDS = (*OUTGOING_FIELDS, "peer")


class Piece(Queued):
    """One record on its way to a peer. A layer subclasses it and implements `settle`.

    A mixin without slots: a subclass sets `__slots__` to `PIECE_FIELDS` and its own.
    """

    if not TYPE_CHECKING:  # as Outgoing
        __slots__ = ()

    def load(self, header: bytes, body: Payload, *, acknowledge: bool = True, message: Message[Any] = _NOTHING) -> None:
        """Be a record that was not sent, with no timeout: its session is its limit.

        Args:
            header: The header.
            body: The body.
            acknowledge: Whether it ends when the peer releases it, or when it is written.
            message: The message that errors refer to.
        """
        self.prepare(message, body, REQ_ACK if acknowledge else 0, None, None, pinned=True)
        self.header = header
        self.size = len(header) + len(body)
        self.peer = _NO_PEER

    @property
    def over(self) -> bool:
        """True if it has ended: confirmed, failed, or withdrawn."""
        return self.stage == Stage.ENDED

    @property
    def untouched(self) -> bool:
        """True if nothing of it was ever sent."""
        return not (self.stage or self.kind & RETRY)

    @property
    def unfinished(self) -> bool:
        """True if it is being sent for the first time, and not written to its end: the peer cannot have it."""
        link = self.link
        if self.stage != Stage.SENT or link is None or self.kind & RETRY:
            return False
        return any(transfer.out is self for transfer in link.transfers)

    def discard(self) -> None:
        """End it where the node does not have it, and release its body.

        Raises:
            UsageError: The node has it: its peer counts it, and `LayerNode.withdraw` takes it back.
        """
        if self.stage != Stage.ENDED:
            if self.peer is not _NO_PEER:
                raise UsageError("the piece was submitted already", "take it back with withdraw()")
            self.stage = Stage.ENDED
        self.release_body()

    def settle(self, answer: Inbound[Any] | None, error: BaseException | None) -> None:
        """Handle its end: an error, or None. Called once, from inside the core, which it must not call back."""
        raise NotImplementedError


class _Record(Piece):
    """A record whose layer is told of its end."""

    __slots__ = (*PIECE_FIELDS, "ended")

    ended: Callable[[BaseException | None], object] | None

    def settle(self, answer: Inbound[Any] | None, error: BaseException | None) -> None:  # noqa: ARG002  # Outgoing's
        """Release it, and tell the layer."""
        self.body = self.header = b""
        if self.ended is not None:
            self.ended(error)


class LayerNode(Node[Any]):
    """The node of a layer, which implements `arrived` and, as it needs them, the three methods about sessions.

    Args:
        config: The options.
        carrier: The carrier of its links; None is sockets.
    """

    _dispatcher_class = TurnDispatcher

    def __init__(self, config: Config, carrier: Carrier | None = None) -> None:
        super().__init__(self.arrived, config)  # type: ignore[arg-type]  # its dispatcher calls it with a list
        if carrier is not None:
            self._carrier = carrier

    @property
    def is_inherited(self) -> bool:
        """True in a forked child of the process that started it."""
        return self._state == "inherited"

    # Called by the node

    def arrived(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Handle messages of one peer, in order, as many as slots allow; their data is not decoded.

        Returns:
            Those that are done, to be released together. The layer ends the others, now or later: with their own
            `release`, with `refuse`, or with `conclude`. If it raises, all that have not ended are refused.
        """
        raise NotImplementedError

    # Sending

    def submit(self, peer: Peer, piece: Piece, *, first: bool = False, at_once: bool = False) -> None:
        """Send a piece behind all that was sent to the peer before.

        Once the node has closed, which is after the drain of `stop`, the piece is settled before this returns: with
        `NotSent`, caused by `Closed`, as what waits in a queue then is.

        Args:
            peer: The peer. One that the node has forgotten is known again, and dialled.
            piece: A loaded piece, which the node has until it is settled.
            first: Whether it goes before what waits for a link; it then counts at no bound of the queue.
            at_once: Whether it is written without waiting for more in this turn.

        Raises:
            Closed: The node was never started.
            UsageError: The node runs on another event loop, or is a parent process's.
        """
        if self._state != "running" or _get_running_loop() is not self._loop:
            self._check_started()
        if peer.link is None:
            peer = self._peers.routes.bound_to(peer)
        if first and peer.queue:
            piece.peer = peer
            peer.requeue(piece)
            return
        submit(piece, peer, self._time(), at_once=at_once)
        if peer.link is None:
            # It may have failed at a bound.
            self._peers.forget_if_idle(peer)

    def post(
        self,
        peer: Peer,
        body: Payload,
        ended: Callable[[BaseException | None], object] | None = None,
        *,
        header: bytes = b"",
        acknowledge: bool = True,
    ) -> None:
        """Send a record behind all that was sent to the peer before, without a future; `submit` says what is raised.

        Args:
            peer: The peer. One that the node has forgotten is known again, and dialled.
            body: The body.
            ended: Called once, at its end, with its error or None: as `Piece.settle`, from inside the core.
            header: The header.
            acknowledge: Whether it ends when the peer releases it, or when it is written.
        """
        record = _Record()
        record.load(header, body, acknowledge=acknowledge)
        record.ended = ended
        self.submit(peer, record)

    def withdraw(self, piece: Piece) -> None:
        """Take a piece back, as far as it can be; it is not settled. Do nothing if it has ended."""
        piece.peer.withdraw(piece, self._time())

    @staticmethod
    def queued(peer: Peer) -> Iterator[Outgoing]:
        """Return what waits to be sent to a peer, in order."""
        return iter(peer.queue)

    @staticmethod
    def sendings(peer: Peer) -> list[Outgoing]:
        """Return what was submitted for a peer and has not ended: written, being written, and waiting.

        Requests that are handled and wait for their answer come first. Answers to messages of the peer are not included.
        """
        # Requests that are to be resent are in the queue.
        found: list[Outgoing] = [out for requests in peer.requests.values() for out in requests if out.stage]
        for link in peer.links:
            found += link.in_flight.values()
            found += (out for out in link.written if out.link is not None)
            found += (transfer.out for transfer in link.transfers if not transfer.answer)
        found += peer.queue
        return [each for each in dict.fromkeys(found) if each.stage != Stage.ENDED and isinstance(each, Queued)]

    # The flow

    @staticmethod
    def room(peer: Peer) -> int:
        """Return how many small records would be written to a peer at once; 0 while others wait."""
        link = peer.link
        return 0 if link is None or peer.queue else link.free_places

    def when_room(self, peer: Peer, call: Callable[[], object]) -> None:
        """Call a function in a later turn, once: when there is room at a peer, or its link is lost, or its session ends.

        The function has to ask `room` again: another may have taken it, and there is none without a link. It is called
        soon where there is nothing to wait for: there is room already, or the peer has no link and its session is over,
        as it is for all peers once the node has closed.
        """
        if peer.free_window > 0 or not (peer.links or peer.resuming):
            self._loop.call_soon(call)
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        waiter.add_done_callback(lambda _: call())
        peer.writable_waiters.append(waiter)

    def _check_started(self) -> None:
        """Raise an error if the node was never started, or not here; what is submitted once it has closed fails."""
        if not self._was_started:
            raise self._closed()
        self._check_loop()

    # Ends of messages

    def conclude(self, message: Received[Any], result: Any) -> None:
        """End a message with the answer to it: bytes, None, or an awaitable of these. An exception refuses it."""
        self._dispatcher.conclude(message, result)

    def failed(self, message: Received[Any], error: BaseException) -> None:
        """Refuse a message whose handling raised, and tell the log and the hook, as of any handler."""
        self._dispatcher.failed(message, error)

    @property
    def _dispatcher(self) -> TurnDispatcher:
        dispatcher: Any = self._peers.receiver
        return dispatcher  # type: ignore[no-any-return]  # as its class says

    @staticmethod
    def refuse(message: Received[Any], reason: type[Refused], text: str) -> None:
        """Refuse a message for a reason of the library, the error that its sender gets."""
        message._refuse(reason.code, text)

    def cut(self, peer: Peer, error: RedpollError) -> None:
        """Close the links of a peer at once, because of an error, without a goodbye; write output as far as possible."""
        for link in list(peer.links):
            link.connection.flush()
            link.connection.fail(error)

    @staticmethod
    def leave(peer: Peer) -> None:
        """Say goodbye to a peer: its session with this node ends, and what it sends meanwhile is not handled."""
        for link in list(peer.links):
            link.leave()
            link.connection.flush()

    def heard(self, peer: Peer) -> None:
        """Take note that a peer lives, as by bytes of each of its links: it was heard in another way."""
        for link in peer.links:
            link.liveness.last_received = self._time()
            link.liveness.suspect = False

    # State

    @property
    def is_connected(self) -> bool:
        """True if there is any connection, also one whose peer is not known yet."""
        return bool(self._peers.connections)


class _Bound(Message[Payload]):
    """A message for one peer, whatever its address means."""

    __slots__ = ("_peer",)

    def __init__(self, peer: Peer, data: Payload, header: bytes) -> None:
        super().__init__(data, peer.address, header=header)
        self._peer = peer

    def _bound_to(self) -> Peer:
        return self._peer


def ask(
    node: Node[Any], peer: Peer, data: Payload, *, header: bytes = b"", timeout: float | None
) -> asyncio.Future[Received[Any]]:
    """Send a request to a peer, whatever its address means by now, as `Node.request` does."""
    return node.request(_Bound(peer, data, header), timeout=timeout)


def peer_at(node: Node[Any], address: Address) -> Peer | None:
    """Return the peer that an address means by now, as far as is known."""
    return node._peers.routes.get(address)


def why_unreachable(node: Node[Any], address: Address) -> RedpollError | None:
    """Return why the peer at an address has no link, as far as is known."""
    peer = peer_at(node, address)
    return None if peer is None else peer.last_error


def peer_of(message: Received[Any]) -> Peer:
    """Return the peer that a message arrived from, or an answer."""
    peer: Peer = message.link.peer  # its link has one
    return peer


def is_linked(peer: Peer) -> bool:
    """Return True if a peer has a link."""
    return bool(peer.links)


def has_key_of(peer: Peer, holder: Peer) -> bool | None:
    """Return True if two peers showed the same key in their certificates; None if neither showed one."""
    if peer.certificate is None and holder.certificate is None:
        return None
    return proves(holder, None if peer.certificate is None else peer.certificate.public_key)


def remote_of(message: Received[Any]) -> Address:
    """Return the remote address of the socket that a message arrived over."""
    remote: Address = message.link.connection.remote
    return remote


def host_of(peer: Peer) -> str | None:
    """Return the host that a peer's links lead to; None without a link."""
    return next((link.connection.remote.host for link in peer.links), None)


def local_host(message: Received[Any]) -> str | None:
    """Return the address of this machine that a message arrived at; None where links have none."""
    transport = message.link.connection.transport
    name = None if transport is None else transport.get_extra_info("sockname")
    return Address.of_socket(name).host if isinstance(name, tuple) else None
