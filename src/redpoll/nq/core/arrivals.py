"""What came and was not got: in order, for threads or for tasks that get it, from all peers or from some."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

__all__ = ["Arrival", "Arrivals", "LoopArrivals", "ThreadArrivals"]


class Arrival(NamedTuple):
    """A message as it came.

    Attributes:
        peer: From whom.
        body: Its bytes, not read yet.
        redelivered: Whether an earlier process of this communicator may have had it.
        received: The node's message, if it is confirmed when it is got; None if it was when it came.
    """

    peer: UUID
    body: Any
    redelivered: bool
    received: Any


class Arrivals:
    """Messages in the order in which they came.

    Args:
        own_id: The communicator's.

    Attributes:
        counts: Messages that wait, by peer.
        sizes: Their bytes.
    """

    def __init__(self, own_id: UUID) -> None:
        self._own_id = own_id
        #: Reentrant: a signal's handler may run while its thread is in here.
        self._lock = threading.RLock()
        self._ready: deque[Arrival] = deque()
        self.counts: dict[UUID, int] = {}
        self.sizes: dict[UUID, int] = {}
        #: Why nothing comes any more.
        self._closed: BaseException | None = None
        #: Peers of whom nothing comes any more, which a getter that asked for them is told.
        self.alive: Callable[[UUID], bool] = _always

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, arrival: Arrival) -> None:
        """One more came."""
        peer = arrival.peer
        with self._lock:
            self.counts[peer] = self.counts.get(peer, 0) + 1
            self.sizes[peer] = self.sizes.get(peer, 0) + len(arrival.body)
            self._ready.append(arrival)
            self._wake(peer)

    def drop_oldest(self, peer: UUID) -> Arrival | None:
        """Take out the oldest message of a peer."""
        with self._lock:
            return self._pop(frozenset((peer,)))

    def release_all(self) -> list[Any]:
        """What is confirmed when it is got is to be so now: return the node's messages, which stay here to be got."""
        with self._lock:
            held = [each.received for each in self._ready if each.received is not None]
            self._ready = deque(each._replace(received=None) for each in self._ready)
            return held

    def close(self, error: BaseException) -> None:
        """Nothing more comes: who gets is told when nothing is left."""
        with self._lock:
            if self._closed is None:
                self._closed = error
            self._wake_all()

    def interrupt(self, error: BaseException) -> None:
        """Those that wait now are told of an error; those that get later wait."""
        raise NotImplementedError

    def _pop(self, peers: frozenset[UUID] | None) -> Arrival | None:
        """Take the first one; the lock is held."""
        ready = self._ready
        if peers is None:
            if not ready:
                return None
            found = ready[0]
            del ready[0]
        else:
            for place, found in enumerate(ready):
                if found.peer in peers:
                    del ready[place]
                    break
            else:
                return None
        self._less(found)
        return found

    def _less(self, arrival: Arrival) -> None:
        peer = arrival.peer
        left = self.counts[peer] - 1
        if left:
            self.counts[peer] = left
            self.sizes[peer] -= len(arrival.body)
        else:
            del self.counts[peer], self.sizes[peer]

    def _put_back(self, arrival: Arrival) -> None:
        with self._lock:
            peer = arrival.peer
            self.counts[peer] = self.counts.get(peer, 0) + 1
            self.sizes[peer] = self.sizes.get(peer, 0) + len(arrival.body)
            self._ready.appendleft(arrival)
            self._wake(peer)

    def _raise_if_over(self, peers: frozenset[UUID] | None, told: BaseException | None) -> None:
        """Raise why nothing will come of these, or what who waits was told."""
        error = self._closed or told
        if error is not None:
            raise _again(error)
        if peers is not None and not any(map(self.alive, peers)):
            raise ConnectionResetError(next(iter(peers)))

    def _wake_for_ready(self) -> None:
        """Somebody who was woken has left: wake one who can have what there is; the lock is held."""
        for each in self._ready:
            if self._wake(each.peer):
                return

    def _wake(self, peer: UUID) -> bool:
        """Wake one who waits for a message of that peer; False if nobody does."""
        raise NotImplementedError

    def _wake_all(self) -> None:
        raise NotImplementedError

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

    def __init__(self, own_id: UUID) -> None:
        super().__init__(own_id)
        #: In order.
        self._waiters: dict[_Waiter, None] = {}

    def get(self, peers: frozenset[UUID] | None, timeout: float | None, check: Callable[[], object]) -> Arrival:
        """Wait for a message.

        Args:
            peers: Of whom; None is of anybody.
            timeout: Seconds; None is no limit.
            check: Called before waiting; raises where that is not allowed.

        Raises:
            TimeoutError: None came in time.
            ConnectionError: Nothing is left, and nothing more comes.

        Ctrl-C loses no message.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        found: Arrival | None = None
        waiter: _Waiter | None = None
        try:
            while True:
                with self._lock:
                    found = self._pop(peers)
                    if found is None:
                        self._raise_if_over(peers, None if waiter is None else waiter.error)
                        waiter = _Waiter(peers)
                        self._waiters[waiter] = None
                if found is not None:
                    waiter = None
                    return found
                self._wait(waiter, deadline, timeout, check)  # type: ignore[arg-type]  # there is one, as nothing was found
        except BaseException:
            # What was popped was not seen: let it be the next.
            if found is not None:
                self._put_back(found)
            raise
        finally:
            if waiter is not None:
                self._leave(waiter)

    def _wait(
        self, waiter: _Waiter, deadline: float | None, timeout: float | None, check: Callable[[], object]
    ) -> None:
        check()
        left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        woken = waiter.lock.acquire(timeout=left)
        with self._lock:
            self._waiters.pop(waiter, None)
            # It may have been woken since.
            if not woken and not waiter.woken:
                raise TimeoutError(f"no message came within {timeout:g} s")

    def _leave(self, waiter: _Waiter) -> None:
        """A waiter goes; if it was woken and took nothing, another is woken in its place."""
        with self._lock:
            self._waiters.pop(waiter, None)
            if waiter.woken:
                self._wake_for_ready()

    def _wake(self, peer: UUID) -> bool:
        for waiter in self._waiters:
            if not waiter.woken and (waiter.peers is None or peer in waiter.peers):
                waiter.wake()
                return True
        return False

    def _wake_all(self) -> None:
        for waiter in self._waiters:
            waiter.wake()

    def interrupt(self, error: BaseException) -> None:
        """Those that wait now are told of an error; those that get later wait."""
        with self._lock:
            for waiter in self._waiters:
                waiter.error = error
            self._wake_all()


class LoopArrivals(Arrivals):
    """For the tasks of one event loop."""

    def __init__(self, own_id: UUID) -> None:
        super().__init__(own_id)
        self._waiters: dict[asyncio.Future[None], frozenset[UUID] | None] = {}

    async def get(self, peers: frozenset[UUID] | None, timeout: float | None) -> Arrival:
        """Wait for a message, as `ThreadArrivals.get`. Cancelling it loses no message."""
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                while True:
                    found = self._pop(peers)
                    if found is not None:
                        return found
                    self._raise_if_over(peers, None)
                    await self._wait(peers)
        except BaseException as error:
            # It may have been woken for one that another can have.
            self._wake_for_ready()
            if isinstance(error, TimeoutError) and limit.expired():
                raise TimeoutError(f"no message came within {timeout:g} s") from None
            raise

    async def _wait(self, peers: frozenset[UUID] | None) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = peers
        try:
            await waiter
        finally:
            del self._waiters[waiter]

    def _wake(self, peer: UUID) -> bool:
        for waiter, peers in self._waiters.items():
            if not waiter.done() and (peers is None or peer in peers):
                waiter.set_result(None)
                return True
        return False

    def _wake_all(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def interrupt(self, error: BaseException) -> None:
        """Those that wait now are told of an error; those that get later wait."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(_again(error))


def _always(_: UUID) -> bool:
    return True


def _again(error: BaseException) -> BaseException:
    """An error like one that is raised more than once, whose traceback is its own."""
    new = type(error)(*error.args)
    new.__cause__ = error.__cause__
    return new
