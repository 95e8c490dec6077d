"""The endpoint of a server: a session with each client that has said hello."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from uuid import UUID

from redpoll.errors import Busy, RedpollError, Refused, ShuttingDown
from redpoll.node.door import Peer, is_linked, peer_of
from redpoll.nq.core.endpoint import Endpoint
from redpoll.nq.core.errors import caused
from redpoll.nq.core.hello import hello_body, hello_problem
from redpoll.nq.core.names import Purpose
from redpoll.nq.core.session import Session

if TYPE_CHECKING:
    from redpoll.node import Received

__all__ = ["MAX_LEFT", "ServerEndpoint"]

_logger = logging.getLogger("redpoll.nq")

#: Maximum clients without a session whose messages were not got; at it new clients are refused.
MAX_LEFT = 10_000

#: Seconds before they are counted again.
_COUNT_AGAIN = 0.1

#: Seconds for evicted clients to receive the FIN.
_EVICTION = 1.0

#: Seconds for a finished client without a link to reconnect for the FIN that it did not confirm.
_LAST_WORD = 1.0


class ServerEndpoint(Endpoint):
    """The endpoint of a server; a put without peers goes to all connected clients."""

    #: Time until which new clients are refused, since too many former ones left messages; 0 if not.
    _full_until = 0.0

    @property
    def ready(self) -> bool:
        """True: a server is always ready."""
        return True

    def recipients(self) -> tuple[Session, ...]:
        """Return the sessions of a put without peers. May be called from any thread."""
        return tuple(self.sessions.copy().values())

    def recipient(self, peer: UUID) -> Session:
        """Return the session for a put to a peer; a failed one if it is not connected. May be called from any thread."""
        session = self.sessions.get(peer)
        return self.nobody(peer) if session is None else session

    def is_there(self, peer: UUID) -> bool:
        """Return True if messages of a peer can still arrive. May be called from any thread."""
        return peer in self.sessions

    def disconnect(self, peer: UUID, flush: bool) -> None:
        """End the session with a client.

        Args:
            peer: The client; nothing is done if it is not connected.
            flush: Whether to send waiting messages first; False drops them.
        """
        session = self.sessions.get(peer)
        if session is None:
            return
        session.finishing = True
        if not flush:
            session.drop(ConnectionResetError(peer))
        self.finish(session)

    # Messages

    def _hello(self, message: Received[Any]) -> bytes | None:
        problem = hello_problem(message.data, Purpose.CLIENT)
        peer = peer_of(message)
        if peer.identity == self.id.bytes:
            problem = "it has the id of the server"
        if problem is not None or peer.identity is None:
            self.node.refuse(message, Refused, problem or "it is gone")
            return None
        if self.closing:
            self.node.refuse(message, ShuttingDown, "the server is closing")
            return None
        peer_id = UUID(bytes=peer.identity)
        session = self.sessions.get(peer_id)
        if session is not None and session.peer is not peer and session.peer is not None:
            self._refuse_second(message, session.peer)
            return None
        if session is None and not self._has_room(peer_id):
            self.node.refuse(message, Busy, f"messages of {MAX_LEFT:,} former clients were not got")
            return None
        if session is None:
            session = self.sessions[peer_id] = Session(self, peer_id, self.options.connection)
            self.began(session)
        elif session.received_fin:
            # Its former process had finished; this one has not.
            session.received_fin = session.finishing = False
        # With confirm="get" nothing else ends this message.
        self._loop.call_soon(message.release)
        # Messages for it follow the answer.
        self._loop.call_soon(self._answered, session, peer)
        answer: bytes = hello_body(Purpose.SERVER)
        return answer

    def _has_room(self, peer: UUID) -> bool:
        """Return True if a client is accepted: the number of former clients with messages that were not got is bounded.

        A refused client retries until the program has got some of those messages.
        """
        now = self.time()
        if now >= self._full_until:
            is_full = self.receive_queue.left_by(self.sessions, MAX_LEFT)
            if is_full and not self._full_until:
                _logger.warning(
                    "server %s refuses new clients: messages of %d former ones were not got", self.id, MAX_LEFT
                )
            # Not counted at every attempt of a refused client.
            self._full_until = now + _COUNT_AGAIN if is_full else 0.0
        return not self._full_until or self.receive_queue.has(peer)

    def _refuse_second(self, message: Received[Any], holder: Peer) -> None:
        if is_linked(holder):
            self.node.refuse(
                message, Refused, "another client has this id, and is linked: make CommunicatorOptions for each"
            )
        else:
            self.node.refuse(message, Busy, "another client had this id until just now, and may come back")

    def _answered(self, session: Session, peer: Peer) -> None:
        if session.error is None and is_linked(peer):
            self.opened(session, peer)

    def _received_fin(self, session: Session) -> None:
        """Handle the FIN of a client: it receives the waiting messages, and then a FIN."""
        session.finishing = True
        self.finish(session)
        self.look()

    def send_fin(self, session: Session) -> None:
        """Send a FIN; a client that has sent its own may end when it receives this one."""
        super().send_fin(session)
        if session.received_fin:
            self._loop.call_later(_LAST_WORD, self._look_for_end, session.id)

    def _look_for_end(self, client: UUID) -> None:
        """End a session that only lacks the confirmation of a FIN, if its client has no link.

        A link that breaks with that confirmation on it would else be waited for, in vain, for `resume` seconds.
        """
        session = self.sessions.get(client)
        if session is None or not (session.sent_fin and session.received_fin):
            return
        if session.peer is None or not is_linked(session.peer):
            self.forget(session, ConnectionResetError(session.id))
        else:
            self._loop.call_later(_LAST_WORD, self._look_for_end, session.id)

    def fin_settled(self, session: Session, peer: Peer, error: BaseException | None) -> None:  # noqa: ARG002  # as in `Endpoint`
        """Handle the outcome of a FIN: a confirmation ends the session."""
        if error is None:
            # Later: this is called from within the core.
            asyncio.get_running_loop().call_soon(session.end_dropped)
            self.forget(session, ConnectionResetError(session.id))
        else:
            session.sent_fin = False

    # The node

    def run_began(self, peer: Peer, renewed: bool) -> None:
        """Handle a link of a client; a restarted one has to say hello first."""
        session = self._by_peer.get(peer)
        if renewed and session is not None:
            session.linked = False

    def run_ended(self, peer: Peer, error: RedpollError) -> None:
        """Handle the end of a session: its client did not reconnect."""
        session = self._by_peer.get(peer)
        if session is None and peer.identity is not None:
            # The client may have vanished before the answer to its hello.
            begun = self.sessions.get(UUID(bytes=peer.identity))
            session = begun if begun is not None and begun.peer is None else None
        if session is not None:
            self.forget(session, caused(ConnectionResetError(session.id), error))

    async def _part(self, flush: bool, evict: bool) -> None:
        if evict or not flush:
            for peer in list(self.sessions):
                self.disconnect(peer, flush)
        if flush:
            await self.wait(lambda: not self.sessions)
        else:
            await self._until(lambda: not self.sessions, _EVICTION)
