"""A worker in a process of its own, which can be frozen."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import redpoll
from tests.bus.engines.amqp.support import PATIENCE, until

ROOT = Path(__file__).parents[4]


class Worker:
    """The process, and what it says."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def start(self, url: str, heartbeat: int) -> None:
        """Start it: it takes one task of the queue "q", and ends it when it is told to."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bus.engines.amqp.workers", url, str(heartbeat)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    async def says(self, word: str) -> None:
        """Wait until it says this."""
        stdout = self._running.stdout
        assert stdout is not None
        async with asyncio.timeout(PATIENCE * 2):
            said = (await asyncio.to_thread(stdout.readline)).strip()
        assert said == word

    def tell(self, word: str) -> None:
        """Tell it something."""
        stdin = self._running.stdin
        assert stdin is not None
        stdin.write(f"{word}\n")
        stdin.flush()

    def freeze(self) -> None:
        """Let it stand still."""
        os.kill(self._running.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self._running.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


async def main(url: str, heartbeat: str) -> None:
    """Take a task, say what becomes of it, and end it when told to."""
    async with redpoll.connect(url, heartbeat=int(heartbeat)) as bus:
        task = await bus.tasks.next("q")
        print("begun", flush=True)
        await until(lambda: task.lost, "the loss of the task", 60.0)
        print("lost", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        task.set_result("of the frozen one")
        print("recorded" if await task.confirmed() else "refused", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
