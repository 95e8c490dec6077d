"""What came and was not got: in order, for threads or for tasks that get it, from all peers or from some."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from uuid import UUID
from weakref import WeakValueDictionary

from redpoll.blocking.futures import LOOK, time_left
from redpoll.errors import Undecodable
from redpoll.node.received import raised
from redpoll.nq.core.words import again

if TYPE_CHECKING:
    from redpoll.node import Received

__all__ = ["Arrival", "Arrivals", "LoopArrivals", "Source", "Taken", "ThreadArrivals", "unread"]


class Source:
    """What waits of one peer.

    Attributes:
        peer: Its id.
        count: Messages.
        size: Their bytes.
    """

    __slots__ = ("__weakref__", "count", "peer", "size")

    def __init__(self, peer: UUID) -> None:
        self.peer = peer
        self.count = self.size = 0


class Arrival(NamedTuple):
    """A message as it came.

    Attributes:
        source: Of whom.
        body: Its bytes, not read yet.
        redelivered: Whether an earlier process of this communicator may have had it.
        received: The node's message, if it is confirmed when it is got; None if it was when it came.
    """

    source: Source
    body: Any
    redelivered: bool
    received: Any


Taken: TypeAlias = list[Arrival | None]
"""Where a message is put that is taken: one place, None before."""


class Arrivals:
    """Messages in the order in which they came.

    Args:
        own_id: The communicator's.
    """

    def __init__(self, own_id: UUID) -> None:
        self._own_id = own_id
        #: Reentrant: a signal's handler may run while its thread is in here.
        self._lock = threading.RLock()
        self._ready: deque[Arrival] = deque()
        #: Those that were taken and not seen, by who was interrupted: the first, and counted by no source any more.
        self.unseen: deque[Arrival] = deque()
        #: Those that wait, in order.
        self._waiters: dict[_Waiter | _Task, None] = {}
        #: As long as there is a session with the peer, or anything of it waits.
        self._sources: WeakValueDictionary[UUID, Source] = WeakValueDictionary()
        #: Why nothing comes any more.
        self._closed: BaseException | None = None
        #: What those that waited would have been told, when nobody did: the next one that would wait is.
        self._untold: BaseException | None = None
        #: Whether anything may still come of a peer; who gets of peers of whom nothing may is told.
        self.alive: Callable[[UUID], bool] = _always

    def __len__(self) -> int:
        return len(self.unseen) + len(self._ready)

    def source(self, peer: UUID) -> Source:
        """What waits of a peer: the same for each of its sessions. Called on the loop."""
        return self._sources.setdefault(peer, Source(peer))

    def has(self, peer: UUID) -> bool:
        """Whether anything of a peer waits, or may come. Called on the loop."""
        return peer in self._sources

    def left_by(self, sessions: Container[UUID], most: int) -> bool:
        """Whether what waits is of at least so many peers that have no session any more. Called on the loop."""
        sources = self._sources
        if len(sources) < most:
            return False
        return sum(source.count > 0 and peer not in sessions for peer, source in list(sources.items())) >= most

    def add(self, arrival: Arrival) -> None:
        """One more came."""
        source = arrival.source
        with self._lock:
            source.count += 1
            source.size += len(arrival.body)
            self._ready.append(arrival)
            self._wake(source.peer)

    def drop_oldest(self, source: Source) -> Arrival | None:
        """Take out the oldest message of a peer."""
        with self._lock:
            taken: Taken = [None]
            self._pop(taken, frozenset((source.peer,)))
            return taken[0]

    def release_all(self) -> list[Any]:
        """What is confirmed when it is got is to be so now: return the node's messages, which stay here to be got."""
        with self._lock:
            held = [each.received for each in (*self.unseen, *self._ready) if each.received is not None]
            self._ready = deque(each._replace(received=None) for each in self._ready)
            return held

    def close(self, error: BaseException) -> None:
        """Nothing more comes: who gets is told when nothing is left."""
        with self._lock:
            if self._closed is None:
                self._closed = error
            self._wake_all()

    def interrupt(self, error: BaseException) -> None:
        """Those that wait now are told of an error, and who waits next if nobody does; those that get later wait."""
        with self._lock:
            for waiter in list(self._waiters):
                waiter.error = error
            if not self._waiters:
                self._untold = error
            self._wake_all()

    def renewed(self) -> None:
        """What an interruption was for is mended: who has not heard of it does not."""
        with self._lock:
            self._untold = None

    def _pop(self, taken: Taken, peers: frozenset[UUID] | None) -> bool:
        """Take the first one, if there is one; the lock is held.

        An interruption (Ctrl-C) comes in where something is called, at the end of calls, and in loops; there is none of
        these in what is to happen whole or not at all.
        """
        ready = self._ready
        unseen = self.unseen
        if unseen:
            for place, found in enumerate(unseen):
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

    def _raise_if_over(self, peers: frozenset[UUID] | None, waiter: _Waiter | _Task | None) -> None:
        """Raise why nothing will come of these, or what who waits was told."""
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
        """Somebody who was woken has left: wake one who can have what there is; the lock is held."""
        for each in (*self.unseen, *self._ready):
            if self._wake(each.source.peer):
                return

    def _wake(self, peer: UUID) -> bool:
        """Wake one who waits for a message of that peer; False if nobody does."""
        for waiter in list(self._waiters):
            if not waiter.woken and (waiter.peers is None or peer in waiter.peers):
                waiter.wake()
                return True
        return False

    def _wake_all(self) -> None:
        for waiter in list(self._waiters):
            waiter.wake()

    def _left(self, waiter: _Waiter | _Task) -> None:
        """A waiter is gone; another has what it was woken for and did not take. The lock is held."""
        if waiter.error is not None:
            self._untold, waiter.error = waiter.error, None
            self._wake_all()
        elif waiter.woken:
            self._wake_for_ready()

    def look_again(self) -> None:
        """A peer is gone: who waits for it alone is told."""
        with self._lock:
            self._wake_all()


class _Waiter:
    """A thread that waits."""

    __slots__ = ("error", "lock", "peers", "woken")

    def __init__(self, peers: frozenset[UUID] | None) -> None:
        self.peers = peers
        self.lock = threading.Lock()
        self.lock.acquire()
        self.woken = False
        self.error: BaseException | None = None

    def wake(self) -> None:
        if not self.woken:
            self.woken = True
            self.lock.release()


class ThreadArrivals(Arrivals):
    """For threads; `add` is called by the loop's."""

    def get(
        self, taken: Taken, peers: frozenset[UUID] | None, timeout: float | None, check: Callable[[], object]
    ) -> None:
        """Wait for a message.

        Args:
            taken: Where it comes. If this, or what the caller does then, is interrupted with one in there, it is for the
                caller to put it to those that are `unseen`.
            peers: Of whom; None is of anybody.
            timeout: Seconds; None is no limit.
            check: Called before waiting; raises where that is not allowed.

        Raises:
            TimeoutError: None came in time.
            ConnectionError: Nothing is left, and nothing more comes.
        """
        with self._lock:
            if self._pop(taken, peers):
                return
        deadline = None if timeout is None else time.monotonic() + timeout
        waiter = _Waiter(peers)
        try:
            while True:
                with self._lock:
                    if self._pop(taken, peers):
                        return
                    self._raise_if_over(peers, waiter)
                    self._waiters[waiter] = None
                self._wait(waiter, deadline, timeout, check)
        finally:
            self._leave(waiter)

    def _wait(
        self, waiter: _Waiter, deadline: float | None, timeout: float | None, check: Callable[[], object]
    ) -> None:
        check()
        left = time_left(deadline)
        woken = waiter.lock.acquire(timeout=min(left, LOOK))
        with self._lock:
            # It may have been woken since.
            if not woken and not waiter.woken:
                if left <= LOOK:
                    raise TimeoutError(f"no message came within {timeout:g} s")
                return
            if not woken:
                waiter.lock.acquire()
            waiter.woken = False

    def _leave(self, waiter: _Waiter) -> None:
        """A waiter goes; if it was woken and took nothing, another is woken in its place."""
        with self._lock:
            self._waiters.pop(waiter, None)
            self._left(waiter)


class _Task:
    """A task that waits."""

    __slots__ = ("error", "future", "peers")

    def __init__(self, peers: frozenset[UUID] | None) -> None:
        self.peers = peers
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: BaseException | None = None

    @property
    def woken(self) -> bool:
        return self.future.done()

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class LoopArrivals(Arrivals):
    """For the tasks of one event loop."""

    async def get(self, peers: frozenset[UUID] | None, timeout: float | None) -> Arrival:
        """Wait for a message, as `ThreadArrivals.get`. Cancelling it loses no message."""
        taken: Taken = [None]
        if self._pop(taken, peers):
            return taken[0]  # type: ignore[return-value]  # it is there
        limit = asyncio.timeout(timeout)
        waiter: _Task | None = None
        try:
            async with limit:
                while not self._pop(taken, peers):
                    self._raise_if_over(peers, waiter)
                    waiter = _Task(peers)
                    self._waiters[waiter] = None
                    await waiter.future
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


def unread(received: Received[Any], error: Exception) -> None:
    """The serializer could not read a message that is confirmed when it is got. Called on the loop."""
    received._refuse(Undecodable.code, raised(error))


def _always(_: UUID) -> bool:
    return True
