"""Heartbeats that user code cannot starve: a thread sends them while the loop of a connection does not run.

It writes to the socket itself, where nothing else is under way: under the lock that the loop takes to hand bytes over, and
only if all of these are with the system. What the system does not take of a heartbeat the loop sends before all else.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import suppress
from typing import Final

from redpoll.bus.engines.amqp.seal import Seal
from redpoll.bus.engines.amqp.wire import HEARTBEAT
from redpoll.locks import new_lock
from redpoll.platforms import after_fork

__all__ = ["Beat", "pulse"]

#: Seconds between two looks.
_LOOK: Final = 0.25


class Beat:
    """The writing end of a connection, for its loop and for the thread.

    Args:
        transport: The transport of the loop. Its file descriptor is duplicated: so it is never another file's.
        seal: Encrypts; None does not.

    Attributes:
        seconds: The longest time without a write.
        written: Time of the last write, on the clock of `time.monotonic`.
    """

    def __init__(self, transport: asyncio.Transport, seal: Seal | None) -> None:
        self.seconds = 0.0
        self.written = time.monotonic()
        self._transport = transport
        self._seal = seal
        self._lock = new_lock()
        self._rest = b""
        self._idle = False
        self._file = os.dup(transport.get_extra_info("socket").fileno())

    # -- for the loop

    def write(self, data: bytes | memoryview) -> None:
        """Hand bytes to the transport; none to look how much of the earlier ones the system has taken."""
        with self._lock:
            self._write(data)

    def receive(self, data: bytes) -> bytes:
        """Decrypt bytes that arrived, and answer for TLS itself what has to be answered.

        Raises:
            ssl.SSLError: See `Seal.receive`.
        """
        seal = self._seal
        if seal is None:
            return data
        with self._lock:
            try:
                return seal.receive(data)
            finally:
                # After an error as well: the other end is told why.
                self._write(b"")

    def _write(self, data: bytes | memoryview) -> None:
        sealed = data if self._seal is None else self._seal.seal(data)
        if self._rest:
            self._transport.write(self._rest)
            self._rest = b""
        if sealed:
            self._transport.write(sealed)
            self.written = time.monotonic()
        self._idle = self._transport.get_write_buffer_size() == 0

    # -- for the thread

    def look(self) -> None:
        """Send a heartbeat if the loop has sent nothing for a while."""
        if time.monotonic() - self.written < self.seconds or not self._lock.acquire(blocking=False):
            return
        try:
            if self._idle and not self._rest and self._file >= 0:
                self.written = time.monotonic()
                self._rest = HEARTBEAT if self._seal is None else self._seal.seal(HEARTBEAT)
                with suppress(OSError):  # it is full, or closed: the loop will see
                    self._rest = self._rest[os.write(self._file, self._rest) :]
        finally:
            self._lock.release()

    def close(self) -> None:
        """Send no more."""
        with self._lock:
            file, self._file = self._file, -1
            if file >= 0:
                os.close(file)


class _Pulse:
    """The thread, while there are connections."""

    def __init__(self) -> None:
        self._beats: set[Beat] = set()
        self._guard = new_lock()
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
