"""Programs with kiwiPy and oslo.messaging, as processes of an environment that has them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from redpoll.bus import Bus

#: Seconds in which what should happen happens on a busy machine; to import the libraries too.
PATIENCE = 30.0


class PeerError(Exception):
    """What the program raised: the name of its class, and its text."""


class Peer:
    """A program, which runs what the test says, and ends with the block.

    REDPOLL_PEERS_PYTHON names the interpreter that has the libraries (`nox -s brokers` makes one); without it, this one.

    Args:
        beginning: What it runs first.
    """

    def __init__(self, beginning: str) -> None:
        self._beginning = beginning
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        python = os.environ.get("REDPOLL_PEERS_PYTHON") or sys.executable
        script = Path(__file__).with_name("peer.py")
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            python, "-W", "ignore", str(script), stdin=pipe, stdout=pipe
        )
        try:
            await self.run(self._beginning)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()

    async def run(self, source: str) -> Any:
        """Run something there, and return its value if it is an expression.

        Raises:
            PeerError: It raised.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(source).encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            line = await self._process.stdout.readline()
        assert line, "the program ended"
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{answer['error']}: {answer['text']}")
        return answer["value"]

    async def until(self, source: str) -> None:
        """Wait until an expression is true there."""
        async with asyncio.timeout(PATIENCE):
            while not await self.run(source):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def until(condition: Callable[[], object]) -> None:
    """Wait for what no event tells of."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def healthy(bus: Bus) -> None:
    """Wait until all that is served over a bus is served again."""
    async with asyncio.timeout(PATIENCE):
        while not await bus.healthy():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
