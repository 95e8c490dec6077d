"""What operators see and do."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll.bus.broker.queue import Task
from redpoll.errors import ConfigError, SpecConflict
from tests.bus.broker.support import Desk


def test_inspect_counts() -> None:
    """The counts of a queue are those of its tasks, and its counters those of what happened."""
    desk = Desk()
    for body in "abcde":
        desk.submit(body)
    desk.submit("f", delay=5)
    worker = desk.consume("w", 2)
    desk.settle(worker)
    desk.reject(worker, requeue=False)
    desk.reject(worker, exclude=True)
    info = desk.broker.admin.inspect(desk.queue)
    assert (info.ready, info.delayed, info.taken, info.dead, info.consumers) == (0, 2, 2, 1, 1)
    assert (info.submitted, info.delivered, info.done, info.requeued) == (6, 5, 1, 1)
    assert info.spec.name == "q"


def test_browse_changes_nothing() -> None:
    """Tasks of each state can be looked at, the next ones first."""
    desk = Desk(priorities=2)
    for body, delay in (("late", 9.0), ("soon", 1.0)):
        desk.submit(body, delay=delay)
    worker = desk.consume("w", 2)
    desk.submit("taken")
    desk.submit("dead")
    desk.broker.work.reject(worker, list(worker.held)[1], 0.0, requeue=False)
    desk.broker.work.close(worker, 0.0)
    desk.submit("low")
    desk.submit("high", priority=1)
    browse = desk.broker.admin.browse

    def bodies(state: str, limit: int = 9) -> list[str]:
        return [task.payload for task in browse(desk.queue, state, limit)]  # type: ignore[arg-type]

    assert bodies("ready") == ["high", "low"]
    assert bodies("ready", 1) == ["high"]
    assert bodies("delayed") == ["soon", "late"]
    assert bodies("taken") == ["taken"]
    assert bodies("dead") == ["dead"]


def test_purge_cancels_what_waits() -> None:
    """Purging ends what waits, delayed tasks too, and leaves what workers have; dead letters are purged apart."""
    desk = Desk()
    worker = desk.consume("w")
    desk.submit("a")
    desk.submit("b")
    desk.submit("c", delay=1)
    desk.take()
    assert desk.broker.admin.purge(desk.queue, "ready", 0.0) == 2
    assert desk.said() == [("b", "CANCELLED", "purged"), ("c", "CANCELLED", "purged")]
    desk.reject(worker, requeue=False)
    assert desk.broker.admin.purge(desk.queue, "dead", 0.0) == 1
    assert (desk.queue.count, desk.queue.dead_bytes) == (0, 0)


def test_moving_keeps_the_tasks() -> None:
    """Ready tasks move with their numbers and order, and make room."""
    desk = Desk(max_length=3)
    other = desk.declare("other")
    numbers = [desk.number(body) for body in "abc"]
    desk.submit("d", owner="d")
    assert desk.broker.admin.move(desk.queue, other, 2, 0.0) == 2
    assert [task.id for task in other.in_line()] == numbers[:2]
    assert [task.payload for task in desk.queue.in_line()] == ["c", "d"]
    desk.consume("w", 9)
    assert [body for _, body in desk.deliveries()] == ["c", "d"]
    with pytest.raises(SpecConflict, match="durable"):
        desk.broker.admin.move(desk.queue, desk.declare("memory", durable=False), None, 0.0)


def test_a_queue_is_not_moved_to_itself() -> None:
    """Tasks are not moved within their queue, where some would be handed out twice."""
    desk = Desk()
    worker = desk.consume("w", 2)
    desk.broker.work.set_ahead(worker, 4)
    desk.submit("first")
    desk.submit("history")
    desk.broker.work.give_back(worker, [], 0.0)
    desk.broker.work.add_credit(worker, -1)
    desk.broker.work.reject(worker, max(worker.held), 0.0, reason="again")
    desk.broker.work.set_ahead(worker, 4)
    desk.submit("a")
    desk.submit("b")
    desk.take()
    with pytest.raises(ConfigError, match="must be another queue"):
        desk.broker.admin.move(desk.queue, desk.queue, None, 0.0)
    desk.broker.work.add_credit(worker, 4)
    assert sorted(body for _, body in desk.deliveries()) == ["a", "b", "history"]


def test_moving_skips_ended_tasks_once() -> None:
    """Tasks behind many that ended are moved without looking at those for each of them."""
    looks = 0

    class Entry(Task):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal looks
            looks += 1
            return self is other

        __hash__ = Task.__hash__

    desk = Desk()
    numbers = [desk.number() for _ in range(300)]
    for number in numbers:
        desk.broker.tasks.found[number].__class__ = Entry
    for number in numbers[:140]:
        desk.broker.work.cancel(number, 0.0)
    assert desk.broker.admin.move(desk.queue, desk.declare("other"), None, 0.0) == 160
    assert looks < 1_000


def test_a_dead_letter_has_no_watchers() -> None:
    """The watchers of a task that becomes a dead letter are told, and are not kept with it."""
    desk = Desk()
    worker = desk.consume("w")
    task = desk.submit("a")
    desk.broker.intake.watch(desk.boss, task.id, "second", 0.0)
    desk.take()
    desk.reject(worker, requeue=False)
    assert [each[0] for each in desk.said()] == ["a", "second"]
    assert task.more.watchers == ()


def test_redriving_makes_new_tasks() -> None:
    """A dead letter comes back as a new task with its history, all or some."""
    desk = Desk()
    worker = desk.consume("w")
    numbers = []
    for body in "ab":
        numbers.append(desk.number(body))
        desk.reject(worker, requeue=False, reason="no")
    desk.broker.work.close(worker, 0.0)
    (task,) = desk.broker.admin.redrive(desk.boss, desk.queue, [numbers[1], 5], 0.0)
    assert task.id not in numbers
    assert (task.payload, task.more.origin, task.more.history, task.attempts) == ("b", numbers[1], ("no",), 0)
    assert len(desk.broker.admin.redrive(desk.boss, desk.queue, None, 0.0)) == 1
    assert not desk.queue.dead


def test_states_and_limits_that_do_not_exist() -> None:
    """A state that is misspelt removes nothing, and is an error like a limit that cannot be."""
    desk = Desk()
    desk.submit("a")
    admin, queue = desk.broker.admin, desk.queue
    for state in ("delayed", "Dead", None):
        with pytest.raises(ConfigError):
            admin.purge(queue, state, 0.0)  # type: ignore[arg-type]
    for state, limit in (("gone", 1), ("ready", -1), ("ready", "1"), ("ready", None)):
        with pytest.raises(ConfigError):
            admin.browse(queue, state, limit)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        admin.move(queue, queue, -1, 0.0)
    assert admin.inspect(queue).ready == 1


def test_a_letter_is_redriven_once() -> None:
    """A dead letter that is named twice is redriven once."""
    desk = Desk()
    desk.submit("a")
    worker = desk.consume("w")
    desk.reject(worker, requeue=False)
    (number,) = desk.queue.dead
    peer = desk.broker.peers.join("operator", 0.0)
    assert len(desk.broker.admin.redrive(peer, desk.queue, [number, number], 0.0)) == 1


def test_tasks_of_other_queues_are_not_looked_at() -> None:
    """Browsing, purging and deleting a queue look at its own tasks alone, wherever these are: others may be a million."""

    class Guarded(dict[int, Task]):
        """Tasks that are found by number, and not gone through."""

        def values(self) -> Any:
            """Refuse."""
            raise AssertionError("all tasks are looked at")

    desk = Desk()
    desk.declare("other")
    held = desk.consume("w", 2)
    for body in "abcd":
        desk.submit(body)
    desk.submit("e", delay=5.0)
    desk.submit("f", "other")
    desk.broker.peers.leave(held.peer, desk.now, goodbye=False)
    desk.broker.tasks.found = Guarded(desk.broker.tasks.found)
    admin = desk.broker.admin
    states: tuple[Any, ...] = ("ready", "delayed", "taken")
    assert [[each.payload for each in admin.browse(desk.queue, state, 9)] for state in states] == [
        ["c", "d"],
        ["e"],
        ["a", "b"],
    ]
    assert admin.purge(desk.queue, "ready", desk.now) == 3
    desk.submit("g")
    desk.submit("h", delay=5.0)
    desk.broker.queues.delete(desk.queue, desk.now)
    assert [task.payload for task in dict.values(desk.broker.tasks.found)] == ["f"]
