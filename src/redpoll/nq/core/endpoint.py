"""The endpoint: the part of a communicator on its event loop, with a node and a session per peer."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from redpoll.errors import Busy, NoHandler, RedpollError
from redpoll.node.door import PIECE_FIELDS, LayerNode, Peer, Piece, peer_of
from redpoll.nq.core.errors import again
from redpoll.nq.core.options import CommunicatorOptions, NetworkLocation
from redpoll.nq.core.puts import REDELIVERED, Delivery
from redpoll.nq.core.receive_queue import QueuedMessage, ReceiveQueue
from redpoll.nq.core.session import Session

if TYPE_CHECKING:
    from redpoll.config import Config
    from redpoll.node import Received
    from redpoll.transport.carrier import Carrier

__all__ = ["FIN", "HELLO", "Endpoint"]

_logger = logging.getLogger("redpoll.nq")

#: Headers of control messages. A put has none, or `REDELIVERED`.
HELLO = b"nq hello"
FIN = b"nq fin"


class Endpoint:
    """The base of both ends; server.py and client.py contain the differences.

    All is called on the loop. Puts go to sessions; messages come to `receive_queue`.

    Args:
        options: The communicator's.
        config: The node's.
        carrier: What carries its links.
        receive_queue: Takes messages.
        tell: Calls an event of the user's, `ini` or `fin`, with a peer.

    Attributes:
        closing: Whether it takes no more puts.
        refused: Why it will have no peer any more; None while it may.
        sessions: By peer; those that are over are gone.
    """

    refused: BaseException | None = None

    def __init__(
        self,
        options: CommunicatorOptions,
        config: Config,
        carrier: Carrier,
        receive_queue: ReceiveQueue,
        tell: Callable[[Callable[[UUID], None], UUID], object],
    ) -> None:
        self.id = options.id
        self.options = options
        self.receive_queue = receive_queue
        receive_queue.alive = self.is_there
        self.node = _Node(self, carrier, config)
        self.sessions: dict[UUID, Session] = {}
        self.closing = False
        self._port = options.netloc.port
        self._by_peer: dict[Peer, Session] = {}
        self._tell = tell
        connection = options.connection
        self._holds = connection.effective_confirm == "get"
        self._bounded = connection.queue_size < 2**30 or connection.queue_bytes is not None
        self._loop: asyncio.AbstractEventLoop
        #: Calls that wait for a session to drain, or for room.
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    # Start and close

    async def start(self) -> None:
        """Start to listen or to dial.

        Raises:
            ConfigError: It cannot listen.
        """
        self._loop = asyncio.get_running_loop()
        self.time = self._loop.time
        await self.node.start()
        self._port = self.netloc.port

    @property
    def over(self) -> BaseException | None:
        """The error of a put without receivers; None if it succeeds. May be called from any thread."""
        return self.refused or (ConnectionAbortedError(self.id) if self.closing else None)

    def give_up(self, error: BaseException) -> None:
        """End with an error, since there will be no peer any more."""
        self.refused = error
        for session in self.recipients():
            self.forget(session, error)
        self.receive_queue.close(error)
        self.look()

    def nobody(self, peer: UUID) -> Session:
        """Return a failed session, for puts to a peer that is not connected."""
        session = Session(self, peer, self.options.connection)
        session.error = self.refused or ConnectionResetError(peer)
        return session

    @property
    def ready(self) -> bool:
        """True if there is a peer, or can be one."""
        raise NotImplementedError

    @property
    def last_error(self) -> BaseException | None:
        """The error that keeps it from being ready, if known."""
        return None

    async def wait_ready(self, timeout: float | None) -> None:
        """Wait until it is ready.

        Raises:
            TimeoutError: It is not in time.
            ConnectionError: It will not be.
        """
        try:
            async with asyncio.timeout(timeout):
                await self.wait(lambda: self.ready or self.closing or self.refused is not None)
        except TimeoutError:
            last_error = self.last_error
            why = "" if last_error is None else f": {last_error}"
            raise TimeoutError(f"no server answered within {timeout:g} s{why}") from last_error
        if self.refused is not None:
            raise again(self.refused)
        if self.closing:
            raise ConnectionAbortedError(self.id)

    @property
    def netloc(self) -> NetworkLocation:
        """The address that a server has, or had, or that a client dials; a forked child has its parent's."""
        listening = self.node.listening
        return NetworkLocation(self.options.netloc.host, listening[0].port if listening else self._port)

    async def close(self, timeout: float | None, flush: bool, *, evict: bool = False) -> None:
        """Accept no more puts, finish the sessions, and stop.

        Args:
            timeout: Seconds for that; None is no limit.
            flush: Whether to wait for what was put to be confirmed; False drops what was not sent.
            evict: Whether a server ends its sessions, rather than wait for its clients to do so.
        """
        if not self.closing:
            self.closing = True
            for message in self.receive_queue.release_all() if self._holds else ():
                message.release()
        if not flush:
            for session in self.recipients():
                session.drop(ConnectionAbortedError(self.id))
        try:
            async with asyncio.timeout(timeout):
                await self._part(flush, evict)
        except TimeoutError:
            pass
        finally:
            await self._stop()

    async def _part(self, flush: bool, evict: bool) -> None:
        """Wait until all sessions have ended."""
        raise NotImplementedError

    async def _stop(self) -> None:
        error = ConnectionAbortedError(self.id)
        for session in self.recipients():
            self.forget(session, error)
        self.receive_queue.close(error)
        try:
            # Let acknowledgements leave.
            await self.node.stop(0.5)
        except asyncio.CancelledError:
            # A stop that is cancelled after its drain does not wait for the end of links; the next one does.
            await self.node.stop()
            raise

    def recipients(self) -> tuple[Session, ...]:
        """Return the sessions of a put without peers. May be called from any thread."""
        raise NotImplementedError

    def is_there(self, peer: UUID) -> bool:
        """Return True if messages of a peer can still arrive. May be called from any thread."""
        raise NotImplementedError

    # Puts

    def submit(self, deliveries: tuple[Delivery, ...]) -> None:
        """Submit the deliveries of a put to their sessions."""
        for delivery in deliveries:
            if self.closing:
                delivery.end(ConnectionAbortedError(self.id))
            else:
                delivery.session.submit(delivery)

    async def submit_with_room(self, deliveries: tuple[Delivery, ...], timeout: float | None) -> None:
        """Submit the deliveries of a put once there is room for all, or refuse them at the timeout."""
        places = Counter(delivery.session for delivery in deliveries)
        size = deliveries[0].size
        try:
            async with asyncio.timeout(timeout):
                await self.wait(
                    lambda: self.closing or all(each.has_room(size, count) for each, count in places.items())
                )
        except TimeoutError:
            for delivery in deliveries:
                delivery.session.refuse(delivery)
        else:
            self.submit(deliveries)

    @property
    def has_waiters(self) -> bool:
        """True if any call waits for a change of a session."""
        return bool(self._waiters)

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition of sessions holds."""
        while not condition():
            waiter: asyncio.Future[None] = self._loop.create_future()
            entry = condition, waiter
            self._waiters.append(entry)
            try:
                await waiter
            finally:
                if entry in self._waiters:
                    self._waiters.remove(entry)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Same as `wait`, with a timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait(condition)

    def eased(self, session: Session) -> None:
        """Handle the end of puts. Called from within the core."""
        if session.finishing and not session.count:
            self._loop.call_soon(self.finish, session)
        self.look()

    def finish(self, session: Session) -> None:
        """Send a FIN if all puts are confirmed and none was sent."""
        if session.error is None and not session.count and not session.sent_fin:
            self.send_fin(session)

    def look(self) -> None:
        """Check the conditions of waiting calls."""
        if self._waiters:
            for condition, waiter in self._waiters:
                if not waiter.done() and condition():
                    waiter.set_result(None)

    # Messages

    def arrived(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Handle messages of one peer; return those that are done: all that `get` does not confirm."""
        return [message for message in messages if self._arrived(message)]

    def _arrived(self, message: Received[Any]) -> bool:
        """Handle a message by its header; return True if it is done."""
        session = self._by_peer.get(peer_of(message))
        header = message.header
        if session is None or (header and header != REDELIVERED):
            return self._control(message, session, header)
        if session.received_fin:
            self.node.refuse(message, NoHandler, "it has said that it is done")
            return False
        if self._bounded and not self._makes_room(session, message):
            return False
        held = message if self._holds and not self.closing else None
        self.receive_queue.add(QueuedMessage(session.source, message.data, bool(header), held))
        return held is None

    def _makes_room(self, session: Session, message: Received[Any]) -> bool:
        """Refuse a message without room in the queue, or make room by dropping others."""
        connection = self.options.connection
        source = session.source
        size = len(message.data)
        while True:
            over = source.count >= connection.queue_size or (
                connection.queue_bytes is not None and source.count and source.size + size > connection.queue_bytes
            )
            if not over:
                return True
            if connection.full != "drop" or not connection.drop_oldest or self.closing:
                # Messages that wait while it is closing were confirmed.
                self.node.refuse(message, Busy, f"{source.count} messages wait to be got there")
                return False
            oldest = self.receive_queue.drop_oldest(source)
            if oldest is not None and oldest.received is not None:
                self.node.refuse(oldest.received, Busy, "it was dropped for newer ones")

    def _control(self, message: Received[Any], session: Session | None, header: bytes) -> bool:
        if header == HELLO:
            answer = self._hello(message)
            if answer is not None:
                self.node.conclude(message, answer)
            return False
        if session is None and self._is_known(message):
            return self._arrived(message)
        if session is not None and header == FIN:
            # The sender may resend the message, if it could not be confirmed.
            if not session.received_fin:
                session.received_fin = True
                self._loop.call_soon(self._received_fin, session)
            return True
        if session is None or session.received_fin:
            self.node.refuse(message, NoHandler, "say hello first")
        else:
            self.node.refuse(message, NoHandler, "this is a communicator of nq, which takes puts")
        return False

    def _is_known(self, message: Received[Any]) -> bool:  # noqa: ARG002  # a client uses it
        """Return True if the sender of a message is known by now."""
        return False

    def _hello(self, message: Received[Any]) -> bytes | None:
        """Return the answer to a hello, or refuse it and return None."""
        raise NotImplementedError

    def _received_fin(self, session: Session) -> None:
        raise NotImplementedError

    # Sessions

    def opened(self, session: Session, peer: Peer) -> None:
        """Open the session for the peer's process that said hello."""
        former = session.peer
        if former is not None and self._by_peer.get(former) is session:
            del self._by_peer[former]
        self._by_peer[peer] = session
        session.source = self.receive_queue.source(session.id)
        session.link(peer)
        if session.finishing:
            self.finish(session)

    def began(self, session: Session) -> None:
        """Announce a new session to the events."""
        self._tell(self.options.events.ini, session.id)

    def forget(self, session: Session, error: BaseException) -> None:
        """End and forget a session."""
        session.end(error)
        if self.sessions.get(session.id) is session:
            del self.sessions[session.id]
            self._tell(self.options.events.fin, session.id)
        if session.peer is not None and self._by_peer.get(session.peer) is session:
            del self._by_peer[session.peer]
        self.receive_queue.look_again()
        self.look()

    def send_fin(self, session: Session) -> None:
        """Send a FIN: no more puts follow."""
        peer = session.peer
        if peer is not None:  # otherwise it is sent when there is one
            session.sent_fin = True
            self.node.submit(peer, _Fin(self, session, peer))

    def fin_settled(self, session: Session, peer: Peer, error: BaseException | None) -> None:
        """Handle the outcome of a FIN."""
        raise NotImplementedError

    def unlinked(self, session: Session) -> None:
        """Handle the loss of a peer's process: puts wait for the hello of the next one."""

    # Events of the node

    def run_began(self, peer: Peer, renewed: bool) -> None:
        """Handle a link to a peer: the first one, one of a resumed session, or, `renewed`, of another process."""

    def run_ended(self, peer: Peer, error: RedpollError) -> None:
        """Handle the end of the node's session with a peer: not resumed in time, goodbye, or fenced."""
        raise NotImplementedError


class _Fin(Piece):
    """The sending of a FIN."""

    __slots__ = (*PIECE_FIELDS, "said_to", "endpoint", "to")

    def __init__(self, endpoint: Endpoint, session: Session, to: Peer) -> None:
        self.endpoint = endpoint
        self.said_to = session
        self.to = to
        self.load(FIN, b"")

    def settle(self, answer: Any, error: BaseException | None) -> None:  # noqa: ARG002  # as `Piece` declares it
        """Pass the outcome to the endpoint."""
        self.endpoint._loop.call_soon(self.endpoint.fin_settled, self.said_to, self.to, error)


class _Node(LayerNode):
    """A node that hands its messages to an endpoint, which ends each of them."""

    def __init__(self, endpoint: Endpoint, carrier: Carrier, config: Config) -> None:
        super().__init__(config, carrier)
        self._endpoint = endpoint

    def arrived(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Hand messages to the endpoint."""
        return self._endpoint.arrived(messages)

    def _session_began(self, peer: Peer, renewed: bool) -> None:
        self._endpoint.run_began(peer, renewed)

    def _session_resumed(self, peer: Peer) -> None:
        self._endpoint.run_began(peer, False)

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        self._endpoint.run_ended(peer, error)
