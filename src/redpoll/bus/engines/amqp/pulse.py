"""Heartbeats that user code cannot starve: a thread sends them while the loop of a connection does not run.

It writes to the socket itself, where nothing else is under way: under the lock that the loop takes to hand bytes over, and
only if all of these are with the system. It cannot where the connection is encrypted: there heartbeats are the loop's alone.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import Final

from redpoll.bus.engines.amqp.wire import HEARTBEAT
from redpoll.platforms import after_fork

__all__ = ["Beat", "pulse"]

#: Seconds between two looks.
_LOOK: Final = 0.25


class Beat:
    """A connection that needs heartbeats.

    Args:
        file: Its file descriptor, which is duplicated: so it is never another file's.
        seconds: The longest time without a write.

    Attributes:
        lock: Held while bytes are handed to the transport.
        written: Time of the last write, on the clock of `time.monotonic`.
        idle: True if nothing waits in the transport.
    """

    def __init__(self, file: int, seconds: float) -> None:
        self.lock = threading.Lock()
        self.written = time.monotonic()
        self.idle = True
        self._file = os.dup(file)
        self._seconds = seconds

    def look(self) -> None:
        """Send a heartbeat if the loop has sent nothing for a while: for the thread."""
        if time.monotonic() - self.written < self._seconds or not self.lock.acquire(blocking=False):
            return
        try:
            if self.idle and self._file >= 0:
                self.written = time.monotonic()
                with suppress(OSError):  # it is full, or closed: the loop will see
                    os.write(self._file, HEARTBEAT)
        finally:
            self.lock.release()

    def close(self) -> None:
        """Send no more."""
        with self.lock:
            file, self._file = self._file, -1
            if file >= 0:
                os.close(file)


class _Pulse:
    """The thread, while there are connections."""

    def __init__(self) -> None:
        self._beats: set[Beat] = set()
        self._guard = threading.Lock()
        self._ended = threading.Event()

    def add(self, beat: Beat) -> None:
        """Begin to look after a connection."""
        with self._guard:
            self._beats.add(beat)
            if len(self._beats) == 1:
                self._ended = threading.Event()
                threading.Thread(target=self._run, args=(self._ended,), name="redpoll heartbeats", daemon=True).start()

    def remove(self, beat: Beat) -> None:
        """Forget a connection."""
        beat.close()
        with self._guard:
            self._beats.discard(beat)
            if not self._beats:
                self._ended.set()

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(_LOOK):
            with self._guard:
                beats = list(self._beats)
            for beat in beats:
                beat.look()


pulse = _Pulse()
"""The thread of this process."""


def _after_fork() -> None:
    pulse.__init__()  # type: ignore[misc]  # the child has neither the thread nor the connections


after_fork(_after_fork)
