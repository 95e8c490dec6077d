"""Admission of links: handshake, pins, `authorize`, proofs, and the peer that the link belongs to.

The decisions are made in routes.py (which peer a link may belong to), claims.py (how that is proven) and
authorization.py (the user's function); this module calls them in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from redpoll.errors import Fenced, NotAuthorized, PeerLost, RedpollError
from redpoll.node.authorization import REJECTION_TIME, Authorization
from redpoll.node.claims import CLAIM_TIMEOUT, REJECTED, Claims
from redpoll.node.hooks import PeerInfo
from redpoll.node.routes import Claim, Routes, is_kept, may_be, place_of
from redpoll.wire.frames import PREAMBLE_SIZE, Control
from redpoll.wire.session import FENCED
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    import asyncio

    from redpoll.address import Address
    from redpoll.config import Config
    from redpoll.node.claims import OpenClaim
    from redpoll.node.requeue import Requeue
    from redpoll.node.sessions import Sessions
    from redpoll.tls.credentials import TLSSession
    from redpoll.transport.connection import Connection
    from redpoll.wire.link import Link
    from redpoll.wire.peer import Peer

__all__ = ["LAG", "Admission"]

#: Delay in seconds for reading what arrived while this process was busy.
LAG = 0.01

_REJECTED_TEXT = "the peer rejected this node"
_HINT = "its authorize= decides: see the log of the peer"


class _Owner(Protocol):
    """What admission needs of the peers of a node."""

    stopping: bool
    closing: RedpollError | None

    def new_peer(self, address: Address | None, identity: bytes | None) -> Peer:
        """Make a peer that is not known yet."""

    def bind(self, connection: Connection, peer: Peer, claim: Claim, now: float) -> None:
        """Give a link to its peer."""

    def pause(self, connection: Connection) -> None:
        """Stop reading from a connection for now."""

    def wake_links(self, peer: Peer) -> None:
        """Schedule the output of all links of a peer."""


class Admission:
    """Admits the links of one node.

    Attributes:
        claims: The links that have to prove which peer they belong to.
        authorization: The results of `Config.authorize`.
    """

    def __init__(
        self,
        owner: _Owner,
        config: Config,
        routes: Routes,
        sessions: Sessions,
        requeue: Requeue,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._owner = owner
        self._config = config
        self._routes = routes
        self._sessions = sessions
        self._requeue = requeue
        self._loop = loop
        self.claims = Claims()
        #: Links that have to show a secret, or that close because their run was fenced, and their timers; None once
        #: fired.
        self._awaiting_secret: dict[Connection, asyncio.TimerHandle | None] = {}
        #: The links that this node dialled: those without a peer, and the others by the identity of the remote node.
        self._unbound: dict[Connection, None] = {}
        self._dialled: dict[bytes | None, dict[Connection, None]] = {}
        self.authorization: Authorization | None = None
        if config.authorize is not None:
            self.authorization = Authorization(config.authorize, loop, config.handshake_timeout, self._decided)

    def identified(self, connection: Connection, now: float) -> None:
        """Find the peer of a link whose handshake arrived, and bind the link once its claim is proven."""
        link = connection.link
        if isinstance(connection.error, NotAuthorized | Fenced):
            _drop(link)
            return
        number = self.claims.of_connection(connection)
        if number is not None:
            if self._is_overrun(link):
                self._unproven(number)
            elif link.incoming.awaiting_peer:
                # Read on once the peer is known; until then there is room for one read.
                self._owner.pause(connection)
            return
        if connection.secured is not None and not self._is_expected(connection.secured, connection):
            return
        if self.authorization is not None and not self._is_authorized(connection, self.authorization):
            return
        if self._sessions.awaits(link) and self._may_wait(connection):
            return
        self.claims.settle(connection)
        if self._is_known_by_secret(connection, now):
            return
        session = connection.secured
        peer, claim = self._routes.identify(
            link,
            connection.remote,
            connection.target,
            self._owner.new_peer,
            connection.certificate,
            checks_names=session is not None and session.checks_names,
        )
        if claim is Claim.TO_PROVE:
            number = self.claims.ask(connection, peer, now)
            self._owner.wake_links(peer)
            if link.incoming.awaiting_peer:
                self._owner.pause(connection)
            if self._owner.stopping:
                self._unproven(number)
            else:
                self._decide_later(number)
            return
        self._owner.bind(connection, peer, claim, now)
        if link.dialled and connection.certificate is None:
            self._join_twin(connection, peer)

    def _may_wait(self, connection: Connection) -> bool:
        """Return True while a link may wait for its secret; the link is examined again when the time is over."""
        if connection not in self._awaiting_secret:
            seconds = self._config.handshake_timeout or CLAIM_TIMEOUT
            self._awaiting_secret[connection] = self._loop.call_later(seconds, self._stop_waiting, connection)
        return self._awaiting_secret[connection] is not None

    def _stop_waiting(self, connection: Connection) -> None:
        # The time is not compared: by uvloop's clock a timer may fire a rounding error early.
        self._awaiting_secret[connection] = None
        connection.go_on()

    def _is_known_by_secret(self, connection: Connection, now: float) -> bool:
        """Handle a link whose secret identifies its peer, or whose run was fenced; return True if it was handled."""
        timer = self._awaiting_secret.pop(connection, None)
        if timer is not None:
            timer.cancel()
        try:
            peer = self._sessions.find(connection)
        except Fenced as error:
            self._reject(connection, error, FENCED)
            self._awaiting_secret[connection] = self._loop.call_later(REJECTION_TIME, connection.fail, error)
            return True
        if peer is not None:
            self._owner.bind(connection, peer, Claim.PLAIN, now)
        return peer is not None

    def _join_twin(self, connection: Connection, peer: Peer) -> None:
        """Leave a link to another address of a node that is linked already: that node would close one of the two.

        Nothing proves that both are one node. So messages for the new address use the old link, to the node that holds
        the identity, and messages pinned to that node do not use the new link.

        Where the old link was accepted, its identity is only a claim: the node that was dialled has to prove it.
        """
        twin = self._routes.twin(peer)
        if twin is not None:
            self._adopt(connection, peer, twin, proven=False)
            return
        supposed = self._routes.supposed_twin(peer)
        if supposed is not None:
            self.claims.ask_twin(connection, supposed)
            connection.wake()

    def _adopt(self, connection: Connection, peer: Peer, twin: Peer, *, proven: bool) -> None:
        self._requeue.adopt(peer, twin, proven=proven)
        connection.link.leave(accept_all=True)
        connection.wake()

    @staticmethod
    def _is_expected(session: TLSSession, connection: Connection) -> bool:
        """Return True if the remote node may be the one that it claims to be; otherwise close the link."""
        link = connection.link
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
        return len(link.arrived) > window or link.bytes_received > size

    def session(self, connection: Connection, now: float) -> None:
        """Handle the session frames of a link."""
        link = connection.link
        if REJECTED in link.session_frames:
            self._rejected_by_peer(connection)
            return
        if FENCED in link.session_frames:
            link.session_frames.clear()
            self._sessions.fenced_by_peer(connection)
            return
        if self.authorization is not None and link.peer is None and not self.authorization.allowed(connection):
            # Kept until the link is authorized.
            return
        bodies, link.session_frames = link.session_frames, []
        dialled = [*self._dialled.get(link.remote_identity, ()), *self._unbound]
        for body in bodies:
            dialled_elsewhere = self.claims.proven_twin(connection, body)
            if dialled_elsewhere is not None:
                self._proven_twin(dialled_elsewhere, link)
                continue
            number = self.claims.take(connection, body, dialled)
            if number is not None:
                proven = self.claims.drop(number)
                if proven is not None:
                    self._owner.bind(connection, proven.peer, Claim.PLAIN, now)

    def _proven_twin(self, connection: Connection, known: Link) -> None:
        """Give a dialled connection the peer of an accepted link that is proven to be its twin, unless it is in use."""
        peer, twin = connection.link.peer, known.peer
        begun = peer is None or any(link.in_flight or link.transfers or link.written for link in peer.links)
        if peer is not None and twin is not None and twin is not peer and known.sending and not begun:
            self._adopt(connection, peer, twin, proven=True)

    def opened(self, connection: Connection) -> None:
        """Register a connection that this node dialled."""
        self._unbound[connection] = None

    def bound(self, connection: Connection) -> None:
        """Note that a connection has its peer."""
        link = connection.link
        if link.dialled:
            self._unbound.pop(connection, None)
            self._dialled.setdefault(link.remote_identity, {})[connection] = None

    def forget(self, connection: Connection) -> None:
        """Forget a connection that was lost."""
        self._unbound.pop(connection, None)
        same = self._dialled.get(connection.link.remote_identity)
        if same is not None:
            same.pop(connection, None)
            if not same:
                del self._dialled[connection.link.remote_identity]
        self.claims.forget(connection)
        timer = self._awaiting_secret.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if self.authorization is not None:
            self.authorization.forget(connection)

    # Proofs

    def _decide_later(self, number: bytes) -> None:
        # Two timers: what arrived while this process did not run is read in between.
        self._loop.call_later(CLAIM_TIMEOUT, self._loop.call_later, LAG, self._decide, number)

    def _decide(self, number: bytes) -> None:
        """Decide a claim whose time is over, or wait longer while it is in doubt."""
        if self.claims.in_doubt(number, self._loop.time()) and self._owner.closing is None:
            self._decide_later(number)
        else:
            self._unproven(number)

    def _unproven(self, number: bytes) -> None:
        """Decide a claim that was not proven in time, by the present holder of the identity and by the certificate."""
        claimed = self.claims.drop(number)
        if claimed is None or claimed.connection.transport is None:
            return
        connection = claimed.connection
        peer, claim = self._peer_of(claimed)
        now = self._loop.time()
        self._owner.bind(connection, peer, claim, now)
        connection.go_on()
        connection.resume_reading()
        if connection.link.state is not LinkState.OPEN:
            # The remote node said goodbye meanwhile, and waits for the outcomes of its messages.
            connection.part()

    def _peer_of(self, claimed: OpenClaim) -> tuple[Peer, Claim]:
        """Return the peer of a link that the holder of its identity did not prove."""
        connection, peer = claimed.connection, claimed.peer
        held = any(link.state is not LinkState.PARTING for link in peer.links)
        same_key = may_be(peer, connection.certificate)
        if same_key and not held:
            return peer, Claim.PLAIN
        if same_key and peer.certificate is not None and not claimed.holder_lives:
            self._end_former_run(peer)
            return peer, Claim.PLAIN
        kept = is_kept(peer)
        take_over = not kept or (same_key and not claimed.holder_lives)
        new = self._routes.accept_new(connection.link, connection.remote, self._owner.new_peer, take_over=take_over)
        return new, Claim.CONFLICT if kept else Claim.PLAIN

    def _end_former_run(self, peer: Peer) -> None:
        """Close the links of a node that restarted with the same certificate: they are dead, but not closed yet."""
        for link in list(peer.links):
            link.connection.give_up(PeerLost(peer.address, "its node restarted"))
        if peer not in self._routes:
            self._routes.add(peer)

    @staticmethod
    def leave_former(connection: Connection, peer: Peer) -> None:
        """Leave the links of a peer on which this node showed another key: the peer may see two nodes there."""
        session = connection.secured
        for link in peer.links:
            former = link.connection.secured
            if session is not None and former is not None and former.own_key != session.own_key:
                link.leave(accept_all=True)
                link.connection.wake()

    def decide_for(self, peer: Peer) -> None:
        """Decide the open claims to a peer that is lost, or leaves."""
        for number in self.claims.of_peer(peer):
            self._unproven(number)

    # Authorization

    def _is_authorized(self, connection: Connection, authorization: Authorization) -> bool:
        link = connection.link
        result = authorization.result(connection, lambda: self._info(connection))
        if result is True:
            return True
        if result is None:
            # Nothing is read from it meanwhile.
            self._owner.pause(connection)
        elif link.state in (LinkState.OPEN, LinkState.LEFT):
            self._reject(connection, result)
        else:
            _drop(link)
        return False

    def _decided(self, connection: Connection) -> None:
        """Go on with a connection for which `authorize` returned late."""
        connection.resume_reading()
        connection.go_on()

    def _info(self, connection: Connection) -> PeerInfo:
        link = connection.link
        address = place_of(link, connection.remote) if connection.target is None else connection.target.address
        return PeerInfo(address, link.remote_identity, False, link.announced is not None, connection.certificate)

    def _reject(self, connection: Connection, error: RedpollError, body: bytes = REJECTED) -> None:
        """Tell the remote node that it is rejected and that none of its messages was accepted; then close."""
        link = connection.link
        _drop(link)
        if link.announced is None:
            # libchirp cannot be told.
            connection.fail(error)
            return
        link.control(Control.SESSION, body=body)
        link.leave()
        connection.wind_down(error)
        if connection.ready is not None and not connection.ready.done():
            connection.ready.set_exception(error)

    def _rejected_by_peer(self, connection: Connection) -> None:
        """Fail what waits for a peer that rejected this node, so that it is not dialled again."""
        connection.link.session_frames.clear()
        error = NotAuthorized(_REJECTED_TEXT, connection.name, _HINT)
        connection.fail(error)
        peer = connection.link.peer
        if peer is not None and peer.links == [connection.link]:
            peer.last_error = error
            peer.fail_queue(error)

    # The end

    def stop(self) -> None:
        """Stop waiting for proofs and authorization: the node stops, and waiting messages are to be refused."""
        for number in self.claims.open:
            self._unproven(number)
        if self.authorization is not None:
            for connection in self.authorization.stop():
                _drop(connection.link)
                connection.resume_reading()

    async def close(self) -> None:
        """Cancel the calls of `authorize`."""
        if self.authorization is not None:
            await self.authorization.close()


def _drop(link: Link) -> None:
    """Drop the messages of a link, so that its goodbye reports none as accepted."""
    link.arrived.clear()
    link.incoming.discard_all()
    link.release_early()
    link.early_cancels.clear()
    link.last_serial = None
