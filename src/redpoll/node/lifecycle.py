"""The ends of a node: its shutdown, in which what was begun ends before everything closes, and a fork of its process.

A forked child releases the sockets of its parent's nodes, and refuses to use them.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from redpoll.errors import Closed, RedpollError, ShuttingDown, UsageError
from redpoll.platforms import after_fork
from redpoll.wire.frames import WANTED
from redpoll.wire.link import Link
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    from collections.abc import Callable

    from redpoll.node.admission import Admission
    from redpoll.node.dialler import Dialler
    from redpoll.node.dispatch import Dispatcher
    from redpoll.node.pulling import Consumers
    from redpoll.node.sessions import Sessions
    from redpoll.transport.carrier import Carrier, Listening
    from redpoll.transport.connection import Connection
    from redpoll.wire.peer import Peer
    from redpoll.wire.routes import Routes
    from redpoll.wire.slots import SlotPool

__all__ = ["CLOSING_GRACE", "Shutdown", "forked_error", "release_inherited", "started"]

#: Time in seconds, granted twice at most, for the peers to answer a goodbye, and to receive the last bytes.
CLOSING_GRACE = 0.25

#: Longest interval in seconds for polling sends and links; it begins far below that.
_POLL_INTERVAL = 0.01


class _Owner(Protocol):
    """The parts of a node that a shutdown ends, and the two facts that it sets: that the node stops, and why it is closed."""

    loop: asyncio.AbstractEventLoop
    stopping: bool
    closing: RedpollError | None
    routes: Routes
    connections: set[Connection]
    pool: SlotPool
    receiver: Dispatcher | Consumers
    dialler: Dialler
    admission: Admission
    sessions: Sessions

    def cancel_timers(self) -> None:
        """Cancel all timers."""


class Shutdown:
    """The shutdown of one node, in a task of its own, so that it completes even if its waiters are cancelled."""

    def __init__(
        self,
        peers: _Owner,
        carrier: Carrier,
        listener: Listening | None,
        drain: float | None,
        stopped: Callable[[], None],
    ) -> None:
        """Begin the shutdown.

        Args:
            peers: The peers of the node, which accept no more messages from now on.
            carrier: The carrier of the links.
            listener: The listener of the node, which is closed.
            drain: Time in seconds; None is no limit.
            stopped: Called at the end.
        """
        self._peers = peers
        self._stopped = stopped
        self._carrier = carrier
        self._listener = listener
        #: Tasks that wait for the end; a handler among them is not waited for.
        self._waiting: set[asyncio.Task[Any] | None] = {asyncio.current_task()}
        self._draining = True
        self._error = Closed("node")
        if listener is not None:
            listener.close()
        peers.stopping = True
        peers.admission.stop()
        self._leave()
        self._task = peers.loop.create_task(self._run(drain), name="redpoll stop")

    async def wait(self) -> None:
        """Wait for the end. Cancelling ends the draining and waits for the rest; cancelling again ends the wait."""
        current = asyncio.current_task()
        self._waiting.add(current)
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._draining:
                self._draining = False
                await asyncio.shield(self._task)
            raise
        finally:
            self._waiting.discard(current)

    async def _run(self, drain: float | None) -> None:
        # The parts end in this order, reversed, also if one of the steps is cancelled with the loop.
        async with AsyncExitStack() as ends:
            ends.callback(self._stopped)
            ends.push_async_callback(self._carrier.wait_ended)
            ends.callback(self._end_all)
            ends.push_async_callback(self._close)
            ends.push_async_callback(self._end_handlers)
            ends.callback(self._abort)
            if drain is None or drain > 0:
                await self._until(self._has_drained, drain)

    async def _until(self, condition: Callable[[], bool], seconds: float | None) -> None:
        """Wait until the condition holds, at most `seconds`. It is polled: most of what ends does not notify."""
        loop = self._peers.loop
        end = None if seconds is None else loop.time() + seconds
        pause = 0.0
        while not condition() and (end is None or loop.time() < end):
            await asyncio.sleep(pause)
            pause = min(2 * pause + _POLL_INTERVAL / 64, _POLL_INTERVAL)

    async def _end_handlers(self) -> None:
        handlers: list[asyncio.Task[Any]] = [task for task in self._peers.receiver.tasks if task not in self._waiting]
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)

    async def _close(self) -> None:
        peers = self._peers
        await peers.dialler.stop()
        await peers.admission.close()
        if self._listener is not None:
            await self._listener.wait_closed()
        await self._until(self._has_parted, CLOSING_GRACE)
        for connection in list(peers.connections):
            # Once its output is written; what is not confirmed by then fails.
            connection.close(self._error)
        await self._until(lambda: not peers.connections, CLOSING_GRACE)

    def _end_all(self) -> None:
        """Close the remaining connections and timers."""
        for connection in list(self._peers.connections):
            connection.give_up(self._error)
        self._peers.cancel_timers()

    # Messages and links

    def _leave(self) -> None:
        """Say goodbye on each link that has nothing more to send or to be answered; called again for the others.

        Later messages of those peers wait for the next link, to the next run of this node. Running handlers may continue
        sending over a link to a redpoll peer until that answers; libchirp knows no goodbye, so its links stay
        meanwhile.
        """
        peers = self._peers
        working = self._working()
        for connection in list(peers.connections):
            link = connection.link
            if link.accepting and not _needed(link) and not (working and link.libchirp):
                link.leave(keep_sending=working)
                connection.wake()
        if not peers.receiver.claiming and not peers.pool.used:
            # Nothing will begin the waiting messages: there is nothing to drain.
            self._refuse_inboxes()

    def _working(self) -> bool:
        """Return True if a message is being handled or a handler runs, except handlers that stop the node."""
        peers = self._peers
        tasks = peers.receiver.tasks
        own = sum(not message.phase for message in tasks.values())
        return any(task not in self._waiting for task in tasks) or peers.pool.used > own

    def _has_drained(self) -> bool:
        """Return True if all that was begun has ended, except messages whose handlers stop the node."""
        self._leave()
        return not self._draining or not (self._working() or any(map(self._unfinished, self._peers.routes)))

    @staticmethod
    def _unfinished(peer: Peer) -> bool:
        return (
            bool(peer.queue or peer.requests)
            or any(not message.phase for message in peer.slots.inbox)
            or any(link.unfinished or _awaits_goodbye(link) for link in peer.links)
        )

    def _abort(self) -> None:
        """Refuse waiting messages, fail unsent ones, say goodbye. From now on nothing is begun or dialled."""
        self._draining = False
        peers, error = self._peers, self._error
        peers.closing = error
        peers.receiver.close()
        self._refuse_inboxes()
        peers.sessions.close(error)
        for peer in peers.routes:
            peer.fail_queue(error)
            peer.wake_waiters()
        for connection in list(peers.connections):
            connection.link.leave()
            connection.wind_down(error)

    def _refuse_inboxes(self) -> None:
        for peer in self._peers.routes:
            peer.slots.refuse_all_waiting(ShuttingDown.code, "the node stopped before it was begun")
            peer.wake_links()

    def _has_parted(self) -> bool:
        """Return True if no goodbye waits for an answer, and no dialling node may take its link for open already."""
        return not any(
            _awaits_goodbye(each.link) or (each.link.state is LinkState.HANDSHAKE and not each.link.dialled)
            for each in self._peers.connections
        )


def _needed(link: Link) -> bool:
    """Return True if a link still carries sent messages, or messages to be answered.

    The remote node answers a goodbye when all that was sent to it has ended, and a request has ended once its work is
    done: its answer may still be under way.
    """
    peer = link.peer
    if link.transfers or (peer is not None and peer.awaits_link):
        return True
    return any(out.kind & WANTED for out in link.in_flight.values())


def _awaits_goodbye(link: Link) -> bool:
    """Return True if a redpoll peer will answer our goodbye; it does when all of its own messages have ended.

    Closing a socket with unread data would reset the connection, and lose acknowledgements under way.
    """
    return link.state is LinkState.LEAVING and not link.libchirp and not link.unreleased


# Forks


class _Forked(Protocol):
    """A node as a forked child sees it."""

    def _inherit(self) -> list[int]:
        """Refuse all use from now on, as the node is the parent's; return the descriptors of its sockets."""


#: The started nodes of this process.
_started: WeakSet[_Forked] = WeakSet()


def started(node: _Forked) -> None:
    """Register a node, to be released in each child that the process forks from now on."""
    _started.add(node)


def forked_error() -> UsageError:
    """Return the error for the use of a parent's node in a child."""
    return UsageError("this node belongs to the parent process", "start a separate node in the child")


def _release_all() -> None:
    for node in list(_started):
        release_inherited(node)
    _started.clear()


after_fork(_release_all)


def release_inherited(node: _Forked) -> None:
    """Release the sockets of a parent's node, so that they close when the parent closes them, and refuse its use."""
    descriptors = node._inherit()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        if descriptor >= 0:
            # Not closed: an object here still has the number, which must not become another file's.
            with suppress(OSError):
                os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)
