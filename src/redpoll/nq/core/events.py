"""Threads that call the events of the user."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from uuid import UUID

from redpoll.blocking.futures import ThreadFuture
from redpoll.locks import new_lock

__all__ = ["EventThreads", "raised_text"]

#: Maximum events that wait or run.
_MOST = 10_000

#: Interval in seconds between two lines of events that raised.
_LOG_EVERY = 1.0

_logger = logging.getLogger("redpoll.nq")


class EventThreads:
    """Calls events; with one thread, one after another.

    Peers can cause any number of events, so the number of waiting ones is bounded: further ones are
    dropped, which is logged. So is what events raise: the first at once, then once a second the last one,
    with the number of those since. The threads are daemons, so that a program can exit while an event does not return.

    Args:
        workers: Number of threads.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._lock = new_lock()
        #: None ends a thread.
        self._waiting: SimpleQueue[tuple[Callable[[UUID], object], UUID] | None] = SimpleQueue()
        #: Number of events that wait or run.
        self._open = 0
        self._is_full = False
        #: Number of events that raised and were not logged, the error of the last one, and until when none is logged.
        self._failures = 0
        self._failed: BaseException | None = None
        self._silent_until = 0.0
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
        while (called := self._next()) is not None:
            event, peer = called
            try:
                event(peer)
            except BaseException as error:  # noqa: BLE001  # also `sys.exit`: it ends the event alone
                with self._lock:
                    self._failed = error
                    self._failures += 1
            self._log_failures()
            with self._lock:
                self._open -= 1
        self._log_failures(at_once=True)
        self._leave(threading.current_thread())

    def _next(self) -> tuple[Callable[[UUID], object], UUID] | None:
        """Wait for the next event; what is to be logged meanwhile is logged in time."""
        while True:
            silent = self._silent_until - monotonic() if self._failures else None
            try:
                return self._waiting.get(timeout=silent if silent is None else max(silent, 0.0))
            except Empty:
                self._log_failures()

    def _log_failures(self, *, at_once: bool = False) -> None:
        now = monotonic()
        with self._lock:
            count = self._failures
            if not count or not (at_once or now >= self._silent_until):
                return
            self._failures = 0
            self._silent_until = now + _LOG_EVERY
            error, self._failed = self._failed, None
        _logger.error(raised_text(count), exc_info=error)

    def _leave(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads.discard(thread)
            if not self._threads:
                self._ended.finish(None, None)


def raised_text(count: int) -> str:
    """Return the log line for events that raised, of which the last one's error is logged."""
    return (
        "an event of a communicator raised"
        if count == 1
        else f"{count:,} events of a communicator raised, the last one"
    )
