"""What tasks and calls cost, counted: functions of the bus in Python, from the sender to the handler and back."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from types import FrameType, ModuleType
from typing import Any

import pytest

import redpoll
import redpoll.bus
from redpoll.bus.engines.hub.server import HubServer
from tests.bus.engines.hub.memory_store import MemoryStore
from tests.bus.patterns import Server, bus_in_virtual_time

pytestmark = pytest.mark.asyncio


async def counted(send: Callable[[], Awaitable[object]], package: ModuleType = redpoll.bus) -> Counter[str]:
    """Count the calls of one of 64 that are open, of functions of a package."""
    calls: Counter[str] = Counter()
    (where,) = package.__path__

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(where):
            calls[frame.f_code.co_qualname] += 1

    for round_ in range(2):
        sys.setprofile(count if round_ else None)
        try:
            await asyncio.gather(*(send() for _ in range(64)))
        finally:
            sys.setprofile(None)
    return calls


async def test_a_task_costs_few_calls() -> None:
    """A task that is run takes at most 30 calls of functions of the bus."""

    async def handler(task: Any) -> Any:
        return task.data

    async with bus_in_virtual_time() as (bus, _), bus.tasks.worker(handler, "q", concurrency=64):
        calls = await counted(lambda: bus.tasks.run(b"x", "q"))
    assert calls.total() // 64 <= 30, calls


async def test_a_call_costs_few_calls() -> None:
    """A call of a method takes at most 28 calls of functions of the bus, and 5 more without a client."""
    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", Server(), concurrency=64):
        client = bus.rpc.client("a")
        calls = await counted(lambda: client.echo(value=b"x"))
        without = await counted(lambda: bus.rpc.call("a", "echo", {"value": b"x"}))
    assert calls.total() // 64 <= 28, calls
    assert without.total() / 64 <= 33, without


async def test_a_hub_costs_few_calls() -> None:
    """64 open, a confirmed task takes at most 38 calls of functions of redpoll at the hub and its client, a call 105."""
    hub = HubServer(MemoryStore(), redpoll.Config(port=0, serializer="raw"), confirm="process")
    await hub.start()
    try:
        async with redpoll.connect(f"redpoll://{hub.address}") as bus, bus.rpc.serve("a", Server(), concurrency=64):
            client = bus.rpc.client("a")
            await bus.queues.declare("q")
            tasks = await counted(lambda: bus.tasks.submit(b"x", "q", no_reply=True), redpoll)
            calls = await counted(lambda: client.echo(value=b"x"), redpoll)
    finally:
        await hub.close()
    assert tasks.total() / 64 <= 38, tasks
    assert calls.total() // 64 <= 105, calls
