"""Frames that the engine sends to servers of several versions, and newer ones' frames that it takes: without RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

import redpoll
from redpoll.bus import EngineState, Envelope, QueueSpec, Task
from redpoll.bus.engines.amqp import catalogue, publishing, session
from redpoll.bus.engines.amqp.foreign import Properties
from redpoll.bus.engines.amqp.link import Link, Rejected
from redpoll.bus.engines.amqp.publishing import Sending
from redpoll.errors import (
    BusError,
    Closed,
    ConfirmTimeout,
    DeadLettered,
    NotConfirmed,
    RedpollError,
    Unsupported,
    UsageError,
)
from tests.bus.engines.amqp.strict import DURABLE, EXCLUSIVE, Strict
from tests.bus.engines.amqp.support import until, within

pytestmark = pytest.mark.asyncio

#: 3.10 cannot be told how long a task may take, 3.11.15 can; 4.0 has limits of its own; 4.3 refuses what was deprecated.
VERSIONS = ["3.10.8", "3.11.15", "3.13.7", "4.0.5", "4.3.0-beta.1"]


class Calculator:
    """A server."""

    async def add(self, a: int, b: int) -> int:
        """Add numbers."""
        return a + b


async def use_everything(url: str) -> None:
    """Do with an engine what makes it declare all that it ever declares."""
    async with redpoll.connect(url) as bus:
        engine = bus.engine
        await engine.declare(QueueSpec("levels", priorities=3, max_length=9, at_limit="refuse", dead_letter="graves"))
        await engine.declare(QueueSpec("ring", at_limit="drop-old", max_length=9, expires=60.0))
        await engine.declare(QueueSpec("news", kind="events", topics=("a.*",), ttl=9.0))
        await engine.declare(QueueSpec("brief", durable=False))
        await bus.tasks.submit(1, queue="ring", delay=5.5, no_reply=True)

        async def double(task: Task) -> Any:
            return task.data * 2

        async with (
            bus.tasks.worker(double, queue="double", concurrency=3),
            bus.rpc.serve("calculator", Calculator()),
            bus.broadcast.subscribe(print, subject="a.*"),
        ):
            assert await within(bus.tasks.run(4, queue="double")) == 8
            assert await within(bus.rpc.call("calculator", "add", {"a": 1, "b": 2})) == 3
        with suppress(RedpollError):
            consumer = await engine.consume("ring", exclusive=True)
            await consumer.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_nothing_is_told_that_a_version_refuses(version: str) -> None:
    """All that the engine sends in use is taken by servers from 3.10 to 4.3 (pitfall 8): each has its own refusals."""
    async with Strict(version) as server:
        await within(use_everything(server.url))
    assert server.problems == []
    declared = [arguments for arguments in server.of("queue.declare") if not arguments[2] & 1]
    assert len(declared) > 12
    for _, name, bits, table in declared:
        assert bits & (DURABLE | EXCLUSIVE), name
        assert not any(each.startswith("x-ha-") for each in table), name
    assert {arguments[2] for arguments in server.of("basic.qos")} == {0}
    assert all(bits & DURABLE for *_, bits, _ in server.of("exchange.declare"))


@pytest.mark.parametrize("version", VERSIONS)
async def test_workers_tell_a_server_to_leave_them_their_tasks(version: str) -> None:
    """From 3.11.15 on consumers say that a task may take years, where the server would take it away (pitfall 25)."""
    async with Strict(version) as server:
        await within(use_everything(server.url))
    (table,) = [arguments[4] for arguments in server.of("basic.consume") if arguments[1] == "double"]
    if version == "3.10.8":
        assert table == {}
    else:
        assert table["x-consumer-timeout"] > 365 * 86_400 * 1_000


@pytest.mark.parametrize(("option", "number"), [("", 2), ("?connections=single", 1)])
async def test_connections(option: str, number: int) -> None:
    """What is published has a connection of its own, unless one is asked for, which then does all."""
    async with Strict("3.10.8") as server:
        await within(use_everything(server.url + option))
        assert len(server.clients) == number
    assert server.problems == []


async def test_what_is_to_outlive_the_server() -> None:
    """Tasks are persistent where their queue is durable, and nothing else is: calls, events, outcomes."""
    async with Strict("3.10.8") as server, redpoll.connect(server.url) as bus:
        await bus.queues.declare(QueueSpec("brief", durable=False))
        await bus.tasks.submit(1, queue="brief", no_reply=True)
        await bus.broadcast.send(1, subject="a.b")
        async with bus.tasks.worker(print, queue="kept"), bus.rpc.serve("calculator", Calculator()):
            assert await within(bus.tasks.run(1, queue="kept")) is None
            assert await within(bus.rpc.call("calculator", "add", {"a": 1, "b": 2})) == 3
    modes = {key: each.delivery_mode for key, each in server.published if not key.startswith("redpoll.")}
    assert modes == {"brief": 1, "broadcast.a.b": 1, "kept": 2, "rpc:calculator": 1}
    assert {each.delivery_mode for key, each in server.published if key.startswith("redpoll.inbox.")} == {1}


async def test_attempts_of_a_queue_that_is_not_durable() -> None:
    """RabbitMQ counts the hand-outs of quorum queues alone: a number of one's own is refused elsewhere, and none is kept."""
    async with Strict("3.10.8") as server, redpoll.connect(server.url) as bus:
        with pytest.raises(Unsupported, match="max_attempts=3 of a queue that is not durable"):
            await bus.queues.declare(QueueSpec("q", durable=False, max_attempts=3))
        assert "q" not in [arguments[1] for arguments in server.of("queue.declare")]
        for name, most in (("default", 10), ("none", None)):
            await bus.queues.declare(QueueSpec(name, durable=False, max_attempts=most))


async def test_the_delivery_limit_of_4_is_out_of_reach() -> None:
    """Quorum queues name a limit of deliveries, as 4.0 drops a task after 20 give-backs where none is named."""
    async with Strict("4.0.5") as server:
        await within(use_everything(server.url))
    tables = {arguments[1]: arguments[3] for arguments in server.of("queue.declare") if not arguments[2] & 1}
    for name in ("levels", "levels.priority.2", "ring", "news", "double"):
        assert (tables[name]["x-queue-type"], tables[name]["x-delivery-limit"]) == ("quorum", 2**31 - 1)


@pytest.mark.parametrize(("version", "answered"), [("4.2.1", False), ("4.3.0", True)])
async def test_a_cancel_of_the_server_is_answered_where_it_waits_for_that(version: str, answered: bool) -> None:
    """When the server ends a consumer it begins again; 4.3 waits for an answer to the cancel, older servers know none."""
    async with Strict(version) as server, redpoll.connect(server.url) as bus:
        await bus.queues.declare("q")
        consumer = await bus.engine.consume("q")

        def of_queue() -> list[Any]:
            return [arguments for arguments in server.of("basic.consume") if arguments[1] == "q"]

        client, channel, tag = server.route("", "q")[1][-1]
        client.send(channel, "basic.cancel", tag, 1)
        await until(lambda: len(of_queue()) == 2, "another consumer")
        await until(lambda: consumer.active, "the consumer")
        assert ((tag,) in server.of("basic.cancel-ok")) is answered


CLOSES: Mapping[str, tuple[int, str]] = {
    "3.13.7": (406, "PRECONDITION_FAILED - delivery acknowledgement on channel 5 timed out. Timeout value used: 1800000 ms"),
    "4.3.0": (406, "PRECONDITION_FAILED - consumer ack timed out on channel 5"),
}  # fmt: skip


@pytest.mark.parametrize("version", CLOSES)
async def test_a_delivery_that_the_server_takes_away_is_lost_alone(version: str) -> None:
    """Where a server closes a channel as a task took too long, its worker is told, and the consumer begins again."""
    async with Strict(version) as server, redpoll.connect(server.url) as bus:
        await bus.queues.declare("q")
        consumer = await bus.engine.consume("q")
        await bus.tasks.submit(1, queue="q", no_reply=True)
        delivery = await within(anext(consumer))
        client, channel, _ = server.route("", "q")[1][-1]
        client.send(channel, "channel.close", *CLOSES[version], 0, 0)
        await until(lambda: delivery.lost, "the loss")
        await until(lambda: consumer.active, "the consumer")
        await until(lambda: bus.state is EngineState.READY, "the bus to be ready")
        assert not await delivery.ack()
        assert len(server.clients) == 2


async def test_what_amqp_cannot_carry_ends_alone() -> None:
    """A message that waited for a connection, and that AMQP cannot carry, is an error; what waits behind it is sent."""
    async with Strict("3.10.8") as server, redpoll.connect(server.url) as bus:
        await bus.queues.declare("q")
        await bus.foreign.publish(b"0", key="q")
        publisher = bus.foreign._publisher
        channel, publisher._channel = publisher._channel, None
        bad = asyncio.ensure_future(bus.foreign.publish(b"1", key="q", properties=Properties(type="t" * 256)))
        good = asyncio.ensure_future(bus.foreign.publish(b"2", key="q"))
        await until(lambda: len(publisher._waiting) == 2, "both to wait")
        publisher._channel = channel
        publisher.resume()
        with pytest.raises(UsageError, match="with this type"):
            await within(bad)
        await within(good)
        assert publisher._sent_bytes == 0


def of_a_cluster(server: Strict) -> str:
    """What a client connects to that takes it for a cluster, of two names for one server."""
    host = server.url.partition("@")[2].strip("/")
    return server.url.replace(host, f"{host},{host.replace('127.0.0.1', 'localhost')}")


async def test_a_channel_that_confirms_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a server of several is silent on a channel, others are published on another one; nothing of it is left."""
    monkeypatch.setattr(publishing, "_SILENT", 0.1)
    async with Strict("3.10.8") as server, redpoll.connect(of_a_cluster(server)) as bus:
        await bus.queues.declare("q")
        engine: Any = bus.engine
        publisher, old = engine.publisher, engine.publisher._channel
        server.silent.add(old.number)
        with pytest.raises(ConfirmTimeout):
            await bus.tasks.submit(1, queue="q", no_reply=True, timeout=0.2)
        late = asyncio.ensure_future(bus.tasks.submit(2, queue="q", no_reply=True))
        await until(lambda: publisher._channel is not old, "another channel")
        await within(bus.tasks.submit(3, queue="q", no_reply=True))
        assert old.error is None
        client = next(each for each in server.clients if each.published(old.number))
        client.send(old.number, "basic.ack", client.published(old.number), 0)
        await within(late)
        await until(lambda: old.error is not None, "the end of the silent one")
        await within(bus.tasks.submit(4, queue="q", no_reply=True))
        assert (publisher.unconfirmed, publisher._sent_bytes, publisher._parting) == ({}, 0, 0)
        assert len(server.clients) == 2


async def test_an_outcome_is_published_again_though_nobody_waits() -> None:
    """What may be repeated, as outcomes are, and is left on a silent channel, is published on another one."""
    async with Strict("3.10.8") as server, redpoll.connect(of_a_cluster(server)) as bus:
        await bus.queues.declare("q")
        engine: Any = bus.engine
        publisher, old = engine.publisher, engine.publisher._channel
        server.silent.add(old.number)
        sending = Sending("", "q", Properties(), b"", again=True)

        async def publish() -> None:
            publisher.send(sending)
            await sending

        caller = asyncio.ensure_future(publish())
        await until(lambda: sending.sent, "the message")
        renewing = asyncio.ensure_future(publisher._renew())
        await until(lambda: publisher._channel is not old, "another channel")
        caller.cancel()
        await within(renewing)
        await until(lambda: sending.ended, "its confirmation")
        assert sending.error is None
        assert max(each.published(publisher._channel.number) for each in server.clients) == 1


async def test_what_is_withdrawn_during_a_try_is_not_tried_again() -> None:
    """A publish to a full queue whose caller goes while the server has it ends with the server's refusal."""
    async with Strict("3.10.8") as server, redpoll.connect(of_a_cluster(server)) as bus:
        await bus.queues.declare("q")
        engine: Any = bus.engine
        publisher, number = engine.publisher, engine.publisher._channel.number
        await within(bus.tasks.submit(1, queue="q", no_reply=True))
        client = next(each for each in server.clients if each.published(number))
        before = client.published(number)
        server.silent.add(number)
        caller = asyncio.ensure_future(bus.tasks.submit(2, queue="q", no_reply=True))
        await until(lambda: client.published(number) > before, "the message")
        (sending,) = publisher.unconfirmed.values()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        # As a bus does that drains.
        assert not sending.wait().done()
        client.send(number, "basic.nack", client.published(number), 0)
        await until(lambda: not publisher.unconfirmed, "the refusal")
        assert sending.ended


async def test_a_server_that_opens_no_channel_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a silent server opens no other channel its connection is given up, unless it said or shows that it is busy."""
    monkeypatch.setattr(publishing, "_SILENT", 0.1)
    monkeypatch.setattr(publishing, "_OPEN_TIMEOUT", 0.1)
    async with Strict("3.10.8") as server, redpoll.connect(of_a_cluster(server)) as bus:
        await bus.queues.declare("q")
        engine: Any = bus.engine
        server.silent.add(engine.publisher._channel.number)
        server.held.add("channel.open")
        engine.session.is_blocked = True
        await engine.publisher._renew()
        assert engine.session.outgoing.error is None
        engine.session.is_blocked = False
        # It reads a large body that was written before.
        sizes = iter((2, 1))
        with monkeypatch.context() as patch:
            patch.setattr(Link, "unsent", property(lambda _: next(sizes)))
            await engine.publisher._renew()
        assert engine.session.outgoing.error is None

        def recover(*_: object) -> None:
            server.silent.clear()
            server.held.clear()

        bus.status.watch(recover)
        with pytest.raises(NotConfirmed, match="it opened no channel"):
            await within(bus.tasks.submit(1, queue="q", no_reply=True))
        await until(lambda: bus.state is EngineState.READY, "another connection")
        await within(bus.tasks.submit(2, queue="q", no_reply=True))


async def test_a_request_that_a_server_did_not_answer_as_it_stopped_is_asked_again() -> None:
    """A server that closes its connections refuses no operation by that: those under way go on with the next connection."""
    text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    async with Strict("3.10.8") as server, redpoll.connect(server.url) as bus:
        await bus.queues.declare("q")
        before = len(server.of("queue.declare"))
        server.held.add("queue.declare")
        looking = asyncio.ensure_future(bus.queues.inspect("q"))
        await until(lambda: len(server.of("queue.declare")) > before, "the request")
        server.held.clear()
        for client in tuple(server.clients):
            client.send(0, "connection.close", 320, text, 0, 0)
        assert (await within(looking)).spec.name == "q"
        assert len(server.clients) == 4


async def test_a_reason_that_utf_8_does_not_hold_is_told() -> None:
    """A task that is given up for a reason with a lone surrogate is a dead letter to its publisher, who is told the rest."""
    async with Strict("3.10.8") as server, redpoll.connect(server.url) as bus:
        await bus.queues.declare("q")
        consumer = await bus.engine.consume("q")
        handle = await bus.tasks.submit(1, queue="q")
        delivery = await within(anext(consumer))
        assert await within(delivery.reject(requeue=False, reason="a file named \udcff"))
        with pytest.raises(DeadLettered, match="a file named "):
            await within(handle.result())


async def test_an_error_of_the_engine_as_it_connects_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception that is no failure of the connection ends the connecting, and the log has it at once."""

    async def broken(_: object) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr(catalogue.Catalogue, "restore", broken)
    async with Strict("3.10.8") as server, redpoll.connect(server.url, wait=True):
        await until(lambda: "LookupError: a defect" in caplog.text, "the log")
    (logged,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert logged.getMessage() == "no connection to RabbitMQ is made any more"


async def test_an_error_of_the_engine_as_it_connects_ends_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a connection, and what would, has the exception that ended the connecting; nothing waits for ever."""
    going = asyncio.Event()

    async def broken(*_: object) -> None:
        await going.wait()
        raise LookupError("a defect")

    monkeypatch.setattr(session, "open_link", broken)
    monkeypatch.setattr(catalogue, "_WRITTEN", 0.1)
    async with redpoll.connect("amqp://127.0.0.1:1/", wait=True) as bus:
        engine: Any = bus.engine

        def begin() -> list[asyncio.Future[Any]]:
            whole = Envelope("raw", b"")
            delayed = engine.publish(whole, queue="q", delay=9.0)
            begun = (engine.publish(whole, queue="q"), delayed, engine.declare(QueueSpec("q")), engine.consume("q"))
            return list(map(asyncio.ensure_future, begun))

        early = begin()
        await until(lambda: len(engine.session._waiters) == 3 and engine.publisher._waiting, "them to wait")
        going.set()
        for each in early:
            with pytest.raises(BusError, match="is made any more: LookupError"):
                await within(each)
        for each in begin():
            with pytest.raises(BusError, match="is made any more: LookupError"):
                await within(each)


async def test_steps_of_delays_are_secured_where_that_failed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that were made and could not be secured are, with the next delay, though it finds them there."""
    tries: list[object] = []

    async def secure(each: object) -> None:
        tries.append(each)
        if len(tries) == 1:
            raise Rejected(540, "not now")

    async with Strict("3.10.8") as server, redpoll.connect(server.url) as bus:
        await bus.queues.declare("q")
        monkeypatch.setattr(session.Session, "secure_queues", secure)
        with pytest.raises(RedpollError, match="not now"):
            await within(bus.tasks.submit(1, queue="q", delay=0.7, no_reply=True))
        for _ in range(2):
            await within(bus.tasks.submit(1, queue="q", delay=0.7, no_reply=True))
        assert len(tries) == 2


async def test_a_take_that_is_cancelled_while_its_bus_closes() -> None:
    """It raises the cancellation, as always; one that only the closing ends raises `Closed`."""
    async with Strict("3.10.8") as server, redpoll.connect(server.url) as bus:
        await bus.queues.declare("q")
        before = len(server.of("basic.consume"))
        cancelled, left = (asyncio.ensure_future(bus.engine.take("q", None)) for _ in range(2))
        await until(lambda: len(server.of("basic.consume")) == before + 2, "both to wait")
        closing = asyncio.ensure_future(bus.engine.close())
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(cancelled)
        with pytest.raises(Closed):
            await within(left)
        await closing


async def test_a_queue_is_declared_while_the_list_of_queues_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the record of a queue came back before the list was read to its end, the queue is there all the same."""
    monkeypatch.setattr(catalogue, "_WRITTEN", 0.1)
    async with Strict("3.13.7") as server:
        server.deaf.add("last")
        async with redpoll.connect(server.url) as bus:
            await within(bus.queues.declare(QueueSpec("q", max_length=7)))
            assert (await bus.queues.inspect("q")).spec.max_length == 7
