"""Threads that call the events of the user."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from uuid import UUID

from redpoll.blocking.futures import ThreadFuture

__all__ = ["EventThreads"]

#: Maximum events that wait or run.
_MOST = 10_000

_logger = logging.getLogger("redpoll.nq")


class EventThreads:
    """Calls events; with one thread, one after another.

    Peers can cause any number of events, so the number of waiting ones is bounded: further ones are
    dropped, which is logged. The threads are daemons, so that a program can exit while an event does not return.

    Args:
        workers: Number of threads.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        # Reentrant: a signal handler may run while its thread holds it.
        self._lock = threading.RLock()
        #: None ends a thread.
        self._waiting: SimpleQueue[tuple[Callable[[UUID], object], UUID] | None] = SimpleQueue()
        #: Number of events that wait or run.
        self._open = 0
        self._is_full = False
        self._threads: set[threading.Thread] = set()
        #: Done when the last thread has ended.
        self._ended = ThreadFuture()

    def tell(self, event: Callable[[UUID], object], peer: UUID) -> None:
        """Schedule an event; called from one thread only."""
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
            except RuntimeError:
                # The program is exiting (Python 3.12), or has too many threads: then the next event starts one.
                self._threads.discard(thread)

    def close(self, timeout: float | None) -> None:
        """Wait until all events have returned, with a timeout; called by an event, it does not wait."""
        threads = self.end()
        if threads and threading.current_thread() not in threads:
            try:
                self._ended.result(timeout)
            except TimeoutError:
                _logger.warning("an event of a communicator has not returned after %g s, and is left", timeout)

    def end(self) -> list[threading.Thread]:
        """End the threads once all events have returned, without waiting; return them."""
        threads = list(self._threads)
        for _ in threads:
            self._waiting.put(None)
        return threads

    def _work(self) -> None:
        for event, peer in iter(self._waiting.get, None):
            try:
                event(peer)
            except BaseException:  # also `sys.exit`: it ends the event alone
                _logger.exception("an event of a communicator raised")
            with self._lock:
                self._open -= 1
        self._leave(threading.current_thread())

    def _leave(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads.discard(thread)
            if not self._threads:
                self._ended.finish(None, None)
