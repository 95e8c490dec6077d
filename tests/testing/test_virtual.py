"""Virtual time goes by when it is told to."""

from __future__ import annotations

import asyncio

import pytest

from redpoll import blocking
from redpoll.bus import connect
from redpoll.errors import ConfigError
from redpoll.testing import VirtualTime


@pytest.mark.asyncio
async def test_what_is_due_happens_in_order() -> None:
    """Timers are called at their times, in order, what they set off before the next one, and cancelled ones not."""
    clock = VirtualTime()
    seen: list[tuple[str, float]] = []
    clock.call_at(2.0, lambda: seen.append(("b", clock.time())))
    clock.call_at(1.0, lambda: clock.call_at(1.5, lambda: seen.append(("a", clock.time()))))
    clock.call_at(1.0, lambda: seen.append(("never", 0.0))).cancel()
    clock.call_at(9.0, lambda: seen.append(("late", 0.0)))
    await clock.advance(2.5)
    assert seen == [("a", 1.5), ("b", 2.0)]
    assert repr(clock) == "<VirtualTime 2.5 s>"
    for seconds in (-1.0, float("nan")):
        with pytest.raises(ConfigError):
            await clock.advance(seconds)


@pytest.mark.asyncio
async def test_it_never_goes_back() -> None:
    """Two tasks that advance it at the same time do not set it back: it is what the further one said."""
    clock = VirtualTime()
    clock.call_at(1.0, lambda: None)
    await asyncio.gather(clock.advance(1.0), clock.advance(0.5), clock.advance(3.0), clock.advance(2.0))
    assert clock.time() == 3.0


@pytest.mark.asyncio
async def test_a_bus_lives_in_it() -> None:
    """The times of a memory engine are virtual: a day goes by at once."""
    clock = VirtualTime()
    async with connect("memory://", clock=clock) as bus:
        await bus.queues.declare("night")
        await bus.engine.publish(bus.payloads.pack("late"), queue="night", delay=86_400)
        taking = asyncio.ensure_future(bus.engine.take("night", None))
        await clock.advance(86_399)
        assert not taking.done()
        await clock.advance(1)
        assert bus.payloads.unpack((await taking).envelope) == "late"


@pytest.mark.asyncio
async def test_it_spans_loops_in_other_threads() -> None:
    """What a bus for threads waits for is due in this time as well, on its own loop; one that ended is left out."""
    clock = VirtualTime()
    bus = blocking.connect("memory://", clock=clock).__enter__()
    bus.queues.declare("night")
    task = bus.tasks.submit("late", "night", delay=86_400)
    taking = bus.tasks.next.future("night")
    await clock.advance(86_399)
    assert (taking.done(), task.state()) == (False, "delayed")
    await clock.advance(1)
    assert (await asyncio.wrap_future(taking)).data == "late"
    bus.tasks.submit("later", "night", delay=1)
    bus.close()
    await clock.advance(2)
