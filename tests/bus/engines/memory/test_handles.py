"""Deliveries, consumers and subscriptions of the memory engine."""

from __future__ import annotations

import pytest

from redpoll.bus import Envelope, QueueSpec
from redpoll.bus.engines.memory import MemoryEngine
from redpoll.errors import PayloadTooLarge
from redpoll.testing import VirtualTime
from redpoll.testing.conformance import Recorder

BODY = Envelope("raw", b"x")


@pytest.mark.asyncio
async def test_a_late_listener_hears_what_happened() -> None:
    """Who begins to listen late is told what was said, that the work is not wanted, that the task is lost."""
    engine = MemoryEngine(clock=VirtualTime())
    async with engine:
        await engine.declare(QueueSpec("q"))
        receipt = await engine.publish(BODY, queue="q")
        delivery = await engine.take("q")
        assert repr(delivery) == f"<MemoryDelivery {receipt.id} of 'q', attempt 1>"
        await engine.tell(receipt.id, Envelope("msgpack", b"\x01"))
        await engine.cancel(receipt.id)
        engine.flush_all()
        assert delivery.extend()
    listener = Recorder()
    delivery.listen(listener)
    assert listener.heard == [1, "cancelled", "lost"]
    assert not delivery.extend()


@pytest.mark.asyncio
async def test_progress_has_the_limit_of_a_body() -> None:
    """What a worker says is no larger than a body."""
    async with MemoryEngine(max_body=10) as engine:
        await engine.declare(QueueSpec("q"))
        receipt = await engine.publish(BODY, queue="q")
        delivery = await engine.take("q")
        with pytest.raises(PayloadTooLarge):
            delivery.progress(Envelope("raw", bytes(11)))
        with pytest.raises(PayloadTooLarge):
            await engine.tell(receipt.id, Envelope("raw", bytes(11)))


@pytest.mark.asyncio
async def test_handles_can_be_closed_after_their_engine() -> None:
    """Closing a consumer or a subscription of a closed engine is nothing."""
    async with MemoryEngine() as engine:
        await engine.declare(QueueSpec("q"))
        consumer, subscription = await engine.consume("q"), await engine.subscribe(["s"])
        assert subscription.patterns == ("s",)
        assert consumer.active
    await consumer.close()
    await subscription.close()
    assert not consumer.active
