"""The end of a node: first what was begun ends, then everything closes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redpoll.errors import Closed, RedpollError, ShuttingDown
from redpoll.wire.link import Link
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    from collections.abc import Callable

    from redpoll.node.peers import Peers
    from redpoll.transport.carrier import Carrier, Listening
    from redpoll.wire.peer import Peer

__all__ = ["CLOSING_GRACE", "Shutdown"]

#: Seconds that the other ends have, twice at most: to answer a goodbye, and to take the last bytes.
CLOSING_GRACE = 0.25

#: Seconds between two looks at what rings no bell: sends and links.
_LOOK_AGAIN = 0.01


class Shutdown:
    """One node's stop, in a task of its own, so that it comes to its end whoever waits for it and gives up waiting."""

    def __init__(
        self,
        peers: Peers,
        carrier: Carrier,
        listener: Listening | None,
        drain: float | None,
        stopped: Callable[[], None],
    ) -> None:
        """Begin.

        Args:
            peers: The node's, which take no more messages from now on.
            carrier: What carries its links.
            listener: The node's, which is closed.
            drain: Seconds; None is no limit.
            stopped: Called at the end.
        """
        self._peers = peers
        self._stopped = stopped
        self._carrier = carrier
        self._listener = listener
        #: Those that wait for the end; a handler among them is not waited for.
        self._waiting: set[asyncio.Task[Any] | None] = {asyncio.current_task()}
        self._changed = asyncio.Event()
        self._draining = True
        if listener is not None:
            listener.close()
        peers.stopping = True
        peers.admission.stop()
        peers.changed = self._changed.set
        self._leave()
        self._task = peers.loop.create_task(self._run(drain), name="redpoll stop")

    async def wait(self) -> None:
        """Wait for the end. Cancelled, it ends the draining and waits for the rest; cancelled again, it does not."""
        current = asyncio.current_task()
        self._waiting.add(current)
        self._changed.set()
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._draining:
                self._draining = False
                self._changed.set()
                await asyncio.shield(self._task)
            raise
        finally:
            self._waiting.discard(current)

    async def _run(self, drain: float | None) -> None:
        try:
            await self._drain(drain)
        finally:
            self._draining = False
            self._abort(Closed("node"))
            try:
                await self._end_handlers()
            finally:
                try:
                    await self._close()
                finally:
                    self._stopped()

    async def _drain(self, seconds: float | None) -> None:
        if seconds is None or seconds > 0:
            await self._until(lambda: not self._draining or not self._busy(), seconds, self._leave)

    async def _until(self, condition: Callable[[], bool], seconds: float | None, between: Callable[[], None]) -> None:
        """Wait until something is so, at most so long."""
        loop = self._peers.loop
        end = None if seconds is None else loop.time() + seconds
        while not condition() and (end is None or loop.time() < end):
            self._changed.clear()
            try:
                async with asyncio.timeout(_LOOK_AGAIN):
                    await self._changed.wait()
            except TimeoutError:
                pass
            between()

    async def _end_handlers(self) -> None:
        dispatcher = self._peers.dispatcher
        if dispatcher is None:
            return
        handlers: list[asyncio.Task[Any]] = [task for task in dispatcher.tasks if task not in self._waiting]
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)

    async def _close(self) -> None:
        peers = self._peers
        await peers.dialler.stop()
        await peers.admission.close()
        if self._listener is not None:
            await self._listener.wait_closed()
        try:
            await self._until(lambda: self._parted, CLOSING_GRACE, _nothing)
            self._close_all()
            await self._until(lambda: not peers.connections, CLOSING_GRACE, _nothing)
        finally:
            self._end_all()
            await self._carrier.wait_ended()

    # What becomes of messages and links

    def _leave(self) -> None:
        """Say goodbye on each link that has nothing more to send; to be called again for the others.

        What comes over them from now on waits for the next link, to who runs here next. What is at work may go on sending
        over a link to a redpoll peer until that answers; libchirp knows no goodbye, so its links stay meanwhile.
        """
        peers = self._peers
        working = self._working()
        for connection in list(peers.connections):
            link = connection.link
            sends = link.transfers or (link.peer is not None and link.peer.queued)
            if link.taking and not sends and not (working and link.announced is None):
                link.leave(sends_on=working)
                connection.wake()
        if peers.consumers is not None and not peers.consumers.claiming and not peers.pool.used:
            # Nobody will begin what waits: there is nothing to drain.
            self._refuse_inboxes()

    def _working(self) -> bool:
        """Whether any message is being handled or a handler runs, beside those that stop the node themselves."""
        peers = self._peers
        own = 0
        if peers.dispatcher is not None:
            tasks = peers.dispatcher.tasks
            if any(task not in self._waiting for task in tasks):
                return True
            own = sum(not message.phase for message in tasks.values())
        return peers.pool.used > own

    def _busy(self) -> bool:
        """Whether anything that was begun has not ended, beside messages whose handlers stop the node themselves."""
        return self._working() or any(self._unfinished(peer) for peer in self._peers.routes)

    @staticmethod
    def _unfinished(peer: Peer) -> bool:
        return (
            bool(peer.queued or peer.requests)
            or any(not message.phase for message in peer.slots.inbox)
            or any(link.unfinished or _awaits_goodbye(link) for link in peer.links)
        )

    def _abort(self, error: RedpollError) -> None:
        """Refuse what waits, fail what was not sent, say goodbye. From now on nothing is begun or dialled."""
        peers = self._peers
        peers.closing = error
        if peers.consumers is not None:
            peers.consumers.close()
        self._refuse_inboxes()
        peers.sessions.close(error)
        for peer in peers.routes:
            peer.fail_queue(error)
            peers.room(peer)
        for connection in list(peers.connections):
            connection.link.leave()
            connection.wind_down(error)

    def _refuse_inboxes(self) -> None:
        for peer in self._peers.routes:
            peer.slots.refuse_all_waiting(ShuttingDown.code, "the node stopped before it was begun")
            self._peers.wake_links(peer)

    @property
    def _parted(self) -> bool:
        """Whether no goodbye waits for an answer, nor for the handshake of who may take the link for open already."""
        return not any(
            _awaits_goodbye(each.link) or (each.link.state is LinkState.HANDSHAKE and not each.link.dialled)
            for each in self._peers.connections
        )

    def _close_all(self) -> None:
        """Close every connection, once what was written is gone; what is not confirmed by then fails."""
        for connection in list(self._peers.connections):
            connection.close(self._peers.closing)

    def _end_all(self) -> None:
        """End what is left of connections and timers."""
        for connection in list(self._peers.connections):
            connection.give_up(self._peers.closing or Closed("node"))
        self._peers.cancel_timers()


def _nothing() -> None:
    pass


def _awaits_goodbye(link: Link) -> bool:
    """Whether a redpoll peer will answer our goodbye; it does when all that it sent has ended.

    Closing with something unread would reset the connection, and lose the acknowledgements on their way.
    """
    return link.state is LinkState.LEAVING and link.announced is not None and not link.held
