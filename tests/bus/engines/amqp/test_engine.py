"""What the engine of RabbitMQ does when connections, channels, queues and consumers end, on a real server."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import redpoll
from redpoll.bus import Bus, Envelope, Outcome, OutcomeKind, Payloads, QueueSpec
from redpoll.bus.engines.amqp.engine import AmqpEngine
from redpoll.bus.engines.amqp.link import Broken, Channel, Rejected
from redpoll.bus.engines.amqp.publishing import Sending
from redpoll.bus.engines.amqp.session import Entity, Session
from redpoll.bus.engines.amqp.topology import newest
from redpoll.bus.engines.amqp.wire import Properties
from redpoll.bus.state import EngineState
from redpoll.errors import (
    DialFailed,
    NoRoute,
    NotAuthorized,
    NotConfirmed,
    ProtocolError,
    QueueEmpty,
    SpecConflict,
    Unsupported,
)
from redpoll.testing.certificates import Certificates
from redpoll.testing.conformance import Recorder
from tests.bus.engines.amqp.support import elapse
from tests.node.support import until
from tests.rabbitmq import Broker

pytestmark = [pytest.mark.broker, pytest.mark.asyncio]

pack = Payloads().pack


def engine_of(bus: Bus) -> AmqpEngine:
    """Return the engine of a bus."""
    assert isinstance(bus.engine, AmqpEngine)
    return bus.engine


def cut(bus: Bus, which: str) -> None:
    """Break one of the connections of a bus."""
    transport = getattr(engine_of(bus).session, which).transport
    assert transport is not None
    transport.abort()


@pytest.mark.parametrize("which", ["outgoing", "incoming"])
async def test_everything_comes_back_after_a_lost_connection(rabbitmq: Broker, which: str) -> None:
    """Workers, servers, subscriptions and the inbox serve again once a connection was cut, whichever it was (pitfall 1)."""
    async with redpoll.connect(rabbitmq.url) as sender, redpoll.connect(rabbitmq.url) as worker:
        events: list[Any] = []

        async def double(task: Any) -> Any:
            return task.data * 2

        class Server:
            def add(self, a: int, b: int) -> int:
                return a + b

        async with (
            worker.tasks.worker(double, queue="double"),
            worker.rpc.serve("adder", Server()),
            worker.broadcast.subscribe(lambda broadcast: events.append(broadcast.body), subject="news.*"),
        ):
            for bus in (worker, sender, worker):
                generation = engine_of(bus).session.generation
                cut(bus, which)
                await until(lambda: engine_of(bus).session.generation > generation, "a new connection")  # noqa: B023
                await bus.status.wait_for(EngineState.READY)
                assert await sender.tasks.run(4, queue="double", timeout=20) == 8
                assert await sender.rpc.call("adder", "add", {"a": 1, "b": 2}, timeout=20) == 3
                count = len(events)
                await sender.broadcast.send("x", subject="news.today")
                await until(lambda: len(events) > count, "an event")  # noqa: B023


async def test_an_unconfirmed_publish_fails_and_an_unsent_one_waits(rabbitmq: Broker) -> None:
    """What was sent when the connection broke fails as not confirmed; what was published afterwards is sent (pitfall 15)."""
    async with redpoll.connect(rabbitmq.url) as bus:
        engine = engine_of(bus)
        await engine.declare(QueueSpec("q"))
        sent = engine.publish(pack("sent"), queue="q")
        await asyncio.sleep(0)
        rabbitmq.block()
        lost = engine.publish(pack("lost"), queue="q")
        await asyncio.sleep(0)
        cut(bus, "outgoing")
        later = engine.publish(pack("later"), queue="q", timeout=30)
        rabbitmq.block(False)
        ends = await asyncio.gather(*map(_end, (sent, lost)))
        assert set(ends) <= {"done", NotConfirmed}
        await later
        bodies: list[Any] = []
        while "later" not in bodies:
            bodies.append(Payloads().unpack((await engine.take("q", 10)).envelope))
        assert len(bodies) > ends.count("done")


async def _end(awaitable: Any) -> Any:
    try:
        await awaitable
    except NotConfirmed as error:
        return type(error)
    return "done"


async def test_a_dead_letter_tells_its_publisher(rabbitmq: Broker) -> None:
    """RabbitMQ itself tells a publisher that its task expired, or was dropped at the limit."""
    async with redpoll.connect(rabbitmq.url) as bus:
        engine, expired, dropped = engine_of(bus), Recorder(), Recorder()
        await engine.declare(QueueSpec("q"))
        await engine.declare(QueueSpec("ring", max_length=1, at_limit="drop-old"))
        await engine.publish(pack(1), queue="q", ttl=0.1, watcher=expired)
        await engine.publish(pack(1), queue="ring", watcher=dropped)
        await engine.publish(pack(2), queue="ring")
        await until(lambda: expired.outcomes and dropped.outcomes, "the outcomes")
        assert (expired.kind, dropped.kind) == (OutcomeKind.EXPIRED, OutcomeKind.DEAD)
        assert (await engine.inspect("ring.dead")).ready == 1


async def test_one_that_cannot_be_restored_is_parked(rabbitmq: Broker) -> None:
    """Of three consumers, one whose queue is in exclusive use waits, the others serve; the state says so (pitfall 5)."""
    async with redpoll.connect(rabbitmq.url) as bus:
        engine = engine_of(bus)
        taken = [Recorder() for _ in range(3)]
        consumers = []
        for number, recorder in enumerate(taken):
            await engine.declare(QueueSpec(f"q{number}"))
            consumers.append(await engine.consume(f"q{number}", sink=recorder.deliver))
        refused = consumers[1].restore

        async def restore() -> None:
            raise Rejected(406, "it is another one now")

        consumers[1].restore = restore  # type: ignore[method-assign]
        cut(bus, "incoming")
        await bus.status.wait_for(EngineState.DEGRADED)
        assert "q1" in bus.status.reason
        for number in (0, 2):
            await engine.publish(pack(number), queue=f"q{number}")
        await until(lambda: taken[0].deliveries and taken[2].deliveries, "the others")
        assert [each.active for each in consumers] == [True, False, True]
        consumers[1].restore = refused  # type: ignore[method-assign]
        await bus.status.wait_for(EngineState.READY)
        assert consumers[1].active


async def test_one_that_is_refused_again_pauses(rabbitmq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inbox is made anew at once when it was deleted; where that is refused, pauses grow."""
    async with redpoll.connect(rabbitmq.url) as bus:
        session, inbox = engine_of(bus).session, engine_of(bus).inbox
        pauses: list[float] = []
        again = session._try_again

        async def noted(entity: Entity, pause: float, generation: int) -> None:
            pauses.append(pause)
            await again(entity, pause, generation)

        async def refused() -> None:
            raise Rejected(403, "access refused")

        monkeypatch.setattr(session, "_try_again", noted)
        monkeypatch.setattr(inbox, "restore", refused)
        await session.ask("queue.delete", 0, inbox.name, 0)
        await until(lambda: len(pauses) == 3, "the second attempt")
        assert 0.0 == pauses[0] < pauses[1] < pauses[2]
        monkeypatch.undo()
        await bus.status.wait_for(EngineState.READY)
        assert inbox.name in rabbitmq.queues()


class Slow:
    """What takes long to restore, until it is let go."""

    label = "what takes long"

    def __init__(self) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def restore(self) -> None:
        """Wait."""
        self.begun.set()
        await self.go.wait()

    def suspend(self, error: Exception) -> None:
        """Do nothing."""


async def test_one_that_is_added_while_others_are_restored(rabbitmq: Broker) -> None:
    """A subscription that begins while a new connection is set up receives what is sent from then on."""
    async with redpoll.connect(rabbitmq.url) as bus:
        engine, slow = engine_of(bus), Slow()
        engine.session.want(slow)
        cut(bus, "incoming")
        await slow.begun.wait()
        beginning = asyncio.ensure_future(engine.subscribe(["news"]))
        await elapse(0.05)
        assert not beginning.done()
        slow.go.set()
        subscription = await asyncio.wait_for(beginning, 10)
        assert subscription.active
        await engine.publish(pack("one"), subject="news")
        assert (await asyncio.wait_for(anext(subscription), 10)).subject == "news"


async def test_one_that_is_closed_while_it_is_restored(rabbitmq: Broker) -> None:
    """Consumers that are closed while a new connection is set up are gone there: their queues keep what comes."""
    async with redpoll.connect(rabbitmq.url) as bus:
        engine, slow = engine_of(bus), Slow()
        for name in ("q", "alone", "theirs"):
            await engine.declare(QueueSpec(name))
        before = rabbitmq.consumers()
        consumers: list[Any] = [
            await engine.consume("q", credit=5),
            await engine.consume("alone", credit=5, exclusive=True),
            await engine.foreign.consume("theirs", credit=5),
            await engine.subscribe(["news"]),
        ]
        engine.session.want(slow)
        cut(bus, "incoming")
        await slow.begun.wait()
        await asyncio.gather(*(each.close() for each in consumers))
        slow.go.set()
        await bus.status.wait_for(EngineState.READY)
        await until(lambda: rabbitmq.consumers() == before, "the end of the consumers")
        for name in ("q", "alone", "theirs"):
            await engine.publish(pack(name), queue=name)
            assert (await engine.inspect(name)).ready == 1
        # Nothing of the exclusive one is left either.
        await (await engine.consume("alone")).close()
        assert rabbitmq.consumers() == before


@pytest.mark.parametrize("step", ["lock", "begin"])
async def test_an_exclusive_one_that_is_cancelled_leaves_nothing(
    rabbitmq: Broker, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """An exclusive consumer that is cancelled while it begins keeps no other program from the queue."""
    consume = Channel.consume
    begun = asyncio.Event()

    async def slow(channel: Channel, queue: str, tag: str, *arguments: Any, **options: Any) -> None:
        if (tag == "lock") is (step == "lock"):
            begun.set()
            await asyncio.Event().wait()
        await consume(channel, queue, tag, *arguments, **options)

    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        await engine_of(bus).declare(QueueSpec("q"))
        with monkeypatch.context() as patch:
            patch.setattr(Channel, "consume", slow)
            beginning = asyncio.ensure_future(engine_of(bus).consume("q", exclusive=True))
            await begun.wait()
            beginning.cancel()
            await asyncio.wait([beginning])
        assert beginning.cancelled()
        await until(lambda: not [each for each in rabbitmq.queues() if "exclusive" in each], "the end of its lock")
        assert (await engine_of(other).consume("q", exclusive=True)).active


async def test_settings_that_are_known_later_cost_no_call(rabbitmq: Broker) -> None:
    """A server learns the settings of its queue after it began: calls that are on their way to it then are begun by it."""
    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        engine = engine_of(bus)
        await engine.declare(QueueSpec("calls"))
        taken = Recorder()
        consumer = await engine.consume("calls", credit=1_000, sink=taken.deliver, accept=True)
        tags = list(consumer._levels)
        for sent in range(0, 60, 3):
            engine._changed("calls", QueueSpec("calls"))
            await asyncio.gather(*(engine_of(other).publish(pack(sent + each), queue="calls") for each in range(3)))
            await until(lambda sent=sent: len(taken.deliveries) == sent + 3, "the calls")  # type: ignore[misc]
        assert list(consumer._levels) == tags


def channels(bus: Bus) -> int:
    """Return how many channels a bus has."""
    session = engine_of(bus).session
    return sum(len(each._channels) for each in {session.outgoing, session.incoming})


async def test_no_channel_is_left_of_what_was_cancelled(rabbitmq: Broker) -> None:
    """Consumers, subscriptions and takes that are cancelled as they begin or end leave no channel open, nor do many takes."""
    async with redpoll.connect(rabbitmq.url) as bus:
        engine = engine_of(bus)
        await engine.declare(QueueSpec("q"))

        async def empty(timeout: float) -> None:
            with pytest.raises(QueueEmpty):
                await engine.take("q", timeout=timeout)

        await empty(0)
        before = channels(bus)
        await asyncio.gather(*(empty(0) for _ in range(20)))
        engine._getting.abandon()  # type: ignore[union-attr]
        await until(lambda: engine._getting is None or engine._getting.error is not None, "the end of their channel")
        await asyncio.gather(*(empty(0) for _ in range(20)))
        await until(lambda: channels(bus) <= before, "the end of channels that takes opened")
        for turns in range(1, 12):
            consumer, other = await engine.consume("q"), await engine.consume("q")
            subscription = await engine.subscribe(["s"])
            foreign = await engine.foreign.consume("q")
            await other.close()
            cancelled: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(each)
                for each in (
                    consumer.close(),
                    subscription.close(),
                    foreign.close(),
                    empty(10),
                    engine.consume("q"),
                    engine.subscribe(["s"]),
                )
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            for each in cancelled:
                each.cancel()
            await asyncio.wait(cancelled)
            for each in cancelled[4:]:
                if not each.cancelled() and each.exception() is None and (found := each.result()) is not None:
                    await found.close()
        await until(lambda: channels(bus) <= before, "the end of channels of what was cancelled")


async def test_no_channel_is_left_of_what_the_server_ended(rabbitmq: Broker) -> None:
    """Where the queues of the inbox and of the will are deleted, their channels end, and what was there is forgotten."""
    got: list[int] = []

    async def serve(value: int) -> int:
        got.append(value)
        return value

    async with redpoll.connect(rabbitmq.url) as bus, bus.rpc.serve("calls", serve):
        assert await bus.rpc.call("calls", None, 1, timeout=10) == 1
        engine = engine_of(bus)
        inbox, will = engine.inbox, engine.parts.will
        handle = await bus.tasks.submit(1, queue="q")
        delivery = await engine.take("q", timeout=10)
        assert await delivery.accept()
        assert will._held
        before = channels(bus)
        first = inbox._channel, will._channel
        for name in (inbox.name, will._name):
            await engine.session.ask("queue.delete", 0, name, 0)
        await until(lambda: inbox._channel not in (None, first[0]), "another channel of the inbox")
        await until(lambda: will._channel not in (None, first[1]), "another channel of the will")
        await until(lambda: channels(bus) <= before, "the end of the channels before")
        assert not will._held
        await delivery.ack(Outcome(OutcomeKind.RESULT, pack(2)))
        assert await asyncio.wait_for(handle.result(), 10) == 2
        assert await bus.rpc.call("calls", None, 2, timeout=10) == 2


async def test_a_channel_that_is_left_ends_its_own_messages_alone(rabbitmq: Broker) -> None:
    """Where the server ends the channel on which was published before, what is under way on the new one is confirmed."""
    async with redpoll.connect(rabbitmq.url) as bus:
        engine = engine_of(bus)
        publisher, link = engine.publisher, engine.session.outgoing
        await engine.declare(QueueSpec("q"))
        old = publisher._channel
        assert old is not None
        held: list[bytes] = []
        write = link.write
        # What goes to the old one stays here.
        link.write = lambda *parts: held.extend(bytes(each) for each in parts)  # type: ignore[method-assign]
        lost = Sending("", "q", Properties(), b"lost", mandatory=True)
        again = Sending("", "q", Properties(), b"again", mandatory=True, again=True)
        publisher.send(lost)
        publisher.send(again)
        link.write = write  # type: ignore[method-assign]
        renewing = asyncio.ensure_future(publisher._renew())
        await until(lambda: publisher._channel not in (None, old), "the new channel")
        link.write = lambda *parts: held.extend(bytes(each) for each in parts)  # type: ignore[method-assign]
        kept = Sending("", "q", Properties(), b"kept", mandatory=True)
        publisher.send(kept)
        link.write = write  # type: ignore[method-assign]
        old._end(Rejected(404, "NOT_FOUND - no exchange"))
        with pytest.raises(NotConfirmed):
            await lost
        assert not kept.ended
        assert publisher._channel is not None
        assert publisher._channel.usable
        publisher._confirmed(publisher._offset, 1, False, True)
        await kept
        assert not again.ended
        assert publisher._sent_bytes == len(b"again")
        publisher._confirmed(publisher._offset, 2, False, True)
        await again
        await renewing


async def test_a_queue_that_is_not_secured(rabbitmq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal of the queue behind a new one is an error, unless that name is not allowed; a closed link is another try."""
    url = rabbitmq.user("maker", rabbitmq.url)
    ask, closed = Session.ask, False

    async def close(session: Session, name: str, *arguments: Any) -> Any:
        nonlocal closed
        if not closed and name == "queue.declare" and arguments[1].startswith("redpoll.newest."):
            closed = True
            raise Broken("CONNECTION_FORCED - test (320)")
        return await ask(session, name, *arguments)

    async with redpoll.connect(url) as bus:
        with monkeypatch.context() as context:
            context.setattr(Session, "ask", close)
            await bus.queues.declare("first")
        assert closed
        # The new one and its dead letters are all that there may be.
        rabbitmq.limit_queues(len(rabbitmq.queues()) + 2)
        with pytest.raises(ProtocolError, match=r"'redpoll\.newest\..*queue limit"):
            await bus.queues.declare("second")
        rabbitmq.permit("maker", configure="^(?!redpoll[.]newest[.]).*")
        await bus.queues.declare("second")


async def test_the_queue_behind_a_new_one_expires(rabbitmq: Broker) -> None:
    """A queue that was made behind a new one, and left by a program that was killed, ends by itself."""
    left = newest("left")
    assert left.arguments["x-expires"] == 60_000
    async with redpoll.connect(rabbitmq.url) as bus:
        await engine_of(bus).session.declare_queue(left._replace(arguments={**left.arguments, "x-expires": 2_000}))
        await until(lambda: left.name not in rabbitmq.queues(), "the end of the queue")


async def test_steps_of_delays_are_asked_for(rabbitmq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of new steps of delays the first alone is asked for, which closes a channel; they are secured, and those known not."""
    asked: list[bool] = []
    secured: list[Session] = []
    has_queue, secure_queues = Session.has_queue, Session.secure_queues

    async def ask(session: Session, queue: str) -> bool:
        asked.append(await has_queue(session, queue))
        return asked[-1]

    async def secure(session: Session) -> None:
        secured.append(session)
        await secure_queues(session)

    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        await bus.queues.declare("q")
        monkeypatch.setattr(Session, "has_queue", ask)
        monkeypatch.setattr(Session, "secure_queues", secure)
        await bus.tasks.submit(1, queue="q", delay=0.7, no_reply=True)
        assert (asked, len(secured)) == ([False], 1)
        await other.tasks.submit(2, queue="q", delay=0.7, no_reply=True)
        assert (asked, len(secured)) == ([False, True, True, True], 1)
        await other.tasks.submit(3, queue="q", delay=2.3, no_reply=True)
        assert (asked, len(secured)) == ([False, True, True, True, False], 2)
        for _ in range(3):
            async with bus.tasks.next("q") as task:
                task.set_result(None)


async def test_who_may_not_configure_locks_sees_them(rabbitmq: Broker) -> None:
    """A user without permission for the names of locks consumes, unless another program does so exclusively."""
    url = rabbitmq.user("reader", rabbitmq.url)
    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(url) as other:
        await engine_of(bus).declare(QueueSpec("q"))
        await engine_of(other).inspect("q")
        rabbitmq.permit("reader", configure="^(?!redpoll[.]exclusive[.]).*")
        alone = await engine_of(bus).consume("q", exclusive=True)
        with pytest.raises(SpecConflict):
            await engine_of(other).consume("q")
        await alone.close()
        assert (await engine_of(other).consume("q")).active


async def test_a_stream_whose_caller_was_killed(rabbitmq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that waits ends at its server once the inbox of its caller is gone; one of a caller that lives goes on."""
    monkeypatch.setattr("redpoll.bus.engines.amqp.inbox._KEPT", 1.0)
    monkeypatch.setattr("redpoll.bus.rpc.server.LOOK", 0.05)
    left: list[str] = []

    class Endpoint:
        async def wait(self, name: str) -> AsyncIterator[int]:
            """Send one part, and the next one never."""
            try:
                yield 1
                await asyncio.Event().wait()
            finally:
                left.append(name)

    async with redpoll.connect(rabbitmq.url) as bus, bus.rpc.serve("s", Endpoint()):
        dead = await redpoll.connect(rabbitmq.url).__aenter__()
        async with redpoll.connect(rabbitmq.url) as caller:
            lasting = caller.rpc.stream("s", "wait", {"name": "lives"})
            assert await anext(lasting) == 1
            killed = dead.rpc.stream("s", "wait", {"name": "killed"})
            assert await anext(killed) == 1
            engine_of(dead).abort()
            await until(lambda: left, "the end of the stream")
            assert left == ["killed"]
            await lasting.aclose()
        await dead.close()


async def test_a_task_is_taken_as_the_connection_is_lost(rabbitmq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking a task that is there now ends with an error of the library, and the task stays in its queue."""
    async with redpoll.connect(rabbitmq.url) as bus:
        engine = engine_of(bus)
        await engine.declare(QueueSpec("q"))
        await engine.publish(pack(1), queue="q")
        ask = engine.session.ask

        async def lose(name: str, *arguments: Any) -> Any:
            if name == "queue.delete":
                cut(bus, "incoming")
            return await ask(name, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(engine.session, "ask", lose)
            with pytest.raises(NotConfirmed, match="the connection was lost"):
                await engine.take("q", 0.0)
        await bus.status.wait_for(EngineState.READY)
        assert (await engine.take("q", 5.0)).envelope.body == pack(1).body


async def test_a_consumer_that_the_server_ended_begins_again(rabbitmq: Broker) -> None:
    """A queue that was deleted ends its consumer; one that was made anew has it again, with a worker (pitfall 4)."""
    async with redpoll.connect(rabbitmq.url) as bus:

        async def double(task: Any) -> Any:
            return task.data * 2

        async with bus.tasks.worker(double, queue="double") as worker:
            await engine_of(bus).session.ask("queue.delete", 0, "double", 0)
            await until(lambda: not worker.active, "the end of the consumer")
            assert await bus.tasks.run(4, queue="double", timeout=20) == 8


async def test_late_acknowledgements_are_dropped(rabbitmq: Broker) -> None:
    """A task that is done after its connection was lost comes again, once, and nothing fails (pitfall 23)."""
    async with redpoll.connect(rabbitmq.url) as bus:
        engine, recorder = engine_of(bus), Recorder()
        await engine.declare(QueueSpec("q"))
        await engine.consume("q", sink=recorder.deliver)
        await engine.publish(pack(1), queue="q")
        await until(lambda: recorder.has(1), "the task")
        cut(bus, "incoming")
        await until(lambda: recorder.has(2), "the task again")
        first, second = recorder.deliveries
        assert (first.lost, first.id == second.id, second.attempt) == (True, True, 2)
        assert not await first.ack()
        assert await second.ack(Outcome(OutcomeKind.RESULT, pack("done")))
        # A round trip on each connection later.
        assert (await engine.inspect("q")).ready == 0
        await engine.publish(pack(2), queue="q")
        await until(lambda: recorder.has(3), "the next task")
        assert recorder.bodies == [1, 1, 2]
        assert bus.state is EngineState.READY


async def test_a_call_survives_the_connection_of_its_server(rabbitmq: Broker) -> None:
    """A call whose server lost its connection meanwhile is answered by that server, and begun once."""
    begun: list[int] = []
    async with redpoll.connect(rabbitmq.url) as caller, redpoll.connect(rabbitmq.url) as callee:

        class Server:
            async def slow(self) -> str:
                begun.append(1)
                generation = engine_of(callee).session.generation
                cut(callee, "incoming")
                await until(lambda: engine_of(callee).session.generation > generation, "a new connection")
                await callee.status.wait_for(EngineState.READY)
                return "done"

        async with callee.rpc.serve("s", Server()):
            assert await caller.rpc.call("s", "slow", {}, timeout=20) == "done"
            assert await caller.rpc.call("s", "slow", {}, timeout=20) == "done"
        assert begun == [1, 1]


async def test_a_silent_server_is_reported_and_given_up(rabbitmq: Broker) -> None:
    """A frozen server is degraded within three quarters of the heartbeat, and lost after one and a half of it (10)."""
    async with redpoll.connect(f"{rabbitmq.url}?heartbeat=2") as bus:
        seen: list[tuple[EngineState, float]] = []
        began = time.monotonic()
        bus.status.watch(lambda state, _: seen.append((state, time.monotonic() - began)))
        rabbitmq.server.freeze()
        await bus.status.wait_for(EngineState.RECONNECTING)
        rabbitmq.server.thaw()
        await bus.status.wait_for(EngineState.READY)
    states = [state for state, _ in seen]
    assert states[:2] == [EngineState.DEGRADED, EngineState.RECONNECTING]
    assert seen[0][1] < 5.0


async def test_a_server_that_is_away_is_waited_for_as_told(rabbitmq: Broker) -> None:
    """Where nothing listens entering fails, and says so; with wait=True it returns, and publishes wait."""
    rabbitmq.server.kill()
    with pytest.raises(DialFailed, match=r"127\.0\.0\.1"):
        async with redpoll.connect(rabbitmq.url, connect_timeout=0.5):
            pass
    async with redpoll.connect(rabbitmq.url, wait=True) as bus:
        assert bus.state is EngineState.CONNECTING
        declaring = asyncio.ensure_future(bus.queues.declare("q"))
        rabbitmq.server.start()
        await declaring
        await bus.engine.publish(pack(1), queue="q", timeout=30)


async def test_a_refused_login_is_not_repeated(rabbitmq: Broker) -> None:
    """A wrong password is refused at once, and named."""
    with pytest.raises(NotAuthorized, match="ACCESS_REFUSED"):
        async with redpoll.connect(rabbitmq.url.replace("guest:guest", "guest:wrong")):
            pass


async def test_settings_are_those_of_the_first(rabbitmq: Broker) -> None:
    """All programs see the same settings; what a queue of RabbitMQ cannot change is refused, and says why (pitfall 8)."""
    async with redpoll.connect(rabbitmq.url) as one, redpoll.connect(rabbitmq.url) as two:
        await one.queues.declare(QueueSpec("q", max_length=5, priorities=2))
        await until(lambda: "q" in engine_of(two).catalogue.specs, "the settings")
        with pytest.raises(SpecConflict, match="max_length=5"):
            await two.queues.declare(QueueSpec("q", priorities=2))
        with pytest.raises(Unsupported, match="changing max_length"):
            await two.queues.declare(QueueSpec("q", max_length=6, priorities=2), update=True)
        await two.queues.declare(QueueSpec("q", max_length=5, priorities=2, max_attempts=3), update=True)
        await until(lambda: engine_of(one).catalogue.specs["q"].max_attempts == 3, "the change")
    async with redpoll.connect(rabbitmq.url) as three:
        assert (await three.queues.inspect("q")).spec.max_attempts == 3


async def test_settings_that_come_late(rabbitmq: Broker) -> None:
    """A consumer that begins before its engine knows the settings of its queue takes tasks of all priorities once it does."""
    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        engine, taken = engine_of(bus), Recorder()
        spec = QueueSpec("q", priorities=3, max_attempts=2)
        await engine_of(other).declare(spec)
        await until(lambda: engine.catalogue.specs.get("q") == spec, "the settings")
        del engine.catalogue.specs["q"]
        await engine.consume("q", credit=3, sink=taken.deliver)
        await engine_of(other).publish(pack("high"), queue="q", priority=2)
        engine.catalogue._set("q", spec)
        await until(lambda: taken.deliveries, "the task of a higher priority")


async def test_a_task_of_a_deleted_queue(rabbitmq: Broker) -> None:
    """A task that its own publisher has begun is cancelled once, also where its consumer is first to hear of the end."""
    async with redpoll.connect(rabbitmq.url) as bus:
        engine = engine_of(bus)
        await engine.declare(QueueSpec("q"))
        heard: list[str] = []
        engine.observe(lambda *what: heard.append(what[0]))
        taken, told = Recorder(), Recorder()
        consumer = await engine.consume("q", credit=1, sink=taken.deliver)
        await engine.publish(pack("x"), queue="q", watcher=told)
        await until(lambda: taken.deliveries, "the task")
        consumer.stop(NoRoute("q"))
        await engine.delete("q")
        await until(lambda: "deleted" in heard and told.outcomes, "the end of the queue")
        assert heard.count("cancelled") == 1
        assert [each.kind for each in told.outcomes] == [OutcomeKind.CANCELLED]


async def test_a_list_of_queues_that_is_deleted(rabbitmq: Broker) -> None:
    """An operator who deletes the list of queues loses nothing: it is made anew, with what programs know."""
    async with redpoll.connect(rabbitmq.url) as bus:
        engine = engine_of(bus)
        spec = QueueSpec("q", max_attempts=3)
        await engine.declare(spec)
        channels = rabbitmq.channels()
        await engine.session.ask("queue.delete", 0, "redpoll.queues", 0)
        await bus.status.wait_for(EngineState.DEGRADED)
        await bus.status.wait_for(EngineState.READY)
        async with redpoll.connect(rabbitmq.url) as late:
            await until(lambda: engine_of(late).catalogue.specs == {"q": spec}, "the settings")
        await until(lambda: rabbitmq.channels() == channels, "no more channels than before")


async def test_a_record_that_no_program_wrote(rabbitmq: Broker) -> None:
    """A record in the list of queues that cannot be decoded, however deep, is skipped: no connection is lost to it."""
    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as late:
        await engine_of(late).declare(QueueSpec("before"))
        seen: list[str] = []
        bus.status.watch(lambda state, _: seen.append(state.value))
        for body in (
            b"[" * 100_000,
            b"[]",
            b"null",
            b"\xff",
            b'{"name": 1}',
            b'{"name": "x", "change": "new", "spec": 7}',
        ):
            await bus.foreign.publish(body, exchange="", key="redpoll.queues")
        await engine_of(late).declare(QueueSpec("behind"))
        await until(lambda: "behind" in engine_of(bus).catalogue.specs, "the settings behind it")
        assert set(seen) <= {"ready"}
        async with redpoll.connect(rabbitmq.url) as new:
            await until(lambda: {"before", "behind"} <= set(engine_of(new).catalogue.specs), "the settings")


async def test_a_program_begins_with_all_settings(rabbitmq: Broker) -> None:
    """A program that has just begun knows what others declared long ago, many queues too, and consumes by it."""
    async with redpoll.connect(rabbitmq.url) as bus:
        specs = [QueueSpec(f"q{number}", priorities=2, durable=False) for number in range(60)]
        await asyncio.gather(*(engine_of(bus).declare(each) for each in specs))
        await engine_of(bus).delete("q0")
        for _ in range(3):
            async with redpoll.connect(rabbitmq.url) as late:
                engine = engine_of(late)
                await engine.catalogue.known()
                assert engine.catalogue.specs == {each.name: each for each in specs[1:]}


async def test_other_clients_are_answered(rabbitmq: Broker) -> None:
    """A message of any client that names a queue for the reply is answered there, in its own terms."""
    async with redpoll.connect(rabbitmq.url) as bus:
        engine = engine_of(bus)

        async def double(task: Any) -> Any:
            return task.data * 2

        async with bus.tasks.worker(double, queue="double"):
            import aiormq

            connection = await aiormq.connect(rabbitmq.url)
            channel = await connection.channel()
            await channel.queue_declare("answers", durable=True)
            properties = aiormq.spec.Basic.Properties(
                content_type="application/json", reply_to="answers", correlation_id="7"
            )
            await channel.basic_publish(b"4", routing_key="double", properties=properties)
            await until(lambda: engine.parts.counts("double").done == 1, "the end of the task")
            answer = await channel.basic_get("answers", no_ack=True)
            await connection.close()
    assert answer.header.properties.correlation_id == "7"
    assert Payloads().unpack(Envelope("msgpack", bytes(answer.body))) == 8


async def test_the_system_gives_up_on_bytes_that_are_not_acknowledged(rabbitmq: Broker) -> None:
    """Each connection has a time for what is sent and not acknowledged: one and a half heartbeats (pitfall 10)."""
    async with redpoll.connect(rabbitmq.url, heartbeat=2) as bus:
        session = engine_of(bus).session
        for link in (session.outgoing, session.incoming):
            assert link.transport is not None
            connected = link.transport.get_extra_info("socket")
            assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 3_000


async def test_an_encrypted_connection_carries_large_bodies_both_ways(
    rabbitmq: Broker, redpoll_pki: Certificates
) -> None:
    """Bodies of many TLS records arrive whole, many at a time, and the server sees a proper end of each connection."""
    async with redpoll.connect(rabbitmq.encrypted_url(redpoll_pki)) as bus:

        async def echo(task: Any) -> Any:
            return task.data

        bodies = [bytes([number]) * 700_000 for number in range(20)]
        async with bus.tasks.worker(echo, queue="q", concurrency=4):
            results = await asyncio.gather(*(bus.tasks.run(each, queue="q", timeout=30) for each in bodies))
        assert results == bodies
    await until(lambda: not rabbitmq.connections(), "no connection")
