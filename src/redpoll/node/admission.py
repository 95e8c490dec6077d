"""How a link gets in: from its handshake, past pins, `authorize` and proofs, to the peer that it belongs to.

The decisions are in routes.py (whose link it may be), claims.py (how that is proven) and authorization.py (what the user's
function says); here they follow one another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redpoll.errors import Fenced, NotAuthorized, PeerLost, RedpollError
from redpoll.node.authorization import TURNED_AWAY_FOR, Authorization
from redpoll.node.claims import CLAIM_TIMEOUT, TURNED_AWAY, Claims
from redpoll.node.hooks import PeerInfo
from redpoll.node.routes import Claim, is_kept, may_be, place_of
from redpoll.wire.frames import PREAMBLE_SIZE, Control
from redpoll.wire.session import FENCED
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    import asyncio

    from redpoll.node.claims import OpenClaim
    from redpoll.node.peers import Peers
    from redpoll.tls.credentials import Session
    from redpoll.transport.connection import Connection
    from redpoll.wire.link import Link
    from redpoll.wire.peer import Peer

__all__ = ["LAG", "Admission"]

#: What arrived while this process was busy is read this much later, seconds.
LAG = 0.01

_TURNED_AWAY = "the other end does not let this node in"
_HINT = "what its authorize= says decides: see what is logged there"


class Admission:
    """Lets the links of one node in.

    Attributes:
        claims: The links that have to prove that they are a peer's.
        authorization: What `Config.authorize` said of those that it was asked about.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._settings = peers.settings
        self._loop = peers.loop
        self.claims = Claims()
        #: Links that are to show a secret, or to close since their run lost its place, and what ends that; None once it did.
        self._awaited: dict[Connection, asyncio.TimerHandle | None] = {}
        self.authorization: Authorization | None = None
        if peers.config.authorize is not None:
            self.authorization = Authorization(
                peers.config.authorize, peers.loop, peers.config.handshake_timeout, self._decided
            )

    def identified(self, connection: Connection, now: float) -> None:
        """Find the peer whose handshake came, and give it the link, once its claim is beyond doubt."""
        link = connection.link
        if isinstance(connection.error, NotAuthorized | Fenced):
            _drop(link)
            return
        number = self.claims.of_connection(connection)
        if number is not None:
            if self._is_overrun(link):
                self._unproven(number)
            elif link.reader.stalled:
                # What it brings is read when it is known whose it is; until then there is room for one read.
                self._peers.pause(connection)
            return
        if connection.secured is not None and not self._is_meant(connection.secured, connection):
            return
        if self.authorization is not None and not self._is_authorized(connection, self.authorization):
            return
        if self._peers.sessions.awaits(link) and self._may_wait(connection):
            return
        self.claims.settle(connection)
        if self._is_known_by_secret(connection, now):
            return
        session = connection.secured
        peer, claim = self._peers.routes.identify(
            link,
            connection.remote,
            connection.target,
            self._peers.new_peer,
            connection.certificate,
            checks_names=session is not None and session.checks_names,
        )
        if claim is Claim.TO_PROVE:
            number = self.claims.ask(connection, peer, now)
            self._peers.wake_links(peer)
            if link.reader.stalled:
                self._peers.pause(connection)
            if self._peers.stopping:
                self._unproven(number)
            else:
                self._decide_later(number)
            return
        self._peers.bind(connection, peer, claim, now)
        if link.dialled and connection.certificate is None:
            self._keep_one(connection, peer)

    def _may_wait(self, connection: Connection) -> bool:
        """Whether a link may still wait for the secret that it is to show; it is looked at again when it may not."""
        if connection not in self._awaited:
            seconds = self._settings.handshake_timeout or CLAIM_TIMEOUT
            self._awaited[connection] = self._loop.call_later(seconds, self._wait_no_more, connection)
        return self._awaited[connection] is not None

    def _wait_no_more(self, connection: Connection) -> None:
        # Its time is not compared: by uvloop's clock a timer may ring a rounding error before it.
        self._awaited[connection] = None
        connection.go_on()

    def _is_known_by_secret(self, connection: Connection, now: float) -> bool:
        """Whether the secret that a link showed says whose it is, or that its run lost its place; then that is dealt with."""
        timer = self._awaited.pop(connection, None)
        if timer is not None:
            timer.cancel()
        try:
            peer = self._peers.sessions.find(connection)
        except Fenced as error:
            self._turn_away(connection, error, FENCED)
            self._awaited[connection] = self._loop.call_later(TURNED_AWAY_FOR, connection.fail, error)
            return True
        if peer is not None:
            self._peers.bind(connection, peer, Claim.PLAIN, now)
        return peer is not None

    def _keep_one(self, connection: Connection, peer: Peer) -> None:
        """Leave a link to another address of a node that one leads to already: that end sees one peer, and would close one.

        Nothing proves that it is one node. So what is for the new address goes over the old link, to the node that holds
        the identity, and nothing that is for that one goes over the new.
        """
        twin = self._peers.routes.twin(peer)
        if twin is not None:
            self._peers.moves.adopt(peer, twin)
            connection.link.leave(take_all=True)
            connection.wake()

    @staticmethod
    def _is_meant(session: Session, connection: Connection) -> bool:
        """Whether who is at the other end may be the node that it says it is; if not, the link is closed."""
        link = connection.link
        if link.handshake is None:
            return False
        unknown = session.unknown_identity(link.handshake.identity)
        if unknown is not None:
            connection.fail(unknown)
            return False
        if session.checks_names and not link.dialled:
            # Only its claim leads from an address to it: who sends there is to dial, and to see its certificate.
            link.handshake = link.handshake._replace(port=0)
        return True

    def _is_overrun(self, link: Link) -> bool:
        """Whether a link that waits for its peer brought more than an honest one may send ahead."""
        settings = self._settings
        frames = PREAMBLE_SIZE * settings.window
        return (
            len(link.arrived) > settings.window
            or link.bytes_received > settings.window_bytes + settings.max_message_size + frames + settings.lookahead
        )

    def session(self, connection: Connection, now: float) -> None:
        """Session frames came."""
        link = connection.link
        if TURNED_AWAY in link.session:
            self._turned_away_there(connection)
            return
        if FENCED in link.session:
            link.session.clear()
            self._peers.sessions.fenced_there(connection)
            return
        if self.authorization is not None and link.peer is None and not self.authorization.allowed(connection):
            # They stay until it is known whether anything is done for it.
            return
        bodies, link.session = link.session, []
        for body in bodies:
            dialled = [each for each in self._peers.connections if each.link.dialled]
            number = self.claims.take(connection, body, dialled)
            if number is not None:
                proven = self.claims.drop(number)
                if proven is not None:
                    self._peers.bind(connection, proven.peer, Claim.PLAIN, now)

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self.claims.forget(connection)
        timer = self._awaited.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if self.authorization is not None:
            self.authorization.forget(connection)

    # What proves a claim

    def _decide_later(self, number: bytes) -> None:
        # Twice: what came while this process did not run is read in between.
        self._loop.call_later(CLAIM_TIMEOUT, self._loop.call_later, LAG, self._decide, number)

    def _decide(self, number: bytes) -> None:
        """The time of a claim is over, unless it is still in doubt."""
        if self.claims.in_doubt(number, self._loop.time()) and self._peers.closing is None:
            self._decide_later(number)
        else:
            self._unproven(number)

    def _unproven(self, number: bytes) -> None:
        """A claim was not proven by its holder in time: see who holds the identity now, and what the certificate says."""
        claimed = self.claims.drop(number)
        if claimed is None or claimed.connection.transport is None:
            return
        connection = claimed.connection
        peer, claim = self._whose(claimed)
        now = self._loop.time()
        self._peers.bind(connection, peer, claim, now)
        connection.go_on()
        connection.resume_reading()
        if connection.link.state is not LinkState.OPEN:
            # Its other end said goodbye meanwhile, and waits for what came of its messages.
            connection.part()

    def _whose(self, claimed: OpenClaim) -> tuple[Peer, Claim]:
        """Whose a link is that its holder does not vouch for."""
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
        new = self._peers.routes.accept_new(
            connection.link, connection.remote, self._peers.new_peer, take_over=take_over
        )
        return new, Claim.CONFLICT if kept else Claim.PLAIN

    def _end_former_run(self, peer: Peer) -> None:
        """A node was started anew and has its certificate: its links of before are dead, and nobody told."""
        for link in list(peer.links):
            link.owner.give_up(PeerLost(peer.address, "its node was started anew"))
        if peer not in self._peers.routes:
            self._peers.routes.add(peer)

    @staticmethod
    def leave_former(connection: Connection, peer: Peer) -> None:
        """Leave a peer's links on which this node showed another key: to the other end they may be another node's."""
        session = connection.secured
        for link in peer.links:
            former = link.owner.secured
            if session is not None and former is not None and former.own_key != session.own_key:
                link.leave(take_all=True)
                link.owner.wake()

    def decide_for(self, peer: Peer) -> None:
        """Wait for a peer's word no longer: it has gone, or goes."""
        for number in self.claims.of_peer(peer):
            self._unproven(number)

    # What `authorize` says

    def _is_authorized(self, connection: Connection, authorization: Authorization) -> bool:
        link = connection.link
        verdict = authorization.verdict(connection, lambda: self._info(connection))
        if verdict is True:
            return True
        if verdict is None:
            # Nothing is taken from it meanwhile.
            self._peers.pause(connection)
        elif link.state in (LinkState.OPEN, LinkState.LEFT):
            self._turn_away(connection, verdict)
        else:
            _drop(link)
        return False

    def _decided(self, connection: Connection) -> None:
        """`authorize` said something after a time."""
        connection.resume_reading()
        connection.go_on()

    def _info(self, connection: Connection) -> PeerInfo:
        link = connection.link
        address = place_of(link, connection.remote) if connection.target is None else connection.target.address
        return PeerInfo(address, link.remote_identity, False, link.announced is not None, connection.certificate)

    def _turn_away(self, connection: Connection, error: RedpollError, body: bytes = TURNED_AWAY) -> None:
        """Tell the other end that it is not let in, and that nothing of what it sent was taken; then close."""
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

    def _turned_away_there(self, connection: Connection) -> None:
        """The other end does not let this node in: what waits for it fails at once, and it is not dialled again for that."""
        connection.link.session.clear()
        error = NotAuthorized(_TURNED_AWAY, connection.name, _HINT)
        connection.fail(error)
        peer = connection.link.peer
        if peer is not None and peer.links == [connection.link]:
            peer.trouble = error
            peer.fail_queue(error)

    # The end

    def stop(self) -> None:
        """Wait for no proof and no word any longer: the node stops, and messages that wait for these are to be told."""
        for number in self.claims.open:
            self._unproven(number)
        if self.authorization is not None:
            for connection in self.authorization.stop():
                _drop(connection.link)
                connection.resume_reading()

    async def close(self) -> None:
        """Ask nobody any more."""
        if self.authorization is not None:
            await self.authorization.close()


def _drop(link: Link) -> None:
    """Take nothing of what a link brought: its goodbye will say so."""
    link.arrived.clear()
    link.reader.give_up()
    link.claimed()
    link.early_cancels.clear()
    link.last_serial = None
