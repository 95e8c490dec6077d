"""A hub in a process of its own that can be killed, and programs beside it."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import redpoll
from benchmarks.memory import allow_descriptors
from redpoll.bus import Bus

CONTEXT = multiprocessing.get_context("spawn")


def start(target: Any, *arguments: Any) -> BaseProcess:
    """Start a function in a process of its own."""
    process = CONTEXT.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def be_hub(folder: str, port: int) -> None:
    """Run a hub until the process is killed."""

    async def run() -> None:
        allow_descriptors(3_000)
        async with redpoll.Hub(folder, port=port) as hub:
            await hub.serve_forever()

    redpoll.run(run())


@asynccontextmanager
async def running(folder: str, port: int) -> AsyncIterator[tuple[BaseProcess, Bus]]:
    """Run a hub, and have a bus on it once it serves."""
    hub = start(be_hub, folder, port)
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.01)
            else:
                writer.close()
                break
        async with redpoll.connect(f"redpoll://127.0.0.1:{port}") as bus:
            await bus.queues.declare("first")
            yield hub, bus
    finally:
        hub.kill()
        hub.join()


def memory(process: BaseProcess, field: str = "VmRSS:") -> int:
    """Return the resident memory of a process in bytes; VmHWM: the most that it ever had (Linux only)."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError("the system does not say what memory a process has")
