"""Consumers that come back when their queue does."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from redpoll.bus import QueueSpec
from redpoll.bus.engine import Consumer, Delivery
from redpoll.bus.lasting import LastingConsumer
from redpoll.errors import SpecConflict
from redpoll.testing import VirtualTime
from tests.bus.patterns import bus_in_virtual_time, until

pytestmark = pytest.mark.asyncio


def active(consumer: LastingConsumer) -> bool:
    """Whether it is given tasks; it changes, which the type checker does not see of an attribute."""
    return consumer.active


async def test_a_queue_that_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    """A consumer whose queue was deleted says so, is not active meanwhile, and has the credit of before when it is back."""
    taken: list[Any] = []
    async with bus_in_virtual_time() as (bus, clock):
        await bus.queues.declare("q")
        consumer = LastingConsumer(clock, "q", partial(bus.engine.consume, "q", credit=1, sink=taken.append))
        await consumer.open()
        consumer.set_credit(2)
        for spec in (QueueSpec("q"), QueueSpec("q", priorities=3)):
            await bus.queues.delete("q")
            await until(lambda: not consumer.active)
            await clock.advance(3)
            assert not active(consumer)
            consumer.set_credit(2)
            await bus.queues.declare(spec)
            await bus.tasks.submit_many(range(3), "q")
            await clock.advance(1)
            assert active(consumer)
            await until(lambda: len(taken) == 2)
            taken.clear()
        await consumer.close()
        assert not active(consumer)
    assert caplog.text.count("consuming queue 'q' stopped") == 2


class Reconnecting:
    """A consumer whose engine has no connection at the moment; it keeps its credit for the next one."""

    queue = "q"
    active = False

    def __init__(self) -> None:
        self.credit = 2
        self._ended = asyncio.Event()

    def set_credit(self, credit: int) -> None:
        """Keep the credit."""
        self.credit = credit

    def __aiter__(self) -> Reconnecting:
        return self

    async def __anext__(self) -> Delivery:
        """Wait for the end."""
        await self._ended.wait()
        raise StopAsyncIteration

    async def close(self) -> None:
        """End."""
        self._ended.set()


async def test_credit_while_the_engine_reconnects() -> None:
    """Credit that is set while the engine reconnects is not lost: its consumer brings it to the new connection."""
    inner = Reconnecting()

    async def begin() -> Consumer:
        return inner

    consumer = await LastingConsumer(VirtualTime(), "q", begin).open()
    for credit in (0, 1):
        consumer.set_credit(credit)
        assert inner.credit == credit
    await consumer.close()


async def test_credit_after_the_end() -> None:
    """Credit is accepted, and does nothing, after the consumer was closed, and after its bus was."""
    async with bus_in_virtual_time() as (bus, clock):
        await bus.queues.declare("q")
        consumer, other = [
            await LastingConsumer(clock, "q", partial(bus.engine.consume, "q", sink=print)).open() for _ in range(2)
        ]
        await consumer.close()
        consumer.set_credit(2)
        await bus.close()
        other.set_credit(2)
        await other.close()


async def test_what_hinders_it_may_end() -> None:
    """Another one may have the queue when it is there again, for a time; the first one has to be let begin."""
    async with bus_in_virtual_time() as (bus, clock):
        await bus.queues.declare("q")
        consume = partial(bus.engine.consume, "q", exclusive=True, sink=print)
        consumer = await LastingConsumer(clock, "q", consume).open()
        with pytest.raises(SpecConflict):
            await LastingConsumer(clock, "q", consume).open()
        await bus.queues.delete("q")
        await bus.queues.declare("q")
        other = await consume()
        await clock.advance(5)
        assert not active(consumer)
        await other.close()
        await clock.advance(1)
        assert active(consumer)
        await bus.queues.delete("q")
        await clock.advance(1)
        await consumer.close()


async def test_a_bus_that_is_closed_meanwhile() -> None:
    """A consumer that waits for its queue ends with its bus."""
    async with bus_in_virtual_time() as (bus, clock):
        await bus.queues.declare("q")
        consumer = await LastingConsumer(clock, "q", partial(bus.engine.consume, "q", sink=print)).open()
        await bus.queues.delete("q")
        await clock.advance(1)
        await bus.close()
        await clock.advance(1)
        assert consumer._runner is not None
        await until(consumer._runner.done)
        await consumer.close()


async def test_a_queue_that_is_gone_before_it_is_consumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer declares its queue again where that is gone at once, as where a hub is restarted between the two."""
    async with bus_in_virtual_time() as (bus, _):
        declare = bus.engine.declare
        declared: list[str] = []

        async def declare_in_vain(spec: QueueSpec, **options: Any) -> None:
            await declare(spec, **options)
            if not declared:
                await bus.queues.delete(spec.name)
            declared.append(spec.name)

        monkeypatch.setattr(bus.engine, "declare", declare_in_vain)
        consumer = await LastingConsumer.declared(bus.engine, QueueSpec("q"), sink=print)
        assert declared == ["q", "q"]
        assert consumer.active
        await consumer.close()
