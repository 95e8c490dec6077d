"""What a hub has is there when it was killed and started again: each kind of thing that it keeps on its disk.

One hub is filled by each test's first half, killed, and started again; each test looks at its own part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import redpoll
from redpoll import QueueFull
from redpoll.bus import Bus, OutcomeKind, QueueSpec
from redpoll.errors import NoRoute, TaskCancelled, TaskExpired
from redpoll.platforms import KILL
from tests.cli.support import started

#: What the first halves hand over to the second ones, by name.
Notes = dict[str, Any]
Half = Callable[[Bus, Notes], Awaitable[None]]

FILLED: list[Half] = []


def before(half: Half) -> Half:
    """Have this done before the hub is killed."""
    FILLED.append(half)
    return half


def use(url: str, *halves: Half, notes: Notes) -> None:
    """Do things on a bus of their own."""

    async def run() -> None:
        async with redpoll.connect(url, connect_timeout=30) as bus:
            for half in halves:
                await half(bus, notes)

    asyncio.run(run())


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Notes]]:
    """The hub, started again."""
    folder = tmp_path_factory.mktemp("killed")
    arguments = ("hub", "--data", str(folder / "hub"), "--json", "--port")
    notes: Notes = {}
    with started(folder, *arguments, "0") as running:
        use(running.event()["url"], *FILLED, notes=notes)
        assert running.end(KILL) != 0
    with started(folder, *arguments, "0") as running:
        yield running.event()["url"], notes


@before
async def delayed(bus: Bus, notes: Notes) -> None:
    """Two tasks that are not due."""
    notes["late"] = (await bus.tasks.submit("late", queue="delays", delay=3_600)).id
    notes["soon"] = (await bus.tasks.submit("soon", queue="delays", delay=0.5)).id


def test_delays(again: tuple[str, Notes]) -> None:
    """A task that is not due waits for the rest of its time, and is given out then."""

    async def after(bus: Bus, notes: Notes) -> None:
        async with bus.tasks.next(queue="delays", timeout=30) as task:
            assert (task.id, task.data) == (notes["soon"], "soon")
            task.set_result(None)
        assert [each.id for each in await bus.queues.browse("delays", "delayed")] == [notes["late"]]

    use(again[0], after, notes=again[1])


@before
async def limited_in_time(bus: Bus, notes: Notes) -> None:
    """Two tasks that expire."""
    notes["ttl"] = (await bus.tasks.submit("x", queue="ttl", ttl=0.5)).id
    notes["deadline"] = (await bus.tasks.submit("x", queue="ttl", deadline=0.5)).id


def test_ttl(again: tuple[str, Notes]) -> None:
    """A task expires in its time, also where that passed while the hub was away."""

    async def after(bus: Bus, notes: Notes) -> None:
        for name in ("ttl", "deadline"):
            with pytest.raises(TaskExpired):
                await bus.tasks.handle(notes[name]).result(timeout=30)
        assert (await bus.queues.inspect("ttl")).ready == 0

    use(again[0], after, notes=again[1])


@before
async def with_priorities(bus: Bus, _: Notes) -> None:
    """Tasks of several levels."""
    await bus.queues.declare(QueueSpec("levels", priorities=3))
    for level in (0, 2, 1, 2):
        await bus.tasks.submit(level, queue="levels", priority=level)


def test_priorities(again: tuple[str, Notes]) -> None:
    """Tasks are given out by their priority."""

    async def after(bus: Bus, _: Notes) -> None:
        found = [await bus.engine.take("levels") for _ in range(4)]
        assert [bus.payloads.unpack(each.envelope) for each in found] == [2, 2, 1, 0]

    use(again[0], after, notes=again[1])


@before
async def full(bus: Bus, _: Notes) -> None:
    """Queues that are full, and one that is paused."""
    await bus.queues.declare(QueueSpec("full", max_length=2, at_limit="refuse"))
    await bus.queues.declare(QueueSpec("sized", max_bytes=10_000, at_limit="drop-old"))
    for number in range(2):
        await bus.tasks.submit(number, queue="full")
        await bus.tasks.submit(bytes(4_000), queue="sized")
    await bus.queues.pause("full")
    await bus.queues.declare(QueueSpec("mortal", durable=False))
    await bus.tasks.submit(1, queue="mortal")


def test_limits(again: tuple[str, Notes]) -> None:
    """Queues keep their settings, and count what was in them before; one that is not durable is gone."""

    async def after(bus: Bus, _: Notes) -> None:
        with pytest.raises(QueueFull):
            await bus.tasks.submit(3, queue="full")
        assert (await bus.queues.inspect("full")).paused
        await bus.tasks.submit(bytes(4_000), queue="sized")
        info = await bus.queues.inspect("sized")
        assert (info.ready, info.dropped) == (2, 1)
        with pytest.raises(NoRoute):
            await bus.queues.inspect("mortal")

    use(again[0], after, notes=again[1])


@before
async def given_up(bus: Bus, notes: Notes) -> None:
    """Dead letters, beside their queue and in another one."""
    await bus.queues.declare(QueueSpec("graveyard"))
    await bus.queues.declare(QueueSpec("buried", dead_letter="graveyard"))
    for name in ("dead", "buried"):
        notes[name] = (await bus.tasks.submit(name, queue=name)).id
        delivery = await bus.engine.take(name)
        await delivery.reject(requeue=False, reason="no good")


def test_dead_letters(again: tuple[str, Notes]) -> None:
    """Dead letters are there with their history, and are put back as new tasks, once."""

    async def after(bus: Bus, notes: Notes) -> None:
        (dead,) = await bus.queues.browse("dead", "dead")
        assert (dead.id, dead.history) == (notes["dead"], ("no good",))
        (new,) = await bus.queues.redrive("dead")
        info = await bus.engine.lookup(new)
        assert (info.state, info.origin) == ("ready", notes["dead"])
        assert await bus.queues.redrive("dead") == []
        assert (await bus.queues.inspect("graveyard")).ready == 1

    use(again[0], after, notes=again[1])


@before
async def keyed(bus: Bus, notes: Notes) -> None:
    """A task with a key, that is done."""
    notes["first"] = (await bus.tasks.submit(1, queue="keys", dedup="once")).id
    delivery = await bus.engine.take("keys")
    await delivery.ack()


def test_dedup(again: tuple[str, Notes]) -> None:
    """A key counts: a second task with it is the first."""

    async def after(bus: Bus, notes: Notes) -> None:
        assert (await bus.tasks.submit(1, queue="keys", dedup="once")).id == notes["first"]
        assert (await bus.tasks.submit(1, queue="keys", dedup="twice")).id != notes["first"]
        assert (await bus.queues.inspect("keys")).ready == 1

    use(again[0], after, notes=again[1])


@before
async def kept(bus: Bus, _: Notes) -> None:
    """Broadcasts of which the last are kept, and some for a subscription that is away."""
    for number in range(4):
        await bus.broadcast.send(number, subject="price.tin", last=2)
    async with bus.broadcast.subscribe(subject="news.*", durable="reader"):
        pass
    for number in range(3):
        await bus.broadcast.send(number, subject="news.today")


async def next_bodies(subscription: Any, count: int) -> list[Any]:
    """The next broadcasts of a subscription."""
    return [(await asyncio.wait_for(anext(subscription), 30)).body for _ in range(count)]


def test_last_values(again: tuple[str, Notes]) -> None:
    """The last broadcasts of a subject are there for who subscribes later."""

    async def after(bus: Bus, _: Notes) -> None:
        async with bus.broadcast.subscribe(subject="price.#", last=True) as subscription:
            assert await next_bodies(aiter(subscription), 2) == [2, 3]

    use(again[0], after, notes=again[1])


def test_durable_subscriptions(again: tuple[str, Notes]) -> None:
    """A durable subscription gets what was sent while it was away, and what is sent later."""

    async def after(bus: Bus, _: Notes) -> None:
        await bus.broadcast.send(3, subject="news.today")
        async with bus.broadcast.subscribe(subject="news.*", durable="reader") as subscription:
            assert await next_bodies(aiter(subscription), 4) == [0, 1, 2, 3]

    use(again[0], after, notes=again[1])


@before
async def ended(bus: Bus, notes: Notes) -> None:
    """Tasks that ended, that were cancelled, and that were tried in vain."""
    done = await bus.tasks.submit(1, queue="ended")
    delivery = await bus.engine.take("ended")
    await delivery.ack(redpoll.bus.Outcome(OutcomeKind.RESULT, bus.payloads.pack("result")))
    cancelled = await bus.tasks.submit(2, queue="ended")
    assert await cancelled.cancel() == "withdrawn"
    tried = await bus.tasks.submit(3, queue="ended")
    delivery = await bus.engine.take("ended")
    await delivery.reject(blame=True, reason="in vain")
    notes |= {"done": done.id, "cancelled": cancelled.id, "tried": tried.id}


def test_outcomes_and_attempts(again: tuple[str, Notes]) -> None:
    """Outcomes are had by their ids, what was cancelled never begins, and attempts count on."""

    async def after(bus: Bus, notes: Notes) -> None:
        assert await bus.tasks.handle(notes["done"]).result(timeout=30) == "result"
        with pytest.raises(TaskCancelled):
            await bus.tasks.handle(notes["cancelled"]).result(timeout=30)
        delivery = await bus.engine.take("ended")
        assert (delivery.id, delivery.attempt) == (notes["tried"], 2)
        assert (await bus.engine.lookup(notes["tried"])).history == ("in vain",)

    use(again[0], after, notes=again[1])


@before
async def scheduled(bus: Bus, _: Notes) -> None:
    """Schedules, one of which is removed again."""
    await bus.tasks.schedule("often", {"n": 1}, queue="planned", every=0.2)
    await bus.tasks.schedule("nightly", 2, queue="planned", cron="0 3 * * *", zone="Europe/Berlin", missed="skip")
    await bus.tasks.schedule("never", 3, queue="planned", every=0.1)
    assert await bus.tasks.unschedule("never")
    # What was planned until then, of both.
    await bus.queues.purge("planned")


def test_schedules(again: tuple[str, Notes]) -> None:
    """A schedule goes on, with one task for those that were missed; a removed one stays away."""

    async def after(bus: Bus, _: Notes) -> None:
        before = (await bus.queues.inspect("planned")).ready
        assert before < 60
        for _number in range(before + 2):
            async with bus.tasks.next(queue="planned", timeout=30) as task:
                assert task.data == {"n": 1}
                task.set_result(None)
        found = {each.name: each for each in await bus.engine.schedules()}
        assert found.keys() == {"often", "nightly"}
        assert (found["often"].every, found["nightly"].cron) == (0.2, "0 3 * * *")
        assert (found["nightly"].zone, found["nightly"].missed) == ("Europe/Berlin", "skip")
        assert 0 < found["nightly"].left <= 90_000
        assert not await bus.tasks.unschedule("never")
        assert await bus.tasks.unschedule("often")

    use(again[0], after, notes=again[1])
