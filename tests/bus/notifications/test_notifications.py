"""Notifications from end to end: what oslo.messaging asks for, by its numbers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import redpoll
from redpoll.bus import use_headers
from redpoll.bus.notifications import PRIORITIES, Notification, NotificationOptions
from redpoll.errors import ConfigError, NoRoute, SpecConflict
from redpoll.testing import VirtualTime
from tests.bus.patterns import bus_in_virtual_time, until

pytestmark = pytest.mark.asyncio


class Seen:
    """An endpoint that remembers all that comes."""

    def __init__(self) -> None:
        self.all: list[Notification] = []

    def __getattr__(self, name: str) -> Any:
        if name not in PRIORITIES:
            raise AttributeError(name)
        return self.take

    async def take(self, notification: Notification) -> None:
        """Take one."""
        self.all.append(notification)

    @property
    def payloads(self) -> list[Any]:
        """What came."""
        return [each.payload for each in self.all]


async def test_a_notification_says_what_where_and_how() -> None:
    """O-14: publisher, event, priority and payload arrive, with an id and a time; listeners may come later."""
    seen = Seen()
    async with bus_in_virtual_time() as (bus, _):
        notifier = bus.notifier("compute.host-1")
        await notifier.info("instance.started", {"id": 7})
        async with bus.notifications.listen(seen):
            await until(lambda: seen.all)
    (found,) = seen.all
    assert (found.publisher, found.event, found.priority) == ("compute.host-1", "instance.started", "info")
    assert (found.payload, found.attempt, len(found.id)) == ({"id": 7}, 1, 32)
    assert abs(found.timestamp - __import__("time").time()) < 600
    assert repr(notifier) == "<Notifier 'compute.host-1' to notifications>"


async def test_topics_do_not_mix() -> None:
    """O-15, O-17: two topics with two publishers arrive at a listener to both; one to another topic sees nothing of them."""
    both, one = Seen(), Seen()
    async with bus_in_virtual_time() as (bus, _):
        async with bus.notifications.listen(both, topics=["a", "b"]), bus.notifications.listen(one, topics=["c"]):
            await bus.notifier("p1", topics=["a"]).info("e", 1)
            await bus.notifier("p2", topics=["b"]).prepare(publisher="p3").info("e", 2)
            await bus.notifier("p4", topics=["c", "b"]).info("e", 3)
            await until(lambda: len(both.all) == 3 and one.all)
    assert sorted((each.publisher, each.payload) for each in both.all) == [("p1", 1), ("p3", 2), ("p4", 3)]
    assert one.payloads == [3]


async def test_listeners_share_the_work() -> None:
    """O-16: what is sent is shared among the listeners of a group, each once."""
    first, second = Seen(), Seen()
    async with bus_in_virtual_time() as (bus, _):
        async with bus.notifications.listen(first), bus.notifications.listen(second):
            for number in range(8):
                await bus.notifier("p").info("e", number)
            await until(lambda: len(first.all) + len(second.all) == 8)
    assert sorted(first.payloads + second.payloads) == list(range(8))
    assert first.all
    assert second.all


async def test_each_priority_arrives_as_itself() -> None:
    """O-18: every priority arrives under its own name, at the endpoints that have a method for it."""
    seen, some = Seen(), []

    class Some:
        async def error(self, notification: Notification) -> None:
            """Take errors alone."""
            some.append(notification.priority)

    async with bus_in_virtual_time() as (bus, _):
        notifier = bus.notifier("p")
        async with bus.notifications.listen(seen, Some()):
            for priority in PRIORITIES:
                await getattr(notifier, priority)("e", priority)
            await until(lambda: len(seen.all) == len(PRIORITIES) and some)
        with pytest.raises(ConfigError, match="priority"):
            await notifier.notify("loud", "e")  # type: ignore[arg-type]
        async with bus.notifications.listen(Some(), pool="errors"):
            assert "notifications:notifications.info.@errors" not in await bus.queues.names()
    assert {each.priority: each.payload for each in seen.all} == {each: each for each in PRIORITIES}
    assert some == ["error"]
    assert (notifier.stats.sent, notifier.stats.by_priority["warn"]) == (len(PRIORITIES), 1)


async def test_payloads_are_compressed() -> None:
    """O-20: a compressed notification arrives as any other, whatever the listener's options."""
    seen = Seen()
    clock = VirtualTime()
    options = NotificationOptions(compress=True)
    async with (
        redpoll.connect("memory://gz", clock=clock, notifications=options) as bus,
        redpoll.connect("memory://gz", clock=clock) as other,
        other.notifications.listen(seen),
    ):
        await bus.notifier("p").info("e", "x" * 100_000)
        assert (await bus.queues.inspect("notifications:notifications.info")).bytes < 2_000
        await until(lambda: seen.all)
    assert seen.payloads == ["x" * 100_000]


async def test_pools_have_a_copy_each() -> None:
    """Oslo 13: each pool has all, its listeners share; stopping and starting one loses nothing."""
    first, second, third, rest = Seen(), Seen(), Seen(), Seen()
    async with bus_in_virtual_time() as (bus, _):
        one = bus.notifications.listen(first, pool="one")
        two = bus.notifications.listen(second, pool="two")
        also = bus.notifications.listen(third, pool="two")
        for listener in (one, two, also):
            await listener.start()
        notifier = bus.notifier("p")
        for number in range(100):
            if number == 30:
                await one.stop()
                await two.stop()
            if number == 60:
                await one.start()
                await two.start()
            await notifier.info("e", number)
            await asyncio.sleep(0)
        await until(lambda: len(first.all) == 100 and len(second.all) + len(third.all) == 100)
        assert sorted(first.payloads) == sorted(second.payloads + third.payloads) == list(range(100))
        assert min(len(second.all), len(third.all)) >= 25
        async with bus.notifications.listen(rest):
            await until(lambda: len(rest.all) == 100)


async def test_only_named_headers_travel_along() -> None:
    """Headers of the sender are kept back but for those that the options name."""
    seen = Seen()
    options = NotificationOptions(headers=("trace", "none"))
    async with bus_in_virtual_time(notifications=options) as (bus, _), bus.notifications.listen(seen):
        with use_headers(trace="t", token="secret"):  # it is none
            await bus.notifier("p").info("e")
            await bus.notifier("p").notify("info", "e", headers={"trace": "u", "more": 1})
        await until(lambda: len(seen.all) == 2)
    assert sorted(dict(each.headers)["trace"] for each in seen.all) == ["t", "u"]
    assert all(each.headers.keys() == {"trace"} for each in seen.all)


async def test_another_engine_can_have_them() -> None:
    """Notifications may go through another engine than all else; the bus opens and closes both, and has queues of both."""
    seen = Seen()
    clock = VirtualTime()
    for apart in ("memory://apart", NotificationOptions(url="memory://apart")):
        seen.all.clear()
        async with (
            redpoll.connect("memory://main", clock=clock, notifications=apart) as bus,
            redpoll.connect("memory://apart", clock=clock) as other,
        ):
            async with other.notifications.listen(seen):
                await bus.notifier("p").info("e", 1)
                await until(lambda: seen.all)
            assert await bus.queues.names() == await other.queues.names()
            assert await bus.engine.queues() == []
            await bus.queues.declare("night")
            await other.queues.declare("elsewhere")
            assert "night" in await bus.queues.names()
            assert "elsewhere" not in await bus.queues.names()
            name = "notifications:notifications.info"
            await bus.notifier("p").info("e", 2)
            found = await bus.queues.inspect(name)
            assert (found.ready, found.submitted) == (1, 2)
            await bus.queues.pause(name)
            assert (await other.queues.inspect(name)).paused
            await bus.queues.resume(name)
            assert [len(await bus.queues.browse(name)), await bus.queues.purge(name)] == [1, 1]
            await bus.queues.delete(name)
            with pytest.raises(NoRoute):
                await other.queues.inspect(name)
            with pytest.raises(NoRoute):
                await bus.queues.inspect("elsewhere")
            assert await bus.healthy()
        assert not await bus.healthy()
    with pytest.raises(ConfigError, match="no such engine"):
        redpoll.connect("memory://", notifications="gopher://x")


async def test_options_are_checked_and_have_to_agree() -> None:
    """A value that cannot be is refused; who wants another queue for the same topic is told which field."""
    wrong: list[dict[str, Any]] = [
        {"durable": 1},
        {"max_bytes": 0},
        {"at_limit": "x"},
        {"ttl": 0},
        {"timeout": -1},
        {"retry": -1},
        {"compress": None},
        {"headers": "x"},
        {"topics": ()},
        {"topics": ("a:b",)},
        {"url": 3},
    ]
    for options in wrong:
        with pytest.raises(ConfigError, match=next(iter(options))):
            NotificationOptions(**options)
    clock = VirtualTime()
    async with (
        redpoll.connect("memory://agree", clock=clock) as one,
        redpoll.connect("memory://agree", clock=clock, notifications=NotificationOptions(durable=False)) as two,
    ):
        await one.notifier("p").info("e")
        with pytest.raises(SpecConflict, match="durable"):
            await two.notifier("p").info("e")
        wrong = [{"concurrency": 0}, {"batch": 0}, {"batch_timeout": 0}, {"pool": "a:b"}, {"topics": [""]}]
        wrong += [{"topics": "notifications"}, {"topics": []}, {"topics": 3}]
        for options in wrong:
            with pytest.raises(ConfigError):
                one.notifications.listen(print, **options)
        for options in ({"retry": -1}, {"topics": ["*"]}, {"topics": "notifications"}, {"topics": ()}):
            with pytest.raises(ConfigError):
                one.notifier("p", **options)
        with pytest.raises(ConfigError, match="retry"):
            one.notifier("p").prepare(retry=-1)


async def test_senders_do_not_wait_for_listeners() -> None:
    """With nobody who listens notifications are taken all the same; at the limit of the queue the oldest ones go."""
    seen = Seen()
    options = NotificationOptions(max_bytes=10_000)
    async with bus_in_virtual_time(notifications=options) as (bus, _):
        for number in range(100):
            await bus.notifier("p").info("e", number)
        info = await bus.queues.inspect("notifications:notifications.info")
        assert info.bytes <= 10_000
        async with bus.notifications.listen(seen):
            await until(lambda: len(seen.all) == info.ready)
    assert seen.payloads == list(range(100 - info.ready, 100))
