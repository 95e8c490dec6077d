"""A room is shared by engines of one process: on several loops, in several threads, and with none of its parent's."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from redpoll.bus import Delivery, Envelope, Outcome, Publication, QueueSpec
from redpoll.bus.broker import Limits
from redpoll.bus.engines.memory import MemoryEngine
from redpoll.bus.engines.memory.room import _rooms
from redpoll.errors import Closed, RedpollError, UsageError
from redpoll.testing import VirtualTime
from redpoll.testing.conformance import Recorder

BODY = Envelope("raw", b"x")


class Watching:
    """A watcher that takes nothing."""

    def progress(self, envelope: Envelope) -> None:
        """Take progress."""

    def outcome(self, outcome: Outcome) -> None:
        """Take the outcome."""

    def gone(self, error: RedpollError) -> None:
        """Take the error."""


def run_in_thread(main: Coroutine[Any, Any, object]) -> threading.Thread:
    """Run a coroutine on a loop of its own, in a thread of its own."""
    thread = threading.Thread(target=asyncio.run, args=(main,))
    thread.start()
    return thread


async def until(reached: Callable[[], object]) -> None:
    """Let the loop turn until something is so."""
    while not reached():  # noqa: ASYNC110  # what sets it off is no event
        await asyncio.sleep(0)


async def turns(count: int = 10) -> None:
    """Let the loop turn some times."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_engines_of_one_name_share_a_broker() -> None:
    """Buses of one name meet; those of another one, and those without, do not; what is in it goes with the last."""
    async with MemoryEngine("a") as one, MemoryEngine("a") as two, MemoryEngine("b") as three, MemoryEngine() as four:
        await one.declare(QueueSpec("q"))
        assert await two.queues() == ["q"]
        assert await three.queues() == await four.queues() == []
    assert not _rooms
    async with MemoryEngine("a") as again:
        assert await again.queues() == []


@pytest.mark.asyncio
async def test_engines_of_one_name_have_one_setting() -> None:
    """Who joins a broker with other limits, or another clock, is refused."""
    async with MemoryEngine("a"):
        for other in (MemoryEngine("a", limits=Limits(queues=1)), MemoryEngine("a", clock=VirtualTime())):
            with pytest.raises(UsageError, match="memory://a is open with other limits"):
                await other.__aenter__()


@pytest.mark.asyncio
async def test_threads_share_a_broker() -> None:
    """Workers on loops of other threads take tasks, and their outcomes come back on the publisher's loop."""
    begun = threading.Barrier(3)
    over = threading.Event()
    loop_thread = threading.get_ident()

    async def work() -> None:
        async with MemoryEngine("threads") as engine:
            await engine.consume("q", credit=4, sink=lambda delivery: delivery.ack())
            begun.wait()
            await asyncio.to_thread(over.wait)

    async with MemoryEngine("threads") as engine:
        await engine.declare(QueueSpec("q"))
        threads = [run_in_thread(work()) for _ in range(2)]
        begun.wait()
        callers: set[int] = set()

        class Watcher(Recorder):
            def outcome(self, outcome: Any) -> None:
                callers.add(threading.get_ident())
                super().outcome(outcome)

        watchers = [Watcher() for _ in range(2_000)]
        for watcher in watchers:
            await engine.publish(BODY, queue="q", watcher=watcher)
        await until(lambda: all(each.outcomes for each in watchers))
        over.set()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        info = await engine.inspect("q")
    assert callers == {loop_thread}
    assert (info.done, info.delivered, info.taken, info.consumers) == (2_000, 2_000, 0, 0)


@pytest.mark.asyncio
async def test_a_loop_that_ended_is_a_lost_worker() -> None:
    """A bus whose loop ended without closing it loses its tasks to others after the grace, as a process that died."""
    left: list[MemoryEngine] = []
    begun = threading.Event()

    async def forget() -> None:
        engine = MemoryEngine("loops", limits=Limits(grace=0.01))
        await engine.__aenter__()
        await engine.consume("q", credit=1, sink=lambda delivery: begun.set())
        left.append(engine)
        await until(begun.is_set)

    async with MemoryEngine("loops", limits=Limits(grace=0.01)) as engine:
        await engine.declare(QueueSpec("q"))
        await engine.publish(BODY, queue="q")
        await asyncio.to_thread(run_in_thread(forget()).join)
        assert len(engine.room.members) == 2
        # What would be handed to it shows that it is gone.
        await engine.publish(BODY, queue="q")
        await engine.tell((await engine.browse("q", "taken"))[0].id, BODY)
        delivery = await engine.take("q", 5.0)
        await until(lambda: len(engine.room.members) == 1)
        other = await engine.take("q", 5.0)
        assert {delivery.attempt, other.attempt} == {1, 2}
        assert left[0].closed


def test_a_child_has_nothing_of_its_parents() -> None:
    """After a fork a bus of the parent raises in the child, which has none of its tasks; a new one of that name is empty."""

    async def parent() -> int:
        async with MemoryEngine("fork") as engine:
            await engine.declare(QueueSpec("q"))
            await engine.publish(BODY, queue="q")
            await engine.publish(BODY, queue="q")
            delivery = await engine.take("q")
            with engine.room.guard:  # as another thread may have it
                pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    code = _child(engine, delivery)
                finally:
                    os._exit(code)
            assert (await engine.inspect("q")).ready == 1
            _, status = await asyncio.to_thread(os.waitpid, pid, 0)
            return os.waitstatus_to_exitcode(status)

    assert asyncio.run(parent()) == 0


def _child(engine: MemoryEngine, delivery: Delivery) -> int:
    async def look() -> int:
        for awaitable in (engine.publish(BODY, queue="q"), engine.inspect("q"), engine.take("q")):
            try:
                await awaitable
            except UsageError as error:
                if "forked" not in str(error):
                    return 2
            else:
                return 3
        if delivery.progress(BODY) or await delivery.accept() or await delivery.ack():
            return 4
        async with MemoryEngine("fork") as own:
            return len(await own.queues())

    asyncio._set_running_loop(None)
    return asyncio.run(look())


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError])
async def test_callbacks_that_raise_stop_nothing(kind: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """A sink, a watcher or an observer that raises is logged; a task whose sink raised comes again, later."""
    clock = VirtualTime()

    class Raising(Recorder):
        def outcome(self, outcome: Any) -> None:
            raise kind("outcome")

        def progress(self, envelope: Any) -> None:
            raise kind("progress")

    async with MemoryEngine(clock=clock) as engine:
        await engine.declare(QueueSpec("q"))
        seen: list[Any] = []

        def sink(delivery: Any) -> None:
            seen.append(delivery)
            if len(seen) == 1:
                raise kind("sink")

        def event_sink(event: Any) -> None:
            raise kind("event")

        def observer(*what: str) -> None:
            raise kind("observer")

        await engine.consume("q", sink=sink)
        await engine.subscribe(["s"], sink=event_sink)
        end = engine.observe(observer)
        await engine.publish(BODY, queue="q", watcher=Raising())
        await engine.publish(BODY, subject="s")
        await turns()
        end()
        await clock.advance(1.0)
        assert [each.attempt for each in seen] == [1, 1]
        seen[1].progress(BODY)
        assert await seen[1].ack()
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert texts.count("a watcher failed") == 2
    assert "the sink of a consumer of 'q' failed" in texts
    assert "the sink of a subscription to 's' failed" in texts
    assert "an observer failed" in texts


@pytest.mark.asyncio
async def test_a_listener_that_raises_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A listener or a watcher that raises is logged; the engine hands on what follows, and closes."""

    class Raising(Recorder):
        def told(self, envelope: Any) -> None:
            raise ValueError("told")

        def cancelled(self, reason: str) -> None:
            raise ValueError("cancelled")

        def lost(self) -> None:
            raise ValueError("lost")

        def gone(self, error: Any) -> None:
            raise ValueError("gone")

    async with MemoryEngine() as engine:
        await engine.declare(QueueSpec("q"))
        recorder, raising = Recorder(), Raising()
        await engine.consume("q", credit=2, sink=recorder.deliver)
        receipt = await engine.publish(BODY, queue="q", watcher=raising)
        await until(lambda: recorder.deliveries)
        recorder.deliveries[0].listen(raising)
        await engine.tell(receipt.id, BODY)
        await turns()
        await engine.cancel(receipt.id)
        await turns()
        await engine.publish(BODY, queue="q")
        await until(lambda: len(recorder.deliveries) == 2)
        await asyncio.wait_for(engine.close(), 5.0)
    recorder.deliveries[0].listen(raising)
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert (texts.count("a listener failed"), texts.count("a watcher failed")) == (5, 1)


@pytest.mark.asyncio
async def test_an_exception_that_ends_the_loop_leaves_the_engine_usable() -> None:
    """What a sink raises to end the program leaves it, and what waited behind it is handed over later."""
    async with MemoryEngine() as engine:
        await engine.declare(QueueSpec("q"))
        seen: list[Any] = []

        def sink(delivery: Any) -> None:
            seen.append(delivery)
            if len(seen) == 1:
                raise KeyboardInterrupt

        await engine.consume("q", credit=3, sink=sink)
        for _ in range(2):
            await engine.publish(BODY, queue="q")
        with pytest.raises(KeyboardInterrupt):
            engine.flush()
        await until(lambda: len(seen) == 2)
        await engine.publish(BODY, queue="q")
        await until(lambda: len(seen) == 3)


@pytest.mark.asyncio
async def test_an_outcome_in_the_mail_is_told_at_closing() -> None:
    """An outcome that another engine recorded just before this one closes reaches its watcher."""
    async with MemoryEngine("last") as one, MemoryEngine("last") as two:
        await one.declare(QueueSpec("q"))
        recorder = Recorder()
        await two.publish(BODY, queue="q", watcher=recorder)
        await (await one.take("q")).ack()
        await two.close()
        assert (len(recorder.outcomes), recorder.error) == (1, None)


@pytest.mark.asyncio
async def test_what_is_for_another_engine_is_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is handed a task by one thread and asked to stop by another at once learns of both, in that order."""
    async with MemoryEngine("order") as one, MemoryEngine("order") as two, MemoryEngine("order") as worker:
        await one.declare(QueueSpec("q"))
        recorder = Recorder()
        await worker.consume("q", sink=recorder.deliver)
        route = one.route

        def interrupted(effects: Any) -> None:
            monkeypatch.undo()
            with two.turn() as (broker, now):
                broker.work.cancel(broker.tasks.last, now)
            route(effects)

        monkeypatch.setattr(one, "route", interrupted)
        with one.turn() as (broker, now):
            broker.intake.submit(one.peer, "q", BODY, 1, now)
        await until(lambda: recorder.deliveries)
        await turns()
        assert recorder.deliveries[0].cancelled


@pytest.mark.asyncio
async def test_a_fast_publisher_of_events_waits() -> None:
    """A publish of events lets the loop turn once many wait to be handed over, so that they do not pile up."""
    async with MemoryEngine() as engine:
        recorder = Recorder()
        await engine.subscribe(["s"], sink=recorder.event)
        for _ in range(20_000):
            await engine.publish(BODY, subject="s")
            assert len(engine._pending) <= 1_025
        await until(lambda: len(recorder.events) == 20_000)


@pytest.mark.asyncio
async def test_a_slow_loop_drops_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events for another loop that does not keep up are dropped beyond a bound, and counted."""
    monkeypatch.setattr("redpoll.bus.engines.memory.room._MAIL", 10)
    async with MemoryEngine("mail") as one, MemoryEngine("mail") as two:
        subscription = await two.subscribe(["s"])
        for _ in range(30):
            await one.publish(BODY, subject="s")
        await turns()
        assert (subscription.delivered, subscription.dropped) == (10, 20)


@pytest.mark.asyncio
async def test_a_slow_loop_drops_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress, what a publisher says, and notes for another loop are dropped beyond a bound; an outcome never is."""
    monkeypatch.setattr("redpoll.bus.engines.memory.room._MAIL", 10)
    async with MemoryEngine("mail") as one, MemoryEngine("mail") as two:
        await one.declare(QueueSpec("q"))
        recorder = Recorder()
        receipt = await two.publish(Envelope("msgpack", b"\x01"), queue="q", watcher=recorder)
        two.observe(lambda *_: None)
        delivery = await one.take("q")
        for _ in range(30):
            assert delivery.progress(delivery.envelope)
        assert len(two._mail) == 10
        await delivery.ack()
        assert len(two._mail) == 11
        await turns()
        assert (len(recorder.outcomes), len(recorder.parts) <= 10) == (1, True)
        other = await two.publish(BODY, queue="q")
        held = await one.take("q")
        for _ in range(30):
            await two.tell(receipt.id, BODY)
            assert await two.tell(other.id, BODY)
        assert len(one._mail) == 10
        await held.ack()


async def gone(name: str, **options: Any) -> MemoryEngine:
    """An engine with a consumer of the queue "q", in a loop that ended without closing it."""
    left: list[MemoryEngine] = []

    async def forget() -> None:
        engine = MemoryEngine(name, **options)
        await engine.__aenter__()
        await engine.consume("q", credit=100)
        left.append(engine)

    await asyncio.to_thread(run_in_thread(forget()).join)
    return left[0]


@pytest.mark.asyncio
async def test_any_open_engine_takes_leave_of_one_that_is_gone() -> None:
    """An engine that notices that another one's loop is gone, and closes at once, leaves it to a third one."""
    async with MemoryEngine("third") as third, MemoryEngine("third") as first:
        await third.declare(QueueSpec("q"))
        dead = await gone("third")
        first.publish(BODY, queue="q")
        await first.close()
        await until(lambda: dead.closed)
        assert third.room.members == [third]
        assert (await third.inspect("q")).consumers == 0


@pytest.mark.asyncio
async def test_the_last_of_a_room_takes_leave_of_all() -> None:
    """Where nobody is left to take leave of an engine that is gone, the room goes with it."""
    async with MemoryEngine("empty") as engine:
        await engine.declare(QueueSpec("q"))
        dead = await gone("empty")
        engine.publish(BODY, queue="q")
    await until(lambda: dead.closed)
    assert "empty" not in _rooms


@pytest.mark.asyncio
async def test_closing_looks_after_the_others() -> None:
    """An engine that closes finds one that is gone among those that it leaves the timers to."""
    async with MemoryEngine("others") as engine:
        await engine.declare(QueueSpec("q"))
        dead = await gone("others")
    assert dead.closed
    assert "others" not in _rooms


@pytest.mark.asyncio
async def test_timers_outlive_a_loop_that_is_gone() -> None:
    """What an engine that is gone was to do in time is done by those that take leave of it."""
    async with MemoryEngine("timers", limits=Limits(grace=0.01)) as engine:
        await engine.declare(QueueSpec("q"))
        await engine.declare(QueueSpec("late"))

        async def forget() -> None:
            other = MemoryEngine("timers", limits=Limits(grace=0.01))
            await other.__aenter__()
            await other.consume("q", credit=100)
            await other.publish(BODY, queue="late", delay=0.02)

        await asyncio.to_thread(run_in_thread(forget()).join)
        await engine.publish(BODY, queue="q")
        assert (await engine.take("late", 5.0)).attempt == 1


@pytest.mark.asyncio
async def test_a_lone_publisher_saves_turns_and_leaves_the_loop_to_others() -> None:
    """After a turn with one task, 16 publishes hand over their own task at once; the next waits for a turn."""
    async with MemoryEngine() as engine:
        await engine.declare(QueueSpec("q"))
        recorder = Recorder()
        seen = recorder.deliveries
        await engine.consume("q", credit=1_000, sink=recorder.deliver)
        for _ in range(3):
            before = len(seen)
            engine.publish(BODY, queue="q")
            assert len(seen) == before
            await turns(1)
            for count in range(before + 2, before + 18):
                engine.publish(BODY, queue="q")
                assert len(seen) == count
        for _ in range(2):
            engine.publish(BODY, queue="q")
        await turns(1)
        before = len(seen)
        engine.publish(BODY, queue="q")
        assert len(seen) == before


@pytest.mark.asyncio
async def test_a_publish_in_a_callback_is_behind_what_was_handed_out_before() -> None:
    """Order stays where a lone publisher's watcher, or a sink, publishes to a queue that got a successor just before."""
    async with MemoryEngine() as engine:
        for name in ("first", "second"):
            await engine.declare(QueueSpec(name))
        first = Recorder()
        seen: list[bytes] = []

        class Again(Watching):
            def outcome(self, outcome: Outcome) -> None:
                engine.publish(Envelope("raw", b"2"), queue="second")

        def sink(delivery: Delivery) -> None:
            if delivery.envelope.body == b"1":
                engine.publish(Envelope("raw", b"3"), queue="second")
            seen.append(bytes(delivery.envelope.body))

        await engine.consume("first", credit=9, sink=first.deliver)
        await engine.consume("second", credit=9, sink=sink)
        engine.publish(BODY, queue="first", watcher=Again())
        await turns(1)
        await first.deliveries[0].ack(then=[Publication("second", Envelope("raw", b"1"))])
        await turns(2)
        assert seen == [b"1", b"2", b"3"]


@pytest.mark.asyncio
async def test_many_deliveries_share_the_loop() -> None:
    """One turn of the loop hands over a part, so that others have their turn in between."""
    async with MemoryEngine() as engine:
        await engine.declare(QueueSpec("q"))
        recorder = Recorder()
        for _ in range(1_000):
            await engine.publish(BODY, queue="q")
        await engine.consume("q", credit=1_000, sink=recorder.deliver)
        steps = []
        while len(recorder.deliveries) < 1_000:
            await asyncio.sleep(0)
            steps.append(len(recorder.deliveries))
        assert steps == [256, 512, 768, 1_000]


@pytest.mark.asyncio
async def test_who_drops_a_handle_drops_nothing_else() -> None:
    """A delivery, a consumer, a subscription that nobody refers to go on; a bus that was not closed warns."""
    async with MemoryEngine() as engine:
        await engine.declare(QueueSpec("q"))
        recorder = Recorder()
        await engine.consume("q", sink=lambda delivery: recorder.parts.append(delivery.id))
        await engine.subscribe(["s"], sink=recorder.event)
        await engine.publish(BODY, queue="q")
        await turns()
        gc.collect()
        await engine.publish(Envelope("msgpack", b"\x01"), subject="s")
        await turns()
        assert (len(recorder.parts), recorder.events) == (1, [("s", 1)])
        assert (await engine.inspect("q")).taken == 1
    forgotten = MemoryEngine()
    await forgotten.__aenter__()
    del forgotten
    with pytest.warns(ResourceWarning, match="<MemoryEngine memory:// ready> was not closed"):
        gc.collect()


@pytest.mark.asyncio
async def test_timers_outlive_who_set_them() -> None:
    """What one engine set in motion comes due though it was closed meanwhile, if others share the broker."""
    clock = VirtualTime()
    async with MemoryEngine("timers", clock=clock) as one:
        async with MemoryEngine("timers", clock=clock) as two:
            await two.declare(QueueSpec("q"))
            await two.publish(BODY, queue="q", delay=5.0)
        recorder = Recorder()
        await one.consume("q", sink=recorder.deliver)
        await clock.advance(5.0)
        assert recorder.deliveries


@pytest.mark.asyncio
async def test_an_engine_that_is_not_open_says_so() -> None:
    """Before it is entered and after it is left an engine raises Closed; it has no timers then."""
    engine = MemoryEngine()
    with pytest.raises(Closed):
        await engine.publish(BODY, queue="q")
    async with engine:
        await engine.declare(QueueSpec("q"))
        await engine.publish(BODY, queue="q", ttl=60.0)
        timers = [engine._timer]
    timers.append(engine._timer)
    assert [each is None for each in timers] == [False, True]
    with pytest.raises(Closed):
        await engine.declare(QueueSpec("q"))
