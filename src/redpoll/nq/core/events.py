"""Events of the user's, called in threads of their own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

__all__ = ["EventThreads"]

#: Events that may wait for a thread, or be in one.
_MOST = 10_000

_logger = logging.getLogger("redpoll.nq")


class EventThreads:
    """Calls what tells of peers, one after another with one thread.

    Peers come and go as often as they like, so no more events than a bound wait for those that are slow: further ones are
    not called, and the log says so.

    Args:
        workers: How many threads.
    """

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers, "redpoll nq events")
        self._room = threading.Semaphore(_MOST)
        self._is_full = False
        self._here = threading.local()

    def tell(self, event: Callable[[UUID], object], peer: UUID) -> None:
        """Have an event called; from one thread only."""
        is_full = not self._room.acquire(blocking=False)
        if is_full and not self._is_full:
            _logger.warning("events of a communicator are not called: %d of them wait, or are not done", _MOST)
        self._is_full = is_full
        if not is_full:
            self._pool.submit(self._call, event, peer)

    def close(self) -> None:
        """Wait until all were called; one of them may close too, and waits for none."""
        self._pool.shutdown(wait=not hasattr(self._here, "is_event"))

    def _call(self, event: Callable[[UUID], object], peer: UUID) -> None:
        self._here.is_event = True
        try:
            event(peer)
        except Exception:
            _logger.exception("an event of a communicator raised")
        finally:
            self._room.release()
