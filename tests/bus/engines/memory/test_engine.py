"""The memory engine beyond what every engine does."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import Counter
from types import FrameType
from typing import Any

import pytest

from redpoll.bus import Envelope, Outcome, OutcomeKind, QueueSpec
from redpoll.bus.broker import Limits
from redpoll.bus.engines.memory import MemoryEngine
from redpoll.errors import Closed, ConfigError, QueueFull, ResultExpired, UsageError
from redpoll.testing import VirtualTime
from redpoll.testing.conformance import Recorder

BODY = Envelope("raw", b"x" * 100)
RESULT = Outcome(OutcomeKind.RESULT, BODY)


class Quiet:
    """A watcher that counts."""

    def __init__(self) -> None:
        self.count = 0

    def progress(self, envelope: Envelope) -> None:
        """Take nothing."""

    def gone(self, error: Exception) -> None:
        """Take nothing."""

    def outcome(self, outcome: Outcome) -> None:
        """Count it."""
        self.count += 1


@pytest.mark.asyncio
async def test_a_task_costs_few_calls() -> None:
    """From publishing to the outcome a task takes at most 18 calls of functions in Python, those of its ends aside."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and "redpoll/bus" in frame.f_code.co_filename:
            calls[frame.f_code.co_qualname] += 1

    async with MemoryEngine() as engine:
        await engine.declare(QueueSpec("q"))
        await engine.consume("q", credit=64, sink=lambda delivery: delivery.ack(RESULT))
        watcher = Quiet()
        for round_ in range(2):
            sys.setprofile(count if round_ else None)
            for _ in range(64):
                engine.publish(BODY, queue="q", watcher=watcher)
            for _ in range(5):
                await asyncio.sleep(0)
            sys.setprofile(None)
    assert watcher.count == 128
    assert sum(calls.values()) / 64 <= 18, calls


@pytest.mark.asyncio
async def test_a_task_takes_little_memory() -> None:
    """A task that waits takes at most 250 bytes of the broker, its envelope aside."""
    import tracemalloc

    count = 20_000
    async with MemoryEngine() as engine:
        await engine.declare(QueueSpec("q"))
        envelopes = [Envelope("raw", b"") for _ in range(count)]
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for envelope in envelopes:
                engine.publish(envelope, queue="q")
            gc.collect()
            used = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    assert used / count <= 250


@pytest.mark.asyncio
async def test_a_watcher_of_a_key_that_is_gone_is_told() -> None:
    """Who publishes with a key whose first task ended and was not kept learns that no outcome will come."""
    async with MemoryEngine() as engine:
        await engine.declare(QueueSpec("q"))
        await engine.publish(BODY, queue="q", dedup="k", keep=False)
        await (await engine.take("q")).ack()
        recorder = Recorder()
        receipt = await engine.publish(BODY, queue="q", dedup="k", watcher=recorder)
        await asyncio.sleep(0)
        assert receipt.duplicate
        assert isinstance(recorder.error, ResultExpired)


@pytest.mark.asyncio
async def test_what_is_dropped_before_a_refusal_is_told() -> None:
    """What a call decided before it failed is carried out all the same."""
    async with MemoryEngine() as engine:
        await engine.declare(QueueSpec("ring", at_limit="drop-old", max_length=2))
        recorder = Recorder()
        await engine.publish(BODY, queue="ring", watcher=recorder)
        await engine.publish(BODY, queue="ring")
        held = [await engine.take("ring") for _ in range(2)]
        with pytest.raises(QueueFull):
            await engine.publish(BODY, queue="ring")
        await held[0].reject()
        await engine.publish(BODY, queue="ring")
        assert recorder.kind is OutcomeKind.DEAD


@pytest.mark.asyncio
async def test_closing_twice_at_once_is_closing_once() -> None:
    """A second close waits for the first; a cancelled one closes at once."""
    clock = VirtualTime()
    async with MemoryEngine(clock=clock) as engine:
        await engine.declare(QueueSpec("q"))
        await engine.publish(BODY, queue="q")
        delivery = await engine.take("q")
        first = asyncio.ensure_future(engine.close(drain=None))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(engine.close())
        await asyncio.sleep(0)
        assert not first.done()
        assert not second.done()
        await delivery.ack()
        await asyncio.gather(first, second)
    cancelled = MemoryEngine(clock=clock)
    async with cancelled as engine:
        await engine.declare(QueueSpec("q"))
        await engine.publish(BODY, queue="q")
        delivery = await engine.take("q")
        closing = asyncio.ensure_future(engine.close(drain=60.0))
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert cancelled.closed
        assert delivery.lost


@pytest.mark.asyncio
async def test_an_aborted_engine_is_gone() -> None:
    """An aborted engine raises Closed and gives nothing back by itself."""
    clock = VirtualTime()
    async with MemoryEngine("abort", clock=clock) as one, MemoryEngine("abort", clock=clock) as two:
        await one.declare(QueueSpec("q"))
        await one.publish(BODY, queue="q")
        await two.take("q")
        two.abort()
        two.abort()
        with pytest.raises(Closed):
            await two.inspect("q")
        assert (await one.inspect("q")).taken == 1
        await clock.advance(0.6)
        assert (await one.inspect("q")).ready == 1


@pytest.mark.asyncio
async def test_values_that_cannot_be_are_refused() -> None:
    """Options and arguments are checked where they are given."""
    with pytest.raises(ConfigError, match="max_body"):
        MemoryEngine(max_body=True)
    with pytest.raises(ConfigError, match="limits"):
        MemoryEngine(limits={"queues": 1})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="clock"):
        MemoryEngine(clock=time.monotonic)  # type: ignore[arg-type]
    async with MemoryEngine(limits=Limits(queues=1)) as engine:
        await engine.declare(QueueSpec("q"))
        for awaitable in (
            engine.consume("q", credit=True),
            engine.subscribe(["s"], buffer=0),
        ):
            with pytest.raises(ConfigError):
                await awaitable
        with pytest.raises(UsageError, match="2 envelopes have 1 watchers and 2 keys"):
            engine.publish_many([BODY, BODY], queue="q", watchers=[Recorder()])
        consumer = await engine.consume("q")
        with pytest.raises(ConfigError, match="credit"):
            consumer.set_credit(-1)
        with pytest.raises(QueueFull):
            await engine.declare(QueueSpec("r"))
        assert repr(engine) == "<MemoryEngine memory:// ready>"
