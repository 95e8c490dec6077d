"""One direction of a connection through the proxy: a bounded queue, and the conditions that delay its bytes."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from redpoll.testing.faults import Faults

__all__ = ["Flow", "Journey"]

#: Seconds of a limited rate that are passed on at a time.
_SLICE = 0.01


class Journey(Protocol):
    """The connection of a flow. All methods are plain calls."""

    def passed(self, flow: Flow, count: int) -> None:
        """Count bytes that were written."""

    def dropped(self, count: int) -> None:
        """Count bytes that were read and will not be written."""

    def due_to_cut(self, flow: Flow) -> None:
        """Cut the connection: the bytes after which it is to be cut have passed."""

    def ended(self, flow: Flow) -> None:
        """Note the end of the source: it closed, and all its bytes were passed on or dropped."""

    def source_broke(self) -> None:
        """Note that a source reset the connection."""

    def dest_broke(self, flow: Flow) -> None:
        """Note that the destination accepts nothing any more."""


class Flow:
    """Reads from one socket and writes to another, as its conditions allow.

    Attributes:
        name: "forward" or "back".
        frozen: Whether it neither reads nor writes for now.
        held: Whether it does not write for now.
        silent: Whether it does nothing any more, whatever its source does.
        over: Whether its source closed, or there is nobody to write to.
        broken: Whether there is nobody to write to.
        bytes: How many bytes it passed on.
    """

    __slots__ = (
        "_bound", "_dest", "_discards", "_draw", "_due", "_eof", "_faults", "_journey", "_loop", "_paused", "_queue",
        "_queued", "_reading", "_source", "_timer", "_turn", "_writing", "broken", "bytes", "closed", "frozen",
        "held", "name", "over", "silent",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        source: socket.socket,
        dest: socket.socket,
        *,
        journey: Journey,
        loop: asyncio.AbstractEventLoop,
        draw: random.Random,
        faults: Faults,
        bound: int,
    ) -> None:
        self.name = name
        self.frozen = False
        self.held = False
        self.silent = False
        self.over = False
        self.broken = False
        self.closed = False
        self.bytes = 0
        self._source = source
        self._dest = dest
        self._journey = journey
        self._loop = loop
        self._draw = draw
        self._faults = faults
        self._bound = bound
        #: Pieces that were read, each with the time from which it may be passed on; an empty one is the end.
        self._queue: deque[tuple[float, memoryview]] = deque()
        self._queued = 0
        self._due = 0.0
        self._eof = False
        self._discards = False
        self._reading = False
        self._writing = False
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        #: Number of pieces cut, for the sizes that are used in turn.
        self._turn = 0

    @property
    def faults(self) -> Faults:
        """Its conditions."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        if not faults.delay and not faults.jitter:
            # Nothing later than now: a calmed network does not wait for what a slow one had in store.
            now = self._loop.time()
            self._due = 0.0
            self._queue = deque((min(due, now), data) for due, data in self._queue)
        if self._timer is not None:
            self._timer.cancel()
            self._resume()

    def advance(self) -> None:
        """Continue after anything changed: write what may be written, read where there is room."""
        if self.closed:
            return
        self._write()
        if not self.closed:
            self._watch()

    # Ends

    def silence(self) -> None:
        """Pass on and read nothing any more, without telling either end."""
        self.silent = True
        self._drop()
        self.advance()

    def finish(self) -> None:
        """Close the destination after the bytes so far; later ones are dropped."""
        if self.over or self.silent:
            return
        self._drop()
        self._discards = True
        self.frozen = self.held = False
        self._shut()
        if self._eof:
            self._end()
        self.advance()

    def close(self) -> None:
        """Leave both sockets alone from now on."""
        self._drop()
        self.closed = True
        if not self._loop.is_closed():
            if self._reading:
                self._loop.remove_reader(self._source)
            if self._writing:
                self._loop.remove_writer(self._dest)
        self._reading = self._writing = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop(self) -> None:
        if self._queued:
            self._journey.dropped(self._queued)
        self._queue.clear()
        self._queued = 0

    def _shut(self) -> None:
        try:
            self._dest.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it is gone already

    # Reading

    def _watch(self) -> None:
        room = self._discards or self._queued < self._bound
        wanted = room and not (self.frozen or self.silent or self._eof or self.over)
        if wanted and not self._reading:
            self._loop.add_reader(self._source, self._readable)
        elif self._reading and not wanted:
            self._loop.remove_reader(self._source)
        self._reading = wanted

    def _readable(self) -> None:
        try:
            data = self._source.recv(1 << 16 if self._discards else self._bound - self._queued)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._journey.source_broke()
            return
        if self._discards:
            self._journey.dropped(len(data))
            if not data:
                self._end()
        else:
            faults = self._faults
            due = self._loop.time() + faults.delay + (faults.jitter and self._draw.uniform(0.0, faults.jitter))
            self._due = max(due, self._due)
            self._queue.append((self._due if faults.delay or faults.jitter else 0.0, memoryview(data)))
            self._queued += len(data)
            self._eof = not data
        self.advance()

    def _end(self) -> None:
        self._eof = self.over = True
        self._journey.ended(self)

    # Writing

    def _write(self) -> None:
        while self._queue and not (self.frozen or self.held or self._writing or self._paused or self.over):
            due, data = self._queue[0]
            wait = due - self._loop.time()
            if wait > 0:
                self._pause(wait)
            elif not data:
                self._queue.popleft()
                self._shut()
                self._end()
            elif self._faults.cut_after is not None and self.bytes >= self._faults.cut_after:
                self._journey.due_to_cut(self)
                return
            elif not self._write_piece(due, data):
                return
            if self.closed:
                return

    def _write_piece(self, due: float, data: memoryview) -> bool:
        faults = self._faults
        size = self._size(len(data))
        try:
            count = self._dest.send(data[:size])
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._dest, self._writable)
            self._writing = True
            return False
        except OSError:
            self._drop()
            self.over = self.broken = True
            self._journey.dest_broke(self)
            return False
        if count == len(data):
            self._queue.popleft()
        else:
            self._queue[0] = due, data[count:]
        self._queued -= count
        self.bytes += count
        if faults.pieces is not None or faults.rate is not None:
            self._pause(max(faults.pause, count / faults.rate if faults.rate else 0.0))
        self._journey.passed(self, count)
        return True

    def _size(self, size: int) -> int:
        faults = self._faults
        if faults.cut_after is not None:
            size = min(size, faults.cut_after - self.bytes)
        if faults.rate is not None:
            size = min(size, max(1, int(faults.rate * _SLICE)))
        pieces = faults.pieces
        if pieces is None:
            return size
        if isinstance(pieces, int):
            return min(size, pieces)
        self._turn += 1
        return min(
            size, self._draw.choice(pieces) if isinstance(pieces, range) else pieces[self._turn % len(pieces) - 1]
        )

    def _writable(self) -> None:
        self._loop.remove_writer(self._dest)
        self._writing = False
        self.advance()

    def _pause(self, seconds: float) -> None:
        self._paused = True
        if seconds > 0:
            self._timer = self._loop.call_later(seconds, self._resume)
        else:
            # Two turns: in the one between them the reader gets this piece, if it runs on the same loop.
            resume: Callable[[], object] = self._resume
            self._loop.call_soon(self._loop.call_soon, resume)

    def _resume(self) -> None:
        self._paused = False
        self._timer = None
        self.advance()
