"""The station of a client: it dials its server, again and again, and has one session, with whoever serves there."""

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
from redpoll.nq.core.hello import read_hello, say_hello
from redpoll.nq.core.names import Purpose
from redpoll.nq.core.puts import REDELIVERED
from redpoll.nq.core.session import Session
from redpoll.nq.core.station import FIN, HELLO, Station
from redpoll.nq.core.words import in_words

if TYPE_CHECKING:
    from redpoll.node import Received

__all__ = ["ClientStation"]

_logger = logging.getLogger("redpoll.nq")

#: Headers of what comes of a server alone.
_FROM_SERVERS = frozenset((b"", REDELIVERED, FIN))

#: Seconds that a server has to answer a hello, and until it is said again.
_HELLO_TIMEOUT = 10.0
_HELLO_PAUSE = 0.2

#: Seconds that a server has to answer a FIN when nothing is waited for.
_PARTING = 1.0


class ClientStation(Station):
    """Dials.

    Attributes:
        session: The one with the server; another after that one is over.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.session: Session
        self._trouble: BaseException | None = None
        self.renew()

    _task: asyncio.Task[None] | None = None

    #: A hello that was said, and whose answer was not looked at yet.
    _greeting: asyncio.Future[Received[Any]] | None = None

    async def start(self) -> None:
        """Begin to dial."""
        await super().start()
        self._unlinked = asyncio.Event()
        self.address = Address.of_host(*self.options.netloc)
        self._task = self._loop.create_task(self._keep_linked(), name="redpoll nq client")

    @property
    def ready(self) -> bool:
        """Whether the server has answered."""
        return self.session.linked

    @property
    def trouble(self) -> BaseException | None:
        """Why the last attempt to meet the server failed."""
        return why_unreachable(self.node, self.address) or self._trouble

    def recipients(self) -> tuple[Session, ...]:
        """Whom a put is for."""
        return (self.session,)

    def recipient(self, peer: UUID) -> Session:
        """Whom a put for a peer is for, which the server alone can be."""
        session = self.session
        if session.id == peer and session.peer is not None:
            return session
        nobody = Session(self, peer, self.options.connection)
        nobody.error = ConnectionResetError(peer)
        return nobody

    def is_there(self, peer: UUID) -> bool:
        """Whether anything may still come of a peer."""
        return self.refused is None and (self.session.peer is None or self.session.id == peer)

    def renew(self) -> None:
        """Have a session that has not begun."""
        self.session = Session(self, self.id, self.options.connection)

    async def _keep_linked(self) -> None:
        try:
            await self._meet_servers()
        except Exception as error:
            aborted = ConnectionAbortedError(self.id)
            aborted.__cause__ = error
            self._give_up(aborted)
            raise

    async def _meet_servers(self) -> None:
        """Dial, say hello, and wait until that is to be done again."""
        while self.refused is None:
            try:
                await self.node.ready(self.address, timeout=None)
                hello = Message(say_hello(Purpose.CLIENT), self.address, header=HELLO)
                self._greeting = greeting = self.node.request(hello, timeout=_HELLO_TIMEOUT)
                answer = await greeting
            except (TLSError, UsageError, NotAuthorized) as error:
                self._give_up(in_words(error))
            except Fenced as error:
                self._fenced(error)
            except (Busy, NoHandler, ShuttingDown) as error:
                self._trouble = error
                await asyncio.sleep(_HELLO_PAUSE)
            except Refused as error:
                refused = ConnectionRefusedError(self.id)
                refused.__cause__ = error
                self._give_up(refused)
            except Closed:
                return
            except RedpollError as error:
                self._trouble = error.__cause__ or error  # the link's, not the hello's
                await asyncio.sleep(_HELLO_PAUSE)
            except asyncio.CancelledError:
                # The greeting was, by `run_began`, or this task is.
                if self._task is None or self._task.cancelling():
                    raise
            else:
                if self._greeting is greeting:
                    self._answered(answer)
                await self._unlinked.wait()

    def _answered(self, answer: Received[Any]) -> None:
        """A server has answered the hello."""
        self._greeting = None
        self._unlinked.clear()
        if not self._is_met(answer):
            self._unlinked.set()

    def _is_met(self, answer: Received[Any]) -> bool:
        problem = read_hello(answer.data, Purpose.SERVER)
        if problem is not None:
            refused = ConnectionRefusedError(self.id)
            refused.__cause__ = PeerLost(self.address, problem)
            self._give_up(refused)
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
            # Another server is there.
            del self.sessions[session.id]
            self._tell(self.options.events.fin, session.id)
        if session.peer is not peer:
            # Whoever was told that nothing more is put is gone.
            session.said_fin = False
        if self.sessions.get(peer_id) is not session:
            session.id = peer_id
            self.sessions[peer_id] = session
            self.began(session)
        self.opened(session, peer)
        self.arrivals.renewed()
        if session.finishing and not session.count and not session.said_fin:
            self.say_fin(session)
        self.look()
        return session.linked

    def _fenced(self, error: Fenced) -> None:
        """A later process has this id and this secret."""
        aborted = ConnectionAbortedError(self.id)
        aborted.__cause__ = error
        self._give_up(aborted)

    def _give_up(self, error: BaseException) -> None:
        """There will be no server."""
        if self.refused is None:
            self.refused = error
            if not isinstance(error, ConnectionResetError):
                # Many scripts look at no future. The text alone: a log that kept the error would keep its link.
                why = error if isinstance(error, RedpollError) else error.__cause__ or error
                _logger.warning("client %s gives up %s: %s", self.id, self.options.netloc, why)
            self.forget(self.session, error)
            self.arrivals.close(error)
            self._unlinked.set()
            self.look()

    # Messages

    def _is_known(self, message: Received[Any]) -> bool:
        """Whether the answer to the hello came with a message, and was not looked at yet; or was lost with a former link."""
        greeting = self._greeting
        peer = peer_of(message)
        if greeting is not None and greeting.done() and not greeting.cancelled() and greeting.exception() is None:
            self._answered(greeting.result())
        elif message.header in _FROM_SERVERS and self.refused is None and self.session.peer in {None, peer}:
            # Nobody puts before it has answered: that was to the hello over the link before this one.
            self._meet(peer)
        return peer in self._by_peer

    def _hello(self, message: Received[Any]) -> None:
        self.node.refuse(message, Refused, "it is a client, and takes no clients")

    def _heard_fin(self, session: Session) -> None:
        """The server is done with this client: it was asked for it, or it does not want it any more."""
        if not session.said_fin:
            self._give_up(ConnectionResetError(session.id))
        self.look()

    def fin_settled(self, session: Session, peer: Peer, error: BaseException | None) -> None:
        """A FIN was confirmed; the server's follows. Or there was nobody to confirm it."""
        if peer is not session.peer:
            # It was for another server than the one that is there now.
            return
        if isinstance(error, NoHandler):
            # The server has given this client up meanwhile, and has nothing for it.
            session.heard_fin = True
            self.look()
        elif error is not None:
            # It is to be said again, to whoever answers the next hello.
            session.said_fin = session.linked = False
            self.unlinked(session)

    def unlinked(self, session: Session) -> None:
        """Say hello again."""
        if session is self.session:
            self._unlinked.set()

    # The node

    def run_began(self, peer: Peer, renewed: bool) -> None:
        """The server was started again, or its link is there again; or it is another one."""
        session = self.session
        former = session.peer
        if former is not None and former is not peer and not is_linked(former):
            # That one gets what the former had not confirmed, before it fails.
            session.reclaim()
            session.peer = None
            self._by_peer.pop(former, None)
            self._unlinked.set()
        elif renewed and former is peer:
            # The former run may have been told that nothing more is put; this one was not.
            session.linked = session.said_fin = False
            self._unlinked.set()
        elif former is peer and session.said_fin and not session.heard_fin:
            # The server's may have been lost with the former link, and the server may not know the client any more.
            self.say_fin(session)
        greeting = self._greeting
        if greeting is not None and not greeting.done():
            # Its answer may have been lost with the former link.
            self._greeting = None
            greeting.cancel()

    def run_ended(self, peer: Peer, error: RedpollError) -> None:
        """The server did not come back: what waits for it fails, and another may come."""
        session = self.session
        if self.refused is not None or not (peer is session.peer or self._waits_in_vain(session)):
            return
        if isinstance(error, Fenced):
            self._fenced(error)
            return
        lost = ConnectionResetError(session.id)
        lost.__cause__ = error
        self.renew()
        self.forget(session, lost)
        self.arrivals.interrupt(lost)
        self._unlinked.set()

    def _waits_in_vain(self, session: Session) -> bool:
        """Whether this end closes, its server is gone, and so are those that were there next and did not answer."""
        return self.closing and session.peer is None and not self.node.is_connected

    async def _part(self, flush: bool, evict: bool) -> None:  # noqa: ARG002  # it evicts nobody
        session = self.session
        session.finishing = True
        if self.refused is not None or (session.peer is None and not session.count):
            return
        patience = self.options.connection.resume if flush else _PARTING
        if session.peer is None:
            # It never came: it has as long as one that is gone.
            await self._until(lambda: session.peer is not None or session.error is not None, patience)
            if session.peer is None:
                return
        if session.linked and not session.count and not session.said_fin:
            self.say_fin(session)
        parted = self._is_parted(session)
        await (self.wait(parted) if flush else self._until(parted, patience))

    def _is_parted(self, session: Session) -> Callable[[], bool]:
        return lambda: session.heard_fin or session is not self.session or self.refused is not None

    async def _stop(self) -> None:
        task = self._task
        try:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        finally:
            await super()._stop()
