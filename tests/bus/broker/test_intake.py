"""Publishing: to queues, to subjects, and where there is no room."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll.bus.broker import Limits
from redpoll.bus.broker.outputs import ADMITTED
from redpoll.bus.broker.queue import Parked
from redpoll.errors import ConfigError, Expired, NoRoute, QueueFull, ResultExpired, UnknownTask
from tests.bus.broker.support import Desk


def test_mandatory_needs_somebody() -> None:
    """Without a queue there is no route; with mandatory there has to be a consumer, or somebody who wants the subject."""
    desk = Desk()
    publish = desk.broker.intake.publish
    with pytest.raises(NoRoute, match="declare it first"):
        desk.submit("a", "nowhere")
    with pytest.raises(NoRoute):
        desk.submit("a", mandatory=True)
    with pytest.raises(NoRoute):
        publish(desk.boss, "news", "", 0, 0.0, mandatory=True)
    publish(desk.boss, "news", "", 0, 0.0)
    desk.consume("w")
    desk.broker.intake.subscribe(desk.boss, ("news",))
    desk.submit("a", mandatory=True)
    publish(desk.boss, "news", "", 0, 0.0, mandatory=True)


def test_a_second_task_with_a_key_is_the_first() -> None:
    """Until the first task has ended, and within the time of its key, a second one is that: it is not put into the queue."""
    desk = Desk()
    first = desk.number("a", dedup="k")
    assert desk.submit("b", dedup="k") == first
    assert desk.queue.ready == 1
    desk.wait(4_000)
    # It is kept beside other keys, which end their time.
    desk.number("other", dedup="l")
    worker = desk.consume("w")
    desk.wait(4_000)
    desk.number("third", dedup="m")
    assert desk.submit("c", dedup="k") == first
    desk.settle(worker, "r")
    desk.wait(3_600)
    assert desk.submit("d", dedup="k").id != first


def test_a_full_queue_lets_wait() -> None:
    """What has no room waits in order, and is admitted as room comes; a later one does not pass it."""
    desk = Desk(max_length=2)
    for body in "abcd":
        desk.submit(body, owner=body)
    worker = desk.consume("w")
    desk.take()
    desk.settle(worker)
    said = desk.said()
    assert [each for each in said if each[0] == "admitted"] == [("admitted", "c", 3 << 64 | 3)]
    assert isinstance(desk.submit("e", owner="e"), Parked)
    for _ in range(3):
        desk.settle(worker)
    assert [each[1] for each in desk.said() if each[0] == "admitted"] == ["d", "e"]
    assert desk.broker.admin.inspect(desk.queue).waiting == 0


def test_waiting_ends_with_its_time() -> None:
    """A publish waits for its time, or until it is withdrawn; neither is admitted afterwards."""
    desk = Desk(max_length=1)
    desk.submit("a")
    desk.submit("b", timeout=1.0, owner="b")
    withdrawn = desk.submit("c", owner="c")
    for _ in range(2):
        desk.broker.intake.unpark([withdrawn], 0.0)
    desk.wait(1.0)
    assert desk.said() == [("admitted", "b", "Expired")]
    with pytest.raises(Expired, match="still waiting for room in queue 'q' after 0 s"):
        desk.submit("d", timeout=0.0)
    desk.settle(desk.consume("w"))
    assert desk.queue.count == 0


def test_a_tasks_own_time_counts_while_it_waits() -> None:
    """A task's delay, ttl and deadline count from when it was submitted, and one whose time is over does not wait on."""
    desk = Desk(max_length=1)
    desk.submit("a")
    desk.submit("b", deadline=1.0, owner="b")
    desk.submit("c", ttl=2.0, timeout=60.0, owner="c")
    desk.submit("d", deadline=10.0, owner="d")
    desk.wait(2.0)
    assert desk.said() == [("admitted", "b", "Expired"), ("admitted", "c", "Expired")]
    desk.wait(2.0)
    worker = desk.consume("w")
    desk.settle(worker)
    assert desk.deliveries() == [("w", "a"), ("w", "d")]
    desk.submit("e", delay=4.0, owner="e")
    desk.wait(5.0)
    assert not desk.said()
    desk.wait(1.0)
    assert ("w", "cancelled", "its deadline passed") in desk.said()
    desk.settle(worker)
    assert desk.deliveries() == [("w", "e")]


def test_who_gives_up_lets_the_next_one_in() -> None:
    """When a large publish is withdrawn or expires, the small ones behind it are admitted where there is room."""
    desk = Desk(max_bytes=1_200)
    desk.submit("a" * 500)
    first = desk.submit("b" * 500, owner="b")
    desk.submit("c" * 500, owner="c", timeout=1.0)
    desk.submit("d", owner="d")
    desk.take()
    desk.broker.intake.unpark([first], 0.0)
    assert desk.said() == []
    desk.wait(1.0)
    said = desk.said()
    assert [each[1] for each in said] == ["c", "d"]
    assert (said[0][2], desk.queue.count) == ("Expired", 2)


def test_those_who_give_up_together_are_not_admitted() -> None:
    """Of publishes that are withdrawn at once none is let in by another one's leaving."""
    desk = Desk(max_bytes=1_200)
    desk.submit("a" * 500)
    waiting = [desk.submit("b" * 500, owner="b"), desk.submit("c", owner="c")]
    desk.take()
    desk.broker.intake.unpark(waiting, 0.0)
    assert (desk.said(), desk.queue.count) == ([], 1)


def test_no_time_is_left() -> None:
    """What has no time left is refused as expired before anything is put into the queue, after waiting too."""
    desk = Desk(max_length=1)
    for options in ({"ttl": 0.0}, {"deadline": 0}, {"deadline": -1.5}, {"ttl": -2}):
        with pytest.raises(Expired):
            desk.submit("a", **options)
    desk.submit("a", timeout=0.0)
    desk.submit("b", owner="b", deadline=1.0)
    desk.take()
    desk.now = 1.0
    desk.broker.work.cancel(next(iter(desk.broker.tasks.found)), desk.now)
    assert ("admitted", "b", "Expired") in desk.said()
    assert desk.queue.count == 0


@pytest.mark.parametrize(
    "options",
    [{name: value} for name in ("delay", "ttl", "deadline", "timeout") for value in ("60", float("nan"), True, 1e300)]
    + [{"priority": 1.5}, {"priority": -1}, {"priority": "1"}, {"delay": -1}, {"delay": None}, {"dedup": ["k"]}],
)
def test_what_cannot_be_changes_nothing(options: dict[str, Any]) -> None:
    """A time, a priority or a key that cannot be is refused before anything is counted."""
    desk = Desk(priorities=3)
    with pytest.raises(ConfigError, match=next(iter(options))):
        desk.submit("a", **options)
    assert (desk.queue.count, desk.queue.bytes, desk.queue.submitted, len(desk.broker.timers)) == (0, 0, 0, 0)


def test_a_key_is_found_after_waiting_too() -> None:
    """A publish that waited and whose key another task had meanwhile is that one, and says so."""
    desk = Desk(max_length=2)
    first = desk.number("a")
    desk.submit("b")
    desk.submit("c", dedup="k", owner="c")
    desk.submit("d", dedup="k", owner="d")
    desk.take()
    desk.broker.admin.purge(desk.queue, "ready", 0.0)
    admitted = [effect[2:] for effect in desk.take() if effect[0] == ADMITTED]
    assert [(parked.owner, known) for parked, _, _, known in admitted] == [("c", False), ("d", True)]
    assert admitted[0][1] == admitted[1][1] != first


def test_waiting_is_bounded() -> None:
    """Only so many publishes wait; those that gave up do not count."""
    desk = Desk(Limits(parked=2), max_length=1)
    desk.submit("a")
    for _ in range(10):
        desk.broker.intake.unpark([desk.submit("x")], 0.0)
    desk.submit("b")
    desk.broker.intake.unpark([desk.submit("c")], 0.0)
    desk.submit("d")
    with pytest.raises(QueueFull, match="the limit is 2 waiting publishes"):
        desk.submit("e")


def test_bytes_are_bounded_but_one_always_fits() -> None:
    """Bodies and a charge for each count; a task of any size fits into an empty queue."""
    desk = Desk(max_bytes=1_000, at_limit="refuse")
    task = desk.submit("x" * 5_000)
    with pytest.raises(QueueFull, match="the limit is 1000 bytes"):
        desk.submit("a")
    desk.broker.work.cancel(task.id, 0.0)
    for _ in range(3):
        desk.submit("a")
    with pytest.raises(QueueFull):
        desk.submit("a")


def test_the_oldest_is_dropped() -> None:
    """A ring drops its oldest ready task for a new one, says so, and refuses when workers have all of them."""
    desk = Desk(max_length=2, at_limit="drop-old")
    for body in "abc":
        desk.submit(body)
    assert desk.said() == [("a", "DEAD", "dropped for a newer one: the queue is full")]
    assert desk.queue.dropped == 1
    desk.consume("w", 2)
    with pytest.raises(QueueFull):
        desk.submit("d")


def test_an_event_goes_to_all_who_want_it() -> None:
    """Live subscriptions and queues whose topics match have an event; a subscription once."""
    desk = Desk(topics=("a.*",))
    broker = desk.broker
    one = broker.intake.subscribe(desk.boss, ("a.b", "a.#"), "one")
    broker.intake.subscribe(desk.boss, ("#",), "two")
    assert broker.intake.publish(desk.boss, "a.b", "x", 1, 0.0) is None
    assert desk.said() == [(("one", "two"), "a.b", "x", False)]
    assert [(task.payload, task.flags & 1) for task in desk.queue.in_line()] == [("x", 0)]
    broker.peers.close(one)
    broker.peers.close(one)
    broker.intake.publish(desk.boss, "a", "y", 1, 0.0)
    assert desk.said() == [(("two",), "a", "y", False)]


def test_an_event_goes_to_all_queues_or_none() -> None:
    """Where one queue refuses an event, no queue and no subscription has it."""
    desk = Desk(topics=("t",))
    desk.declare("full", topics=("t",), max_length=1, at_limit="refuse")
    desk.declare("ring", topics=("t",), max_length=1, at_limit="drop-old")
    desk.broker.intake.subscribe(desk.boss, ("t",), "live")
    desk.broker.intake.publish(desk.boss, "t", "x", 1, 0.0)
    desk.take()
    with pytest.raises(QueueFull, match="'full'"):
        desk.broker.intake.publish(desk.boss, "t", "y", 1, 0.0)
    assert desk.said() == []
    assert desk.queue.ready == 1
    assert [task.payload for task in desk.broker.queues.get("ring").in_line()] == ["x"]


def test_an_event_waits_for_every_queue() -> None:
    """An event that waits for room in one queue may go on to wait in another, and is sent once all have room."""
    desk = Desk(topics=("t",), max_length=1)
    other = desk.declare("other", topics=("t",), max_length=1)
    desk.submit("a")
    desk.submit("b", "other")
    assert desk.broker.intake.publish(desk.boss, "t", "x", 1, 0.0, owner="event") is not None
    assert desk.broker.intake.publish(desk.boss, "t", "y", 1, 0.0, timeout=5.0, owner="late") is not None
    first, second = desk.consume("w"), desk.consume("v", queue="other")
    desk.take()
    desk.settle(first)
    assert desk.queue.ready == 0
    desk.settle(second)
    ended = [("a", "RESULT", ""), ("b", "RESULT", "")]
    assert sorted(map(str, desk.said())) == sorted(map(str, [*ended, ("v", "x"), ("w", "x"), ("admitted", "event", 0)]))
    assert (desk.queue.taken, other.taken) == (1, 1)
    desk.wait(5.0)
    assert desk.said()[-1] == ("admitted", "late", "Expired")


def test_kept_events_come_first() -> None:
    """A new subscription that wants them has the last events of its subjects, marked as kept."""
    desk = Desk()
    intake = desk.broker.intake
    for body in "abc":
        intake.publish(desk.boss, "s.x", body, 1, 0.0, last=2)
    intake.subscribe(desk.boss, ("s.*",), "new", last=True)
    intake.subscribe(desk.boss, ("s.*",), "plain")
    assert desk.said() == [(("new",), "s.x", "b", True), (("new",), "s.x", "c", True)]


def test_a_bad_pattern_leaves_nothing() -> None:
    """A subscription with a pattern that cannot be one is not made at all; there is a bound for their number."""
    desk = Desk(Limits(subscriptions=1))
    with pytest.raises(ConfigError):
        desk.broker.intake.subscribe(desk.boss, ("",))
    with pytest.raises(ConfigError):
        desk.broker.intake.publish(desk.boss, "a.*", "", 0, 0.0)
    with pytest.raises(QueueFull):
        desk.broker.intake.subscribe(desk.boss, ("a", "b"))
    desk.broker.intake.subscribe(desk.boss, ("a",))


def test_a_task_can_be_watched_later() -> None:
    """Several watchers hear of a task; who comes after the end hears the outcome; what is not known is an error."""
    desk = Desk(Limits(watchers=2))
    watch = desk.broker.intake.watch
    number, unkept = desk.number(), desk.number(keep=False)
    for name in ("one", "two", "three"):
        watch(desk.boss, number, name, 0.0)
    with pytest.raises(QueueFull, match="2 watchers"):
        watch(desk.boss, number, "four", 0.0)
    worker = desk.consume("w", 2)
    desk.broker.work.progress(worker, next(iter(worker.held)), "half")
    desk.settle(worker, "r")
    desk.settle(worker, "r")
    watch(desk.boss, number, "late", 0.0)
    assert desk.said()[2:] == [
        ("one", "PROGRESS", "half"),
        ("two", "PROGRESS", "half"),
        ("three", "PROGRESS", "half"),
        ("one", "RESULT", "r"),
        ("two", "RESULT", "r"),
        ("three", "RESULT", "r"),
        ("late", "RESULT", "r"),
    ]
    with pytest.raises(ResultExpired):
        watch(desk.boss, unkept, "late", 0.0)
    with pytest.raises(UnknownTask, match="task s-99-0000000000000000 is unknown"):
        watch(desk.boss, 99 << 64, "late", 0.0)


def test_watchers_and_subscriptions_are_bounded() -> None:
    """One watcher too many of a task is refused, and one live subscription too many."""
    desk = Desk(Limits(watchers=2, subscriptions=2))
    number = desk.number("a")
    intake = desk.broker.intake
    for watch in "bc":
        intake.watch(desk.boss, number, watch, desk.now)
    with pytest.raises(QueueFull, match="2 watchers"):
        intake.watch(desk.boss, number, "d", desk.now)
    for _ in range(2):
        intake.subscribe(desk.boss, ("s",))
    with pytest.raises(QueueFull, match="2 subscriptions"):
        intake.subscribe(desk.boss, ("s",))
