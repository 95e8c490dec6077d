"""Where a hub is to survive: its processes, on a port of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bus.survival.programs import Plan, Running
from tests.ports import free_port

#: Short, as a test is not to wait for long.
LIMITS = {"reclaim": 2.0}


class Yard:
    """Where a test has its processes.

    Attributes:
        folder: Theirs.
        url: The hub.
        running: All that were started, those that ended too.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"redpoll://127.0.0.1:{free_port()}"
        self.running: list[Running] = []
        self._numbers = itertools.count(1)

    def start(self, script: str, seed: int = 0, url: str | None = None, **given: Any) -> Running:
        """Start a process; it is killed behind the test."""
        log = str(self.folder / f"{next(self._numbers):04}-{script}")
        running = Running(Plan(script, log, url or self.url, seed, given))
        self.running.append(running)
        return running

    async def start_hub(self, **given: Any) -> Running:
        """Start the hub, and wait until it serves."""
        running = self.start("hub", **{"data": str(self.folder / "hub"), "limits": LIMITS, **given})
        await running.wait("ready")
        return running

    def end(self) -> None:
        """Kill all."""
        for running in self.running:
            running.kill()


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    """Where a test has its processes."""
    made = Yard(tmp_path)
    yield made
    made.end()
