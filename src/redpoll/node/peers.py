"""Who a node is linked with: tells peers apart, gives each its links and timer, and passes on what arrives.

The decisions are in `redpoll.wire`; here they meet the event loop.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redpoll.address import Address
from redpoll.config import Config, is_encrypted
from redpoll.errors import (
    Closed,
    Fenced,
    NotAuthorized,
    RedpollError,
    ShuttingDown,
    UsageError,
)
from redpoll.node.absent import REMEMBERED_FOR, Absent
from redpoll.node.admission import Admission
from redpoll.node.census import Census, info
from redpoll.node.ends import Ends
from redpoll.node.moves import Moves
from redpoll.node.places import Places
from redpoll.node.pressure import Pressure
from redpoll.node.routes import Claim, Routes
from redpoll.node.sending import Queued
from redpoll.node.sessions import Sessions
from redpoll.node.strangers import Strangers
from redpoll.node.timers import Timers
from redpoll.serializers import RawSerializer
from redpoll.serializers.base import Serializer
from redpoll.tls.credentials import Credentials
from redpoll.transport.connection import Connection
from redpoll.transport.secure import Secured
from redpoll.wire.assembly import BodyPool
from redpoll.wire.attachment import attach, detach
from redpoll.wire.capabilities import NOT_LISTENING, Announcement
from redpoll.wire.frames import Control
from redpoll.wire.link import Link
from redpoll.wire.memory import TLS_LINK, Memory
from redpoll.wire.peer import Peer
from redpoll.wire.settings import Settings
from redpoll.wire.slot_pool import SlotPool
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    from redpoll.node.dialler import Dialler
    from redpoll.node.dispatch import Dispatcher
    from redpoll.node.node import Node
    from redpoll.node.pulling import Consumers

__all__ = ["Peers"]


class Peers:
    """The peers of one node and their connections: keeper of connections, owner of peers.

    Attributes:
        node: Whose they are.
        settings: What its links work by.
        pool: The slots of the node.
        raw: Whether small bodies need no decoding, and bytes no encoding.
        credentials: What links are encrypted with; None where none is.
        stopping: Whether the node is stopping.
    """

    def __init__(self, node: Node[Any], config: Config, serializer: Serializer[Any], identity: bytes) -> None:
        self.node = node
        self.config = config
        self.serializer = serializer
        self.raw = type(serializer) is RawSerializer
        self.loop = asyncio.get_running_loop()
        self.settings = Settings(
            identity=identity,
            epoch=int.from_bytes(os.urandom(4), "big"),
            acknowledge=config.acknowledge,
            timeout=config.timeout,
            slots=config.effective_slots,
            window=config.effective_window,
            window_bytes=config.window_bytes,
            lookahead=config.lookahead,
            max_message_size=config.max_message_size,
            fragment_size=config.fragment_size,
            handshake_timeout=config.handshake_timeout,
            keepalive=config.keepalive,
            reuse_time=config.effective_reuse_time,
            resume=config.resume,
            transfer_timeout=config.transfer_timeout,
            queue_messages=config.send_queue_limit,
            queue_bytes=config.send_queue_bytes,
            flat=not serializer.wants_buffer,
            in_order=node._in_order,
        )
        self.memory = Memory(config.memory_limit)
        self.pool = SlotPool(config.node_slots, self.memory)
        self.ends = Ends(self)
        self.census = Census(self)
        self._bodies = BodyPool()
        self.routes = Routes(identity)
        self.moves = Moves(self)
        self.sessions = Sessions(self)
        self.admission = Admission(self)
        self.absent = Absent(self.loop, REMEMBERED_FOR, self.forget_if_idle)
        self.connections: set[Connection] = set()
        self.places = Places(config, self.memory.tally)
        self.credentials: Credentials | None = None
        self.strangers = Strangers(self.memory.tally, self.loop)
        self.pressure = Pressure(self)
        self.stopping = False
        self.dialler: Dialler
        #: Exactly one of the two is there.
        self.dispatcher: Dispatcher | None = None
        self.consumers: Consumers | None = None
        #: To be told while the node stops that something ended.
        self.changed: Callable[[], None] = _nothing
        #: Why nothing is begun or dialled any more, once the node closes.
        self.closing: RedpollError | None = None
        self.timers = Timers(self)

    def listen_at(self, port: int) -> None:
        """Fix the port that handshakes announce, before any link is made."""
        self.settings = replace(self.settings, port=port)

    # Connections

    def admits(self, remote: Address) -> bool:
        """Whether a stranger may come in."""
        return not self.stopping and self.places.admits(remote.host, len(self.connections))

    def accepted(self, remote: Address) -> asyncio.BufferedProtocol:
        """A stranger came in."""
        link = self._new_link(dialled=False)
        connection = Connection(self, link, remote, self.loop)
        credentials = self.credentials
        protocol: asyncio.BufferedProtocol = connection
        if credentials is not None and credentials.can_listen and is_encrypted(remote, self.config):
            # Who has no certificate to show listens only where nothing is encrypted.
            protocol = self.secured(connection)
        self._count(connection)
        self.places.take(remote.host)
        return protocol

    def _count(self, connection: Connection) -> None:
        """A connection is there, or is about to be; `lost` is called for it."""
        if connection not in self.connections:
            self.connections.add(connection)
            if connection.secured is not None:
                self.memory.links += TLS_LINK

    def dialled(self, remote: Address, peer: Peer) -> Connection:
        """A connection that this node dialled for a peer."""
        return Connection(self, self._new_link(dialled=True), remote, self.loop, peer)

    def _new_link(self, *, dialled: bool) -> Link:
        now = self.loop.time()
        return Link(
            self.settings, dialled=dialled, now=now, make=self.node._received, bodies=self._bodies, memory=self.memory
        )

    def secured(self, connection: Connection, name: str | None = None) -> Secured:
        """Put TLS under a connection.

        Args:
            connection: It has no transport yet.
            name: By which it was dialled; None if it came in.
        """
        credentials = self.credentials
        if credentials is None:
            raise Closed("node")
        session = credentials.dial(connection.remote, name) if name else credentials.accept(connection.remote)
        connection.secured = session
        return Secured(session, connection, self._unread)

    def _unread(self) -> None:
        self.memory.tally.slow_readers += 1

    def opened(self, connection: Connection) -> None:
        """Introduce this node."""
        self._count(connection)
        settings = self.settings
        port, flags = settings.port, 0
        if not port:
            # libchirp tells nodes of one host apart by their ports alone: a link's own is as good as none, and unique.
            port, flags = connection.local_port, NOT_LISTENING
        if connection.link.dialled:
            flags |= self.sessions.flags
        # Whose link it is is not known yet: while messages of lost links are open it gets its window when it is.
        window = 0 if self.pool.carried else settings.window
        connection.link.start(
            Announcement(
                settings.slots,
                window,
                settings.window_bytes,
                settings.max_message_size,
                settings.epoch,
                flags,
            ),
            port,
        )

    def identified(self, connection: Connection, now: float) -> None:
        """A handshake came: find whose it is."""
        self.admission.identified(connection, now)

    def session(self, connection: Connection, now: float) -> None:
        """Session frames came: links are to be proven, or are; or this node is not let in."""
        self.admission.session(connection, now)

    def bind(self, connection: Connection, peer: Peer, claim: Claim, now: float) -> None:
        """Give a link to its peer."""
        first = not peer.links
        self.absent.remove(peer)
        self.sessions.bound(connection, peer)
        if peer.was_linked:
            peer.counters.reconnects += 1
        if connection.certificate is not None:
            peer.certificate = connection.certificate
        if claim is Claim.CONFLICT:
            peer.counters.conflicts += 1
            self.node.events.tell("identity_conflict", info(peer))
        self.admission.leave_former(connection, peer)
        attach(peer, connection.link, now)
        self.places.settle(peer)
        # It was set for the handshake; now pings may be due earlier.
        connection.arm()
        peer.was_linked = True
        if connection.ready is not None and not connection.ready.done():
            connection.ready.set_result(None)
        self.room(peer)
        if connection.target is not None:
            self.moves.replace(connection.target, peer, now)
            # What waited may have gone out over another link than this one.
            self.wake_links(peer)
        if first:
            self.node.events.tell("peer_connected", info(peer))
        if self.closing is not None:
            # Its other end takes the link for open: the goodbye tells it that nothing was taken.
            self._turn_away(peer, connection.link)
            connection.link.leave()
        elif self.stopping:
            self.changed()

    def arrived(self, connection: Connection, now: float) -> None:
        """Messages came over a connection."""
        link = connection.link
        peer = link.peer
        if peer is None:
            return
        if self.stopping:
            # What came after our goodbye or before we could say it; at last also what that had promised.
            self._turn_away(peer, link)
        link.liveness.used = now
        if peer.slots.arrived(link):
            for each in peer.links:
                self.pause(each.owner)
        if self.dispatcher is not None:
            self.dispatcher.arrived(peer, now)
            self.begun(peer)
        elif self.consumers is not None:
            self.consumers.arrived(peer, now)

    def _turn_away(self, peer: Peer, link: Link) -> None:
        peer.slots.turn_away(link, ShuttingDown.code, "the node is stopping", promised=self.closing is not None)

    def held_up(self, connection: Connection, now: float) -> None:
        """There is no memory for what a connection brings."""
        self.pressure.held_up(connection, now)

    def backed_up(self) -> None:
        """Somebody does not read."""
        self.pressure.backed_up()

    def suspect(self, connection: Connection) -> None:
        """A ping was not answered in time: tell whoever wants to know."""
        peer = connection.link.peer
        if peer is not None:
            self.node.events.tell("peer_suspect", info(peer))

    def parting(self, connection: Connection) -> None:  # noqa: ARG002  # see Keeper
        """A goodbye was said: a stop may have waited for it."""
        if self.stopping:
            self.changed()

    def lost(self, connection: Connection, error: RedpollError) -> None:
        """A connection is gone."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        if self.stopping:
            self.changed()
        link = connection.link
        if not link.dialled:
            self.places.free(connection.remote.host)
        self.admission.forget(connection)
        peer = link.peer
        if connection.secured is not None:
            self.memory.links -= TLS_LINK
        self.strangers.ended(connection, error)
        if peer is None:
            link.lost()
            self.strangers.tell(connection, error)
            return
        parted = link.state is LinkState.PARTING
        if not _in_order(connection, error):
            peer.counters.errors += 1
        if parted:
            # The node left it in good order, maybe for one whose claim is open: its peer is then never without a link.
            self.admission.decide_for(peer)
        now = self.loop.time()
        peer.trouble = error
        detach(peer, link, error, now)
        self.pressure.eased()
        self.room(peer)
        if self.dispatcher is not None:
            # What waited until this link takes more output has nothing to wait for now.
            self.dispatcher.freed(peer)
        if self.closing is not None or (isinstance(error, NotAuthorized | Fenced) and not peer.links):
            # Dialling again would bring the same.
            peer.fail_queue(self.closing or error)
        if not peer.links:
            self.node.events.tell("peer_lost", info(peer), error)
            self.admission.decide_for(peer)
        if not peer.links:
            self.sessions.lost(peer, connection, error)
            if not peer.resuming:
                self.moves.part_ways(peer, now)
            if not parted:
                self.absent.add(peer)
            if not link.dialled:
                self.places.leave(peer, connection.remote.host)
            self.forget_if_idle(peer)

    @staticmethod
    def pause(connection: Connection) -> None:
        """Read no more for now."""
        if connection.transport is not None:
            connection.transport.pause_reading()

    def begun(self, peer: Peer) -> None:
        """Messages of a peer were begun: read on if that was stopped."""
        slots = peer.slots
        if slots.charged and not slots.inbox:
            slots.charge(0)
            if self.memory.waiting:
                self.pressure.eased()
        if slots.resumable:
            for link in peer.links:
                link.owner.resume_reading()

    def drained(self, peer: Peer) -> None:
        """A peer took what was written to it: more of its messages may be begun."""
        if self.dispatcher is not None:
            self.dispatcher.freed(peer)

    def new_peer(self, address: Address | None, identity: bytes | None) -> Peer:
        """Make a peer that is not known yet."""
        return Peer(address, identity, self.settings, self.pool, self, random.getrandbits(31))

    def forget_if_idle(self, peer: Peer) -> None:
        """Know a peer no longer if nothing is kept for it and nobody waits for it; what it counted stays in the sums."""
        if not peer.idle or peer in self.absent or peer in self.dialler:
            return
        peer.slots.charge(0)
        self.census.forget(peer)
        self.routes.forget(peer)
        self.dialler.forget(peer)
        if self.consumers is not None:
            self.consumers.forget(peer)
        self.timers.forget(peer)

    def at(self, address: Address) -> Peer:
        """The peer that an address means now; one to be dialled if it means none.

        Raises:
            UsageError: The address cannot be dialled.
        """
        peer = self.routes.get(address)
        if peer is None:
            if address.kind == "tcp" and address.port == 0:
                hint = "a peer that does not listen is answered by its messages"
                raise UsageError(f"{address} cannot be dialled", hint)
            peer = self.new_peer(address, None)
            self.routes.add(peer)
        return peer

    def bound_to(self, peer: Peer) -> Peer:
        """Whom a message goes to that is only for the node of a peer, which may have been forgotten and be back."""
        known = self.routes.same_node(peer)
        if known is None:
            self.routes.add(peer, quietly=True)
            return peer
        return known

    # What waits for room

    def room(self, peer: Peer) -> None:
        """There is room: whoever waits for it looks again."""
        waiters, peer.starved = peer.starved, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # What peers ask for

    def wake(self, link: Link) -> None:
        """There is output on a link."""
        link.owner.wake()

    def need_link(self, peer: Peer) -> None:
        """Something waits and there is no link."""
        self.dialler.need(peer)
        self.forget_if_idle(peer)

    def met(self, peer: Peer, link: Link, renewed: bool) -> None:
        """The other end of a peer's link announced itself."""
        self.sessions.met(peer, link, renewed)

    def expel(self, connection: Connection, body: bytes, error: RedpollError) -> None:
        """Take a link from its peer at once; its other end is told why by a session frame, if it reads."""
        connection.link.control(Control.SESSION, body=body)
        connection.expel(error)

    def arm(self, peer: Peer, deadline: float) -> None:
        """Ring at a deadline."""
        self.timers.arm(peer, deadline)

    def cancel_timers(self) -> None:
        """Ring no more."""
        self.timers.close()
        self.absent.clear()
        self.pressure.close()

    def close(self, link: Link, error: RedpollError) -> None:
        """Close a link because of an error."""
        link.owner.fail(error)

    def ended_late(self, peer: Peer) -> None:
        """Messages may have ended after their peer's last link: it is remembered for a time, as who has just gone is."""
        if not peer.links and not peer.slots.busy:
            self.places.settle(peer)
        if not peer.links and peer.idle and peer in self.routes and self.closing is None:
            self.absent.add(peer)
            self.forget_if_idle(peer)

    def after_dispatch(self, peer: Peer) -> None:
        """The dispatcher, or a consumer, had a turn outside of reading: write what came of it."""
        self.begun(peer)
        self.wake_links(peer)
        self.ended_late(peer)

    @staticmethod
    def wake_links(peer: Peer) -> None:
        """There may be output on any link of a peer."""
        for link in peer.links:
            if link.out or link.transfers or link.written:
                link.owner.wake()

    def unheard(self, out: Queued) -> None:
        """A send failed and nobody awaited it."""
        error = getattr(out, "_exception", None)
        if error is not None:
            self.node.events.tell("send_failed", out.message, error)


def _nothing() -> None:
    pass


def _in_order(connection: Connection, error: RedpollError) -> bool:
    """Whether a link ended as links may: after a goodbye, by this node's own stop, or closed by libchirp, which says none."""
    link = connection.link
    if link.state in (LinkState.LEAVING, LinkState.PARTING) or isinstance(error, Closed):
        return True
    closed_there = connection.error is None and error.__cause__ is None
    return closed_there and (link.announced is None or link.state is LinkState.LEFT)
