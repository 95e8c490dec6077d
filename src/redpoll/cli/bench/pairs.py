"""Two programs in child processes, for one size: an exchange and a queue, or raw TCP."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from redpoll.cli.child import Program

from .figures import Latency, Throughput

__all__ = ["raw_latency", "raw_throughput", "wired_latency", "wired_throughput"]

_INTERFACE = "127.0.0.1"


async def wired_latency(directory: str, size: int, count: int) -> Latency:
    """Run `lat remote` and `lat local`.

    Args:
        directory: Address of their directory.
        size: Bytes of a message.
        count: Number of round trips.

    Raises:
        ChildError: One of them failed.
    """
    remote = _command("lat", "remote", directory, _INTERFACE, _INTERFACE, size, count)
    local = _command("lat", "local", directory, size, count)
    async with remote, local:
        return Latency.read((await _both(_last(remote, "ready", "done"), local.event("latency")))[1])


async def wired_throughput(directory: str, size: int, count: int) -> Throughput:
    """Run `thr local` and `thr remote`; otherwise as `wired_latency`."""
    local = _command("thr", "local", directory, _INTERFACE, size, count)
    remote = _command("thr", "remote", directory, size, count)
    async with local, remote:
        return Throughput.read((await _both(_last(local, "ready", "throughput"), remote.event("done")))[0])


async def raw_latency(size: int, count: int) -> Latency:
    """Measure the round trips of the messages over blocking sockets."""
    async with _raw("echo", size, count) as there:
        address = (await there.event("listening"))["address"]
        async with _raw("ask", size, count, address) as here:
            return Latency.read(await here.event("latency"))


async def raw_throughput(size: int, count: int) -> Throughput:
    """Send the messages one way over blocking sockets."""
    async with _raw("take", size, count) as there:
        address = (await there.event("listening"))["address"]
        async with _raw("give", size, count, address):
            return Throughput.read(await there.event("throughput"))


def _command(work: str, role: str, *arguments: object) -> Program:
    words = ("bench", work, role)
    return Program(" ".join(words), "redpoll", *words, *map(str, arguments), "--json", "--until-eof")


def _raw(role: str, *arguments: object) -> Program:
    return Program(f"bench (raw TCP, {role})", "redpoll.cli.bench.baseline", role, *map(str, arguments))


async def _last(program: Program, *names: str) -> dict[str, Any]:
    """Return the last of a program's events."""
    events = [await program.event(name) for name in names]
    return events[-1]


async def _both(*waiting: Coroutine[Any, Any, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results of two programs; if one fails, end both and raise its error."""
    tasks = [asyncio.ensure_future(each) for each in waiting]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
