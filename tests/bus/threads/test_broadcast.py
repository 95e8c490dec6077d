"""Broadcasts and notifications, for threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from redpoll.blocking import connect
from redpoll.bus import Broadcast
from redpoll.bus.notifications import (
    LogNotifier,
    Notification,
    NotificationHandler,
    NotificationOptions,
    Route,
    WSGIMiddleware,
)
from redpoll.bus.threads import BlockingBus, BlockingRoutingNotifier, resident
from redpoll.errors import Closed, ConfigError, NoRoute, UsageError
from tests.blocking.support import PATIENCE, in_thread, interrupting, until
from tests.bus.threads.support import taken


@pytest.fixture
def bus() -> Iterator[BlockingBus]:
    """A bus of its own."""
    with connect("memory://", notifications=NotificationOptions(topics=("n",))) as opened:
        yield opened


def test_callbacks_call_back(bus: BlockingBus) -> None:
    """A plain callback runs in a thread, in order, and may wait for the bus; one that raises is counted."""
    seen: list[Any] = []

    def callback(broadcast: Broadcast) -> None:
        if broadcast.body == "bad":
            raise ValueError
        seen.append((broadcast.body, bus.queues.names(), threading.current_thread().name[:21]))

    with bus.broadcast.subscribe(callback, subject="a.*") as subscription:
        for body in (1, "bad", 2, 3):
            bus.broadcast.send(body, subject="a.b")
        until(lambda: len(seen) == 3, "the broadcasts")
        assert (subscription.active, subscription.delivered, subscription.failed) == (True, 4, 1)
    assert not subscription.active
    assert seen == [(number, [], "redpoll bus callbacks") for number in (1, 2, 3)]


def test_a_callback_that_raises_what_no_future_can_is_called_again(bus: BlockingBus) -> None:
    """The end of an empty iterator fails its own broadcast, and not all that follow."""
    seen: list[int] = []

    def callback(broadcast: Broadcast) -> None:
        seen.append(broadcast.body + next(iter([1] * broadcast.body)))

    with bus.broadcast.subscribe(callback, subject="a") as subscription:
        for body in range(3):
            bus.broadcast.send(body, subject="a")
        until(lambda: seen == [2, 3], "the broadcasts")
        assert subscription.failed == 1


def test_callbacks_of_two_subscriptions_do_not_wait_for_each_other(bus: BlockingBus) -> None:
    """A callback that waits for what another one does is no dead lock."""
    gate = threading.Event()
    done: list[bool] = []
    with (
        bus.broadcast.subscribe(lambda _: done.append(gate.wait(PATIENCE)), subject="a"),
        bus.broadcast.subscribe(lambda _: gate.set(), subject="a"),
    ):
        bus.broadcast.send(None, subject="a")
        until(lambda: done, "the first callback")
    assert done == [True]


def test_so_many_callbacks_are_called_at_a_time(bus: BlockingBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all threads busy the callbacks of further subscriptions wait, and nothing else does."""
    monkeypatch.setattr(resident, "THREADS", 1)
    gate = threading.Event()
    order: list[str] = []

    def first(_: Broadcast) -> None:
        order.append("begun")
        gate.wait(PATIENCE)
        order.append("ended")

    with (
        bus.broadcast.subscribe(first),
        bus.broadcast.subscribe(lambda _: order.append("other")) as other,
    ):
        bus.broadcast.send(None)
        until(lambda: order and other.delivered, "the callbacks")
        assert bus.healthy()
        assert order == ["begun"]
        gate.set()
        until(lambda: len(order) == 3, "the second callback")
    assert order == ["begun", "ended", "other"]


def test_coroutine_functions_run_on_the_loop(bus: BlockingBus) -> None:
    """A coroutine function, or an object that is called as one, is not given to a thread; what is neither is refused."""
    names: list[str] = []

    async def callback(_: Broadcast) -> None:
        names.append(threading.current_thread().name)

    class Callback:
        async def __call__(self, broadcast: Broadcast) -> None:
            await callback(broadcast)

    with bus.broadcast.subscribe(callback), bus.broadcast.subscribe(Callback()):
        bus.broadcast.send(None)
        until(lambda: len(names) == 2, "the broadcast")
    assert names == ["redpoll loop"] * 2
    with pytest.raises(ConfigError, match="callback=3: must be a function"):
        bus.broadcast.subscribe(3)  # type: ignore[arg-type]


def test_iterating(bus: BlockingBus) -> None:
    """Without a callback a subscription is iterated; Ctrl-C in a step loses nothing, and closing ends it."""
    subscription = bus.broadcast.subscribe(subject="a").start()
    iteration = iter(subscription)
    with (
        interrupting(lambda: subscription._iteration and subscription._iteration._steps),
        pytest.raises(KeyboardInterrupt),
    ):
        next(iteration)
    for number in range(3):
        bus.broadcast.send(number, subject="a")
    assert [next(iteration).body for _ in range(3)] == [0, 1, 2]
    threads = [in_thread(next, subscription) for _ in range(2)]
    for number in range(2):
        bus.broadcast.send(number, subject="a")
    assert sorted(each.result(PATIENCE).body for each in threads) == [0, 1]
    last: Future[list[Broadcast]] = in_thread(list, subscription)
    subscription.close()
    assert last.result(PATIENCE) == []
    assert subscription.dropped == 0


def test_a_subscription_that_was_not_started(bus: BlockingBus) -> None:
    """Iterating what was not started, or has a callback, is refused."""
    with pytest.raises(UsageError, match="cannot be iterated"):
        next(bus.broadcast.subscribe())
    with bus.broadcast.subscribe(print) as subscription, pytest.raises(UsageError, match="cannot be iterated"):
        next(subscription)


def test_durable_subscriptions(bus: BlockingBus) -> None:
    """What was not done when a durable iteration is left comes again; forgetting it ends that."""
    with bus.broadcast.subscribe(subject="a", durable="audit") as subscription:
        for number in range(2):
            bus.broadcast.send(number, subject="a")
        assert next(subscription).body == 0
    assert taken(bus, "broadcast:audit") == (2, 0)
    seen: list[int] = []
    with bus.broadcast.subscribe(lambda each: seen.append(each.body), subject="a", durable="audit"):
        until(lambda: seen == [0, 1], "the broadcasts")
    bus.broadcast.forget("audit")
    with pytest.raises(NoRoute):
        bus.broadcast.forget("audit")


def test_closing_the_bus_ends_subscriptions(bus: BlockingBus) -> None:
    """Whoever iterates when the bus is closed is told, and closing a subscription after that does nothing."""
    subscription = bus.broadcast.subscribe().start()
    waiting: Future[list[Broadcast]] = in_thread(list, subscription)
    until(lambda: subscription._iteration and subscription._iteration._steps, "the wait")
    bus.close()
    assert waiting.exception(PATIENCE) is None or isinstance(waiting.exception(), Closed)
    subscription.close()
    with pytest.raises(Closed):
        bus.broadcast.subscribe().start()


class Endpoint:
    """Takes two priorities, in threads."""

    def __init__(self, bus: BlockingBus) -> None:
        self.bus = bus
        self.seen: list[Any] = []

    def info(self, notification: Notification) -> None:
        """Take one, and call back."""
        self.bus.healthy()
        self.seen.append((notification.publisher, notification.event, notification.payload))

    def error(self, notification: Notification) -> None:
        """Take one."""
        self.seen.append(("error", notification.event, None))


def test_notifications(bus: BlockingBus) -> None:
    """Notifications are sent by priority, or posted without waiting, and heard in threads."""
    endpoint = Endpoint(bus)
    with bus.notifications.listen(endpoint) as listener:
        notifier = bus.notifier("host-1")
        assert (notifier.publisher, notifier.topics) == ("host-1", ("n",))
        notifier.info("started", {"n": 1})
        notifier.prepare(publisher="host-2").notify("error", "failed")
        notifier.post("info", "posted", 2)
        until(lambda: listener.stats.handled == 3, "the notifications")
        assert sorted(endpoint.seen, key=str) == [
            ("error", "failed", None),
            ("host-1", "posted", 2),
            ("host-1", "started", {"n": 1}),
        ]
        assert (listener.stats.handled, notifier.stats.sent, bus.notifications.stats.sent) == (3, 3, 3)
        listener.reset()
        listener.stop()
        listener.wait()
        listener.start()
    assert bus.notifications.options.topics == ("n",)


def test_routing(bus: BlockingBus) -> None:
    """A routing notifier for threads sends by all notifiers whose rules fit, and by those that are awaited."""
    heard: list[Notification] = []
    options = NotificationOptions(topics=("n",))
    with (
        connect("memory://", notifications=options) as other,
        bus.notifications.listen(heard.append),
        other.notifications.listen(heard.append),
    ):
        notifier = BlockingRoutingNotifier(
            bus.notifier("a"),
            Route(other.notifier("b"), events=("disk.*",), priorities=("error",)),
            Route(LogNotifier("c")),
        )
        notifier.info("disk.full")
        notifier.error.future("disk.full", 7).result(PATIENCE)
        notifier.notify("warn", "hot", headers={"x": 1})
        until(lambda: len(heard) == 4, "the notifications")
    assert sorted((each.publisher, each.priority) for each in heard) == [
        ("a", "error"),
        ("a", "info"),
        ("a", "warn"),
        ("b", "error"),
    ]
    with pytest.raises(UsageError, match="none of the notifiers"):
        BlockingRoutingNotifier(LogNotifier("c"))


def test_logging_and_wsgi(bus: BlockingBus) -> None:
    """The logging handler and the WSGI middleware send by a notifier for threads."""
    heard: list[Notification] = []
    with bus.notifications.listen(heard.append):
        notifier = bus.notifier("web")
        logger = logging.getLogger("test of a bus for threads")
        handler = NotificationHandler(notifier)  # type: ignore[arg-type]
        logger.addHandler(handler)
        logger.error("it failed")
        logger.removeHandler(handler)
        app = WSGIMiddleware(lambda environ, start: [b"x"], notifier)  # type: ignore[arg-type]
        assert app({"REQUEST_METHOD": "GET", "PATH_INFO": "/"}, lambda *_: None) == [b"x"]
        until(lambda: len(heard) == 3, "the notifications")
    assert {each.event for each in heard} == {"logrecord", "http.request", "http.response"}
