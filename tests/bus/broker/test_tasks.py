"""Where tasks are, and how they end."""

from __future__ import annotations

import pytest

from redpoll.bus import OutcomeKind
from redpoll.bus.broker import Limits
from redpoll.bus.broker.limits import CHARGE
from redpoll.bus.broker.outputs import Dead, Ended, Keyed, Put, Taken
from tests.bus.broker.support import Desk


def test_ids_are_a_serial_and_random_bits() -> None:
    """Numbers rise with each task, and what was never given is not known."""
    desk = Desk()
    first, second = desk.number(), desk.number()
    assert (first >> 64, second >> 64) == (1, 2)
    assert first & 0xFFFF == 1
    assert desk.broker.tasks.knows(second)
    assert not desk.broker.tasks.knows(3 << 64)
    assert not desk.broker.tasks.knows(0)


def test_a_delayed_task_is_ready_when_it_is_due() -> None:
    """A task with a delay is handed out after it, in the order of being due."""
    desk = Desk()
    desk.consume("w", 9)
    for body, delay in (("a", 3.0), ("b", 1.0)):
        desk.submit(body, delay=delay)
    desk.wait(0.9)
    assert desk.deliveries() == []
    desk.wait(2.1)
    assert desk.deliveries() == [("w", "b"), ("w", "a")]


def test_a_ttl_ends_with_the_beginning() -> None:
    """A task that was not begun in its time expires; one that was begun does not, until it goes back."""
    desk = Desk(ttl=2.0)
    desk.submit("own", ttl=1.0)
    desk.submit("queue's")
    desk.wait(1.0)
    assert desk.said() == [("own", "EXPIRED", "it was not begun in time")]
    worker = desk.consume("w")
    desk.wait(5.0)
    assert desk.said() == [("w", "queue's")]
    desk.reject(worker)
    assert desk.said() == [("queue's", "EXPIRED", "its time ended before it was done")]
    assert desk.queue.ended[OutcomeKind.EXPIRED] == 2


def test_a_deadline_ends_the_work_too() -> None:
    """When its deadline passes a task expires, its worker is told, a late answer is refused, and the slot is free then."""
    desk = Desk()
    worker = desk.consume("w")
    desk.submit("a", deadline=1.0)
    desk.submit("b")
    desk.wait(1.0)
    assert desk.said() == [
        ("w", "a"),
        ("a", "EXPIRED", "its deadline passed"),
        ("w", "cancelled", "its deadline passed"),
    ]
    assert not desk.settle(worker, "late")
    assert desk.said() == [("w", "b")]


def test_outcomes_are_kept_unless_told() -> None:
    """An outcome is kept with the hand-out that it came from; without keep the watcher alone hears it."""
    desk = Desk()
    worker = desk.consume("w", 2)
    kept, unkept = desk.number("a"), desk.number("b", keep=False)
    desk.settle(worker, "ra")
    desk.settle(worker, "rb", OutcomeKind.ERROR)
    assert desk.said()[2:] == [("a", "RESULT", "ra"), ("b", "ERROR", "rb")]
    found = desk.broker.tasks.results.find(kept, 0.0)
    assert isinstance(found, Ended)
    assert (found.payload, found.kind, found.token) == ("ra", OutcomeKind.RESULT, 1)
    assert desk.broker.tasks.results.find(unkept, 0.0) is None


def test_a_dead_letter_is_kept_with_its_history() -> None:
    """A task that lost as many workers as it may becomes a dead letter, with what became of it."""
    desk = Desk(max_attempts=2)
    desk.submit("a")
    for name in ("one", "two"):
        worker = desk.consume(name)
        desk.broker.peers.leave(worker.peer, desk.now, goodbye=False)
        desk.wait(1.0)
    assert desk.said()[-1] == ("a", "DEAD", "2 attempts failed, the last one: worker two was lost")
    (dead,) = desk.queue.dead.values()
    assert dead.payload == "a"
    assert dead.more.history[:2] == ("worker one was lost", "worker two was lost")
    assert (desk.queue.count, desk.queue.bytes) == (0, 0)


def test_dead_letters_go_where_they_are_wanted() -> None:
    """With a queue for dead letters they are put there as new tasks that name the old ones."""
    desk = Desk(dead_letter="graves")
    graves = desk.declare("graves")
    number = desk.number("a")
    desk.reject(desk.consume("w"), requeue=False, reason="no")
    (task,) = graves.in_line()
    assert (task.payload, task.more.origin, task.more.history) == ("a", number, ("no",))
    assert not desk.queue.dead


@pytest.mark.parametrize("at_limit", ["wait", "refuse", "drop-old"])
def test_a_queue_of_dead_letters_has_its_limits(at_limit: str) -> None:
    """A full queue for dead letters drops its oldest for one, where it does so; otherwise that stays beside its queue."""
    desk = Desk(dead_letter="graves")
    graves = desk.declare("graves", max_length=2, at_limit=at_limit)
    worker = desk.consume("w")
    for body in "abc":
        desk.submit(body)
        desk.reject(worker, requeue=False)
    assert graves.count == 2
    drops = at_limit == "drop-old"
    assert [task.payload for task in graves.in_line()] == (["b", "c"] if drops else ["a", "b"])
    assert [task.payload for task in desk.queue.dead.values()] == ([] if drops else ["c"])


def test_dead_letters_are_bounded() -> None:
    """Dead letters beside a queue are within its own limits, and the oldest leave first."""
    desk = Desk(max_length=2)
    worker = desk.consume("w")
    for body in "abc":
        desk.submit(body)
        desk.reject(worker, requeue=False)
    assert [task.payload for task in desk.queue.dead.values()] == ["b", "c"]
    assert desk.queue.dead_bytes == 2 * (1 + CHARGE)


def test_the_history_is_bounded() -> None:
    """A task keeps the latest lines of its history."""
    desk = Desk(Limits(history=3))
    task = desk.submit("a")
    worker = desk.consume("w")
    for number in range(9):
        desk.reject(worker, reason=str(number))
    assert task.more.history == ("6", "7", "8")


def test_everything_is_written_down() -> None:
    """With a store each change of a durable task is a write; nothing is written of others."""
    desk = Desk(journal=True)
    desk.declare("memory", durable=False)
    desk.broker.out.take_writes()
    worker, other = desk.consume("w"), desk.consume("w2", queue="memory")
    number = desk.number("a", dedup="key")
    desk.submit("b", "memory")
    desk.settle(worker, "ra")
    desk.settle(other)
    desk.number("c")
    desk.reject(worker, requeue=False)
    put, keyed, taken, ended, *_, dying, dead = desk.broker.out.take_writes()
    assert isinstance(put, Put)
    assert (put.id, put.queue, put.payload, put.size) == (number, "q", "a", 1)
    assert keyed == Keyed("q", "key", number, 0.0)
    assert taken == Taken(number, 1, "w")
    assert isinstance(ended, Ended)
    assert (ended.id, ended.keep, ended.payload) == (number, True, "ra")
    assert isinstance(dying, Ended)
    assert isinstance(dead, Dead)
