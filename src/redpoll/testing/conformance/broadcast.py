"""Broadcasts on every engine: kiwiPy's behaviours by their ids, and ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from redpoll.bus import Broadcast, Bus, QueueSpec
from redpoll.errors import NoRoute, SpecConflict
from redpoll.testing.conformance.faces import Signal
from redpoll.testing.conformance.frame import Place, behaviour, fails

__all__: list[str] = []

PEOPLE = ("bob.jones", "bob.smith", "martin.uhrin", "alice.jones")
SUBJECTS = ("purchase.car", "purchase.piano", "sell.guitar", "sell.house")


def _pairs(seen: list[Broadcast]) -> list[tuple[Any, str | None]]:
    return [(each.sender, each.subject) for each in seen]


async def _send_matrix(place: Place, bus: Bus) -> None:
    """Send each pair of sender and subject."""
    for sender in PEOPLE:
        for subject in SUBJECTS:
            await bus.broadcast.send(None, sender=sender, subject=place.name(subject))


async def _filtered(place: Place, wanted: Callable[[Any, str], bool], **filters: Any) -> None:
    """Check that a subscription with filters is handed the pairs that are wanted, and nothing else, in order."""
    sender, receiver = await place.open(), await place.open()
    seen: list[Broadcast] = []
    every: list[Broadcast] = []
    await receiver.broadcast.subscribe(seen.append, **filters).start()
    await receiver.broadcast.subscribe(every.append, subject=place.name("#")).start()
    await _send_matrix(place, sender)
    await place.until(lambda: len(every) == 16)
    await place.calm()
    pairs = [(person, place.name(subject)) for person in PEOPLE for subject in SUBJECTS]
    assert _pairs(every) == pairs
    assert _pairs(seen) == [each for each in pairs if wanted(each[0], each[1].removeprefix(place.name("")))]


@behaviour("K-14")
async def all_fields(place: Place) -> None:
    """A broadcast reaches two subscribers of one bus with body, sender, subject and correlation id as they were."""
    bus = await place.open()
    one: list[Broadcast] = []
    two: list[Broadcast] = []
    topic = place.name("topic")
    for seen in (one, two):
        await bus.broadcast.subscribe(seen.append, where=lambda each: each.headers == {"place": place.prefix}).start()
    sent: list[dict[str, Any]] = [
        {"body": "hello", "sender": "martin", "subject": topic, "correlation_id": 420},
        {"body": [1, {"a": None}], "sender": 7, "subject": None, "correlation_id": None},
        {"body": None, "sender": None, "subject": topic, "correlation_id": "x"},
    ]
    for fields in sent:
        await bus.broadcast.send(headers={"place": place.prefix}, **fields)
    await place.until(lambda: len(one) == len(two) == 3)
    for seen in (one, two):
        fields_seen = [each._asdict() for each in seen]
        assert [{name: each[name] for name in sent[0]} for each in fields_seen] == sent


@behaviour("K-15")
async def subjects(place: Place) -> None:
    """A pattern of subjects lets those through that match, in order."""
    wanted = place.name("purchase.*")
    await _filtered(place, lambda _, subject: subject.startswith("purchase."), subject=wanted)


@behaviour("K-16")
async def senders(place: Place) -> None:
    """A pattern of senders lets those through that match, in order."""
    mine = place.name("#")
    await _filtered(place, lambda sender, _: sender.endswith(".jones"), sender="*.jones", subject=mine)


@behaviour("K-17")
async def senders_and_subjects(place: Place) -> None:
    """Filters for both pass messages that match both."""

    def wanted(sender: str, subject: str) -> bool:
        return sender.endswith(".jones") and subject.startswith("purchase.")

    await _filtered(place, wanted, sender="*.jones", subject=place.name("purchase.*"))


@behaviour("K-18")
async def regular_expressions(place: Place) -> None:
    """Filters may be compiled regular expressions."""

    def wanted(sender: str, subject: str) -> bool:
        return sender.endswith(".jones") and subject.startswith("purchase.")

    subject = re.compile(re.escape(place.name("")) + r"purchase.*")
    await _filtered(place, wanted, sender=re.compile(r".*\.jones"), subject=subject)


@behaviour("K-19")
async def equal_senders(place: Place) -> None:
    """A sender without wildcards is that sender and no other; so is one that is no text."""
    await _filtered(place, lambda sender, _: sender == "bob.jones", sender="bob.jones", subject=place.name("#"))
    bus = await place.open()
    seen: list[Broadcast] = []
    await bus.broadcast.subscribe(seen.append, sender=7, subject=place.name("n")).start()
    for sender in (7, "7", None, 8, 7):
        await bus.broadcast.send(sender, sender=sender, subject=place.name("n"))
    await place.until(lambda: len(seen) == 2)
    assert [each.body for each in seen] == [7, 7]


@behaviour("K-20")
async def subscribing_again(place: Place) -> None:
    """A closed subscription receives nothing, and a new one receives later broadcasts."""
    sender, receiver = await place.open(), await place.open()
    seen: list[Broadcast] = []
    topic = place.name("topic")

    async def send(body: str) -> None:
        await sender.broadcast.send(body, subject=topic)

    async with receiver.broadcast.subscribe(seen.append, subject=topic) as subscription:
        await send("a")
        await place.until(lambda: len(seen) == 1)
        states = [subscription.active]
    states.append(subscription.active)
    assert states == [True, False]
    await send("b")
    await place.calm()
    async with receiver.broadcast.subscribe(seen.append, subject=topic):
        await send("c")
        await place.until(lambda: len(seen) == 2)
    assert [each.body for each in seen] == ["a", "c"]


@behaviour("K-21")
async def nobody_listens(place: Place) -> None:
    """Sending without subscribers is no error."""
    bus = await place.open()
    await bus.broadcast.send("hello", subject=place.name("nobody"))
    await bus.broadcast.send("hello")


@behaviour("K-34")
async def expired_queue(place: Place) -> None:
    """After a subscription's queue has expired unused, a new subscription receives later broadcasts."""
    sender, receiver = await place.open(), await place.open()
    name, topic = place.name("short"), place.name("topic")
    place.clean(f"broadcast:{name}")
    seen: list[Any] = []

    def take(broadcast: Broadcast) -> None:
        seen.append(broadcast.body)

    spec = QueueSpec(name, expires=0.2)
    async with receiver.broadcast.subscribe(take, subject=topic, durable=spec):
        await sender.broadcast.send("a", subject=topic)
        await place.until(lambda: seen == ["a"])
    await place.wait(0.5)
    for _ in range(20):
        try:
            await receiver.queues.inspect(f"broadcast:{name}")
        except NoRoute:
            break
        await place.wait(0.5)  # a broker may look for what expired every few seconds
    await sender.broadcast.send("b", subject=topic)
    async with receiver.broadcast.subscribe(take, subject=topic, durable=spec):
        await sender.broadcast.send("c", subject=topic)
        await place.until(lambda: len(seen) == 2)
        await place.calm()
    assert seen == ["a", "c"]


@behaviour("B-01")
async def several_subjects(place: Place) -> None:
    """A subscription may have several patterns, receives an event that matches two of them once, and may have a predicate."""
    bus = await place.open()
    seen: list[Broadcast] = []
    patterns = [place.name("a.#"), place.name("*.b")]
    await bus.broadcast.subscribe(seen.append, subject=patterns, where=lambda each: each.body != 2).start()
    for number, subject in enumerate(("a", "a.b", "a.c", "c.b", "c")):
        await bus.broadcast.send(number, subject=place.name(subject))
    await place.until(lambda: len(seen) == 3)
    await place.calm()
    assert [each.body for each in seen] == [0, 1, 3]


@behaviour("B-02")
async def one_after_the_other(place: Place) -> None:
    """A coroutine function is awaited for one broadcast after the other; beyond the buffer the oldest are dropped."""
    bus = await place.open()
    going = Signal()
    seen: list[Any] = []

    async def callback(broadcast: Broadcast) -> None:
        seen.append(broadcast.body)
        await going.wait()

    async with bus.broadcast.subscribe(callback, subject=place.name("n"), buffer=2) as subscription:
        await bus.broadcast.send(0, subject=place.name("n"))
        await place.until(lambda: seen)
        for number in range(1, 5):
            await bus.broadcast.send(number, subject=place.name("n"))
        await place.calm()
        assert seen == [0]
        going.set()
        await place.until(lambda: len(seen) == 3)
        assert (seen, subscription.dropped) == ([0, 3, 4], 2)


@behaviour("B-03")
async def iterating(place: Place) -> None:
    """Without a callback a subscription is iterated; a cancelled wait loses nothing."""
    place.only_async("step of an iteration that can be cancelled")
    bus = await place.open()
    async with bus.broadcast.subscribe(subject=place.name("n")) as subscription:
        waiting = asyncio.ensure_future(subscription.__anext__())
        await place.calm()
        waiting.cancel()
        for number in range(3):
            await bus.broadcast.send(number, subject=place.name("n"))
        await asyncio.wait([waiting])
        assert [(await anext(subscription)).body for _ in range(3)] == [0, 1, 2]


@behaviour("B-04", "last")
async def last_ones(place: Place) -> None:
    """The last broadcasts of a subject are kept if the sender says so, for subscribers that ask for them."""
    bus = await place.open()
    for number in range(3):
        await bus.broadcast.send(number, subject=place.name("s"), last=2)
    asking: list[Broadcast] = []
    plain: list[Broadcast] = []
    await bus.broadcast.subscribe(asking.append, subject=place.name("*"), last=True).start()
    await bus.broadcast.subscribe(plain.append, subject=place.name("*")).start()
    await bus.broadcast.send("new", subject=place.name("s"))
    await place.until(lambda: plain and len(asking) == 3)
    assert [(each.body, each.kept) for each in asking] == [(1, True), (2, True), ("new", False)]
    assert len(plain) == 1


@behaviour("B-05")
async def durable(place: Place) -> None:
    """A durable subscription receives broadcasts sent in its absence, shares with others of its name, and is forgotten."""
    sender, receiver = await place.open(), await place.open()
    seen: list[Any] = []
    name, topic = place.name("audit"), place.name("t.*")
    place.clean(f"broadcast:{name}")

    def take(broadcast: Broadcast) -> None:
        seen.append((broadcast.subject, broadcast.body))

    async with receiver.broadcast.subscribe(take, subject=topic, durable=name) as subscription:
        await sender.broadcast.send(0, subject=place.name("t.0"))
        await place.until(lambda: len(seen) == 1)
        assert (subscription.delivered, subscription.dropped) == (1, 0)
    for number in range(1, 4):
        await sender.broadcast.send(number, subject=place.name(f"t.{number}"))
    await sender.broadcast.send("not wanted", subject=place.name("t"))
    async with (
        sender.broadcast.subscribe(take, subject=topic, durable=name),
        receiver.broadcast.subscribe(take, subject=topic, durable=name),
    ):
        await place.until(lambda: len(seen) == 4)
        await place.calm()
    assert sorted(seen) == [(place.name(f"t.{number}"), number) for number in range(4)]
    await fails(receiver.broadcast.subscribe(take, subject="other", durable=name).start(), SpecConflict)
    await sender.broadcast.forget(name)
    await fails(sender.broadcast.forget(name), NoRoute)


@behaviour("B-06", "delay")
async def a_callback_that_fails(place: Place) -> None:
    """A broadcast that a callback of a durable subscription fails with comes again later, and is a dead letter in the end."""
    bus = await place.open()
    name, topic = place.name("failing"), place.name("f")
    place.clean(f"broadcast:{name}")
    seen: list[Any] = []

    async def fail(broadcast: Broadcast) -> None:
        seen.append(broadcast.body)
        raise ValueError("no")

    spec = QueueSpec(name, max_attempts=2)
    async with bus.broadcast.subscribe(fail, subject=topic, durable=spec) as subscription:
        await bus.broadcast.send("a", subject=topic)
        await place.until(lambda: subscription.failed == 1)
        await place.calm()
        await place.wait(1.1)
        await place.until(lambda: subscription.failed == 2)
        await place.calm()
        assert (seen, subscription.delivered) == (["a", "a"], 2)
    if bus.capabilities.browse:
        assert (await bus.queues.inspect(f"broadcast:{name}")).dead == 1


@behaviour("B-07")
async def a_durable_iteration(place: Place) -> None:
    """Broadcasts that the iteration over a durable subscription has not finished go back when it is closed."""
    bus = await place.open()
    name, topic = place.name("iterated"), place.name("i")
    place.clean(f"broadcast:{name}")
    bodies: list[Any] = []
    for _ in range(2):
        async with bus.broadcast.subscribe(subject=topic, durable=name) as subscription:
            if not bodies:
                for number in range(3):
                    await bus.broadcast.send(number, subject=topic)
            bodies += [(await anext(subscription)).body for _ in range(2)]
    # Redelivered events may arrive in another order.
    assert (bodies[:2], sorted(bodies[2:])) == ([0, 1], [1, 2])


@behaviour("B-08")
async def closing(place: Place) -> None:
    """Closing the bus lets callbacks finish within the drain and cancels them after it; durable broadcasts go back."""
    sender = await place.open()
    name, topic = place.name("drained"), place.name("d")
    place.clean(f"broadcast:{name}")
    for drain, expected in ((5.0, ["begun", "done"]), (0.0, ["begun", "cancelled"]), (1.0, ["begun", "cancelled"])):
        receiver = await place.open()
        seen: list[str] = []
        going = Signal()

        async def callback(_: Broadcast, seen: list[str] = seen, going: Signal = going) -> None:
            seen.append("begun")
            try:
                await going.wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            seen.append("done")

        await receiver.broadcast.subscribe(callback, subject=topic, durable=name).start()
        await sender.broadcast.send(drain, subject=topic)
        await place.until(partial(len, seen))
        closing = asyncio.ensure_future(receiver.close(drain))
        await place.calm()
        if drain == 5.0:
            assert not closing.done()
            going.set()
        await place.wait(drain + 0.1)
        while place.setting.face == "blocking" and not closing.done():  # its thread may have begun just now
            await place.wait(drain + 0.1)
        await closing
        assert seen == expected
        expected_left = 0 if drain == 5.0 else 1
        queue = f"broadcast:{name}"
        assert (await sender.queues.inspect(queue)).ready == expected_left
        await sender.queues.purge(queue)


@behaviour("B-09")
async def deleted(place: Place) -> None:
    """A durable subscription whose queue is deleted while it is open declares it again, and receives later broadcasts."""
    bus, other = await place.open(), await place.open()
    name, topic = place.name("remade"), place.name("r")
    place.clean(f"broadcast:{name}")
    seen: list[Any] = []
    async with bus.broadcast.subscribe(
        lambda each: seen.append(each.body), subject=topic, durable=name
    ) as subscription:
        await other.broadcast.send(1, subject=topic)
        await place.until(lambda: seen == [1])
        await other.broadcast.forget(name)
        await place.wait(1)
        await place.until(lambda: _active(subscription))
        await other.broadcast.send(2, subject=topic)
        await place.until(lambda: seen == [1, 2])


def _active(subscription: Any) -> bool:
    return bool(getattr(subscription, "_target", subscription).active)
