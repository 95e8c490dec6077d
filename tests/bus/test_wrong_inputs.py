"""What is given wrong is said at once, by its name, and loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import redpoll
from redpoll.bus import Bus
from redpoll.bus.envelope import Envelope
from redpoll.errors import ConfigError, DeadLettered
from tests.bus.engines.hub.support import running
from tests.node.support import PATIENCE, until
from tests.ports import free_port


async def _parts(_: Any) -> AsyncIterator[int]:
    """A generator, which is no handler."""
    yield 1


async def _nothing(_: Any) -> None:
    """A handler."""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("field", "verb"),
    [
        ("headers", lambda bus: bus.tasks.submit(1, headers=5)),
        ("headers", lambda bus: bus.tasks.submit(1, headers={1: 2})),
        ("headers", lambda bus: bus.tasks.submit_many([1], headers={"a": object()})),
        ("headers", lambda bus: bus.rpc.call("s", "m", headers={"a": {1: 2}})),
        ("headers", lambda bus: bus.broadcast.send(1, headers={"a": object()})),
        ("headers", lambda bus: bus.notifier("p").notify("info", "e", headers={"a": object()})),
        ("headers", lambda bus: redpoll.bus.use_headers(a=object()).__enter__()),
        ("sender", lambda bus: bus.broadcast.send(1, sender=object())),
        ("correlation_id", lambda bus: bus.broadcast.send(1, correlation_id={1: 2})),
        ("eta", lambda bus: bus.tasks.submit(1, eta=5)),
        ("dedup", lambda bus: bus.tasks.submit_many([1, 2], dedup=["a"])),
        ("dedup", lambda bus: bus.tasks.submit_many([1, 2], dedup="ab")),
        ("id", lambda bus: bus.tasks.handle(5)),
        ("limit", lambda bus: anext(bus.tasks.map([1], limit="1"))),
        ("drain", lambda bus: bus.tasks.worker(_nothing, drain="1")),
        ("drain", lambda bus: bus.tasks.worker(_nothing, drain=-1)),
        ("handler", lambda bus: bus.tasks.worker(_parts)),
        ("name", lambda bus: bus.queues.declare(5)),
        ("topic", lambda bus: bus.rpc.call(5, "m")),
        ("subject", lambda bus: bus.broadcast.subscribe(subject=5)),
        ("where", lambda bus: bus.broadcast.subscribe(where=5)),
        ("callback", lambda bus: bus.broadcast.subscribe(lambda: None)),
    ],
)
async def test_it_is_named(field: str, verb: Callable[[Bus], Any]) -> None:
    """The error names the argument, in memory as with a hub."""
    async with redpoll.connect("memory://") as bus:
        with pytest.raises(ConfigError, match=f"^{field}="):
            await verb(bus)
    with pytest.raises(ConfigError, match=r"^exceptions="):
        redpoll.connect("memory://", exceptions=ValueError)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_headers_and_times_that_can_be() -> None:
    """What is right still arrives as it was given."""
    heard: list[redpoll.bus.Broadcast] = []
    async with redpoll.connect("memory://") as bus, bus.broadcast.subscribe(heard.append, subject=("a", "b")):
        await bus.broadcast.send(1, subject="b", sender=["x", {"y": 2}], headers={"h": [1]})
        async with bus.tasks.worker(lambda task: [task.data, task.headers["h"]]):
            given = [*(await bus.tasks.submit_many([1, 2], dedup=("a", "b"), headers={"h": 1}))]
            given.append(await bus.tasks.submit(3, headers={"h": 1}, eta=datetime.now(UTC)))
            assert [await each.result(PATIENCE) for each in given] == [[1, 1], [2, 1], [3, 1]]
        await until(lambda: heard, "the broadcast")
    assert (heard[0].sender, heard[0].headers) == (["x", {"y": 2}], {"h": [1]})


@pytest.mark.asyncio
async def test_what_another_client_sends_that_nobody_can_read() -> None:
    """At a hub it is a dead letter, or passed over; what came beside it is not touched."""
    unreadable = Envelope("msgpack", b"\1", {1: 2})  # type: ignore[dict-item]
    heard: list[Any] = []
    async with redpoll.connect("memory://") as other:
        good = other.payloads.pack(1)
    with running() as hub:
        async with redpoll.connect(hub.url) as bus, redpoll.connect(hub.url) as sender:
            async with (
                bus.tasks.worker(lambda task: task.data, queue="q", concurrency=3),
                bus.broadcast.subscribe(lambda each: heard.append(each.body)),
            ):
                receipts = [
                    sender.engine.publish(each, queue="q", dedup=f"{number}")
                    for number, each in enumerate((good, unreadable, good))
                ]
                for each in (good, unreadable, good):
                    await sender.engine.publish(each, subject="broadcast.a")
                first, bad, last = [sender.tasks.handle((await each).id, "q") for each in receipts]
                assert [await first.result(PATIENCE), await last.result(PATIENCE)] == [1, 1]
                with pytest.raises(DeadLettered, match="cannot be read"):
                    await bad.result(PATIENCE)
                await until(lambda: len(heard) == 2, "the broadcasts")
                (letter,) = await bus.queues.browse("q", "dead")
                assert letter.envelope is None
                assert "cannot be read" in letter.history[-1]
                assert (await bus.queues.inspect("q")).taken == 0
    await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_names_of_queues_on_all_engines() -> None:
    """A wrong name of a queue is named in the same words by each verb, in memory as at a hub."""
    verbs: list[Callable[[Bus, Any], Any]] = [
        lambda bus, name: bus.tasks.submit(1, queue=name),
        lambda bus, name: bus.tasks.next(queue=name).__aenter__(),
        lambda bus, name: bus.tasks.worker(_nothing, queue=name).__aenter__(),
        lambda bus, name: bus.tasks.schedule("s", 1, queue=name, every=1),
        lambda bus, name: bus.queues.delete(name),
        lambda bus, name: bus.queues.inspect(name),
        lambda bus, name: bus.queues.browse(name),
        lambda bus, name: bus.queues.purge(name),
        lambda bus, name: bus.queues.pause(name),
        lambda bus, name: bus.queues.redrive(name),
        lambda bus, name: bus.queues.move(name, "there"),
        lambda bus, name: bus.queues.move("there", name),
    ]
    with running() as hub:
        for url in ("memory://", hub.url):
            async with redpoll.connect(url) as bus:
                await bus.queues.declare("there")
                for number, verb in enumerate(verbs):
                    for name, problem in ((5, "must be text, not empty"), ("a.*", "must not have the wildcards")):
                        with pytest.raises(ConfigError, match=problem) as caught:
                            await verb(bus, name)
                        assert caught.value.field == "queue", (url, number)
                assert await bus.healthy()


@pytest.mark.asyncio
@pytest.mark.parametrize("subject", ["a.*", "", 5, "x" * 246, "\udcff"])
async def test_subjects_as_they_were_given(subject: Any) -> None:
    """A wrong subject of a broadcast is shown as it was given."""
    async with redpoll.connect("memory://") as bus:
        with pytest.raises(ConfigError) as caught:
            await bus.broadcast.send(1, subject=subject)
        assert (caught.value.field, caught.value.value) == ("subject", subject)
        if subject != "a.*":
            with pytest.raises(ConfigError) as caught:
                bus.broadcast.subscribe(subject=subject)
            assert (caught.value.field, caught.value.value) == ("subject", subject)
        await bus.broadcast.send(1, subject="ä" * 100)


@pytest.mark.asyncio
@pytest.mark.parametrize("with_hub", [False, True])
async def test_flags_of_an_engine(with_hub: bool) -> None:
    """A flag that is neither True nor False is refused by name where it is given: a hub expels no client for it."""
    with running() as hub:
        async with redpoll.connect(hub.url if with_hub else "memory://") as bus:
            await bus.queues.declare("q")
            await bus.engine.publish(Envelope("raw", b"x"), queue="q")
            delivery = await bus.engine.take("q", PATIENCE)
            truthy: Any = 1
            verbs: dict[str, Callable[[], Any]] = {
                "requeue": lambda: delivery.reject(requeue=truthy),
                "blame": lambda: delivery.reject(blame=truthy),
                "exclude": lambda: delivery.reject(exclude=truthy),
                "accept": lambda: bus.engine.consume("q", accept=truthy),
                "exclusive": lambda: bus.engine.consume("q", exclusive=truthy),
            }
            for field, verb in verbs.items():
                with pytest.raises(ConfigError, match=f"^{field}=1: must be True or False"):
                    await verb()
            # It is held still, by the same client.
            assert await delivery.ack()


@pytest.mark.asyncio
async def test_a_priority_that_cannot_be_sent() -> None:
    """A priority too large for a record is refused, and does not take along what is sent in the same turn."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            wrong = asyncio.ensure_future(bus.tasks.submit(1, queue="q", priority=2**70))
            right = asyncio.ensure_future(bus.tasks.submit(1, queue="q"))
            with pytest.raises(ConfigError, match=r"^priority="):
                await asyncio.wait_for(wrong, PATIENCE)
            await asyncio.wait_for(right, PATIENCE)


@pytest.mark.asyncio
async def test_a_port_without_rabbitmq() -> None:
    """Where nothing listens the state has the system's words, and what to do."""
    port = free_port()
    async with redpoll.connect(f"amqp://127.0.0.1:{port}", wait=True) as bus:
        said = f"cannot connect to 127.0.0.1:{port}: Connection refused (start RabbitMQ, "
        await until(lambda: bus.status.reason.startswith(said), said)
