"""What a benchmark's end says to its driver: one JSON object a line, over standard input and output.

An end imports nothing of the driver, so that it also runs on an interpreter that has only its own library.

The conversation: the end writes ``{"address": ...}`` once it is up. The driver sends a job to the server end, which
answers ``{"begun": true}`` when it is ready for it; then to the client end, which works and answers with ``started``
and ``finished`` (seconds of a clock that all processes of the machine share); then the server end answers with its own
``finished``. End of input means stop.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

Fields = dict[str, Any]

#: A monotonic clock in seconds that is the same in all processes of this machine.
now: Callable[[], float] = time.monotonic


class Control:
    """One end's side of the conversation with the driver."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self._pending = b""

    def write(self, **fields: object) -> None:
        """Send one answer to the driver."""
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()

    def jobs(self) -> Iterator[Fields]:
        """Yield each job of the driver, blocking, until the end of input."""
        while True:
            while (line := self._take_line()) is None:
                if not self._receive():
                    return
            yield json.loads(line)

    async def jobs_async(self) -> AsyncIterator[Fields]:
        """Yield each job of the driver without blocking the running loop, until the end of input."""
        loop = asyncio.get_running_loop()
        while True:
            while (line := self._take_line()) is None:
                readable = asyncio.Event()
                loop.add_reader(self._input, readable.set)
                try:
                    await readable.wait()
                finally:
                    loop.remove_reader(self._input)
                if not self._receive():
                    return
            yield json.loads(line)

    def _take_line(self) -> bytes | None:
        line, newline, rest = self._pending.partition(b"\n")
        if not newline:
            return None
        self._pending = rest
        return line

    def _receive(self) -> bool:
        received = os.read(self._input, 65536)
        self._pending += received
        return bool(received)


class Countdown:
    """Counts the messages of one job down, and keeps when the first one and the last one came.

    Attributes:
        left: How many are still to come.
        mark: At this number left, `note` is due: when the first has come, and when all have.
        first: When the first one came.
        finished: When the last one came.
    """

    def __init__(self) -> None:
        self.left = 0
        self.mark = 0
        self.first = 0.0
        self.finished = 0.0
        self._done = asyncio.Event()

    def begin(self, count: int) -> None:
        """Expect `count` messages from now on."""
        self.left = count
        self.mark = count - 1
        self.first = 0.0
        self._done.clear()

    def take(self, count: int = 1) -> None:
        """Count `count` messages as received."""
        self.left -= count
        if self.left <= self.mark:
            self.note()

    def note(self) -> None:
        """Note that the first message came now, or the last one, or both."""
        self.first = self.first or now()
        self.mark = 0
        if self.left <= 0:
            self.finish()

    def finish(self) -> None:
        """Note that the last message came now."""
        self.first = self.first or now()
        self.finished = now()
        self._done.set()

    async def wait_done(self) -> float:
        """Wait for the last message and return when it came."""
        await self._done.wait()
        return self.finished


async def serve_counting(control: Control, countdown: Countdown) -> None:
    """Answer every job with the time at which its last message was counted."""
    async for job in control.jobs_async():
        countdown.begin(job["count"])
        control.write(begun=True)
        finished = await countdown.wait_done()
        control.write(first=countdown.first, finished=finished)


def run_async(main: Any, loop: str) -> None:
    """Run the coroutine `main` to its end on the loop named ``asyncio`` or ``uvloop``."""
    if loop == "uvloop":
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)
    else:
        with asyncio.Runner() as runner:
            runner.run(main)


def free_port() -> int:
    """Return a TCP port that was free on 127.0.0.1 a moment ago, for libraries that cannot choose one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def arguments() -> tuple[str, Fields]:
    """Return the role and the options that the driver gave this end on its command line."""
    return sys.argv[1], json.loads(sys.argv[2])
