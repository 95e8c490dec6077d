"""Which task is next, and who is given it."""

from __future__ import annotations

import pytest

from redpoll.bus.broker.queue import GONE, Consumer, Task
from tests.bus.broker.support import Desk


def test_tasks_are_handed_out_in_order() -> None:
    """Tasks of one priority come in the order of submitting, those of higher priority before them."""
    desk = Desk(priorities=3)
    for body, priority in (("a", 0), ("b", 2), ("c", 0), ("d", 1), ("e", 9)):
        desk.submit(body, priority=priority)
    desk.consume("w", 5)
    assert [body for _, body in desk.deliveries()] == ["b", "e", "d", "a", "c"]


def test_the_least_recently_served_is_next() -> None:
    """Among consumers with credit the one that was served least recently is given the next task."""
    desk = Desk()
    ann, bob = desk.consume("ann", 1), desk.consume("bob", 1)
    cid = desk.consume("cid", 3)
    for body in "abc":
        desk.submit(body)
    assert [name for name, _ in desk.deliveries()] == ["ann", "bob", "cid"]
    # Bob is free first, but Ann was served before him.
    desk.settle(bob)
    desk.settle(ann)
    for body in "def":
        desk.submit(body)
    assert [name for name, _ in desk.deliveries()] == ["ann", "bob", "cid"]
    assert len(cid.held) == 2


def test_credit_is_kept() -> None:
    """A consumer holds no more than its credit, and is given one more when one ends."""
    desk = Desk()
    worker = desk.consume("w", 2)
    for body in "abcd":
        desk.submit(body)
    assert desk.deliveries() == [("w", "a"), ("w", "b")]
    desk.settle(worker)
    assert desk.deliveries() == [("w", "c")]
    desk.broker.work.add_credit(worker, -1)
    desk.settle(worker)
    assert desk.deliveries() == []
    desk.broker.work.add_credit(worker, 1)
    assert desk.deliveries() == [("w", "d")]


def test_an_excluded_task_goes_to_others_first() -> None:
    """A consumer that excluded a task is not given it while another one is there, though that is busy."""
    desk = Desk()
    ann, bob = desk.consume("ann"), desk.consume("bob")
    desk.submit("a")
    desk.submit("b")
    assert desk.deliveries() == [("ann", "a"), ("bob", "b")]
    desk.reject(ann, exclude=True)
    desk.submit("c")
    assert desk.deliveries() == [("ann", "c")]
    desk.settle(bob)
    assert desk.deliveries() == [("bob", "a")]


def test_what_all_excluded_waits_longer_each_time() -> None:
    """After every consumer excluded a task it waits 1 s, 2 s, and so on up to 60 s, and is offered to all again."""
    desk = Desk()
    both = {"ann": desk.consume("ann"), "bob": desk.consume("bob")}
    desk.submit("a")
    for wait in (1, 2, 4, 8, 16, 32, 60, 60):
        for _ in range(2):
            ((name, _),) = desk.deliveries()
            desk.reject(both[name], exclude=True)
        desk.wait(wait - 0.1)
        assert desk.deliveries() == []
        desk.wait(0.1)
    assert len(desk.deliveries()) == 1


def test_who_goes_leaves_a_task_to_the_others() -> None:
    """When the only consumer that had not excluded a task goes, it waits as if all had; a new one is given it at once."""
    desk = Desk()
    ann, bob = desk.consume("ann"), desk.consume("bob")
    desk.submit("a")
    desk.submit("b")
    desk.reject(ann, exclude=True)
    desk.take()
    desk.broker.work.close(bob, 0.0)
    assert (desk.queue.aside, len(desk.queue.delayed)) == (0, 1)
    desk.wait(1.0)
    assert desk.deliveries() == [("ann", "a")]
    desk.reject(ann, exclude=True)
    desk.wait(2.0)
    desk.reject(ann, exclude=True)
    desk.take()
    desk.wait(4.0)
    assert desk.deliveries() == [("ann", "a")]


def test_a_poison_task_is_alone_with_its_worker() -> None:
    """After two lost workers a task waits for one that holds nothing, which is given nothing else until it ends."""
    desk = Desk()
    worker = desk.consume("w", 4)
    desk.submit("a")
    desk.broker.work.add_credit(worker, -3)
    desk.submit("poison")
    for name in ("one", "two"):
        lost = desk.consume(name)
        desk.broker.peers.leave(lost.peer, desk.now, goodbye=False)
        desk.wait(0.5)
    desk.broker.work.add_credit(worker, 3)
    desk.submit("b")
    # The worker is kept for it: its free slots stay empty.
    assert desk.deliveries() == [("w", "a"), ("one", "poison"), ("two", "poison")]
    desk.settle(worker)
    assert desk.deliveries() == [("w", "poison")]
    desk.submit("c")
    assert desk.deliveries() == []
    desk.settle(worker)
    assert desk.deliveries() == [("w", "b"), ("w", "c")]


def test_a_poison_task_does_not_stop_the_others() -> None:
    """While one worker is kept for a poison task, the others go on."""
    desk = Desk()
    task = desk.submit("poison")
    task.more.lost = 2
    desk.queue.remove(task, ends=False)
    desk.queue.add(task)
    ann, bob = desk.consume("ann", 0), desk.consume("bob", 0)
    desk.submit("a")
    desk.submit("b")
    desk.submit("c")
    desk.queue.paused = True
    desk.broker.work.add_credit(ann, 2)
    desk.broker.work.add_credit(bob, 2)
    desk.queue.paused = False
    desk.queue.dispatch()
    given = desk.deliveries()
    assert ("ann", "poison") in given
    assert {name for name, body in given if body != "poison"} == {"bob"}


def test_a_task_that_only_fails_is_no_poison() -> None:
    """Attempts that failed while their worker lived set nobody apart, however many there were."""
    desk = Desk()
    desk.declare("other")
    worker = desk.consume("w")
    desk.consume(worker.peer, 1, "other")
    task = desk.submit("a")
    for _ in range(5):
        desk.reject(worker, blame=True, reason="it failed")
    desk.take()
    desk.submit("b", "other")
    assert desk.deliveries() == [("w", "b")]
    assert task.attempts == 5


def poisoned() -> tuple[Desk, Task, Consumer]:
    """A worker with free slots that is busy, and is kept for a task that two workers died with."""
    desk = Desk()
    desk.queue.paused = True
    task = desk.submit("poison")
    task.more.lost = 2
    desk.queue.remove(task, ends=False)
    desk.queue.add(task)
    desk.declare("other")
    worker = desk.consume("w", 3)
    desk.consume(worker.peer, 3, "other")
    desk.submit("a", "other")
    desk.broker.queues.pause(desk.queue, False)
    desk.take()
    desk.submit("b", "other")
    assert desk.deliveries() == []
    return desk, task, worker


@pytest.mark.parametrize("how", ["cancelled", "purged", "expired", "taken by another", "its queue is deleted"])
def test_nobody_is_kept_for_poison_that_is_gone(how: str) -> None:
    """A worker that was kept for a poison task takes others again as soon as none waits for it."""
    desk, task, worker = poisoned()
    kept = desk.queue.reserved
    assert kept is worker.peer
    if how == "cancelled":
        desk.broker.work.cancel(task.id, 0.0)
    elif how == "purged":
        desk.broker.admin.purge(desk.queue, "ready", 0.0)
    elif how == "expired":
        desk.broker.tasks.expire(task, 0.0)
    elif how == "taken by another":
        desk.consume("idle")
    else:
        desk.broker.queues.delete(desk.queue, 0.0)
    assert desk.queue.reserved is None
    assert ("w", "b") in desk.deliveries()


def test_a_poison_task_does_not_wait_for_a_stalled_worker() -> None:
    """A worker that stalls is kept for a poison task no longer: another one is, and has it when its own tasks end."""
    desk, _, worker = poisoned()
    other = desk.consume("x", 2, "other")
    desk.consume(other.peer, 1)
    assert desk.deliveries() == [("x", "b")]
    desk.broker.peers.stall(worker.peer, [], desk.now)
    assert desk.queue.reserved is other.peer
    desk.settle(other)
    assert desk.deliveries() == [("x", "poison")]
    desk.submit("c", "other")
    desk.broker.peers.resume(worker.peer)
    assert desk.deliveries() == [("w", "c")]


@pytest.mark.parametrize("how", ["goodbye", "lost link", "replaced"])
def test_a_worker_that_goes_is_handed_nothing(how: str) -> None:
    """What was kept from a worker while it waited for a poison task does not reach it when it goes, and blames nobody."""
    desk, task, worker = poisoned()
    if how == "replaced":
        desk.join("w")
    else:
        desk.broker.peers.leave(worker.peer, desk.now, goodbye=how == "goodbye")
    assert desk.deliveries() == []
    other = desk.consume("x", 2, "other")
    assert desk.deliveries()[-1:] == [("x", "b")]
    assert all(each.attempts == 0 for each in other.held.values())
    assert desk.queue.reserved is None
    assert task.attempts == 0


def test_entries_of_ended_tasks_take_no_room() -> None:
    """Tasks that end in the middle of the FIFO leave it in bulk, and are never handed out."""
    desk = Desk()
    first = desk.number("first")
    for _ in range(2_000):
        desk.broker.work.cancel(desk.number("x"), 0.0)
        assert len(desk.queue._levels[0]) <= 66
    desk.submit("last")
    assert [task.payload for task in desk.queue.in_line()] == ["first", "last"]
    desk.broker.work.cancel(first, 0.0)
    desk.take()
    desk.consume("w", 5)
    assert desk.deliveries() == [("w", "last")]


def test_a_task_without_a_history_is_small() -> None:
    """What few tasks have is not made for the others."""
    task = Desk().submit("a")
    assert task.extra is None
    assert (task.attempts, task.body) == (0, 1)
    assert task.extra is None
    assert task.state != GONE
