"""The fixture `redpoll_bus`."""

from __future__ import annotations

import pytest

from redpoll.bus import Delivery, Task
from redpoll.bus.notifications import NotificationOptions
from redpoll.bus.rpc import RpcOptions
from redpoll.errors import QueueEmpty, UsageError
from redpoll.testing.buses import BusFactory


@pytest.mark.asyncio
async def test_buses_of_a_test_meet(redpoll_bus: BusFactory) -> None:
    """Buses of one test meet, those of another one do not; what was sent is recorded with its payload."""
    async with redpoll_bus() as one, redpoll_bus() as two, BusFactory()() as stranger:
        await one.queues.declare("q")
        assert await two.queues.names() == ["q"]
        assert await stranger.queues.names() == []
        await one.engine.publish(one.payloads.pack({"a": 1}), queue="q", priority=1)
        await two.engine.publish_many([two.payloads.pack(each) for each in (2, 3)], queue="q")
        await one.broadcast.send("news", subject="s")
    assert [(each.to, each.body) for each in redpoll_bus.sent] == [
        ("q", {"a": 1}),
        ("q", 2),
        ("q", 3),
        ("broadcast.s", "news"),
    ]
    assert redpoll_bus.sent[0].options == {"priority": 1}


@pytest.mark.asyncio
async def test_a_bus_has_the_options_that_it_is_given(redpoll_bus: BusFactory) -> None:
    """Options of calls, exceptions and notifications count; what goes to an engine of notifications is recorded too."""
    notifications = NotificationOptions(url="memory://apart", topics=("n",))
    async with redpoll_bus(rpc=RpcOptions(timeout=7), exceptions=[KeyError], notifications=notifications) as bus:

        async def fail(task: Task) -> None:
            raise KeyError(task.data)

        async with bus.tasks.worker(fail):
            with pytest.raises(KeyError):
                await bus.tasks.run(1)
        assert bus.rpc.options.timeout == 7
        await bus.notifier("p").info("e", 2)
        assert await bus.engines[1].queues() == ["notifications:n.info"]
    assert [each.to for each in redpoll_bus.sent] == ["tasks", "notifications.n.info"]


@pytest.mark.asyncio
async def test_time_is_virtual_where_it_is_asked_for(redpoll_bus: BusFactory) -> None:
    """A test that asks for the time moves it; it has to ask before it makes a bus, and is skipped on another engine."""
    time = redpoll_bus.time
    async with redpoll_bus() as bus:
        await bus.queues.declare("q")
        await bus.engine.publish(bus.payloads.pack(1), queue="q", delay=3_600)
        with pytest.raises(QueueEmpty):
            await bus.engine.take("q")
        await time.advance(3_600)
        delivery: Delivery = await bus.engine.take("q")
        assert bus.payloads.unpack(delivery.envelope) == 1
    real = BusFactory()
    real()
    with pytest.raises(UsageError, match="before its time"):
        _ = real.time
    with pytest.raises(pytest.skip.Exception, match="memory://mine has no virtual time"):
        _ = BusFactory("memory://mine").time


def test_a_bus_that_was_forgotten_fails_the_test(pytester: pytest.Pytester) -> None:
    """A test that does not close its bus fails, and says which; the option names the engine."""
    pytester.makepyfile("""
        import asyncio

        def test_forgets(redpoll_bus):
            asyncio.run(redpoll_bus().__aenter__())

        def test_named(redpoll_bus):
            assert repr(redpoll_bus()) == "<Bus <MemoryEngine memory://mine connecting>>"
    """)
    result = pytester.runpytest_subprocess("--redpoll-engine", "memory://mine", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*<Bus <MemoryEngine memory://mine ready>>*"])
