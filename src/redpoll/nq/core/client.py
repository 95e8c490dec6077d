"""The endpoint of a client: it dials and redials the server, and has one session with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from redpoll.address import Address
from redpoll.errors import (
    Busy,
    Closed,
    Fenced,
    NoHandler,
    NotAuthorized,
    PeerLost,
    RedpollError,
    Refused,
    ShuttingDown,
    TLSError,
    UsageError,
)
from redpoll.message import Message
from redpoll.node.door import Peer, is_linked, peer_of, why_unreachable
from redpoll.nq.core.endpoint import FIN, HELLO, Endpoint
from redpoll.nq.core.errors import caused, in_words
from redpoll.nq.core.hello import hello_body, hello_problem
from redpoll.nq.core.names import Purpose
from redpoll.nq.core.puts import REDELIVERED
from redpoll.nq.core.session import Session

if TYPE_CHECKING:
    from redpoll.node import Received

__all__ = ["ClientEndpoint"]

_logger = logging.getLogger("redpoll.nq")

#: Headers of messages that only servers send.
_FROM_SERVERS = frozenset((b"", REDELIVERED, FIN))

#: Seconds for a server to answer a hello, and before a hello is repeated.
_HELLO_TIMEOUT = 10.0
_HELLO_PAUSE = 0.2

#: Seconds for a server to answer a FIN when closing does not flush.
_PARTING = 1.0


class ClientEndpoint(Endpoint):
    """The endpoint of a client.

    Attributes:
        session: The session with the server; a new one after that has ended.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.session: Session
        self._last_error: BaseException | None = None
        self.renew()

    _task: asyncio.Task[None] | None = None

    #: A hello whose answer was not handled yet.
    _greeting: asyncio.Future[Received[Any]] | None = None

    async def start(self) -> None:
        """Start to dial."""
        await super().start()
        self._unlinked = asyncio.Event()
        self.address = Address.of_host(*self.options.netloc)
        self._task = self._loop.create_task(self._keep_linked(), name="redpoll nq client")

    @property
    def ready(self) -> bool:
        """True if the server has answered."""
        return self.session.linked

    @property
    def last_error(self) -> BaseException | None:
        """The error of the last attempt to connect."""
        return why_unreachable(self.node, self.address) or self._last_error

    def recipients(self) -> tuple[Session, ...]:
        """The sessions of a put without peers: the one with the server."""
        return (self.session,)

    def recipient(self, peer: UUID) -> Session:
        """Return the session for a put to a peer, which can only be the server."""
        session = self.session
        if session.id == peer and session.peer is not None:
            return session
        return self.nobody(peer)

    def is_there(self, peer: UUID) -> bool:
        """Return True if messages of a peer can still arrive."""
        return self.refused is None and (self.session.peer is None or self.session.id == peer)

    def renew(self) -> None:
        """Replace the session by one that has not begun."""
        self.session = Session(self, self.id, self.options.connection)

    async def _keep_linked(self) -> None:
        try:
            await self._meet_servers()
        except Exception as error:
            self.give_up(caused(ConnectionAbortedError(self.id), error))
            raise

    async def _meet_servers(self) -> None:
        """Dial and say hello, again after each loss of the link."""
        while self.refused is None:
            try:
                await self.node.ready(self.address, timeout=None)
                hello = Message(hello_body(Purpose.CLIENT), self.address, header=HELLO)
                self._greeting = greeting = self.node.request(hello, timeout=_HELLO_TIMEOUT)
                answer = await greeting
            except (TLSError, UsageError, NotAuthorized) as error:
                self.give_up(in_words(error))
            except Fenced as error:
                self._fenced(error)
            except (Busy, NoHandler, ShuttingDown) as error:
                self._last_error = error
                await asyncio.sleep(_HELLO_PAUSE)
            except Refused as error:
                self.give_up(caused(ConnectionRefusedError(self.id), error))
            except Closed:
                return
            except RedpollError as error:
                self._last_error = error.__cause__ or error  # the link's, not the hello's
                await asyncio.sleep(_HELLO_PAUSE)
            except asyncio.CancelledError:
                # Either `run_began` cancelled the greeting, or this task is cancelled.
                if self._task is None or self._task.cancelling():
                    raise
            else:
                if self._greeting is greeting:
                    self._answered(answer)
                await self._unlinked.wait()

    def _answered(self, answer: Received[Any]) -> None:
        """Handle the answer to the hello."""
        self._greeting = None
        self._unlinked.clear()
        if not self._is_met(answer):
            self._unlinked.set()

    def _is_met(self, answer: Received[Any]) -> bool:
        problem = hello_problem(answer.data, Purpose.SERVER)
        if problem is not None:
            self.give_up(caused(ConnectionRefusedError(self.id), PeerLost(self.address, problem)))
            return False
        return self._meet(peer_of(answer))

    def _meet(self, peer: Peer) -> bool:
        if peer.identity is None or not is_linked(peer):
            return False
        session = self.session
        peer_id = UUID(bytes=peer.identity)
        if session.peer is not None and session.peer is not peer:
            session.reclaim()
        if self.sessions.get(session.id) is session and session.id != peer_id:
            # Another server answers at the address.
            del self.sessions[session.id]
            self._tell(self.options.events.fin, session.id)
        if session.peer is not peer:
            # The process that received the FIN is gone.
            session.sent_fin = False
        if self.sessions.get(peer_id) is not session:
            session.id = peer_id
            self.sessions[peer_id] = session
            self.began(session)
        self.opened(session, peer)
        self.receive_queue.renewed()
        self.look()
        return session.linked

    def _fenced(self, error: Fenced) -> None:
        """End, since a later process with this id and secret took over."""
        self.give_up(caused(ConnectionAbortedError(self.id), error))

    def give_up(self, error: BaseException) -> None:
        """End: the client stops dialling."""
        if self.refused is None:
            if not isinstance(error, ConnectionResetError):
                # Many scripts ignore futures. Only the text: a log record that kept the error would keep its link alive.
                why = error if isinstance(error, RedpollError) else error.__cause__ or error
                _logger.warning("client %s gives up %s: %s", self.id, self.options.netloc, why)
            super().give_up(error)
            self._unlinked.set()

    # Messages

    def _is_known(self, message: Received[Any]) -> bool:
        """Return True if the sender is the server, whose answer to the hello may be unhandled, or lost with a former link."""
        greeting = self._greeting
        peer = peer_of(message)
        if greeting is not None and greeting.done() and not greeting.cancelled() and greeting.exception() is None:
            self._answered(greeting.result())
        elif message.header in _FROM_SERVERS and self.refused is None and self.session.peer in {None, peer}:
            # A server answers before it puts: its answer was to the hello over the former link.
            self._meet(peer)
        return peer in self._by_peer

    def _hello(self, message: Received[Any]) -> None:
        self.node.refuse(message, Refused, "it is a client, and accepts no clients")

    def _received_fin(self, session: Session) -> None:
        """Handle the FIN of the server: the answer to the client's, or the end of the session."""
        if not session.sent_fin:
            self.give_up(ConnectionResetError(session.id))
        self.look()

    def fin_settled(self, session: Session, peer: Peer, error: BaseException | None) -> None:
        """Handle the outcome of a FIN: after a confirmation, the server's FIN follows."""
        if peer is not session.peer:
            # The FIN went to a former server.
            return
        if isinstance(error, NoHandler):
            # The server has ended the session meanwhile, and has no messages for it.
            session.received_fin = True
            self.look()
        elif error is not None:
            # The put is repeated to the server that answers the next hello.
            session.sent_fin = session.linked = False
            self.unlinked(session)

    def unlinked(self, session: Session) -> None:
        """Say hello again."""
        if session is self.session:
            self._unlinked.set()

    # The node

    def run_began(self, peer: Peer, renewed: bool) -> None:
        """Handle a link: of the server, of its next process, or of another server."""
        session = self.session
        former = session.peer
        if former is not None and former is not peer and not is_linked(former):
            # The new server receives the messages that the former had not confirmed.
            session.reclaim()
            session.peer = None
            self._by_peer.pop(former, None)
            self._unlinked.set()
        elif renewed and former is peer:
            # A FIN went to the former run only.
            session.linked = session.sent_fin = False
            self._unlinked.set()
        elif former is peer and session.sent_fin and not session.received_fin:
            # The server's FIN may have been lost with the former link, and the server may have forgotten the client.
            self.send_fin(session)
        greeting = self._greeting
        if greeting is not None and not greeting.done():
            # The answer may have been lost with the former link.
            self._greeting = None
            greeting.cancel()

    def run_ended(self, peer: Peer, error: RedpollError) -> None:
        """Handle the end of the session: its puts fail, and the client dials for the next server."""
        session = self.session
        if self.refused is not None or not (peer is session.peer or self._waits_in_vain(session)):
            return
        if isinstance(error, Fenced):
            self._fenced(error)
            return
        lost = caused(ConnectionResetError(session.id), error)
        self.renew()
        self.forget(session, lost)
        self.receive_queue.interrupt(lost)
        self._unlinked.set()

    def _waits_in_vain(self, session: Session) -> bool:
        """Return True if this end is closing and no server is left to confirm its puts."""
        return self.closing and session.peer is None and not self.node.is_connected

    async def _part(self, flush: bool, evict: bool) -> None:  # noqa: ARG002  # a client has no clients to evict
        session = self.session
        session.finishing = True
        if self.refused is not None or (session.peer is None and not session.count):
            return
        patience = self.options.connection.resume if flush else _PARTING
        if session.peer is None:
            # The server was never met: wait as long as for a lost one.
            await self._until(lambda: session.peer is not None or session.error is not None, patience)
            if session.peer is None:
                return
        if session.linked:
            self.finish(session)
        parted = self._is_parted(session)
        await (self.wait(parted) if flush else self._until(parted, patience))

    def _is_parted(self, session: Session) -> Callable[[], bool]:
        return lambda: session.received_fin or session is not self.session or self.refused is not None

    async def _stop(self) -> None:
        task = self._task
        try:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        finally:
            await super()._stop()
