"""Queues are declared, changed, deleted."""

from __future__ import annotations

import pytest

from redpoll.bus.broker import Limits
from redpoll.errors import ConfigError, NoRoute, QueueFull, SpecConflict
from tests.bus.broker.support import Desk


def test_declaring_again_changes_nothing() -> None:
    """The same spec is welcome; another one names the field that differs."""
    desk = Desk()
    assert desk.declare("q") is desk.queue
    with pytest.raises(SpecConflict, match=r"queue 'q' has ttl=None, not 5 \(declare\(update=True\) changes it\)"):
        desk.declare("q", ttl=5)
    with pytest.raises(SpecConflict, match="never changes"):
        desk.declare("q", priorities=2, update=True)
    with pytest.raises(NoRoute):
        desk.broker.queues.get("nowhere")


def test_dead_letters_do_not_return() -> None:
    """A queue whose dead letters would return to it, by way of others or at once, cannot be declared, nor changed so."""
    desk = Desk()
    desk.declare("a", dead_letter="b")
    desk.declare("b", dead_letter="c")
    with pytest.raises(ConfigError, match="return to their queue: c -> a -> b -> c"):
        desk.declare("c", dead_letter="a")
    with pytest.raises(ConfigError, match="q -> q"):
        desk.declare("q", dead_letter="q", update=True)
    assert "c" not in desk.broker.queues.found
    assert desk.queue.spec.dead_letter is None
    desk.declare("c")
    with pytest.raises(ConfigError, match="c -> b -> c"):
        desk.declare("c", dead_letter="b", update=True)
    desk.declare("b", dead_letter=None, update=True)
    desk.declare("c", dead_letter="b", update=True)


def test_limits_change_and_let_waiting_ones_in() -> None:
    """A queue that is given more room takes what waited for it."""
    desk = Desk(max_length=1)
    desk.submit("a")
    desk.submit("b", owner="b")
    desk.declare("q", max_length=2, topics=("t",), update=True)
    assert [task.payload for task in desk.queue.in_line()] == ["a", "b"]
    desk.declare("q", max_length=9, update=True)
    desk.broker.intake.publish(desk.boss, "t", "c", 1, 0.0)
    assert desk.queue.ready == 2


def test_deleting_ends_everything() -> None:
    """Tasks end as cancelled, workers and consumers are told, publishes that wait are refused, topics go."""
    desk = Desk(max_length=2, topics=("t",))
    desk.consume("w")
    desk.submit("a")
    desk.submit("b")
    desk.submit("c", owner="mine")
    desk.take()
    desk.broker.queues.delete(desk.queue, 0.0)
    assert sorted(map(str, desk.said())) == [
        "('a', 'CANCELLED', 'its queue was deleted')",
        "('admitted', 'mine', 'NoRoute')",
        "('b', 'CANCELLED', 'its queue was deleted')",
        "('w', 'cancelled', 'its queue was deleted')",
        "('w', 'stopped', 'its queue was deleted')",
    ]
    assert not desk.broker.tasks.found
    with pytest.raises(NoRoute):
        desk.submit("x")
    with pytest.raises(NoRoute):
        desk.broker.intake.publish(desk.boss, "t", "", 0, 0.0, mandatory=True)
    desk.declare("q")


def test_an_unused_queue_goes() -> None:
    """A queue that expires is deleted when it had no consumer for its time, and not before."""
    desk = Desk(expires=10.0)
    desk.wait(5.0)
    worker = desk.consume("w")
    desk.wait(50.0)
    desk.broker.work.close(worker, desk.now)
    desk.wait(5.0)
    desk.declare("q", expires=10.0)
    desk.wait(9.9)
    assert "q" in desk.broker.queues.found
    desk.wait(0.2)
    assert "q" not in desk.broker.queues.found
    assert desk.broker.deadline is None


def test_a_used_queue_of_a_very_short_time_is_looked_at_once() -> None:
    """A used queue whose time to expire is too short to be added to the time stays, and the broker goes on."""
    desk = Desk()
    desk.now = 1e6
    queue = desk.declare("short", expires=1e-12)
    desk.consume("w", queue="short")
    desk.now += 1.0
    desk.broker.advance(desk.now)
    assert desk.broker.queues.found["short"] is queue
    assert desk.broker.deadline is not None
    assert desk.broker.deadline > desk.now


def test_a_queue_with_tasks_is_not_unused() -> None:
    """A queue does not expire while a task waits in it for a consumer; one of events goes with what is in it."""
    desk = Desk(expires=10.0)
    desk.declare("events", kind="events", expires=10.0)
    task = desk.number("a")
    desk.submit("b", "events")
    desk.take()
    desk.wait(60.0)
    assert list(desk.broker.queues.found) == ["q"]
    assert desk.said() == [("b", "CANCELLED", "its queue was not used")]
    desk.broker.work.cancel(task, desk.now)
    desk.wait(10.0)
    assert not desk.broker.queues.found


@pytest.mark.parametrize("by", ["deleting", "expiring"])
def test_deleting_passes_by_what_waits_no_more(by: str) -> None:
    """A publish that was withdrawn, or whose time ended, does not keep its queue from being deleted."""
    desk = Desk(max_length=1, kind="events", expires=10.0)
    desk.submit("a")
    desk.submit("b", owner="b")
    desk.broker.intake.unpark([desk.submit("c")], 0.0)
    desk.submit("d", timeout=1.0, owner="d")
    desk.submit("e", owner="e")
    desk.wait(5.0)
    desk.take()
    if by == "deleting":
        desk.broker.queues.delete(desk.queue, desk.now)
    desk.wait(10.0)
    said = desk.said()
    assert [each for each in said if each[0] == "admitted"] == [
        ("admitted", "b", "NoRoute"),
        ("admitted", "e", "NoRoute"),
    ]
    assert not desk.broker.tasks.found
    assert desk.broker.deadline is None


def test_declaring_often_adds_no_timers() -> None:
    """However often a queue is declared and changed, it has one timer that means something."""
    desk = Desk(expires=10.0)
    for number in range(1_000):
        desk.declare("q", expires=10.0 + number % 2, update=True)
        desk.declare("q", expires=10.0 + number % 2)
    assert len(desk.broker.timers) <= 130


def test_queues_are_bounded() -> None:
    """There are no more queues and topics than the limits."""
    desk = Desk(Limits(queues=2, subscriptions=2))
    desk.declare("a", topics=("x", "y"))
    with pytest.raises(QueueFull, match="2 queues"):
        desk.declare("b")
    with pytest.raises(QueueFull, match="2 topics"):
        desk.declare("a", topics=("x", "y", "z"), update=True)


def test_a_queue_that_is_refused_is_not_there() -> None:
    """Where its topics are too many a queue is not declared, the second time neither."""
    desk = Desk(Limits(subscriptions=2))
    for _ in range(2):
        with pytest.raises(QueueFull, match="2 topics"):
            desk.declare("a", topics=("x", "y", "z"))
    assert list(desk.broker.queues.found) == ["q"]


def test_a_paused_queue_hands_nothing_out() -> None:
    """While paused a queue takes tasks in and hands none out."""
    desk = Desk()
    desk.consume("w")
    desk.broker.queues.pause(desk.queue, True)
    desk.submit("a")
    assert desk.deliveries() == []
    desk.broker.queues.pause(desk.queue, False)
    assert desk.deliveries() == [("w", "a")]
