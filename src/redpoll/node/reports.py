"""The reports of a node: its statistics, and its log with at most one line a second of each kind that a peer can cause."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from redpoll.errors import Closed, NotAuthorized, PeerLost, ProtocolError, RedpollError, TLSError
from redpoll.node.hooks import NodeEvents, PeerInfo
from redpoll.stats import NodeStats, PeerStats, TurnedAway
from redpoll.wire.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from redpoll.message import Message
    from redpoll.transport.connection import Connection
    from redpoll.wire.memory import Memory
    from redpoll.wire.peer import Peer
    from redpoll.wire.routes import Routes

__all__ = ["LogLimit", "Rejected", "Repeated", "Statistics", "UnawaitedFailures", "info"]

#: Interval in seconds between two lines of one kind.
_WARN_EVERY = 1.0

_logger = logging.getLogger("redpoll.node")


class LogLimit:
    """Limits one kind of log line to one a second.

    Args:
        loop: The event loop whose clock is used.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._silent_until = float("-inf")

    def may_log(self) -> bool:
        """Return True if a line may be logged now, and count it as logged."""
        now = self._loop.time()
        if now < self._silent_until:
            return False
        self._silent_until = now + _WARN_EVERY
        return True


class Rejected:
    """Counts and logs the rejected connections of one node: accepted ones without a peer, or that broke the protocol.

    Args:
        tally: The counters.
        loop: The event loop of the node.
    """

    def __init__(self, tally: Tally, loop: asyncio.AbstractEventLoop) -> None:
        self._tally = tally
        self._lines = LogLimit(loop)

    def count(self, connection: Connection, error: RedpollError) -> None:
        """Count the end of a connection, if it is an error of the remote node."""
        link = connection.link
        if isinstance(error, ProtocolError):
            self._tally.protocol_errors += 1
        elif link.handshake is None and not link.dialled and not isinstance(error, Closed):
            if connection.error is error and isinstance(error, PeerLost):
                self._tally.handshakes_late += 1
            else:
                self._tally.handshakes_failed += 1

    def log(self, connection: Connection, error: RedpollError) -> None:
        """Log why an accepted connection was rejected: it has no peer to tell, and the remote node may not know why."""
        if connection.link.dialled or not isinstance(error, TLSError | NotAuthorized):
            return
        if self._lines.may_log():
            _logger.warning("rejected a connection: %s", error)


class Repeated:
    """Logs one kind of failure: the first at once, then once a second the last one, with the number of those since.

    Args:
        log: Called with the number of failures, and with the last one.
    """

    def __init__(self, log: Callable[[int, Any], object]) -> None:
        self._log = log
        self._count = 0
        self._last: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def note(self, failure: Any) -> None:
        """Log a failure, now or within a second; call it on the event loop."""
        self._count += 1
        self._last = failure
        if self._timer is None:
            self._tell_again()

    def _tell_again(self) -> None:
        self._timer = None
        if self._count:
            self._tell()
            self._timer = asyncio.get_running_loop().call_later(_WARN_EVERY, self._tell_again)

    def close(self) -> None:
        """Log what is left: the node stopped."""
        if self._timer is not None:
            self._timer.cancel()
            # Failures at the very end are reported later.
            self._timer = None
        if self._count:
            self._tell()

    def _tell(self) -> None:
        count, last = self._count, self._last
        self._count, self._last = 0, None
        self._log(count, last)


class UnawaitedFailures(Repeated):
    """Reports failed sends that nothing awaited: each one to the hook, or once a second to the log.

    Args:
        events: The hooks, of which `send_failed` is called.
        loop: The event loop that calls it.
    """

    def __init__(self, events: NodeEvents, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(_warn_unawaited)
        self._events = events
        self._loop = loop

    def dropped(self, message: Message[Any], error: BaseException) -> None:
        """Report a failed send whose future was dropped; may be called in any thread, at any point."""
        try:
            self._loop.call_soon_threadsafe(self.tell, message, error)
        except RuntimeError:  # the loop is closed: no hook can be called
            pass

    def tell(self, message: Message[Any], error: BaseException) -> None:
        """Report a failed send, from the loop."""
        if self._events.tell("send_failed", message, error):
            return
        text, cause = str(error), error.__cause__
        behind = cause._reason(getattr(error, "address", None)) if isinstance(cause, RedpollError) else ""
        self.note(text if behind in text else f"{text}: {behind}")


def _warn_unawaited(count: int, last: str) -> None:
    what = "an unawaited send failed" if count == 1 else f"{count:,} unawaited sends failed, the last one"
    _logger.warning("%s: %s; await the futures of send() and request(), or set events.send_failed", what, last)


class Statistics:
    """Builds the statistics of one node; forgotten peers stay in the sums.

    Args:
        routes: The peers of the node.
        connections: Its open connections.
        memory: Its memory, with the tally of rejections.
    """

    def __init__(self, routes: Routes, connections: Sized, memory: Memory) -> None:
        self._routes = routes
        self._connections = connections
        self._memory = memory
        self._gone = PeerStats()

    def forget(self, peer: Peer) -> None:
        """Add the counters of a peer that is forgotten to the sums."""
        self._gone = NodeStats.of({}, gone=(self._gone, _record(peer)))
        peer.counters.reset()

    def collect(self) -> NodeStats:
        """Return the counters of all peers."""
        records: dict[str, PeerStats] = {}
        for peer in self._routes:
            peer.slots.inbox.recount()
            label = name = _label(peer)
            number = 1
            while label in records:
                # A peer of its own that claims the same identity and address.
                number += 1
                label = f"{name} ({number})"
            records[label] = _record(peer)
        memory = self._memory
        return NodeStats.of(
            records,
            connections=len(self._connections),
            gone=(self._gone,),
            memory_held=memory.total,
            turned_away=TurnedAway(**asdict(memory.tally)),
        )


def info(peer: Peer) -> PeerInfo:
    """Return the `PeerInfo` of a peer, for hooks and `Node.peers`."""
    redpoll = peer.epoch is not None
    return PeerInfo(peer.address, peer.identity, bool(peer.links), redpoll, peer.certificate, peer.resuming)


def _label(peer: Peer) -> str:
    identity = peer.identity.hex() if peer.identity else "unknown"
    return f"{peer.address or 'not listening'} {identity}"


def _record(peer: Peer) -> PeerStats:
    counted = asdict(peer.counters)
    for link in peer.links:
        counted["bytes_sent"] += link.bytes_sent
        counted["bytes_received"] += link.bytes_received
    in_flight = sum(len(link.in_flight) for link in peer.links)
    return PeerStats(**counted, in_flight=in_flight, queued=len(peer.queue), slots_used=peer.slots.running)
