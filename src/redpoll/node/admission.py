"""Admission of links: handshake, pins, `authorize`, proofs, and the peer that the link belongs to.

The decisions are made in wire/routes.py (which peer a link belongs to, or may belong to), claims.py (how that is
proven) and authorization.py (the user's function); this module calls them in order, and acts on their results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from redpoll.errors import Fenced, NotAuthorized, RedpollError
from redpoll.node.authorization import Authorization
from redpoll.node.claims import CLAIM_TIMEOUT, REJECTED, Claims, OpenClaim, key_of
from redpoll.node.hooks import PeerInfo
from redpoll.wire.frames import PREAMBLE_SIZE, Control
from redpoll.wire.identity import Claim, Claimant
from redpoll.wire.routes import Routes
from redpoll.wire.session import FENCED
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    import asyncio

    from redpoll.config import Config
    from redpoll.node.sessions import Sessions
    from redpoll.transport.connection import Connection
    from redpoll.wire.link import Link
    from redpoll.wire.peer import Peer

__all__ = ["LAG", "REJECTION_TIME", "Admission"]

#: Delay in seconds for reading what arrived while this process was busy.
LAG = 0.01

#: Time in seconds that a rejected node has to read the refusal and close.
REJECTION_TIME = 1.0

_REJECTED_TEXT = "the peer rejected this node"
_HINT = "its authorize= decides: see the log of the peer"


class _Owner(Protocol):
    """The peers of a node, as admission uses them."""

    stopping: bool
    closing: RedpollError | None

    def bind(self, connection: Connection, peer: Peer, claim: Claim, now: float) -> None:
        """Give a link to its peer."""


@dataclass(eq=False)
class Admission:
    """Admits the links of one node.

    Attributes:
        claims: The links that have to prove which peer they belong to.
        authorization: The results of `Config.authorize`.
    """

    _owner: _Owner
    _config: Config
    _routes: Routes
    _sessions: Sessions
    _loop: asyncio.AbstractEventLoop

    def __post_init__(self) -> None:
        self.claims = Claims()
        #: Links that have to show a secret, or that close because they were rejected, and their timers; None once
        #: fired.
        self._timers: dict[Connection, asyncio.TimerHandle | None] = {}
        self.authorization: Authorization | None = None
        if self._config.authorize is not None:
            self.authorization = Authorization(
                self._config.authorize, self._loop, self._config.handshake_timeout, self._decided
            )

    def identified(self, connection: Connection, now: float) -> None:
        """Find the peer of a link whose handshake arrived, and bind the link once its claim is proven."""
        link = connection.link
        if isinstance(connection.error, NotAuthorized | Fenced):
            _drop(link)
            return
        claim = self.claims.get(connection)
        if claim is not None:
            if self._is_overrun(link):
                self._unproven(claim)
            elif link.incoming.awaiting_peer:
                # Read on once the peer is known; until then there is room for one read.
                connection.pause_reading()
            return
        if not self._is_expected(connection) or not self._is_authorized(connection):
            return
        claimant = _claimant(connection)
        if claimant.awaits_secret and self._may_wait(connection):
            return
        self.claims.settle(connection)
        self._disarm(connection)
        peer, claimed = self._routes.identify(claimant)
        if claimed is Claim.FENCED:
            self._reject(connection, Fenced(None), FENCED)
        elif claimed is Claim.TO_PROVE:
            claim = self.claims.ask(connection, peer, now)
            peer.wake_links()
            if link.incoming.awaiting_peer:
                connection.pause_reading()
            if self._owner.stopping:
                self._unproven(claim)
            else:
                self._decide_later(claim)
        else:
            self._bind(connection, peer, claimed, now)

    def _bind(self, connection: Connection, peer: Peer, claimed: Claim, now: float) -> None:
        """Give a link to its peer, once the links of it that it replaces are closed."""
        if claimed in (Claim.REPLACES, Claim.FENCES):
            self._sessions.replace(peer, connection.link, fence=claimed is Claim.FENCES)
            if peer not in self._routes:
                # The peer had nothing but those links, and was forgotten.
                self._routes.add(peer)
            self._routes.relocate(peer, _claimant(connection))
        self.claims.bound(connection)
        self._sessions.bound(connection, peer)
        _leave_former(connection, peer)
        self._owner.bind(connection, peer, claimed, now)
        if connection.link.dialled and connection.certificate is None:
            self._join_twin(connection, peer)

    def _may_wait(self, connection: Connection) -> bool:
        """Return True while a link may wait for its secret; the link is examined again when the time is over."""
        if connection not in self._timers:
            seconds = self._config.handshake_timeout or CLAIM_TIMEOUT
            self._timers[connection] = self._loop.call_later(seconds, self._stop_waiting, connection)
        return self._timers[connection] is not None

    def _stop_waiting(self, connection: Connection) -> None:
        # The time is not compared: by uvloop's clock a timer may fire a rounding error early.
        self._timers[connection] = None
        connection.go_on()

    def _disarm(self, connection: Connection) -> None:
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _join_twin(self, connection: Connection, peer: Peer) -> None:
        """Leave a link to another address of a node that is linked already: that node would close one of the two.

        Nothing proves that both are one node. So messages for the new address use the old link, to the node that holds
        the identity, and messages pinned to that node do not use the new link.

        Where the old link was accepted, its identity is only a claim: the node that was dialled has to prove it.
        """
        twin, dialled = self._routes.twin(peer)
        if twin is not None and dialled:
            self._adopt(connection, peer, twin, proven=False)
        elif twin is not None:
            self.claims.ask_twin(connection, twin)
            connection.wake()

    def _adopt(self, connection: Connection, peer: Peer, twin: Peer, *, proven: bool) -> None:
        self._sessions.adopt(peer, twin, self._loop.time(), proven=proven)
        connection.link.leave(accept_all=True)
        connection.wake()

    @staticmethod
    def _is_expected(connection: Connection) -> bool:
        """Return True if the remote node may be the one that it claims to be; otherwise close the link."""
        link, session = connection.link, connection.secured
        if session is None:
            return True
        if link.handshake is None:
            return False
        unknown = session.unknown_identity(link.handshake.identity)
        if unknown is not None:
            connection.fail(unknown)
            return False
        if session.checks_names and not link.dialled:
            # The claimed address is not proven: to send there, this node has to dial it and check its certificate.
            link.handshake = link.handshake._replace(port=0)
        return True

    def _is_overrun(self, link: Link) -> bool:
        """Return True if a link that waits for its peer sent more than the announced window allows."""
        config = self._config
        window = config.effective_window
        size = config.window_bytes + config.max_message_size + PREAMBLE_SIZE * window + config.lookahead
        return len(link.arrived.messages) > window or link.bytes_received > size

    def session(self, connection: Connection, now: float) -> None:
        """Handle the session frames of a link."""
        link = connection.link
        if REJECTED in link.arrived.session:
            self._rejected_by_peer(connection)
            return
        if FENCED in link.arrived.session:
            link.arrived.session.clear()
            self._sessions.fenced_by_peer(connection)
            return
        if self.authorization is not None and link.peer is None and not self.authorization.allowed(connection):
            # Kept until the link is authorized.
            return
        bodies, link.arrived.session = link.arrived.session, []
        for body in bodies:
            proven = self.claims.take(connection, body)
            if isinstance(proven, OpenClaim):
                self.claims.drop(proven)
                self._bind(connection, proven.peer, Claim.PLAIN, now)
            elif proven is not None:
                self._proven_twin(proven, link)

    def _proven_twin(self, connection: Connection, known: Link[Peer]) -> None:
        """Give a dialled connection the peer of an accepted link that is proven to be its twin, unless it is in use."""
        peer, twin = connection.link.peer, known.peer
        begun = peer is None or any(link.in_flight or link.transfers or link.written for link in peer.links)
        if peer is not None and twin is not None and twin is not peer and known.sending and not begun:
            self._adopt(connection, peer, twin, proven=True)

    def forget(self, connection: Connection) -> None:
        """Forget a connection that was lost."""
        self.claims.forget(connection)
        self._disarm(connection)
        if self.authorization is not None:
            self.authorization.forget(connection)

    # Proofs

    def _decide_later(self, claim: OpenClaim) -> None:
        # Two timers: what arrived while this process did not run is read in between.
        self._loop.call_later(CLAIM_TIMEOUT, self._loop.call_later, LAG, self._decide, claim)

    def _decide(self, claim: OpenClaim) -> None:
        """Decide a claim whose time is over, or wait longer while it is in doubt."""
        still_open = self.claims.get(claim.connection) is claim
        if still_open and claim.in_doubt(self._loop.time()) and self._owner.closing is None:
            self._decide_later(claim)
        else:
            self._unproven(claim)

    def _unproven(self, claim: OpenClaim) -> None:
        """Decide a claim that was not proven in time, by the present holder of the identity and by the certificate."""
        connection = claim.connection
        if not self.claims.drop(claim) or connection.transport is None:
            return
        peer, claimed = self._routes.unproven(_claimant(connection), claim.peer, lives=claim.holder_lives)
        self._bind(connection, peer, claimed, self._loop.time())
        connection.go_on()
        connection.resume_reading()
        if connection.link.state is not LinkState.OPEN:
            # The remote node said goodbye meanwhile, and waits for the outcomes of its messages.
            connection.part()

    def decide_for(self, peer: Peer) -> None:
        """Decide the open claims to a peer that is lost, or leaves."""
        for claim in self.claims.of_peer(peer):
            self._unproven(claim)

    # Authorization

    def _is_authorized(self, connection: Connection) -> bool:
        if self.authorization is None:
            return True
        result = self.authorization.result(connection, lambda: _info(connection))
        if result is None:
            # Nothing is read from it meanwhile.
            connection.pause_reading()
        elif result is not True:
            self._reject(connection, result)
        return result is True

    def _decided(self, connection: Connection) -> None:
        """Continue with a connection for which `authorize` returned late."""
        connection.resume_reading()
        connection.go_on()

    def _reject(self, connection: Connection, error: RedpollError, body: bytes = REJECTED) -> None:
        """Tell the remote node that it is rejected and that none of its messages was accepted; then close."""
        link = connection.link
        _drop(link)
        if link.libchirp:
            # libchirp cannot be told.
            connection.fail(error)
        elif link.state in (LinkState.OPEN, LinkState.LEFT):
            link.control(Control.SESSION, body=body)
            link.leave()
            connection.wind_down(error)
            self._timers[connection] = self._loop.call_later(REJECTION_TIME, connection.fail, error)
            if connection.ready is not None and not connection.ready.done():
                connection.ready.set_exception(error)

    def _rejected_by_peer(self, connection: Connection) -> None:
        """Fail what waits for a peer that rejected this node, so that it is not dialled again."""
        connection.link.arrived.session.clear()
        error = NotAuthorized(_REJECTED_TEXT, connection.name, _HINT)
        connection.fail(error)
        peer = connection.link.peer
        if peer is not None and peer.links == [connection.link]:
            peer.last_error = error
            peer.fail_queue(error)

    # The end

    def stop(self) -> None:
        """Stop waiting for proofs and authorization: the node stops, and waiting messages are to be refused."""
        for claim in self.claims.open:
            self._unproven(claim)
        if self.authorization is not None:
            for connection in self.authorization.stop():
                _drop(connection.link)
                connection.resume_reading()

    async def close(self) -> None:
        """Cancel the calls of `authorize`."""
        if self.authorization is not None:
            await self.authorization.close()


def _claimant(connection: Connection) -> Claimant:
    session = connection.secured
    checks_names = session is not None and session.checks_names
    return Claimant(connection.link, connection.remote, connection.target, key_of(connection), checks_names)


def _leave_former(connection: Connection, peer: Peer) -> None:
    """Leave the links of a peer on which this node showed another key: the peer may see two nodes there."""
    session = connection.secured
    for link in peer.links:
        former = link.connection.secured
        if session is not None and former is not None and former.own_key != session.own_key:
            link.leave(accept_all=True)
            link.connection.wake()


def _info(connection: Connection) -> PeerInfo:
    link = connection.link
    address = _claimant(connection).place if connection.target is None else connection.target.address
    return PeerInfo(address, link.remote_identity, False, not link.libchirp, connection.certificate)


def _drop(link: Link) -> None:
    """Drop the messages of a link, so that its goodbye reports none as accepted."""
    link.arrived.messages.clear()
    link.incoming.discard_all()
    link.release_early()
    link.arrived.cancels.clear()
    link.last_serial = None
