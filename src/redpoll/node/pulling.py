"""Taking messages from a node without a handler: who waits for them, and who is next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from redpoll.errors import Closed
from redpoll.node.sending import Unset
from redpoll.node.unclaimed import Unclaimed
from redpoll.wire.peer import Peer

if TYPE_CHECKING:
    from redpoll.node.node import Node
    from redpoll.node.peers import Peers
    from redpoll.node.received import Received

__all__ = ["Consumers", "Consuming", "Take"]

DataT = TypeVar("DataT")


class Consuming(Protocol):
    """Who takes messages for others that wait elsewhere, in threads. Plain calls on the loop, which return at once."""

    def done(self) -> bool:
        """Whether it wants nothing more at the moment."""

    def set_result(self, result: None, /) -> None:
        """Something may be there."""

    def close(self) -> None:
        """The node closes: what it took and nobody began goes back, and nobody waits any longer."""


class Consumers:
    """Who pulls from a node, and what waits for them.

    Peers take turns, a message each; batches take all of one peer.
    """

    def __init__(self, peers: Peers, loop: asyncio.AbstractEventLoop, unclaimed_timeout: float) -> None:
        self._peers = peers
        self._ends = peers.ends
        self._loop = loop
        self._raw = peers.raw
        #: Peers whose messages wait, in the order of their turns.
        self._ready: dict[Peer, None] = {}
        self._waiters: deque[asyncio.Future[None] | Consuming] = deque()
        self._consuming: Consuming | None = None
        #: Iterators that are alive: while one is, somebody claims what arrives, also between two steps.
        self.iterators = 0
        self._unclaimed = Unclaimed(self, peers, loop, unclaimed_timeout)
        self._closed = False

    # What the node tells

    def arrived(self, peer: Peer, now: float) -> None:
        """Messages of a peer wait."""
        self._ready[peer] = None
        if self._waiters:
            self._wake()
        if not self.iterators:
            self._unclaimed.note(peer, now)

    def freed(self, peer: Peer) -> None:
        """A slot came free."""
        if peer.slots.inbox:
            self._ready[peer] = None
        if self._ready and self._waiters:
            self._wake()

    def iterator_ended(self) -> None:
        """An iterator is gone: with the last one, the time of what waits begins."""
        self.iterators -= 1
        if not self.iterators and not self._closed:
            now = self._loop.time()
            for peer in self._peers.routes:
                self._unclaimed.note(peer, now)

    @property
    def claiming(self) -> bool:
        """Whether somebody pulls, or is about to."""
        return bool(self.iterators or self._waiters)

    def close(self) -> None:
        """The node stopped: nobody waits any longer."""
        self._closed = True
        if self._consuming is not None:
            self._consuming.close()
        self._unclaimed.close()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def forget(self, peer: Peer) -> None:
        """A peer is known no longer: nothing of it waits."""
        self._ready.pop(peer, None)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return

    # Taking for threads

    def serve(self, consuming: Consuming) -> None:
        """Let it do all the taking from now on; what it takes is left as bytes."""
        self._consuming = consuming
        self._raw = True

    def claim(self, consuming: Consuming) -> None:
        """It waits for messages until it says otherwise; saying so again does nothing."""
        if not self._closed and consuming not in self._waiters:
            self._waiters.append(consuming)

    def unclaim(self, consuming: Consuming) -> None:
        """It waits no longer."""
        if consuming in self._waiters:
            self._waiters.remove(consuming)

    def put_back(self, messages: Sequence[Received[Any]]) -> None:
        """Let messages wait again that were taken and that nobody saw, in their order."""
        now = self._loop.time()
        by_peer: dict[Peer, list[Received[Any]]] = {}
        for message in messages:
            peer = message.link.peer
            if peer is not None:
                by_peer.setdefault(peer, []).append(message)
        for peer, of_peer in by_peer.items():
            peer.slots.put_back(of_peer)
            self.arrived(peer, now)

    # Taking

    def take_nowait(self) -> Received[Any] | None:
        """The next message, in a slot; None if none waits or no slot is free."""
        ready = self._ready
        now = self._unclaimed.taken = self._loop.time()
        while ready:
            peer = next(iter(ready))
            message = peer.slots.begin(now)
            if message is None:
                if self._peers.pool.free <= 0:
                    # It keeps its turn: a slot of the node may come free at another peer.
                    return None
                del ready[peer]
                self._peers.after_dispatch(peer)
                continue
            if len(ready) > 1:
                del ready[peer]
                if peer.slots.inbox:
                    ready[peer] = None
            elif not peer.slots.inbox:
                del ready[peer]
            if peer.slots.overrun:
                self._peers.begun(peer)
            if self._raw or self._ends.readable(message):
                return message  # type: ignore[return-value]
        return None

    def step(self, last: Received[Any]) -> Received[Any] | None:
        """Release a message and take the next one, in its slot where both are unacknowledged and of the only peer."""
        link = last.link
        slots = link.peer.slots  # type: ignore[union-attr]
        inbox = slots.inbox
        unusual = slots.irregular or slots.overrun or slots.carried
        frame = last.frame
        if frame[4] or not inbox or unusual or not self._raw or len(self._ready) > 1:
            self._ends.release(last)
            return self.take_nowait()
        message: Any = inbox.popleft()
        if not inbox:
            self._ready.pop(link.peer, None)  # type: ignore[arg-type]
        last.phase = 1
        link.held -= 1
        link.credit_messages += 1
        link.credit_bytes += frame[2]
        if link.credit_messages >= link.credit_at or link.credit_bytes >= link.credit_bytes_at:
            link.credit(0, 0)
            link.owner.wake()
        return message  # type: ignore[no-any-return]

    def take_batch_nowait(self, limit: int) -> list[Received[Any]]:
        """The next messages of one peer, each in a slot; empty if none waits or no slot is free."""
        ready = self._ready
        pool = self._peers.pool
        now = self._unclaimed.taken = self._loop.time()
        while ready and pool.free > 0:
            peer = next(iter(ready))
            batch: list[Any] = peer.slots.begin_many(now, limit)
            del ready[peer]
            if peer.slots.inbox and batch:
                ready[peer] = None
            self._peers.begun(peer)
            if not self._raw:
                batch = [message for message in batch if self._ends.readable(message)]
            if batch:
                return batch
            self._peers.ended_late(peer)
        return []

    async def wait(self, timeout: float | None) -> bool:
        """Wait until something may be there; False when the time is over.

        Raises:
            Closed: The node stopped.
        """
        if self._closed:
            raise Closed("node")
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            if timeout is None:
                await waiter
            else:
                async with asyncio.timeout(timeout):
                    await waiter
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # The news was for whoever is next.
                self._waiters.remove(waiter)
                self._wake()
                self._waiters.appendleft(waiter)
            raise
        finally:
            self._waiters.remove(waiter)
            self._unclaimed.taken = self._loop.time()
        if self._closed:
            raise Closed("node")
        return True

    async def take(self, timeout: float | None) -> Received[Any]:
        """Wait for the next message.

        Raises:
            TimeoutError: None came in time.
            Closed: The node stopped.
        """
        message = self.take_nowait()
        if message is not None:
            return message
        deadline = None if timeout is None else self._loop.time() + timeout
        while True:
            left = None if deadline is None else deadline - self._loop.time()
            over = (left is not None and left <= 0) or not await self.wait(left)
            message = self.take_nowait()
            if message is not None:
                # Also when the time was over: this one may have been woken at the same moment, for all of them.
                self._pass_on()
                return message
            if over:
                raise TimeoutError(f"no message came within {timeout:g} s")

    async def take_batch(self, limit: int) -> list[Received[Any]]:
        """Wait for the next messages of one peer.

        Raises:
            Closed: The node stopped.
        """
        batch = self.take_batch_nowait(limit)
        while not batch:
            await self.wait(None)
            batch = self.take_batch_nowait(limit)
            if batch:
                self._pass_on()
        return batch

    def _pass_on(self) -> None:
        """Whoever was woken took something: more may be there for another."""
        if self._ready and self._waiters:
            self._wake()


class Take(Generic[DataT]):
    """The block of `Node.take`."""

    __slots__ = ("_message", "_node", "_timeout")

    def __init__(self, node: Node[DataT], timeout: float | Unset | None) -> None:
        self._node = node
        self._timeout = timeout
        self._message: Received[DataT] | None = None

    async def __aenter__(self) -> Received[DataT]:
        self._message = await self._node.receive(self._timeout)
        return self._message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        message = self._message
        if message is None or self._node.config.auto_release is False:
            return
        await message.__aexit__(kind, error, traceback)
