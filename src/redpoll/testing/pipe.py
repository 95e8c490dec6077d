"""A connection in memory and in virtual time, for code that takes bytes and the time as arguments."""

from __future__ import annotations

from collections import deque
from typing import Any

from redpoll.errors import ConfigError, UsageError

__all__ = ["FaultyPipe", "PipeStream", "VirtualClock"]


class VirtualClock:
    """The time of a test: it stands still until it is advanced.

    It is for code that takes the time as an argument, as the core does. No event loop is patched.

    Args:
        now: Where it begins, in seconds.

    Attributes:
        now: The time, in seconds.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time, for code that expects a function like `time.monotonic`."""
        return self.now

    def advance(self, seconds: float) -> float:
        """Advance the time.

        Args:
            seconds: How much, 0 or more.

        Returns:
            The time now.

        Raises:
            ConfigError: Time does not go backwards.
        """
        if not seconds >= 0:
            raise ConfigError("seconds", seconds, "is no time that can go by")
        self.now += seconds
        return self.now

    def advance_to(self, time: float) -> float:
        """Advance the time to `time`; if that has passed, do nothing.

        Returns:
            The time now.
        """
        self.now = max(self.now, time)
        return self.now

    def __repr__(self) -> str:
        return f"<VirtualClock {self.now:g} s>"


class PipeStream:
    """One direction of a pipe: bytes that were written and not read yet.

    Args:
        clock: Whose time its delays are in.

    Attributes:
        delay: Seconds before what is written from now on can be read; order is kept.
        piece: Bytes that one read gets at most; None is no limit.
        held: Whether nothing can be read for now.
        silent: Whether what is written is lost, and the end too.
        written: All bytes ever written.
        lost: How many of them were lost.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._segments: deque[tuple[float, memoryview]] = deque()
        self._size = 0
        self._closed = False
        self.delay = 0.0
        self.piece: int | None = None
        self.held = False
        self.silent = False
        self.written = 0
        self.lost = 0

    def __len__(self) -> int:
        """Number of bytes on their way, whether or not they can be read yet."""
        return self._size

    def __bool__(self) -> bool:
        """Return True if any bytes can be read now."""
        return self.readable > 0

    @property
    def readable(self) -> int:
        """Number of bytes that can be read now, in any number of reads."""
        if self.held:
            return 0
        now = self._clock.now
        total = 0
        for due, data in self._segments:
            if due > now:
                break
            total += len(data)
        return total

    @property
    def ended(self) -> bool:
        """True if the reader is at the end: the writer closed, and all its bytes were read."""
        return self._closed and not self.silent and not self.held and not self._size

    def next_due(self) -> float | None:
        """Time at which further bytes can be read; None if there are none, or if that does not depend on time."""
        if self.held:
            return None
        now = self._clock.now
        return next((due for due, _ in self._segments if due > now), None)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write a copy of some bytes.

        Raises:
            UsageError: The writer closed it.
        """
        if self._closed:
            raise UsageError("this end of the pipe is closed")
        self.written += len(data)
        if self.silent:
            self.lost += len(data)
        elif data:
            due = self._clock.now + self.delay
            if self._segments:
                due = max(due, self._segments[-1][0])
            self._segments.append((due, memoryview(bytes(data))))
            self._size += len(data)

    def read_into(self, room: memoryview) -> int:
        """Read bytes that can be read now, as far as there is room.

        Args:
            room: Where to.

        Returns:
            How many bytes were read; 0 when there is nothing for now.
        """
        most = len(room) if self.piece is None else min(len(room), self.piece)
        count = 0
        now = self._clock.now
        while count < most and self._segments and not self.held:
            due, data = self._segments[0]
            if due > now:
                break
            taken = min(len(data), most - count)
            room[count : count + taken] = data[:taken]
            count += taken
            if taken == len(data):
                self._segments.popleft()
            else:
                self._segments[0] = due, data[taken:]
        self._size -= count
        return count

    def read(self, size: int = 1 << 30) -> bytes:
        """Read up to `size` bytes that can be read now; empty if there are none."""
        room = memoryview(bytearray(min(size, self._size)))
        return bytes(room[: self.read_into(room)])

    def close(self) -> None:
        """Close the writer: the reader is at the end after the bytes on their way. A second call does nothing."""
        self._closed = True

    def lose(self) -> int:
        """Lose the bytes on their way.

        Returns:
            How many bytes that were.
        """
        lost = self._size
        self.lost += lost
        self._segments.clear()
        self._size = 0
        return lost

    def silence(self) -> None:
        """Lose the bytes on their way, all later ones, and the end."""
        self.silent = True
        self.lose()

    def __repr__(self) -> str:
        words: list[Any] = [f"{self._size} bytes"]
        words += [name for name in ("held", "silent") if getattr(self, name)]
        return f"<PipeStream {', '.join(words)}{', closed' if self._closed else ''}>"


class FaultyPipe:
    """A connection in memory: a stream each way, which can be cut, delayed, split and held, each by itself.

    Args:
        clock: Whose time its delays are in; None is a clock of its own.

    Attributes:
        clock: The clock.
        forward: From the first end to the second.
        back: From the second end to the first.

    It holds what is written until it is read: whoever drives it bounds that, as by looking at `len(stream)`.
    """

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = VirtualClock() if clock is None else clock
        self.forward = PipeStream(self.clock)
        self.back = PipeStream(self.clock)

    @property
    def streams(self) -> tuple[PipeStream, PipeStream]:
        """Both streams, `forward` first."""
        return self.forward, self.back

    def cut(self) -> int:
        """End both directions: bytes on their way are lost, and each reader is at the end at once.

        Returns:
            How many bytes were lost.
        """
        lost = 0
        for stream in self.streams:
            lost += stream.lose()
            stream.held = False
            stream.close()
        return lost

    def silence(self) -> None:
        """Pass nothing any more in either direction, without telling either end."""
        for stream in self.streams:
            stream.silence()

    def next_due(self) -> float | None:
        """Time at which further bytes can be read; None if that does not depend on time."""
        return min((due for stream in self.streams if (due := stream.next_due()) is not None), default=None)

    def __repr__(self) -> str:
        return f"<FaultyPipe forward {self.forward!r}, back {self.back!r}>"
