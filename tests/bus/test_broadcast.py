"""Broadcasts, beyond what the conformance suite says of them on every engine."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from typing import Any

import pytest

from redpoll.bus import Broadcast, Envelope, QueueSpec, connect, current_context, use_headers
from redpoll.bus.engines.memory.handles import MemoryConsumer
from redpoll.errors import ConfigError, UsageError
from tests.bus.patterns import bus_in_virtual_time


async def until(reached: Callable[[], object]) -> None:
    """Let the loop turn until something is so."""
    while not reached():  # noqa: ASYNC110  # what sets it off is no event
        await asyncio.sleep(0)


def test_what_cannot_be_subscribed_to_is_refused() -> None:
    """Subjects, names and options are checked where the subscription is made, and where something is sent."""
    broadcast = connect("memory://").broadcast
    for wrong in ({"subject": ""}, {"subject": ["a", 1]}, {"durable": ""}, {"durable": "a.*"}):
        with pytest.raises(ConfigError):
            broadcast.subscribe(**wrong)
    with pytest.raises(
        ConfigError, match=r"callback=3: must be a function, not int \(a callback is a plain function or"
    ):
        broadcast.subscribe(3)  # type: ignore[arg-type]
    values: list[dict[str, Any]] = [{"last": -1}, {"last": 1.5}, {"timeout": -1}, {"timeout": "1"}]
    values += [{"subject": 5}, {"subject": ""}]
    for options in values:
        with pytest.raises(ConfigError, match=next(iter(options))):
            broadcast.send(1, **options)
    with pytest.raises(UsageError, match="has no last broadcasts"):
        broadcast.subscribe(last=True, durable="d")
    assert repr(broadcast.subscribe(durable="d")) == "<BroadcastSubscription 'broadcast:d' not active>"


@pytest.mark.asyncio
async def test_a_subscription_is_used_as_it_was_made() -> None:
    """A subscription is started once, iterated while it is open and has no callback, and closed as often as one likes."""
    async with connect("memory://") as bus:
        subscription = bus.broadcast.subscribe(print)
        await subscription.close()
        with pytest.raises(UsageError, match="cannot be iterated"):
            await anext(bus.broadcast.subscribe())
        async with subscription:
            for use in (subscription.start(), subscription.__anext__()):
                with pytest.raises(UsageError):
                    await use
        await subscription.close()
        with pytest.raises(ConfigError):
            await bus.broadcast.send(1, subject="a.*")
        await bus.broadcast.send(1)
        assert bus.broadcast.sent == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError, GeneratorExit])
async def test_a_callback_that_raises_is_counted(kind: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """What a callback or a predicate raises is logged and counted, and the next broadcast comes all the same."""
    seen: list[Any] = []

    def fail(broadcast: Broadcast) -> None:
        seen.append(broadcast.body)
        raise kind("no")

    async def fail_later(broadcast: Broadcast) -> None:
        fail(broadcast)

    def no_predicate(broadcast: Broadcast) -> bool:
        raise kind("predicate")

    async with connect("memory://") as bus:
        subscriptions = [
            await bus.broadcast.subscribe(fail).start(),
            await bus.broadcast.subscribe(fail_later).start(),
            await bus.broadcast.subscribe(fail, where=no_predicate).start(),
            await bus.broadcast.subscribe(fail_later, where=no_predicate).start(),
        ]
        for number in range(2):
            await bus.broadcast.send(number)
        await until(lambda: all(each.failed == 2 for each in subscriptions))
    assert sorted(seen) == [0, 0, 1, 1]
    assert [each.delivered for each in subscriptions] == [2, 2, 0, 0]
    texts = [each.message for each in caplog.records if each.levelno == logging.ERROR]
    assert texts == ["<BroadcastSubscription active> could not take a broadcast"] * 8


@pytest.mark.asyncio
async def test_what_cannot_be_read_is_a_dead_letter() -> None:
    """A broadcast in an encoding that is not known here is counted; of a durable subscription it is a dead letter."""
    seen: list[Broadcast] = []

    async def take(broadcast: Broadcast) -> None:
        seen.append(broadcast)

    async with connect("memory://") as bus:
        live = await bus.broadcast.subscribe(seen.append).start()
        kept = await bus.broadcast.subscribe(seen.append, durable="plain").start()
        awaited = await bus.broadcast.subscribe(take, durable="awaited").start()
        await bus.engine.publish(Envelope("pickle", b""), subject="broadcast.x")
        await until(lambda: live.failed and kept.failed and awaited.failed)
        assert not seen
        assert [(await bus.queues.inspect(f"broadcast:{name}")).dead for name in ("plain", "awaited")] == [1, 1]


@pytest.mark.asyncio
async def test_a_plain_function_gets_what_failed_again() -> None:
    """What a durable subscription's plain function raises for comes again; what is not wanted is done."""
    seen: list[Any] = []

    def fail(broadcast: Broadcast) -> None:
        seen.append(broadcast.body)
        raise ValueError("no")

    spec = QueueSpec("d", max_attempts=1)
    async with connect("memory://") as bus:
        await bus.broadcast.subscribe(fail, sender="me", durable=spec).start()
        for sender in ("me", "you"):
            await bus.broadcast.send(sender, sender=sender)
        await until(lambda: seen)
        info = await bus.queues.inspect("broadcast:d")
        assert (seen, info.dead, info.done, info.taken) == (["me"], 1, 1, 0)


@pytest.mark.asyncio
async def test_closing_from_inside() -> None:
    """A coroutine function may close its own subscription, and is not called again."""
    seen: list[Any] = []
    async with connect("memory://") as bus:

        async def leave(broadcast: Broadcast) -> None:
            seen.append(broadcast.body)
            await subscription.close()

        subscription = bus.broadcast.subscribe(leave)
        await subscription.start()
        for number in range(3):
            await bus.broadcast.send(number)
        await until(lambda: not subscription.active)
        await asyncio.sleep(0)
    assert seen == [0]


@pytest.mark.asyncio
async def test_a_queue_that_is_deleted_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    """A durable subscription that is open goes on when its queue was deleted, however it takes broadcasts."""
    seen: list[Any] = []

    async def take(broadcast: Broadcast) -> None:
        seen.append(broadcast.body)

    async with connect("memory://") as bus:
        called = await bus.broadcast.subscribe(take, durable="d").start()
        async with bus.broadcast.subscribe(durable="e") as iterated:
            waiting = [asyncio.ensure_future(anext(iterated)) for _ in range(2)]
            await asyncio.sleep(0)
            for name in ("d", "e"):
                await bus.broadcast.forget(name)
            assert [called.active, iterated.active] == [False, False]
            await until(lambda: called.active and iterated.active)
            assert await bus.healthy()
            await bus.broadcast.send(1)
            await bus.broadcast.send(2)
            assert sorted([(await each).body for each in waiting]) == [1, 2]
            await until(lambda: len(seen) == 2)
        await called.close()
        assert await bus.queues.names() == ["broadcast:d", "broadcast:e"]
        await bus.broadcast.forget("d")
        await bus.broadcast.forget("e")
    assert seen == [1, 2]
    assert caplog.text.count("stopped, retrying") == 2


@pytest.mark.asyncio
async def test_a_subscription_is_closed_while_its_queue_is_not_there() -> None:
    """Closing a durable subscription ends what iterates, though its queue cannot be made again."""
    async with bus_in_virtual_time() as (bus, clock):
        subscription = await bus.broadcast.subscribe(durable="d").start()
        waiting = asyncio.ensure_future(subscription.__anext__())
        await asyncio.sleep(0)
        await bus.broadcast.forget("d")
        await bus.queues.declare(QueueSpec("broadcast:d"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not subscription.active
        await subscription.close()
        await clock.advance(1)
        with pytest.raises(StopAsyncIteration):
            await waiting


@pytest.mark.asyncio
async def test_closing_that_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broadcast that is open goes back to its queue also if closing is cancelled while the engine answers."""

    async def close(consumer: MemoryConsumer) -> None:
        consumer.stop()
        await asyncio.Event().wait()

    async with connect("memory://") as bus:
        subscription = await bus.broadcast.subscribe(durable="d").start()
        await bus.broadcast.send(1)
        await anext(subscription)
        monkeypatch.setattr(MemoryConsumer, "close", close)
        closing = asyncio.create_task(subscription.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert (await bus.queues.inspect("broadcast:d")).ready == 1


@pytest.mark.asyncio
async def test_an_engines_own_end_ends_the_iteration() -> None:
    """A bus that is closed ends what iterates."""
    async with connect("memory://") as bus:
        subscription = await bus.broadcast.subscribe().start()
        waiting = asyncio.ensure_future(subscription.__anext__())
        await asyncio.sleep(0)
    with pytest.raises(StopAsyncIteration):
        await waiting


@pytest.mark.asyncio
async def test_subscribers_share_what_was_read() -> None:
    """A broadcast is read once for all subscribers of a bus, and again for the next one."""
    one: list[Broadcast] = []
    two: list[Broadcast] = []
    async with connect("memory://") as bus:
        for seen in (one, two):
            await bus.broadcast.subscribe(seen.append).start()
        for number in range(2):
            await bus.broadcast.send([number])
        await until(lambda: len(two) == 2)
    assert one == two
    assert one[0] is two[0]
    assert [each.body for each in one] == [[0], [1]]


@pytest.mark.asyncio
async def test_a_callback_has_the_context_of_its_broadcast() -> None:
    """A callback sees the headers of the broadcast alone: not those, nor the deadline, of the handler that sent it."""
    name = contextvars.ContextVar("name", default="nobody")
    seen: list[Any] = []

    def note(_: Broadcast) -> None:
        seen.append((dict(current_context().headers), current_context().left, name.get()))

    async def note_later(broadcast: Broadcast) -> None:
        note(broadcast)

    async with connect("memory://") as bus:

        async def handler(headers: Any) -> None:
            name.set("handler")
            await bus.broadcast.send(1, headers=headers)

        name.set("subscriber")
        for callback, durable in ((note, None), (note_later, None), (note, "d")):
            await bus.broadcast.subscribe(callback, durable=durable).start()
        name.set("server")
        async with bus.rpc.serve("a", handler):
            with use_headers(user="ada"):
                for headers in (None, {"own": 1}):
                    await bus.rpc.call("a", None, headers)
            await until(lambda: len(seen) == 6)
    assert seen.count(({}, None, "subscriber")) == 3
    assert seen.count(({"own": 1}, None, "subscriber")) == 3


@pytest.mark.asyncio
async def test_a_coroutine_that_nobody_would_await() -> None:
    """A plain callback that returns a coroutine has failed, as can be seen; one that returns a task has not."""

    async def later(_: Broadcast) -> None:
        pass

    tasks: list[asyncio.Task[None]] = []

    def begin(broadcast: Broadcast) -> object:
        tasks.append(asyncio.ensure_future(later(broadcast)))
        return tasks[0]

    async with connect("memory://") as bus:
        coroutine = await bus.broadcast.subscribe(lambda broadcast: later(broadcast)).start()  # noqa: PLW0108  # no coroutine function
        task = await bus.broadcast.subscribe(begin).start()
        await bus.broadcast.send(1)
        await until(lambda: tasks and tasks[0].done())
        assert (coroutine.failed, task.failed) == (1, 0)


@pytest.mark.asyncio
async def test_what_fails_a_thousand_times_waits_for_a_minute() -> None:
    """A durable subscription without a limit of attempts has each broadcast again, however often it failed."""
    delays: list[float] = []

    class Often:
        attempt = 5_000

        def reject(self, *, delay: float, **_: Any) -> None:
            """Note when it comes again."""
            delays.append(delay)

    async with connect("memory://") as bus:
        item: Any = Often()
        bus.broadcast.subscribe(print, durable="d")._fail(item, ValueError("no"))
    assert delays == [60.0]


@pytest.mark.asyncio
async def test_an_exception_without_a_text() -> None:
    """A durable subscription has a broadcast again whatever its callback raised: cancellations, exceptions without a text."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    errors: list[BaseException] = [MuteError(), asyncio.CancelledError()]

    async def fail(_: Broadcast) -> None:
        if errors:
            raise errors.pop()

    async with bus_in_virtual_time() as (bus, clock), bus.broadcast.subscribe(fail, durable="d") as subscription:
        await bus.broadcast.send(1)
        await clock.advance(5)
        info = await bus.queues.inspect("broadcast:d")
        assert (subscription.failed, subscription.delivered, info.ready + info.delayed + info.taken) == (2, 3, 0)
