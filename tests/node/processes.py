"""Nodes in processes of their own, which can be frozen, killed and kept busy while the test goes on.

``python -m tests.node.processes OPTIONS`` with options as JSON runs one. What it does it writes into a file, line by line,
each at once, so that it is there whatever ends the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import redpoll
from redpoll import Address, Node, Received
from tests.ports import free_port
from tests.promise.programs import Log

#: Seconds that an interpreter has to start, on a machine that is busy.
START_PATIENCE = 30.0

#: Seconds after which a process ends by itself: whoever was to kill it may have been killed.
LIFETIME = 900

#: A message that begins with this makes its handler compute for as many seconds as follow.
COMPUTE = b"compute "


@dataclass(frozen=True)
class Options:
    """What the program is told.

    Attributes:
        log: Where it writes.
        port: Where it listens.
        node: Options of its node.
    """

    log: str
    port: int
    node: dict[str, Any]


async def run(options: Options, make: type[Node[bytes]] = Node) -> None:
    """Handle messages until the process is killed; answer each with its own data."""
    signal.alarm(LIFETIME)
    log = Log(options.log)

    def handler(message: Received[bytes]) -> bytes:
        data: bytes = message.data
        log.write("begun", data.decode())
        if data.startswith(COMPUTE):
            compute(float(data.removeprefix(COMPUTE)))
        return data

    async with make(handler, port=options.port, **options.node) as node:
        node.events.peer_suspect = lambda _: log.write("suspect")
        node.events.peer_lost = lambda _, error: log.write("lost", type(error).__name__)
        log.write("ready")
        await node.serve_forever()


def compute(seconds: float) -> None:
    """Keep the loop from everything else for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(1000))


class Process:
    """A node in a process of its own, on a free port unless one is given; killed on leaving."""

    #: The module that it runs.
    program = "tests.node.processes"

    def __init__(self, folder: Path, *, port: int | None = None, **node: Any) -> None:
        self._options = Options(str(folder / f"log-{time.monotonic_ns()}"), port or free_port(), node)
        self._process: subprocess.Popen[bytes]

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address("tcp", "127.0.0.1", self._options.port)

    @property
    def log(self) -> list[str]:
        """The lines that it wrote so far."""
        path = Path(self._options.log)
        return path.read_text().splitlines() if path.exists() else []

    @property
    def begun(self) -> list[str]:
        """The messages whose handler began, in order."""
        return [line.removeprefix("begun ") for line in self.log if line.startswith("begun ")]

    def freeze(self) -> None:
        """Stop it in the midst of whatever it does."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it, frozen or not, without a word."""
        self._process.kill()
        self._process.wait()

    async def __aenter__(self) -> Self:
        root = Path(__file__).parent.parent.parent
        path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
        self._process = subprocess.Popen(  # noqa: ASYNC220  # it is started at once, and nothing is read from it
            [sys.executable, "-m", self.program, json.dumps(asdict(self._options))],
            cwd=root,
            env={**os.environ, "PYTHONPATH": path},
        )
        try:
            async with asyncio.timeout(START_PATIENCE):
                while "ready" not in self.log:
                    assert self._process.poll() is None, "it ended; what it said is above"
                    await asyncio.sleep(0.01)
        except BaseException:
            self.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()


if __name__ == "__main__":
    redpoll.run(run(Options(**json.loads(sys.argv[1]))))
