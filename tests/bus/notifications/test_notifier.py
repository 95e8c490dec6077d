"""Notifiers: which send what, and how often."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Mapping
from typing import Any

import pytest

from redpoll.bus import Bus
from redpoll.bus.awaitables import Failed
from redpoll.bus.notifications import NotificationOptions, Priority, Route, RoutingNotifier
from redpoll.errors import DialFailed, Expired, NotAuthorized, RedpollError
from tests.bus.patterns import bus_in_virtual_time, until

pytestmark = pytest.mark.asyncio


class Noted:
    """A notifier that notes what it is to send."""

    def __init__(self, error: Exception | None = None) -> None:
        self.seen: list[tuple[str, str]] = []
        self.error = error

    async def notify(
        self, priority: Priority, event: str, payload: Any, *, headers: Mapping[str, Any] | None = None
    ) -> None:
        """Note it."""
        self.seen.append((priority, event))
        if self.error is not None:
            raise self.error


async def test_rules_say_who_sends_what() -> None:
    """A routing notifier sends by all whose rules fit: events by patterns, priorities, both; without rules everything."""
    everything, compute, errors, both = Noted(), Noted(), Noted(), Noted()
    notifier = RoutingNotifier(
        everything,
        Route(compute, events=("compute.*", "network.*")),
        Route(errors, priorities=("error", "critical")),
        Route(both, events=("compute.*",), priorities=("error",)),
    )
    await notifier.info("compute.started")
    await notifier.error("compute.failed")
    await notifier.critical("disk.failed")
    await notifier.warn("network.slow")
    assert len(everything.seen) == 4
    assert [event for _, event in compute.seen] == ["compute.started", "compute.failed", "network.slow"]
    assert [event for _, event in errors.seen] == ["compute.failed", "disk.failed"]
    assert both.seen == [("error", "compute.failed")]


async def test_one_that_fails_does_not_hinder_the_others() -> None:
    """All notifiers are tried, also behind one that fails; then its error is raised."""
    first, second = Noted(ValueError("first")), Noted()
    with pytest.raises(ValueError, match="first"):
        await RoutingNotifier(first, second).audit("e")
    assert second.seen == [("audit", "e")]


def fail(bus: Bus, *errors: RedpollError) -> list[Any]:
    """Let the next publishes fail; all that were tried."""
    publish = bus.engine.publish
    left = iter(errors)
    tried: list[Any] = []

    def failing(envelope: Any, **options: Any) -> Awaitable[Any]:
        tried.append(options)
        error = next(left, None)
        return publish(envelope, **options) if error is None else Failed(error)

    bus.engine.publish = failing  # type: ignore[method-assign]
    return tried


@pytest.mark.parametrize(("retry", "tries"), [(0, 1), (2, 3), (3, 4), (9, 4), (None, 4)])
async def test_what_was_not_taken_is_sent_again(retry: int | None, tries: int) -> None:
    """Oslo 13: as often as told, by the notifier or its options; what fails in the end is raised, and counted."""
    lost = [DialFailed("host", "refused")] * 3
    async with bus_in_virtual_time(notifications=NotificationOptions(retry=retry)) as (bus, clock):
        for notifier in (
            bus.notifier("p"),
            bus.notifier("p", retry=0).prepare(retry=retry),
            bus.notifier("q", retry=retry),
        ):
            if retry is None and notifier is not bus.notifier("p"):
                continue
            tried = fail(bus, *lost)
            sending = asyncio.ensure_future(notifier.info("e"))
            await clock.advance(5)
            assert len(tried) == tries
            assert sending.done()
            if tries == 4:
                await sending
            else:
                with pytest.raises(DialFailed):
                    await sending
                assert notifier.stats.failed


async def test_sending_ends_with_its_time() -> None:
    """One that is never taken fails when its time is over; what is not allowed fails at once."""
    async with bus_in_virtual_time(notifications=NotificationOptions(timeout=3)) as (bus, clock):
        fail(bus, *[DialFailed("host", "refused")] * 1_000)
        sending = asyncio.ensure_future(bus.notifier("p").info("e"))
        await clock.advance(10)
        with pytest.raises(Expired):
            await sending
        fail(bus, NotAuthorized("no"))
        with pytest.raises((NotAuthorized, DialFailed)):
            await bus.notifier("p", retry=0).info("e")


async def test_a_queue_that_may_not_be_declared_is_left_to_listeners() -> None:
    """A publisher that may not declare the queue publishes all the same."""
    async with bus_in_virtual_time() as (bus, _):

        async def refuse(*_: Any, **__: Any) -> None:
            raise NotAuthorized("no")

        bus.engine.declare = refuse  # type: ignore[method-assign]
        await bus.notifier("p").info("e")
        assert bus.notifications.stats.sent == 1


async def test_closing_bounds_what_was_posted() -> None:
    """A closing bus sends what was posted, as far as there is room; after its drain the rest is dropped, and counted."""
    options = NotificationOptions(at_limit="wait", max_bytes=1_000, timeout=None)
    for drain in (0.0, 0.01):
        async with bus_in_virtual_time(notifications=options) as (bus, _):
            notifier = bus.notifier("p").bind()
            for _ in range(6):
                notifier.post("info", "e", "x" * 300)
            await bus.close(drain)
            stats = notifier.stats
            assert (stats.sent, stats.dropped) == (1, 5)


async def test_what_is_posted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Posted notifications count from when they are posted, though the loop stands still; there is room again later."""
    monkeypatch.setattr("redpoll.bus.notifications.notifier._POSTED", 10)
    async with bus_in_virtual_time() as (bus, _):
        notifier = bus.notifier("p").bind()

        def post() -> None:
            for _ in range(30):
                notifier.post("info", "e")

        for times in (1, 2):
            thread = threading.Thread(target=post)
            thread.start()
            thread.join()
            assert notifier.stats.dropped == 20 * times
            await until(lambda: not notifier._outlet._posted)
            assert notifier.stats.sent == 10 * times


async def test_a_signal_handler_posts_too() -> None:
    """A notification that a signal handler logs, whose thread was about to post one, is sent."""
    async with bus_in_virtual_time() as (bus, _):
        notifier = bus.notifier("app").bind()
        outlet = notifier._outlet

        def interrupted() -> None:
            with outlet._lock:
                notifier.post("info", "interrupted")

        thread = threading.Thread(target=interrupted, daemon=True)
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
        await until(lambda: outlet.stats.sent == 1)
