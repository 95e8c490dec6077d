"""Events of the user's, called in threads of their own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from uuid import UUID

from redpoll.blocking.futures import ThreadFuture

__all__ = ["EventThreads"]

#: Events that may wait for a thread, or be in one.
_MOST = 10_000

_logger = logging.getLogger("redpoll.nq")


class EventThreads:
    """Calls what tells of peers, one after another with one thread.

    Peers come and go as often as they like, so no more events than a bound wait for those that are slow: further ones are
    not called, and the log says so. The threads are daemons, so that a program may end while an event does not return.

    Args:
        workers: How many threads.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        # Reentrant: a signal's handler may run while its thread is in here.
        self._lock = threading.RLock()
        #: None ends a thread.
        self._waiting: SimpleQueue[tuple[Callable[[UUID], object], UUID] | None] = SimpleQueue()
        #: Events that wait, or are in a thread.
        self._open = 0
        self._is_full = False
        self._threads: set[threading.Thread] = set()
        #: Done when the last thread has ended.
        self._ended = ThreadFuture()

    def tell(self, event: Callable[[UUID], object], peer: UUID) -> None:
        """Have an event called; from one thread only."""
        with self._lock:
            is_full = self._open >= _MOST
            if not is_full:
                self._open += 1
        if is_full and not self._is_full:
            _logger.warning("events of a communicator are not called: %d of them wait, or are not done", _MOST)
        self._is_full = is_full
        if is_full:
            return
        self._waiting.put((event, peer))
        if len(self._threads) < min(self._workers, self._open):
            thread = threading.Thread(target=self._work, name="redpoll nq events", daemon=True)
            self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError:  # the program ends, and begins no thread any more (Python 3.12)
                self._leave(thread)

    def close(self, timeout: float | None) -> None:
        """Wait until all were called, so many seconds at most; one of them may close too, and waits for none."""
        threads = list(self._threads)
        for _ in threads:
            self._waiting.put(None)
        if threads and threading.current_thread() not in threads:
            try:
                self._ended.result(timeout)
            except TimeoutError:
                _logger.warning("an event of a communicator has not returned after %g s, and is left", timeout)

    def _work(self) -> None:
        for event, peer in iter(self._waiting.get, None):
            try:
                event(peer)
            except BaseException:  # `sys.exit` too ends the event alone
                _logger.exception("an event of a communicator raised")
            with self._lock:
                self._open -= 1
        self._leave(threading.current_thread())

    def _leave(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads.discard(thread)
            if not self._threads:
                self._ended.finish(None, None)
