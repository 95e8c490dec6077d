"""The queue of received messages, for threads or for tasks that get them, from all peers or from some."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Container
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from uuid import UUID
from weakref import WeakValueDictionary

from redpoll.blocking.futures import LOOK, time_left
from redpoll.errors import Undecodable
from redpoll.locks import new_lock
from redpoll.node.received import raised
from redpoll.nq.core.errors import again

if TYPE_CHECKING:
    from redpoll.node import Received

__all__ = ["LoopReceiveQueue", "QueuedMessage", "ReceiveQueue", "Source", "Taken", "ThreadReceiveQueue", "unread"]


class Source:
    """The waiting messages of one peer.

    Attributes:
        peer: The id of the peer.
        count: Number of messages.
        size: Bytes of messages.
    """

    __slots__ = ("__weakref__", "count", "peer", "size")

    def __init__(self, peer: UUID) -> None:
        self.peer = peer
        self.count = self.size = 0


class QueuedMessage(NamedTuple):
    """A received message.

    Attributes:
        source: Its sender.
        body: Its bytes, not decoded yet.
        redelivered: Whether an earlier process of this communicator may have received it.
        received: The node's message, if `get` confirms it; None if it is already confirmed.
    """

    source: Source
    body: Any
    redelivered: bool
    received: Any


Taken: TypeAlias = list[QueuedMessage | None]
"""A list of one item that receives a taken message; the item is None before."""


class ReceiveQueue:
    """Received messages in order of queued."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._ready: deque[QueuedMessage] = deque()
        #: Messages taken by interrupted calls that did not return them: they come first, and no source counts them.
        self.unseen: deque[QueuedMessage] = deque()
        #: Waiting threads or tasks, in order.
        self._waiters: dict[_Waiter, None] = {}
        #: The senders with a session, or with waiting messages.
        self._sources: WeakValueDictionary[UUID, Source] = WeakValueDictionary()
        #: The reason why no more messages arrive.
        self._closed: BaseException | None = None
        #: An error for waiting calls while there was none: raised by the next call that would wait.
        self._untold: BaseException | None = None
        #: Returns whether messages of a peer can still arrive; `get` of peers without that raises.
        self.alive: Callable[[UUID], bool] = _always

    def __len__(self) -> int:
        return len(self.unseen) + len(self._ready)

    def source(self, peer: UUID) -> Source:
        """Return the source of a peer, which all its sessions share. Called on the loop."""
        return self._sources.setdefault(peer, Source(peer))

    def has(self, peer: UUID) -> bool:
        """Return True if messages of a peer wait, or can arrive. Called on the loop."""
        return peer in self._sources

    def left_by(self, sessions: Container[UUID], most: int) -> bool:
        """Return True if messages wait of at least `most` peers without a session. Called on the loop."""
        sources = self._sources
        if len(sources) < most:
            return False
        return sum(source.count > 0 and peer not in sessions for peer, source in list(sources.items())) >= most

    def add(self, queued: QueuedMessage) -> None:
        """Add a message."""
        source = queued.source
        with self._lock:
            source.count += 1
            source.size += len(queued.body)
            self._ready.append(queued)
            self._wake(source.peer)

    def drop_oldest(self, source: Source) -> QueuedMessage | None:
        """Remove and return the oldest message of a peer."""
        with self._lock:
            taken: Taken = [None]
            self._pop(taken, frozenset((source.peer,)))
            return taken[0]

    def release_all(self) -> list[Any]:
        """Return the node's messages that `get` would have confirmed, to be confirmed now; they can still be got."""
        with self._lock:
            held = [each.received for each in (*self.unseen, *self._ready) if each.received is not None]
            self._ready = deque(each._replace(received=None) for each in self._ready)
            return held

    def close(self, error: BaseException) -> None:
        """Close: `get` raises an error once the queue is empty."""
        with self._lock:
            if self._closed is None:
                self._closed = error
            self._wake_all()

    def interrupt(self, error: BaseException) -> None:
        """Raise an error in waiting calls, or, without any, in the next one that would wait."""
        with self._lock:
            for waiter in list(self._waiters):
                waiter.error = error
            if not self._waiters:
                self._untold = error
            self._wake_all()

    def renewed(self) -> None:
        """Withdraw the error of `interrupt` if no call has raised it."""
        with self._lock:
            self._untold = None

    def _pop(self, taken: Taken, peers: frozenset[UUID] | None) -> bool:
        """Take the first message, if there is one. Called with the lock.

        Ctrl-C can interrupt calls, returns and loops; the steps that must happen together contain none of
        these.
        """
        ready = self._ready
        unseen = self.unseen
        if unseen:
            # A copy: an interrupted thread appends without the lock.
            for place, found in enumerate(tuple(unseen)):
                if peers is None or found.source.peer in peers:
                    taken[0] = found
                    del unseen[place]
                    return True
        if peers is None:
            if not ready:
                return False
            found = ready[0]
            size = len(found.body)
            source = found.source
            taken[0] = found
            del ready[0]
            source.count -= 1
            source.size -= size
            return True
        for place, found in enumerate(ready):
            source = found.source
            if source.peer in peers:
                size = len(found.body)
                taken[0] = found
                del ready[place]
                source.count -= 1
                source.size -= size
                return True
        return False

    def _raise_if_over(self, peers: frozenset[UUID] | None, waiter: _Waiter | None) -> None:
        """Raise the error of a waiter, or the reason why no messages of these peers can arrive."""
        error = self._closed
        if error is None and waiter is not None:
            error, waiter.error = waiter.error, None
        if error is None:
            error, self._untold = self._untold, None
        if error is not None:
            raise again(error)
        if peers is not None and not any(map(self.alive, peers)):
            raise ConnectionResetError(next(iter(peers)))

    def _wake_for_ready(self) -> None:
        """Wake a waiter for a ready message, since a woken one left. Called with the lock."""
        for each in (*self.unseen, *self._ready):
            if self._wake(each.source.peer):
                return

    def _wake(self, peer: UUID) -> bool:
        """Wake a waiter for messages of a peer; return False if there is none."""
        for waiter in list(self._waiters):
            if not waiter.woken and (waiter.peers is None or peer in waiter.peers):
                waiter.wake()
                return True
        return False

    def _wake_all(self) -> None:
        for waiter in list(self._waiters):
            waiter.wake()

    def _left(self, waiter: _Waiter) -> None:
        """Pass on the wake-up or the error of a waiter that left. Called with the lock."""
        if waiter.error is not None:
            self._untold, waiter.error = waiter.error, None
            self._wake_all()
        elif waiter.woken:
            self._wake_for_ready()

    def look_again(self) -> None:
        """Wake all waiters, since a peer is gone."""
        with self._lock:
            self._wake_all()


class _Waiter:
    """A waiting thread or task."""

    __slots__ = ("_wake", "error", "peers", "woken")

    def __init__(self, peers: frozenset[UUID] | None, wake: Callable[[], object]) -> None:
        self.peers = peers
        self.woken = False
        self.error: BaseException | None = None
        self._wake = wake

    def wake(self) -> None:
        if not self.woken:
            self.woken = True
            self._wake()


class ThreadReceiveQueue(ReceiveQueue):
    """The queue for threads; the loop thread calls `add`."""

    def get(
        self, taken: Taken, peers: frozenset[UUID] | None, timeout: float | None, check: Callable[[], object]
    ) -> None:
        """Wait for a message.

        Args:
            taken: Receives the message. If the call, or its caller afterwards, is interrupted with a message in it, the
                caller has to append that to `unseen`.
            peers: The senders; None for all.
            timeout: Seconds; None is no limit.
            check: Called before waiting; raises on a thread that must not wait.

        Raises:
            TimeoutError: No message arrived in time.
            ConnectionError: The queue is empty, and no more messages arrive.
        """
        with self._lock:
            if self._pop(taken, peers):
                return
        deadline = None if timeout is None else time.monotonic() + timeout
        lock = threading.Lock()
        lock.acquire()
        waiter = _Waiter(peers, lock.release)
        try:
            while True:
                with self._lock:
                    if self._pop(taken, peers):
                        return
                    self._raise_if_over(peers, waiter)
                    self._waiters[waiter] = None
                check()
                left = time_left(deadline)
                woken = lock.acquire(timeout=min(left, LOOK))
                with self._lock:
                    # The waiter may have been woken meanwhile.
                    if not woken and waiter.woken:
                        lock.acquire()
                    elif not woken and left <= LOOK:
                        raise TimeoutError(f"no message came within {timeout:g} s")
                    waiter.woken = False
        finally:
            self._leave(waiter)

    def _leave(self, waiter: _Waiter) -> None:
        """Remove a waiter; if it was woken and took nothing, wake another one."""
        with self._lock:
            self._waiters.pop(waiter, None)
            self._left(waiter)


class LoopReceiveQueue(ReceiveQueue):
    """The queue for the tasks of one event loop."""

    async def get(self, peers: frozenset[UUID] | None, timeout: float | None) -> QueuedMessage:
        """Wait for a message, as `ThreadReceiveQueue.get`. Cancelling it loses no message."""
        taken: Taken = [None]
        if self._pop(taken, peers):
            return taken[0]  # type: ignore[return-value]  # it is there
        limit = asyncio.timeout(timeout)
        waiter: _Waiter | None = None
        try:
            async with limit:
                while not self._pop(taken, peers):
                    self._raise_if_over(peers, waiter)
                    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    waiter = _Waiter(peers, partial(_set, future))
                    self._waiters[waiter] = None
                    await future
                    del self._waiters[waiter]
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"no message came within {timeout:g} s") from None
        finally:
            if waiter is not None:
                self._waiters.pop(waiter, None)
                self._left(waiter)
        return taken[0]  # type: ignore[return-value]  # as above


def unread(received: Received[Any], error: BaseException) -> None:
    """Refuse a message that `get` would have confirmed, since the serializer failed. Called on the loop."""
    received._refuse(Undecodable.code, raised(error))


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():  # cancelled meanwhile
        future.set_result(None)


def _always(_: UUID) -> bool:
    return True
