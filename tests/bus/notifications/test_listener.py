"""Listeners: what comes again, what comes at once, and what is left out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redpoll.bus import Envelope, QueueSpec
from redpoll.bus.notifications import Notification, NotificationFilter, NotificationResult
from redpoll.errors import ConfigError, NotSent
from tests.bus.patterns import bus_in_virtual_time, until

pytestmark = pytest.mark.asyncio

QUEUE = "notifications:notifications.info"


class Once:
    """Gives each notification back once, or fails."""

    def __init__(self, failing: bool = False) -> None:
        self.seen: list[Any] = []
        self.failing = failing

    async def info(self, notification: Notification) -> NotificationResult:
        """Take one the second time."""
        self.seen.append(notification.payload)
        if self.seen.count(notification.payload) == 1:
            if self.failing:
                raise ValueError("not yet")
            return NotificationResult.REQUEUE
        return NotificationResult.HANDLED


@pytest.mark.parametrize("failing", [False, True])
async def test_what_is_given_back_comes_again(failing: bool) -> None:
    """Oslo 13: a notification that an endpoint gives back, or fails with, comes again as a whole, after a while."""
    before: list[Any] = []
    endpoint = Once(failing)

    async def first(notification: Notification) -> None:
        before.append(notification.payload)

    async with bus_in_virtual_time() as (bus, clock):
        async with bus.notifications.listen(first, endpoint, requeue=True) as listener:
            await bus.notifier("p").info("e", 1)
            await until(lambda: endpoint.seen)
            await clock.advance(0.5)
            assert endpoint.seen == [1]
            await clock.advance(1)
            assert (endpoint.seen, before) == ([1, 1], [1, 1])
            assert (listener.stats.handled, listener.stats.requeued, listener.stats.failed) == (
                1,
                int(not failing),
                int(failing),
            )


@pytest.mark.parametrize("failing", [False, True])
async def test_otherwise_it_is_done(failing: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Without requeue what an endpoint gives back, or fails with, is done; the failure is logged."""
    endpoint = Once(failing)
    async with bus_in_virtual_time() as (bus, clock):
        async with bus.notifications.listen(endpoint):
            await bus.notifier("p").info("e", 1)
            await clock.advance(5)
        assert (await bus.queues.inspect(QUEUE)).ready == 0
    assert endpoint.seen == [1]
    assert bool(caplog.records) is failing


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError])
async def test_what_always_fails_becomes_a_dead_letter(kind: type[BaseException]) -> None:
    """A notification with which listeners fail again and again is kept apart, and stops nobody."""

    async def fail(_: Notification) -> None:
        raise kind("never")

    async with bus_in_virtual_time() as (bus, clock), bus.notifications.listen(fail, requeue=True):
        await bus.notifier("p").info("e", 1)
        await clock.advance(30)
        info = await bus.queues.inspect(QUEUE)
        assert (info.ready, info.delayed, info.dead) == (0, 0, 1)


async def test_batches_are_full_or_late() -> None:
    """O-19: 205 notifications in batches of 100 come as 100 and 100 at once, and as 5 when the time is over."""
    batches: list[int] = []

    async def take(batch: list[Notification]) -> None:
        batches.append(len(batch))

    async with bus_in_virtual_time() as (bus, clock):
        async with bus.notifications.listen(take, batch=100, batch_timeout=2):
            notifier = bus.notifier("p")
            for number in range(205):
                await notifier.info("e", number)
            await clock.advance(1.9)
            assert batches == [100, 100]
            await clock.advance(0.2)
            assert batches == [100, 100, 5]
            await notifier.info("e", 1)
            await notifier.error("e", 1)
            await clock.advance(0)
        # Leaving hands over what waits.
        assert sorted(batches) == [1, 1, 5, 100, 100]


async def test_a_batch_is_given_back_as_one() -> None:
    """Oslo 13: giving a batch back, or failing, gives back all of it, those too that the filter left out."""
    batches: list[list[Any]] = []

    class Endpoint:
        filter = NotificationFilter(event="wanted")

        async def info(self, batch: list[Notification]) -> NotificationResult | None:
            """Give the first batch back, fail with the second."""
            batches.append([each.payload for each in batch])
            if len(batches) == 2:
                raise ValueError
            return NotificationResult.REQUEUE if len(batches) == 1 else None

    async with bus_in_virtual_time() as (bus, clock):
        async with bus.notifications.listen(Endpoint(), batch=3, requeue=True) as listener:
            for number, event in enumerate(("wanted", "other", "wanted.too")):
                await bus.notifier("p").info(event, number)
            await clock.advance(10)
        assert [sorted(batch) for batch in batches] == [[0, 2], [0, 2], [0, 2]]
        assert (listener.stats.requeued, listener.stats.failed, listener.stats.handled) == (3, 3, 3)


async def test_plain_functions_run_in_threads() -> None:
    """A plain method is called in a thread, and may return a future's result as any other."""
    threads: list[str] = []

    class Endpoint:
        def info(self, _: Notification) -> None:
            """Note the thread."""
            import threading

            threads.append(threading.current_thread().name)

    async with bus_in_virtual_time() as (bus, _):
        async with bus.notifications.listen(Endpoint()) as listener:
            await bus.notifier("p").info("e")
            while not listener.stats.handled:  # noqa: ASYNC110  # a thread has no event for it
                await asyncio.sleep(0.001)
    assert threads[0].startswith("redpoll-bus")


async def test_awaitables_of_plain_functions_are_awaited() -> None:
    """A decorated coroutine function looks plain: what it returns is awaited, and only then the notification is handled."""
    seen: list[Any] = []

    class Later:
        async def __call__(self, notification: Notification) -> None:
            seen.append(notification.event)

    def decorated(function: Any) -> Any:
        def call(*args: Any) -> Any:
            return function(*args)

        return call

    class Endpoint:
        info = Later()

        @decorated
        async def warn(self, notification: Notification) -> None:
            """Take it."""
            seen.append(notification.event)

        @decorated
        async def error(self, _: Notification) -> None:
            """Fail."""
            raise ValueError

    async with bus_in_virtual_time() as (bus, _):
        async with bus.notifications.listen(Endpoint()) as listener:
            for priority in ("info", "warn", "error"):
                await getattr(bus.notifier("p"), priority)(priority)
            while listener.stats.handled + listener.stats.failed < 3:  # noqa: ASYNC110  # threads have no event for it
                await asyncio.sleep(0.001)
        assert (sorted(seen), listener.stats.handled, listener.stats.failed) == (["info", "warn"], 2, 1)


async def test_what_did_not_begin_comes_again() -> None:
    """A notification that was handed out when its listener is closed, and not begun, goes back."""
    seen: list[Any] = []

    async def take(notification: Notification) -> None:
        seen.append(notification.attempt)

    async with bus_in_virtual_time() as (bus, _):
        listener = bus.notifications.listen(take, requeue=True)
        await listener.start()
        begin = listener._begin
        closing: list[asyncio.Future[None]] = []

        def begin_and_close(work: Any, item: Any) -> Any:
            closing.append(asyncio.ensure_future(listener.close()))
            return begin(work, item)

        listener._begin = begin_and_close  # type: ignore[method-assign]
        await bus.notifier("p").info("e", 1)
        await until(lambda: closing)
        await closing[0]
        await listener.wait()
        async with bus.notifications.listen(take):
            await until(lambda: seen == [1])


async def test_what_cannot_be_read_is_kept_apart() -> None:
    """Something that is no notification is a dead letter, which names the reason; the next one is handled."""
    seen: list[Any] = []

    async def take(notification: Notification) -> None:
        seen.append(notification.payload)

    async with bus_in_virtual_time() as (bus, _):
        async with bus.notifications.listen(take) as listener:
            await bus.engine.publish(Envelope("msgpack", b"\xc0"), subject="notifications.notifications.info")
            await bus.notifier("p").info("e", 1)
            await until(lambda: seen == [1])
            assert listener.stats.failed == 1
        (dead,) = await bus.queues.browse(QUEUE, "dead")
        assert "not a notification" in dead.history[-1]


async def test_what_was_not_done_comes_again() -> None:
    """A notification whose handler is cancelled because the bus closes goes back, unblamed, to the next listener."""
    seen: list[int] = []

    async def never(_: Notification) -> None:
        seen.append(0)
        await asyncio.Event().wait()

    async def take(notification: Notification) -> None:
        seen.append(notification.attempt)

    async with bus_in_virtual_time() as (bus, _):
        listener = bus.notifications.listen(never)
        await listener.start()
        await bus.notifier("p").info("e", 1)
        await until(lambda: seen)
        await listener.close()
        async with bus.notifications.listen(take):
            await until(lambda: seen == [0, 1])


async def test_what_is_no_endpoint_is_refused() -> None:
    """An endpoint needs a method for a priority, must be an object, and its filter one."""

    class Wrong:
        filter = "text"

        async def info(self, _: Notification) -> None:
            """Take."""

    async with bus_in_virtual_time() as (bus, _):
        for endpoint in (Wrong(), Wrong, object()):
            with pytest.raises(ConfigError):
                bus.notifications.listen(endpoint)
        await bus.queues.declare(QueueSpec("x"))
        assert "notifications" in repr(bus.notifications.listen(print, pool="p"))


async def test_unreadable_and_unsent_notifications_are_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    """A hundred notifications that cannot be read, or are not sent, are two lines each, with their number."""
    async with bus_in_virtual_time() as (bus, _):
        async with bus.notifications.listen(Once()) as listener:
            for _ in range(100):
                await bus.engine.publish(Envelope("raw", b"none"), queue=QUEUE)
            await until(lambda: listener.stats.failed == 100)
        outlet = bus.notifier("p")._outlet

        async def fail() -> None:
            raise NotSent(None, "why")

        for _ in range(100):
            outlet.post(asyncio.get_running_loop(), fail())
        await outlet.close(None)
    for first, rest in (
        ("a notification cannot be read", "99 notifications cannot be read"),
        ("a notification was not sent", "99 notifications were not sent"),
    ):
        assert sum(each.startswith(first) for each in caplog.messages) == 1
        assert sum(each.startswith(rest) for each in caplog.messages) == 1
