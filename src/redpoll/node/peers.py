"""The peers of a node: identifies them, owns their links and timers, and passes on received messages.

The decisions are made in `redpoll.wire`; this module connects them to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from redpoll.address import Address
from redpoll.config import Config, is_encrypted
from redpoll.errors import Closed, Fenced, NotAuthorized, RedpollError, ShuttingDown, Undecodable
from redpoll.node.admission import Admission
from redpoll.node.completion import Completion
from redpoll.node.connection_limits import REMEMBERED_FOR, ConnectionLimits, RecentPeers
from redpoll.node.hooks import NodeEvents, log_raised
from redpoll.node.pressure import Pressure
from redpoll.node.reports import LogLimit, Rejected, Repeated, Statistics, UnawaitedFailures, info
from redpoll.node.sending import Timers
from redpoll.node.sessions import Layer, Sessions
from redpoll.serializers import RawSerializer
from redpoll.serializers.base import Serializer
from redpoll.tls.credentials import Credentials
from redpoll.transport.connection import Connection
from redpoll.transport.mapped_memory import map_memory
from redpoll.transport.secure import Secured
from redpoll.transport.spin import Spin
from redpoll.wire.assembly import BodyPool
from redpoll.wire.capabilities import NOT_LISTENING, SERIALIZERS, TELLS_RECORD, Announcement, serializer_flags
from redpoll.wire.frames import Goodbye
from redpoll.wire.identity import Claim
from redpoll.wire.libchirp import LibchirpLink
from redpoll.wire.link import Link
from redpoll.wire.link_lifecycle import attach, detach
from redpoll.wire.memory import NO_LIMIT, TLS_LINK_SIZE, Memory
from redpoll.wire.peer import Peer
from redpoll.wire.routes import Routes
from redpoll.wire.settings import Settings
from redpoll.wire.slots import SlotPool
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    from redpoll.message import Message
    from redpoll.node.dialler import Dialler
    from redpoll.node.dispatch import Dispatcher
    from redpoll.node.pulling import Consumers
    from redpoll.node.received import ReceivedMessage

__all__ = ["Peers"]

_logger = logging.getLogger("redpoll.node")


class _Node(Layer, Protocol):
    """The node, as its peers use it."""

    patience: float
    libchirp: bool

    def send(self, message: Message[Any]) -> asyncio.Future[None]:
        """Send a message."""


class Peers:
    """The peers of one node and their connections.

    Attributes:
        node: The node.
        settings: The settings of its links.
        pool: The slots of the node.
        receiver: Takes messages out of the inboxes: for a handler, or for those that pull.
        raw: Whether small bodies need no decoding, and bytes no encoding.
        credentials: The credentials of encrypted links; None where none is encrypted.
        stopping: Whether the node is stopping.
    """

    def __init__(
        self,
        node: _Node,
        events: NodeEvents,
        config: Config,
        serializer: Serializer[Any],
        identity: bytes,
        received: type[ReceivedMessage[Any]],
    ) -> None:
        self.node = node
        self.events = events
        self._received = received
        self.config = config
        self.serializer = serializer
        self.raw = type(serializer) is RawSerializer
        self._serializer_flags = serializer_flags(serializer.name)
        #: The serializer to compare those of redpoll peers with; None accepts all, as raw bytes can be read by any
        #: node.
        self._reads = None if serializer.name in {"raw", "buffer"} else SERIALIZERS[self._serializer_flags >> 4]
        self._foreign = LogLimit(asyncio.get_running_loop())
        self.loop = asyncio.get_running_loop()
        epoch = int.from_bytes(os.urandom(4), "big")
        self.settings = Settings.of(
            config,
            identity=identity,
            epoch=epoch,
            flat=not serializer.wants_buffer,
            patience=node.patience,
            libchirp=node.libchirp,
        )
        self.memory = Memory(config.memory_limit or NO_LIMIT)
        self.pool = SlotPool(config.node_slots, self.memory)
        self.stopping = False
        #: The error of everything that is begun or dialled once the node closes.
        self.closing: RedpollError | None = None
        self.completion = Completion(self, node.send, config, serializer, self.pool, events, self.loop)
        self._bodies = BodyPool(map_memory)
        self.routes = Routes(identity, self._new_peer)
        self.sessions = Sessions(self, node, config, self.routes, self.memory, self.loop)
        self.admission = Admission(self, config, self.routes, self.sessions, self.loop)
        self.recent = RecentPeers(self.loop, config, REMEMBERED_FOR, self.forget_if_idle)
        self.connections: set[Connection] = set()
        self.statistics = Statistics(self.routes, self.connections, self.memory)
        self.connection_limits = ConnectionLimits(config, self.memory.tally)
        self.credentials: Credentials | None = None
        self.rejected = Rejected(self.memory.tally, self.loop)
        self.pressure = Pressure(self.loop, self.memory, self.routes)
        self.failures = UnawaitedFailures(events, self.loop)
        raised = self._raised = {name: Repeated(partial(log_raised, name)) for name in NodeEvents.NAMES}
        events.report_to(lambda name, error: raised[name].note(error))
        self.decode, self.unawaited = self.completion.decode, self.failures.dropped
        self.dialler: Dialler
        self.receiver: Dispatcher | Consumers
        self.spin = Spin(self.loop, config.spin) if config.spin else None
        self.timers = Timers(self.loop, self.forget_if_idle)

    def listen_at(self, port: int) -> None:
        """Set the port that handshakes announce, before any link is made."""
        self.settings = replace(self.settings, port=port)

    # Connections

    def admits(self, remote: Address) -> bool:
        """Return True if a connection may be accepted."""
        return not self.stopping and self.connection_limits.admits(remote.host, len(self.connections))

    def accepted(self, remote: Address) -> asyncio.BufferedProtocol:
        """Make the protocol of an accepted connection."""
        link = self._new_link(dialled=False)
        connection = Connection(self, link, remote, self.loop)
        credentials = self.credentials
        protocol: asyncio.BufferedProtocol = connection
        if credentials is not None and credentials.can_listen and is_encrypted(remote, self.config):
            # A node without a certificate listens only where nothing is encrypted.
            protocol = self.secured(connection)
        self._count(connection)
        self.connection_limits.add(remote.host)
        return protocol

    def _count(self, connection: Connection) -> None:
        """Count a connection that exists or is about to; `lost` is called for it."""
        if connection not in self.connections:
            self.connections.add(connection)
            if connection.link.dialled:
                self.admission.claims.opened(connection)
            if connection.secured is not None:
                self.memory.link_bytes += TLS_LINK_SIZE

    def dialled(self, remote: Address, peer: Peer) -> Connection:
        """Make a connection that this node dials for a peer."""
        return Connection(self, self._new_link(dialled=True), remote, self.loop, peer)

    def _new_link(self, *, dialled: bool) -> Link[Peer]:
        now = self.loop.time()
        return LibchirpLink(
            self.settings,
            dialled=dialled,
            now=now,
            make=self._received,
            body_pool=self._bodies,
            memory=self.memory,
        )

    def secured(self, connection: Connection, name: str | None = None) -> Secured:
        """Put TLS under a connection.

        Args:
            connection: A connection without a transport.
            name: The name that was dialled; None for an accepted connection.
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
        """Send handshake and announcement over a new connection."""
        self._count(connection)
        settings = self.settings
        port, flags = settings.port, TELLS_RECORD
        if not port:
            # libchirp tells nodes of one host apart by port alone: the link's own port serves, and is unique.
            port = connection.local_port
            flags |= NOT_LISTENING
        flags |= self._serializer_flags
        if connection.link.dialled:
            flags |= self.sessions.flags
        # The peer is not known yet: while messages of lost links are open, the link gets its window once it is.
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
        """Find the peer of a link whose handshake arrived."""
        self.admission.identified(connection, now)

    def session(self, connection: Connection, now: float) -> None:
        """Handle session frames: proofs of links, and rejections of this node."""
        self.admission.session(connection, now)

    def bind(self, connection: Connection, peer: Peer, claim: Claim, now: float) -> None:
        """Give a link to its peer."""
        first = not peer.links
        self.recent.remove(peer)
        if peer.was_linked:
            peer.counters.reconnects += 1
        if connection.certificate is not None:
            peer.certificate = connection.certificate
        if claim is Claim.CONFLICT:
            peer.counters.conflicts += 1
            self.events.tell("identity_conflict", info(peer))
        attach(peer, connection.link, now)
        self.connection_limits.settle(peer)
        # The timer was set for the handshake; pings may be due earlier.
        connection.arm()
        peer.was_linked = True
        if connection.ready is not None and not connection.ready.done():
            connection.ready.set_result(None)
        peer.wake_waiters()
        if connection.target is not None:
            self.sessions.requeue(connection.target, peer, now)
            # Queued messages may have been written to another link than this one.
            peer.wake_links()
        if first:
            self.events.tell("peer_connected", info(peer))
        if self.closing is not None:
            # The peer takes the link for open: the goodbye tells it that nothing was accepted.
            self._reject(peer, connection.link)
            connection.link.leave()

    def arrived(self, connection: Connection, now: float) -> None:
        """Handle the messages that arrived over a connection."""
        link = connection.link
        peer = link.peer
        if peer is None:
            return
        if self.stopping:
            # These arrived after our goodbye or before it could be sent; finally also those that were promised.
            self._reject(peer, link)
        elif self._reads is not None:
            self._check_serializer(peer, link)
        link.liveness.last_used = now
        if peer.slots.inbox.add(link):
            for each in peer.links:
                each.connection.pause_reading()
        self.receiver.arrived(peer, now)
        self.begun(peer)

    def _check_serializer(self, peer: Peer, link: Link) -> None:
        """Refuse messages of another serializer: they might decode to something else."""
        theirs = link.announced.serializer
        if theirs is None or theirs == self._reads or not link.arrived.messages:
            return
        text = f"encoded with {theirs}, but this node decodes {self._reads}"
        peer.slots.refuse_arrived(link, Undecodable.code, text)
        if self._foreign.may_log():
            _logger.warning("refused messages of %s: %s", peer.address, text)

    def _reject(self, peer: Peer, link: Link) -> None:
        peer.slots.reject_arrived(link, ShuttingDown.code, "the node is stopping", promised=self.closing is not None)

    def memory_blocked(self, connection: Connection, now: float) -> None:
        """Handle a connection that waits for memory."""
        self.pressure.memory_blocked(connection, now)

    def backed_up(self) -> None:
        """Handle a connection whose peer does not read."""
        self.pressure.backed_up()

    def suspect(self, connection: Connection) -> None:
        """Call the hook for a peer that did not answer a ping in time."""
        peer = connection.link.peer
        if peer is not None:
            self.events.tell("peer_suspect", info(peer))

    def parting(self, connection: Connection) -> bool:
        """Return True while a handler may answer a request over a link that was said goodbye on."""
        return self.receiver.answers(connection.link)

    def lost(self, connection: Connection, error: RedpollError) -> None:
        """Detach a connection that was lost from its peer, and settle what depends on it."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        link = connection.link
        if not link.dialled:
            self.connection_limits.remove(connection.remote.host)
        self.admission.forget(connection)
        peer = link.peer
        if connection.secured is not None:
            self.memory.link_bytes -= TLS_LINK_SIZE
        self.rejected.count(connection, error)
        if peer is None:
            link.connection_lost()
            self.rejected.log(connection, error)
            return
        parted = link.state is LinkState.PARTING
        if not parted:
            peer.broken = True
        if not _in_order(connection, error):
            peer.counters.errors += 1
        if parted:
            # The node left the link cleanly, maybe for one whose claim is open: its peer is then never without a link.
            self.admission.decide_for(peer)
        now = self.loop.time()
        peer.last_error = error
        detach(peer, link, error, now)
        self.pressure.eased()
        peer.wake_waiters()
        # Messages that waited until this link drained have nothing to wait for now.
        self.receiver.freed(peer)
        if isinstance(error, NotAuthorized | Fenced) and not peer.links:
            # Redialling would fail in the same way.
            peer.fail_queue(error)
        if not peer.links:
            self.events.tell("peer_lost", info(peer), error)
            self.admission.decide_for(peer)
        if not peer.links:
            peer.host = None if link.dialled else connection.remote.host
            if not parted or (peer.broken and link.goodbye not in (Goodbye.UP_TO, Goodbye.NONE)):
                # A link that was only left says nothing of the messages of another one that broke: they may be resent.
                self.recent.remember(peer)
            self.sessions.lost(peer, error)
            if not peer.resuming:
                self.sessions.readdress(peer, now)
            if not link.dialled:
                self.connection_limits.lost(peer, connection.remote.host)
            self.forget_if_idle(peer)

    def begun(self, peer: Peer) -> None:
        """Resume reading if messages of a peer were begun and reading was paused."""
        inbox = peer.slots.inbox
        if inbox.charged and not inbox:
            inbox.charge(0)
            if self.memory.paused:
                self.pressure.eased()
        if inbox.overrun and inbox.end_overrun():
            for link in peer.links:
                link.connection.resume_reading()

    def freed(self, peer: Peer) -> None:
        """Begin more messages, of this peer and of waiting ones: a slot was freed, or the peer read what was written."""
        self.receiver.freed(peer)

    def _new_peer(self, address: Address | None, identity: bytes | None) -> Peer:
        """Make a peer that is not known yet."""
        serial, record = random.getrandbits(31), random.getrandbits(64)
        return Peer(address, identity, self.settings, self.pool, self, serial, record)

    def forget_if_idle(self, peer: Peer) -> None:
        """Forget a peer that nothing is kept for and nothing waits for; its counters stay in the sums."""
        if not peer.idle or peer in self.recent or peer in self.dialler:
            return
        peer.slots.inbox.charge(0)
        self.statistics.forget(peer)
        self.routes.forget(peer)
        self.dialler.forget(peer)
        self.receiver.forget(peer)
        self.timers.forget(peer)

    # Requests of peers

    def wake(self, link: Link) -> None:
        """Schedule the output of a link."""
        link.connection.wake()

    def need_link(self, peer: Peer) -> None:
        """Dial a peer that has something to send and no link; once the node closes, fail what it has."""
        if self.closing is not None:
            peer.fail_queue(self.closing)
        self.dialler.need(peer)
        self.forget_if_idle(peer)

    def on_announcement(self, peer: Peer, link: Link, renewed: bool) -> None:
        """Handle the announcement of a peer's link."""
        self.sessions.met(peer, link, renewed)

    def arm(self, peer: Peer, deadline: float) -> None:
        """Set the timer of a peer."""
        self.timers.arm(peer, deadline)

    def cancel_timers(self) -> None:
        """Cancel all timers, and let the loop sleep."""
        self.timers.close()
        if self.spin is not None:
            self.spin.stop()
        self.recent.clear()
        self.pressure.close()
        self.failures.close()
        self.completion.failures.close()
        for each in self._raised.values():
            each.close()

    def close(self, link: Link, error: RedpollError) -> None:
        """Close a link because of an error."""
        link.connection.fail(error)

    def ended_late(self, peer: Peer) -> None:
        """Remember a peer whose messages ended after its last link was lost, as one that was just lost."""
        if not peer.links and not peer.slots.busy:
            self.connection_limits.settle(peer)
        if not peer.links and peer.idle and peer in self.routes and self.closing is None:
            self.recent.remember(peer)
            self.forget_if_idle(peer)

    def after_dispatch(self, peer: Peer) -> None:
        """Write what a turn of the dispatcher or a consumer, outside of reading, produced."""
        self.begun(peer)
        peer.wake_links()
        self.ended_late(peer)


def _in_order(connection: Connection, error: RedpollError) -> bool:
    """Return True if a link ended normally: by a goodbye, by this node stopping, or closed by libchirp without one."""
    link = connection.link
    if link.state in (LinkState.LEAVING, LinkState.PARTING) or isinstance(error, Closed):
        return True
    closed_there = connection.error is None and error.__cause__ is None
    return closed_there and (link.libchirp or link.state is LinkState.LEFT)
