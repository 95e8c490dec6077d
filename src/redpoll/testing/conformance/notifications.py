"""Notifications on every engine: oslo.messaging's behaviours by their ids, and ours."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

from redpoll.bus import use_headers
from redpoll.bus.notifications import (
    PRIORITIES,
    Notification,
    NotificationFilter,
    NotificationHandler,
    NotificationOptions,
    NotificationResult,
    Priority,
    Route,
    RoutingNotifier,
)
from redpoll.bus.threads import BlockingRoutingNotifier
from redpoll.errors import ConfigError, SpecConflict
from redpoll.testing.conformance.faces import Awaited, Signal
from redpoll.testing.conformance.frame import Place, attempt, behaviour, fails

__all__: list[str] = []


class _Seen:
    """An endpoint that remembers all that comes.

    Args:
        *priorities: Which it takes; none are all of them.
    """

    def __init__(self, *priorities: Priority) -> None:
        self.all: list[Notification] = []
        for each in priorities or PRIORITIES:
            setattr(self, each, self._take)

    async def _take(self, notification: Notification) -> None:
        self.all.append(notification)

    @property
    def payloads(self) -> list[Any]:
        return [each.payload for each in self.all]


def _topic(place: Place, text: str = "topic", *pools: str) -> str:
    """A topic whose queues are deleted when the behaviour is over."""
    topic = place.name(text)
    for priority in PRIORITIES:
        for pool in ("", *(f".@{each}" for each in pools)):
            place.clean(f"notifications:{topic}.{priority}{pool}")
    return topic


def _valid(parts: list[list[Any]], whole: list[Any]) -> bool:
    """Return True if each item is in one of the parts, in the order of the whole."""
    return sorted(item for part in parts for item in part) == whole and all(part == sorted(part) for part in parts)


@behaviour("O-14")
async def one(place: Place) -> None:
    """A notification arrives with its priority, event, payload and publisher, an id and a time."""
    sender, receiver = await place.open(), await place.open()
    topic = _topic(place)
    seen = _Seen()
    async with receiver.notifications.listen(seen, topics=[topic]):
        await sender.notifier("compute.host-1", topics=[topic]).info("instance.started", {"id": 7})
        await place.until(lambda: seen.all)
    (found,) = seen.all
    assert (found.publisher, found.event, found.priority) == ("compute.host-1", "instance.started", "info")
    assert (found.payload, found.attempt, bool(found.id)) == ({"id": 7}, 1, True)
    assert found.timestamp > 0


@behaviour("O-15")
async def two_topics(place: Place) -> None:
    """A listener to two topics receives the notifications of two publishers."""
    sender, receiver = await place.open(), await place.open()
    topics = [_topic(place, "a"), _topic(place, "b")]
    seen = _Seen()
    async with receiver.notifications.listen(seen, topics=topics):
        for number, topic in enumerate(topics):
            await sender.notifier(f"p{number}", topics=[topic]).info("e", number)
        await place.until(lambda: len(seen.all) == 2)
    assert sorted((each.publisher, each.payload) for each in seen.all) == [("p0", 0), ("p1", 1)]


@behaviour("O-16")
async def shared(place: Place) -> None:
    """Eight notifications over two listeners: each is handled once, in order, and both have some."""
    sender, one, two = [await place.open() for _ in range(3)]
    topic = _topic(place)
    first, second = _Seen(), _Seen()
    async with one.notifications.listen(first, topics=[topic]), two.notifications.listen(second, topics=[topic]):
        for number in range(8):
            await sender.notifier("p", topics=[topic]).info("e", number)
        await place.until(lambda: len(first.all) + len(second.all) == 8)
        await place.calm()
    assert _valid([first.payloads, second.payloads], list(range(8)))
    assert first.all
    assert second.all


@behaviour("O-17")
async def independent_topics(place: Place) -> None:
    """Topics do not mix, though one publisher sends to both."""
    sender, receiver = await place.open(), await place.open()
    a, b = _topic(place, "a"), _topic(place, "b")
    first, second = _Seen(), _Seen()
    async with receiver.notifications.listen(first, topics=[a]), receiver.notifications.listen(second, topics=[b]):
        for number in range(4):
            await sender.notifier("p", topics=[(a, b)[number % 2]]).info("e", number)
        await sender.notifier("p", topics=[a, b]).info("e", 9)
        await place.until(lambda: len(first.all) == len(second.all) == 3)
        await place.calm()
    assert (first.payloads, second.payloads) == ([0, 2, 9], [1, 3, 9])


@behaviour("O-18")
async def priorities(place: Place) -> None:
    """Each priority arrives under its own name; those that no endpoint has are not taken."""
    sender, receiver = await place.open(), await place.open()
    topic = _topic(place)
    seen, errors = _Seen(), _Seen("error")
    notifier = sender.notifier("p", topics=[topic])
    async with receiver.notifications.listen(seen, errors, topics=[topic]):
        for priority in PRIORITIES:
            await getattr(notifier, priority)("e", priority)
        await place.until(lambda: len(seen.all) == len(PRIORITIES) and errors.all)
    assert {each.priority: each.payload for each in seen.all} == {each: each for each in PRIORITIES}
    assert errors.payloads == ["error"]
    await fails(notifier.notify("loud", "e"), ConfigError)  # type: ignore[arg-type]


@behaviour("O-19")
async def batches(place: Place) -> None:
    """205 notifications in batches of 100 come as 100 and 100 when these are full, and as 5 when the time is over."""
    sender, receiver = await place.open(), await place.open()
    topic = _topic(place)
    sizes: list[int] = []

    async def take(batch: list[Notification]) -> None:
        sizes.append(len(batch))

    async with receiver.notifications.listen(take, topics=[topic], batch=100, batch_timeout=2):
        notifier = sender.notifier("p", topics=[topic])
        # At the same time: one after another may take longer than a batch waits.
        await asyncio.gather(*(notifier.info("e", number) for number in range(205)))
        await place.until(lambda: len(sizes) == 2)
        await place.wait(2)
        await place.until(lambda: len(sizes) == 3)
    assert sizes == [100, 100, 5]


@behaviour("O-20")
async def compressed(place: Place) -> None:
    """A payload that is compressed arrives as any other, whatever the listener's options."""
    sender = await place.open(notifications=NotificationOptions(compress=True))
    receiver = await place.open()
    topic = _topic(place)
    seen = _Seen()
    payload = {"text": "x" * 100_000, "id": 7}
    async with receiver.notifications.listen(seen, topics=[topic]):
        await sender.notifier("p", topics=[topic]).info("e", payload)
        await place.until(lambda: seen.all)
    assert seen.payloads == [payload]


@behaviour("O-21")
async def log_records(place: Place) -> None:
    """A log record of each level arrives as one notification of its priority, with its fields."""
    sender, receiver = await place.open(), await place.open()
    topic = _topic(place)
    seen = _Seen()
    log = logging.getLogger(place.prefix)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    handler = NotificationHandler(sender.notifier("p", topics=[topic]))
    log.addHandler(handler)
    try:
        async with receiver.notifications.listen(seen, topics=[topic]):
            for level in ("debug", "info", "warning", "error", "critical"):
                getattr(log, level)("it is %s", level)
            await place.until(lambda: len(seen.all) == 5)
    finally:
        log.removeHandler(handler)
    assert {each.priority: each.payload["message"] for each in seen.all} == {
        "debug": "it is debug",
        "info": "it is info",
        "warn": "it is warning",
        "error": "it is error",
        "critical": "it is critical",
    }
    assert {each.event for each in seen.all} == {"logrecord"}
    fields = {
        "name",
        "levelno",
        "levelname",
        "pathname",
        "lineno",
        "module",
        "funcName",
        "created",
        "process",
        "thread",
    }
    assert all(each.payload.keys() == {*fields, "message", "exception"} for each in seen.all)


@behaviour("N-01")
async def sent_before(place: Place) -> None:
    """A notification that is sent before the first listener is there waits for it."""
    sender, receiver = await place.open(), await place.open()
    topic = _topic(place)
    seen = _Seen()
    for number in range(3):
        await sender.notifier("p", topics=[topic]).info("e", number)
    async with receiver.notifications.listen(seen, topics=[topic]):
        await place.until(lambda: seen.payloads == [0, 1, 2])


@behaviour("N-02")
async def pools(place: Place) -> None:
    """Each pool has all, and its listeners share it; one that is stopped and started again has lost nothing."""
    sender, receiver = await place.open(), await place.open()
    topic = _topic(place, "topic", "one", "two")
    first, second, third, rest = _Seen(), _Seen(), _Seen(), _Seen()

    def listen(seen: _Seen, pool: str | None = None) -> Any:
        return receiver.notifications.listen(seen, topics=[topic], pool=pool)

    one, two, also = listen(first, "one"), listen(second, "two"), listen(third, "two")
    for listener in (one, two, also):
        await listener.start()
    for number in range(100):
        if number == 30:
            await one.stop()
            await two.stop()
        if number == 60:
            await one.start()
            await two.start()
        await sender.notifier("p", topics=[topic]).info("e", number)
        await place.until(lambda: len(second.all) + len(third.all) > number)  # noqa: B023  # it is awaited here
    await place.until(lambda: len(first.all) == 100)
    assert sorted(first.payloads) == sorted(second.payloads + third.payloads) == list(range(100))
    assert min(len(second.all), len(third.all)) >= 25
    async with listen(rest):
        await place.until(lambda: len(rest.all) == 100)


class _Once:
    """An endpoint that does not handle one the first time.

    Args:
        fails: True to raise; False to give it back.
    """

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.seen: list[int] = []

    async def info(self, notification: Notification) -> NotificationResult | None:
        self.seen.append(notification.payload)
        if len(self.seen) == 1:
            if self.fails:
                raise ValueError("not now")
            return NotificationResult.REQUEUE
        return None


@behaviour("N-03", "delay")
async def requeued(place: Place) -> None:
    """A notification that an endpoint gives back, or fails with, comes again if the listener wants that, and else is done."""
    sender, receiver = await place.open(), await place.open()
    topic = _topic(place)
    for requeue in (True, False):
        for raises in (True, False):
            endpoint = _Once(raises)
            async with receiver.notifications.listen(endpoint, topics=[topic], requeue=requeue):
                await sender.notifier("p", topics=[topic]).info("e", 1)
                await place.until(lambda: endpoint.seen)  # noqa: B023  # it is awaited here
                await place.wait(1.2)
                await place.calm()
            assert endpoint.seen == ([1, 1] if requeue else [1])


@behaviour("N-04")
async def filters(place: Place) -> None:
    """An endpoint with a filter receives notifications that match from the beginning; all endpoints that match do."""
    sender, receiver = await place.open(), await place.open()
    topic = _topic(place)
    every, some = _Seen("info"), _Seen("info")
    some.filter = NotificationFilter(publisher="compute", event=r"instance\.", payload={"state": "up|down"})  # type: ignore[attr-defined]
    sent: list[tuple[str, str, Any]] = [
        ("compute.1", "instance.start", {"state": "up"}),
        ("a.compute", "instance.start", {"state": "up"}),
        ("compute.1", "an.instance.start", {"state": "up"}),
        ("compute.1", "instance.start", {"state": "gone"}),
        ("compute.1", "instance.start", {"state": 1}),
        ("compute.1", "instance.start", None),
        ("compute.2", "instance.stop", {"state": "down", "more": 1}),
    ]
    async with receiver.notifications.listen(every, some, topics=[topic], concurrency=1):
        for publisher, event, payload in sent:
            await sender.notifier(publisher, topics=[topic]).info(event, payload)
        await place.until(lambda: len(every.all) == len(sent))
        await place.until(lambda: len(some.all) == 2)
    assert some.payloads == [{"state": "up"}, {"state": "down", "more": 1}]


@behaviour("N-05")
async def kept_back(place: Place) -> None:
    """Only those headers of the sender travel along that the options name."""
    sender = await place.open(notifications=NotificationOptions(headers=("trace",)))
    receiver = await place.open()
    topic = _topic(place)
    seen = _Seen()
    async with receiver.notifications.listen(seen, topics=[topic]):
        with use_headers(trace="t", session="s"):
            await sender.notifier("p", topics=[topic]).info("e")
        await place.until(lambda: seen.all)
    assert dict(seen.all[0].headers) == {"trace": "t"}


@behaviour("N-06")
async def comes_again(place: Place) -> None:
    """The notification of a listener that ended goes to the next one, unblamed where only lost workers are."""
    sender, receiver = await place.open(), await place.open()
    topic = _topic(place)
    begun = Signal()
    seen = _Seen()

    async def never(_: Notification) -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    listener = receiver.notifications.listen(never, topics=[topic])
    await listener.start()
    await sender.notifier("p", topics=[topic]).info("e", 1)
    await begun.wait()
    await listener.close()
    async with receiver.notifications.listen(seen, topics=[topic]):
        await place.until(lambda: seen.all)
    # An engine whose tasks alone count attempts better than its broker counts notifications as the broker does.
    allowed = {attempt(sender, 2)} if sender.capabilities.successors else {1, 2}
    assert seen.all[0].payload == 1
    assert seen.all[0].attempt in allowed


@behaviour("N-07")
async def killed(place: Place) -> None:
    """The notification of a killed listener goes to another one."""
    sender, dead, alive = [await place.open() for _ in range(3)]
    topic = _topic(place)
    begun = Signal()
    seen = _Seen()

    async def never(_: Notification) -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    await dead.notifications.listen(never, topics=[topic]).start()
    await sender.notifier("p", topics=[topic]).info("e", 1)
    await begun.wait()
    await place.kill(dead)
    async with alive.notifications.listen(seen, topics=[topic]):
        await place.wait(2)
        await place.until(lambda: seen.payloads == [1])


def _routing(*routes: Route[Any]) -> Any:
    """A routing notifier of either face."""
    given: list[Any] = [each.notifier for each in routes]
    if isinstance(given[0], Awaited):
        faces = zip(routes, given, strict=True)
        return Awaited(BlockingRoutingNotifier(*(replace(route, notifier=each._target) for route, each in faces)))
    return RoutingNotifier(*routes)


@behaviour("N-08")
async def routes(place: Place) -> None:
    """A routing notifier sends by each notifier whose rule fits."""
    sender, receiver = await place.open(), await place.open()
    a, b = _topic(place, "a"), _topic(place, "b")
    first, second = _Seen(), _Seen()
    notifier = _routing(
        Route(sender.notifier("p", topics=[a]), events=("compute.*",)),
        Route(sender.notifier("p", topics=[b]), events=("compute.*", "disk.*"), priorities=("error",)),
    )
    async with receiver.notifications.listen(first, topics=[a]), receiver.notifications.listen(second, topics=[b]):
        await notifier.info("compute.start", 0)
        await notifier.error("compute.start", 1)
        await notifier.error("disk.full", 2)
        await notifier.info("disk.full", 3)
        await place.until(lambda: len(first.all) == len(second.all) == 2)
        await place.calm()
    assert (sorted(first.payloads), sorted(second.payloads)) == ([0, 1], [1, 2])


@behaviour("N-09")
async def agreement(place: Place) -> None:
    """Another queue for the same topic is refused by an error that names the field."""
    one = await place.open()
    two = await place.open(notifications=NotificationOptions(durable=False))
    topic = _topic(place)
    await one.notifier("p", topics=[topic]).info("e")
    error = await fails(two.notifier("p", topics=[topic]).info("e"), SpecConflict)
    assert "durable" in str(error)
