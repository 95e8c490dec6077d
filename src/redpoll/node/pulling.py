"""Pulling messages from a node without a handler: the consumers that wait, and their order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from redpoll.errors import Closed, NoHandler
from redpoll.wire.peer import Peer

if TYPE_CHECKING:
    from redpoll.node.completion import Completion
    from redpoll.node.received import ReceivedMessage
    from redpoll.wire.link import Link
    from redpoll.wire.slots import SlotPool

__all__ = ["Consumers", "Consuming"]

TakenT = TypeVar("TakenT")

#: Share of the timeout after which waiting messages are looked at again: a refusal is late by twice that at most.
_SHARE = 1 / 32

#: Maximum messages that cannot be decoded before the event loop gets its turn.
_MAX_UNREADABLE = 256

_TEXT = "the node has neither a handler nor a consumer"

_logger = logging.getLogger("redpoll.node")


class Consuming(Protocol):
    """Takes messages for consumers that wait elsewhere, in threads. Plain calls on the loop, which return at once."""

    def done(self) -> bool:
        """Return True if it wants no messages at the moment."""

    def set_result(self, result: None, /) -> None:
        """Notify it that messages may wait."""

    def close(self) -> None:
        """Return the taken messages that were not begun, and wake all consumers: the node closes."""


class _Owner(Protocol):
    """The peers of a node, as the consumers use them."""

    raw: bool
    completion: Completion
    pool: SlotPool
    loop: asyncio.AbstractEventLoop

    def begun(self, peer: Peer) -> None:
        """Resume reading if messages of a peer were begun and reading was paused."""

    def after_dispatch(self, peer: Peer) -> None:
        """Write what a step of a consumer, outside of reading, produced."""

    def ended_late(self, peer: Peer) -> None:
        """Remember a peer whose messages ended after its last link was lost, as one that was just lost."""


class _Unclaimed:
    """Refuses messages that no consumer takes in time.

    It does not keep the messages: at intervals it notes the last one of each peer, and refuses it with those before it
    once it has waited for the whole timeout.

    Args:
        owner: The peers of the node.
        ready: The peers with waiting messages.
        timeout: Time in seconds after which a message is refused.
        in_use: Returns True while a consumer waits for a message or handles one.

    Attributes:
        last_request: Time at which a consumer last requested a message, by the clock of the loop.
    """

    def __init__(self, owner: _Owner, ready: dict[Peer, None], timeout: float, in_use: Callable[[], bool]) -> None:
        self.last_request = float("-inf")
        self._owner = owner
        self._ready = ready
        self._timeout = timeout
        self._in_use = in_use
        #: Times, and the last message of each peer (identity and serial) that waited then.
        self._noted: deque[tuple[float, dict[Peer, tuple[Any, ...]]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Watch the waiting messages, from now on until there is none."""
        if self._timer is None and not self._owner.loop.is_closed():
            self._timer = self._owner.loop.call_later(self._timeout * _SHARE, self._look)

    def close(self) -> None:
        """Stop: the node stopped."""
        if self._timer is not None:
            self._timer.cancel()
        self._noted.clear()

    def _look(self) -> None:
        self._timer = None
        now = self._owner.loop.time()
        noted = self._noted
        last = {peer: peer.slots.inbox[-1].frame[:2] for peer in self._ready if peer.slots.inbox}
        if not last:
            noted.clear()
            return
        if self._in_use():
            # A consumer waits or handles a message, and will request the next.
            self.last_request = now
        noted.append((now, last))
        while len(noted) > 1 and noted[1][0] <= self.last_request:
            noted.popleft()
        count = 0
        while noted and max(noted[0][0], self.last_request) + self._timeout <= now:
            for peer, mark in noted.popleft()[1].items():
                count += self._refuse(peer, mark)
        if count:
            _logger.warning(
                "refused %d messages that were not taken within %g s: the node has neither a handler nor a consumer",
                count,
                self._timeout,
            )
        self.watch()

    def _refuse(self, peer: Peer, mark: tuple[Any, ...]) -> int:
        """Refuse the messages of a peer up to one, if that still waits; return their number."""
        waiting: list[Any] = list(peer.slots.inbox)
        marks = [message.frame[:2] for message in waiting]
        due = waiting[: marks.index(mark) + 1] if mark in marks else []
        count = sum(self._owner.completion.refuse_waiting(message, NoHandler.code, _TEXT) for message in due)
        self._owner.after_dispatch(peer)
        return count


class Consumers:
    """The consumers of a node, and the messages that wait for them.

    Peers take turns, one message each; a batch takes all messages of one peer.

    Attributes:
        completion: Ends the messages.
        tasks: Always empty; a dispatcher has its running handlers there.
        raw: Whether messages are handed out as they were received, without decoding.
        ready: Peers with waiting messages, in the order of their turns.
        iterators: Number of live iterators: while there is one, arriving messages are claimed, also between two steps.
    """

    def __init__(self, owner: _Owner, unclaimed_timeout: float) -> None:
        self._owner = owner
        self.tasks: dict[asyncio.Task[Any], ReceivedMessage[Any]] = {}
        self.completion = owner.completion
        self._pool = owner.pool
        self._loop = owner.loop
        self.raw = owner.raw
        self.ready: dict[Peer, None] = {}
        self._waiters: deque[asyncio.Future[None] | Consuming] = deque()
        self._consuming: Consuming | None = None
        self.iterators = 0
        self._unclaimed = _Unclaimed(owner, self.ready, unclaimed_timeout, self._in_use)
        self._closed = False

    # Events of the node

    def arrived(self, peer: Peer, now: float) -> None:  # noqa: ARG002  # a dispatcher's signature
        """Note the waiting messages of a peer, and wake a consumer."""
        self.ready[peer] = None
        if self._waiters:
            self._wake()
        if not self.iterators:
            self._unclaimed.watch()

    def freed(self, peer: Peer) -> None:
        """Wake a consumer for a freed slot."""
        if peer.slots.inbox:
            self.ready[peer] = None
        if self.ready and self._waiters:
            self._wake()

    def iterator_ended(self) -> None:
        """Uncount an iterator; after the last one, the time of the waiting messages starts."""
        self.iterators -= 1
        if not self.iterators and not self._closed:
            self._unclaimed.last_request = self._loop.time()
            self._unclaimed.watch()

    def iterator_dropped(self) -> None:
        """Call `iterator_ended` from a thread in which the garbage collector runs."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.iterator_ended)

    @property
    def claiming(self) -> bool:
        """True if a consumer waits, or an iterator is alive."""
        return bool(self.iterators or self._waiters)

    def _in_use(self) -> bool:
        return self.claiming or self._pool.used > 0

    def close(self) -> None:
        """Wake all consumers: the node stopped."""
        self._closed = True
        if self._consuming is not None:
            self._consuming.close()
        self._unclaimed.close()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def answers(self, link: Link) -> bool:  # noqa: ARG002  # a dispatcher's signature
        """Return False: no handler may answer a request that it released."""
        return False

    def forget(self, peer: Peer) -> None:
        """Forget a peer, of which no message waits."""
        self.ready.pop(peer, None)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return

    # Taking for threads

    def serve(self, consuming: Consuming) -> None:
        """Let `consuming` take all messages from now on; they are not decoded."""
        self._consuming = consuming
        self.raw = True

    def claim(self, consuming: Consuming) -> None:
        """Add `consuming` as a waiter until it unclaims; do nothing if it is one."""
        if not self._closed and consuming not in self._waiters:
            self._waiters.append(consuming)

    def unclaim(self, consuming: Consuming) -> None:
        """Remove `consuming` from the waiters."""
        if consuming in self._waiters:
            self._waiters.remove(consuming)

    def put_back(self, messages: Sequence[ReceivedMessage[Any]]) -> None:
        """Return messages that were taken and not seen to their inboxes, in order, but for those that ended meanwhile."""
        now = self._loop.time()
        by_peer: dict[Peer, list[ReceivedMessage[Any]]] = {}
        for message in messages:
            peer = message.link.peer
            if peer is not None and not message.ended:
                by_peer.setdefault(peer, []).append(message)
        for peer, of_peer in by_peer.items():
            peer.slots.put_back(of_peer)
            self.arrived(peer, now)

    # Taking

    def take_nowait(self) -> ReceivedMessage[Any] | None:
        """Return the next message, in a slot, or None if none waits or no slot is free."""
        ready = self.ready
        now = self._unclaimed.last_request = self._loop.time()
        unreadable = 0
        while ready:
            peer = next(iter(ready))
            message = peer.slots.begin(now)
            if message is None:
                if self._pool.free <= 0:
                    # The peer keeps its turn: a slot of the node may be freed by another peer.
                    return None
                del ready[peer]
                self._owner.after_dispatch(peer)
                continue
            if len(ready) > 1:
                del ready[peer]
                if peer.slots.inbox:
                    ready[peer] = None
            elif not peer.slots.inbox:
                del ready[peer]
            if peer.slots.inbox.overrun:
                self._owner.begun(peer)
            if self.raw or self.completion.readable(message):
                return message  # type: ignore[return-value]
            unreadable += 1
            if unreadable == _MAX_UNREADABLE:
                self._loop.call_soon(self._wake)
                return None
        return None

    def take_batch_nowait(self, limit: int) -> list[ReceivedMessage[Any]]:
        """Return the next messages of one peer, each in a slot; an empty list if none waits or no slot is free."""
        ready = self.ready
        pool = self._pool
        now = self._unclaimed.last_request = self._loop.time()
        unreadable = 0
        while ready and pool.free > 0:
            peer = next(iter(ready))
            batch: list[Any] = peer.slots.begin_many(now, limit)
            del ready[peer]
            if peer.slots.inbox and batch:
                ready[peer] = None
            self._owner.begun(peer)
            begun = len(batch)
            if not self.raw:
                batch = [message for message in batch if self.completion.readable(message)]
            if batch:
                return batch
            self._owner.ended_late(peer)
            unreadable += begun
            if unreadable >= _MAX_UNREADABLE:
                self._loop.call_soon(self._wake)
                break
        return []

    async def wait(self, timeout: float | None) -> bool:
        """Wait until a message may be there; return False on a timeout.

        Raises:
            Closed: The node stopped.
        """
        if self._closed:
            raise Closed("node")
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # Pass the wake-up on to the next waiter.
                self._waiters.remove(waiter)
                self._wake()
                self._waiters.appendleft(waiter)
            raise
        finally:
            self._waiters.remove(waiter)
            self._unclaimed.last_request = self._loop.time()
        if self._closed:
            raise Closed("node")
        return True

    async def take(self, timeout: float | None) -> ReceivedMessage[Any]:
        """Wait for the next message.

        Raises:
            TimeoutError: None arrived in time.
            Closed: The node stopped.
        """
        message = self.take_nowait()
        return await self._wait_for(self.take_nowait, timeout) if message is None else message

    async def take_batch(self, limit: int) -> list[ReceivedMessage[Any]]:
        """Wait for the next messages of one peer.

        Raises:
            Closed: The node stopped.
        """
        return self.take_batch_nowait(limit) or await self._wait_for(partial(self.take_batch_nowait, limit), None)

    async def _wait_for(self, take_nowait: Callable[[], TakenT | None], timeout: float | None) -> TakenT:
        deadline = None if timeout is None else self._loop.time() + timeout
        while True:
            left = None if deadline is None else deadline - self._loop.time()
            over = (left is not None and left <= 0) or not await self.wait(left)
            taken = take_nowait()
            if taken:
                # Also after a timeout: this waiter may have been woken at the same moment, on behalf of all. More
                # messages may be there for the next one.
                if self.ready and self._waiters:
                    self._wake()
                return taken
            if over:
                raise TimeoutError(f"no message arrived within {timeout:g} s")
