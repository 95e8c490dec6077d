"""A broker is as it was, made from what was written."""

from __future__ import annotations

from itertools import count
from typing import Any

from redpoll.bus import OutcomeKind
from redpoll.bus.broker import Broker, Limits
from redpoll.bus.broker.outputs import DELIVER, Ended
from redpoll.bus.broker.queue import ACCEPTED, KEEP
from tests.bus.broker.support import Desk


def again(desk: Desk, **options: Any) -> Desk:
    """Start the broker again from all that it wrote."""
    now = desk.now
    writes = desk.broker.out.take_writes()
    desk.broker = Broker.restored(writes, now, "s", count(100), epoch=1, **options)
    desk.boss = desk.broker.peers.join("boss", now)
    desk.queue = desk.broker.queues.get("q")
    return desk


def test_everything_is_there_again() -> None:
    """Queues, tasks in their order, delays, dead letters, outcomes, keys and kept events survive."""
    desk = Desk(journal=True, priorities=2, ttl=100.0)
    desk.declare("other", topics=("t",))
    worker = desk.consume("w")
    done = desk.number("done", dedup="k")
    desk.settle(worker, "r", OutcomeKind.ERROR)
    desk.submit("dead")
    desk.reject(worker, requeue=False, reason="bad")
    desk.broker.work.close(worker, 0.0)
    for body, options in (("a", {}), ("b", {"priority": 1}), ("c", {"delay": 5.0}), ("d", {"deadline": 7.0})):
        desk.submit(body, **options)
    desk.broker.intake.publish(desk.boss, "s", "kept", 4, 0.0, last=1)
    desk.broker.queues.pause(desk.queue, True)
    last = desk.number("e")
    desk.broker.admin.move(desk.queue, desk.broker.queues.get("other"), 1, 0.0)
    desk.wait(1.0)
    again(desk)
    assert [task.payload for task in desk.queue.in_line()] == ["a", "d", "e"]
    assert [task.payload for task in desk.broker.queues.get("other").in_line()] == ["b"]
    assert desk.queue.paused
    (dead,) = desk.queue.dead.values()
    assert (dead.payload, dead.more.history) == ("dead", ("bad",))
    found = desk.broker.tasks.results.find(done, desk.now)
    assert isinstance(found, Ended)
    assert (found.payload, found.kind, found.queue) == ("r", OutcomeKind.ERROR, "q")
    assert desk.submit("again", dedup="k") == done
    assert list(desk.broker.intake.kept.matching(["s"])) == [("s", "kept")]
    desk.broker.queues.pause(desk.queue, False)
    assert desk.number("f") >> 64 == (last >> 64) + 1
    desk.consume("w", 99)
    desk.wait(4.0)
    assert [body for _, body in desk.deliveries()] == ["a", "d", "e", "f", "c"]
    desk.wait(2.0)
    assert desk.queue.ended[OutcomeKind.EXPIRED] == 1


def test_workers_keep_what_they_have() -> None:
    """After a restart a task stays its worker's for the time to reclaim; a token of before counts, and its outcome."""
    desk = Desk(journal=True)
    worker = desk.consume("w", 3)
    held, finished, accepted = desk.submit("a"), desk.submit("b"), desk.submit("c")
    tokens = [task.token for task in (held, finished, accepted)]
    desk.broker.work.accept(worker, accepted.token)
    desk.broker.work.cancel(held.id, 0.0)
    again(desk)
    desk.consume("other", 9)
    desk.wait(14.0)
    assert desk.deliveries() == []
    back = desk.consume("w", 3)
    for task, token in zip((held, finished, accepted), tokens, strict=True):
        assert desk.broker.work.reclaim(back, task.id, token, desk.now) == "held"
    desk.broker.peers.settle(back.peer, desk.now)
    assert desk.broker.tasks.found[accepted.id].state == ACCEPTED
    assert desk.broker.work.settle(back, finished.token, desk.now, payload="rb", size=2)
    desk.wait(60.0)
    assert desk.deliveries() == []
    desk.broker.work.reject(back, held.token, desk.now)
    assert desk.queue.ended[OutcomeKind.CANCELLED] == 1


def test_what_nobody_reclaims_goes_back_unblamed() -> None:
    """The end of the broker is no attempt; what was accepted is lost."""
    desk = Desk(journal=True)
    worker = desk.consume("w", 2)
    task, accepted = desk.submit("a"), desk.submit("b")
    desk.broker.work.accept(worker, accepted.token)
    again(desk, limits=Limits(reclaim=3.0))
    desk.consume("other", 9)
    desk.wait(3.0)
    (given,) = (each[4] for each in desk.take() if each[0] == DELIVER)
    assert (given.id, given.attempts) == (task.id, 0)
    found = desk.broker.tasks.results.find(accepted.id, desk.now)
    assert isinstance(found, Ended)
    assert found.kind is OutcomeKind.LOST


def test_a_shorter_list_is_as_good() -> None:
    """What a second restart writes from what the first one read is the same again."""
    desk = Desk(journal=True)
    worker = desk.consume("w")
    task = desk.submit("a")
    desk.reject(worker, delay=5.0, blame=True, reason="slow")
    writes = desk.broker.out.take_writes()
    desk.broker = Broker.restored(writes, 0.0, "s", count(100), epoch=1)
    found = desk.broker.tasks.found[task.id]
    assert (found.attempts, found.more.history) == (1, ("slow",))
    assert found.more.ripens is not None
    assert found.more.ripens[0] == 5.0


def test_a_deleted_queue_stays_deleted() -> None:
    """A queue that was deleted is not there again, nor its tasks and keys."""
    desk = Desk(journal=True)
    desk.declare("old")
    desk.submit("a", "old", dedup="k")
    desk.broker.queues.delete(desk.broker.queues.get("old"), 0.0)
    again(desk)
    assert set(desk.broker.queues.found) == {"q"}
    assert not desk.broker.tasks.found


def test_a_high_water_mark_counts() -> None:
    """Serials go on behind the highest that was ever used, though nothing of it is left."""
    desk = again(Desk(journal=True), serial=41)
    assert desk.number("a") >> 64 == 42


def test_what_a_pattern_counts_survives() -> None:
    """A task that was given back with another payload has that one afterwards."""
    desk = Desk(journal=True)
    worker = desk.consume("w")
    desk.submit("first")
    desk.reject(worker, delay=5.0, payload="other")
    again(desk)
    desk.consume("w")
    desk.wait(5.0)
    assert [body for _, body in desk.deliveries()] == ["other"]


def test_what_was_reclaimed_stays_with_its_worker() -> None:
    """A task that went back and was reclaimed is its worker's after the next restart too, with as many attempts."""
    desk = Desk(journal=True)
    worker = desk.consume("w")
    task = desk.submit("a")
    token = task.token
    desk.broker.peers.leave(worker.peer, 0.0, goodbye=False)
    desk.wait(1.0)
    assert desk.broker.work.reclaim(desk.consume("w", 0), task.id, token, desk.now) == "held"
    again(desk)
    desk.consume("other", 9)
    assert desk.deliveries() == []
    assert desk.broker.work.reclaim(desk.consume("w", 0), task.id, token, desk.now) == "held"
    assert desk.broker.tasks.found[task.id].attempts == 0


def test_poison_is_poison_after_a_restart() -> None:
    """A task that two workers died with is alone with the next one, also after a restart."""
    desk = Desk(journal=True)
    task = desk.submit("a")
    for name in "xy":
        desk.broker.peers.leave(desk.consume(name).peer, desk.now, goodbye=False)
        desk.wait(1.0)
    again(desk)
    assert list(desk.queue.poison) == [desk.broker.tasks.found[task.id]]


def test_a_dead_letter_that_is_gone_stays_gone() -> None:
    """A dead letter of before a restart that is redriven has its priority, and is not there again after the next one."""
    desk = Desk(journal=True, priorities=3)
    desk.submit("a", priority=2, keep=False)
    desk.reject(desk.consume("w"), requeue=False, reason="bad")
    disk = desk.broker.out.take_writes()
    desk.broker = Broker.restored(disk, 0.0, "s", count(100), epoch=1)
    desk.boss = desk.broker.peers.join("boss", 0.0)
    (task,) = desk.broker.admin.redrive(desk.boss, desk.broker.queues.get("q"), None, 0.0)
    assert (task.more.priority, task.flags & KEEP) == (2, 0)
    disk += desk.broker.out.take_writes()
    once_more = Broker.restored(disk, 0.0, "s", count(200), epoch=2)
    assert not once_more.queues.get("q").dead
    assert [each.id for each in once_more.queues.get("q").in_line()] == [task.id]


def test_an_outcome_says_how_it_was_reached() -> None:
    """The attempts of a task and their history are with its outcome, also after a restart."""
    desk = Desk(journal=True)
    worker = desk.consume("w")
    number = desk.number("a")
    desk.reject(worker, blame=True, reason="slow")
    desk.settle(worker, "r")
    found = desk.broker.tasks.results.find(number, desk.now)
    assert isinstance(found, Ended)
    assert (found.attempts, found.history) == (1, ("slow",))
    again(desk)
    assert desk.broker.tasks.results.find(number, desk.now) == found


def test_a_paused_queue_stays_paused() -> None:
    """A queue that was paused is paused after every restart."""
    desk = Desk(journal=True)
    desk.broker.queues.pause(desk.queue, True)
    disk = desk.broker.out.take_writes()
    for epoch in range(3):
        desk.broker = Broker.restored(disk, 0.0, "s", count(100), epoch=epoch)
        disk += desk.broker.out.take_writes()
        assert desk.broker.queues.get("q").paused


def test_a_poison_task_is_alone_after_a_restart() -> None:
    """A worker that keeps a task that lost two others over a restart is given nothing beside it, until it has ended."""
    desk = Desk(journal=True)
    task = desk.submit("poison")
    for name in ("a", "b"):
        lost = desk.consume(name)
        desk.broker.peers.leave(lost.peer, desk.now, goodbye=False)
        desk.wait(1.0)
    worker = desk.consume("w", 2)
    (token,) = worker.held
    again(desk)
    back = desk.consume("w", 2)
    assert desk.broker.work.reclaim(back, task.id, token, desk.now) == "held"
    desk.broker.peers.settle(back.peer, desk.now)
    desk.take()
    desk.submit("other")
    assert desk.deliveries() == []
    desk.settle(back)
    assert desk.deliveries() == [("w", "other")]


def test_the_key_of_a_task_that_lives_survives() -> None:
    """A broker that takes over knows the key of a task that was not ended, though its time is over and others came."""
    desk = Desk(journal=True)
    first = desk.number("a", dedup="k")
    desk.wait(4_000)
    desk.number("b", dedup="l")
    again(desk)
    assert desk.submit("c", dedup="k") == first
