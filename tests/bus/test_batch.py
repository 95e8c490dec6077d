"""Many tasks published in order, and what becomes of those behind one that failed."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import redpoll
from redpoll.bus import QueueSpec
from redpoll.errors import BatchError, Expired
from tests.bus.engines.hub.support import running
from tests.node.support import turns


async def fill(bus: redpoll.Bus, **options: Any) -> asyncio.Task[Any]:
    """Publish to a queue that has room for one task."""
    await bus.queues.declare(QueueSpec("q", max_length=1))
    payloads = [bus.payloads.pack(number) for number in range(4)]
    return asyncio.ensure_future(_many(bus, payloads, options))


async def _many(bus: redpoll.Bus, payloads: list[Any], options: dict[str, Any]) -> Any:
    return await bus.engine.publish_many(payloads, queue="q", **options)


@pytest.mark.asyncio
@pytest.mark.parametrize("engine", ["memory", "hub"])
async def test_those_behind_a_failure(engine: str) -> None:
    """They have an owner: none waits for room any longer, and no exception of theirs is lost on the way."""
    stray: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: stray.append(context))
    with running() as hub:
        async with redpoll.connect("memory://" if engine == "memory" else hub.url) as bus:
            publishing = await fill(bus, timeout=0.05)
            with pytest.raises(BatchError) as caught:
                await publishing
            assert (caught.value.index, type(caught.value.error)) == (1, Expired)
            del caught, publishing
            publishing = await fill(bus)
            async with asyncio.timeout(10):
                while not (await bus.queues.inspect("q")).waiting:  # noqa: ASYNC110  # the hub tells nobody
                    await asyncio.sleep(0.001)
            publishing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await publishing
            del publishing
            async with asyncio.timeout(10):
                while (await bus.queues.inspect("q")).waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            assert (await bus.queues.inspect("q")).submitted == 1
            gc.collect()
            await turns()
    assert not stray


@pytest.mark.asyncio
async def test_a_batch_that_is_cancelled_twice() -> None:
    """Its publishes are withdrawn also where waiting for that is cancelled."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            publishing = await fill(bus)
            async with asyncio.timeout(10):
                while (await bus.queues.inspect("q")).waiting < 3:  # noqa: ASYNC110  # the hub tells nobody
                    await asyncio.sleep(0.001)
            publishing.cancel()
            await asyncio.sleep(0)
            publishing.cancel()
            await asyncio.wait([publishing])
            async with asyncio.timeout(10):
                while (await bus.queues.inspect("q")).waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)


@pytest.mark.asyncio
async def test_a_batch_that_is_cancelled_at_once() -> None:
    """Its publishes are withdrawn too where it is cancelled in the turn in which it began."""
    async with redpoll.connect("memory://") as bus:
        await bus.queues.declare(QueueSpec("q", max_length=1))
        payloads = [bus.payloads.pack(number) for number in range(4)]
        publishing = asyncio.ensure_future(bus.engine.publish_many(payloads, queue="q"))
        assert (await bus.queues.inspect("q")).waiting
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        async with asyncio.timeout(10):
            while (await bus.queues.inspect("q")).waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert (await bus.queues.inspect("q")).submitted == 1


@pytest.mark.asyncio
async def test_a_publish_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine raises in the middle of it is the failure of that one: those before it are confirmed."""
    async with redpoll.connect("memory://") as bus:
        await bus.queues.declare("q")
        publish = bus.engine.publish
        count = 0

        def fail(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == 3:
                raise redpoll.UsageError("no")
            return publish(*arguments, **options)

        monkeypatch.setattr(bus.engine, "publish", fail)
        with pytest.raises(BatchError) as caught:
            await bus.engine.publish_many([bus.payloads.pack(1)] * 5, queue="q")
        assert (caught.value.index, caught.value.completed) == (2, 2)
        assert (await bus.queues.inspect("q")).submitted == 2
