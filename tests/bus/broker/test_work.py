"""What workers do with their tasks."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll.bus import Envelope, OutcomeKind, Publication
from redpoll.bus.broker.outputs import Ended
from redpoll.bus.broker.queue import GONE
from redpoll.errors import ConfigError, NoRoute, SpecConflict
from tests.bus.broker.support import Desk


def test_a_task_ends_once() -> None:
    """A second outcome, a late give-back, late progress: each changes nothing and says so."""
    desk = Desk()
    worker = desk.consume("w")
    desk.submit("a")
    work, token = desk.broker.work, next(iter(worker.held))
    assert work.progress(worker, token, "half")
    assert work.settle(worker, token, 0.0, payload="r", size=1)
    assert not work.settle(worker, token, 0.0)
    assert not work.reject(worker, token, 0.0)
    assert not work.progress(worker, token, "late")
    assert not work.accept(worker, token)
    assert desk.said() == [("w", "a"), ("a", "PROGRESS", "half"), ("a", "RESULT", "r")]


def test_what_is_given_back_is_next() -> None:
    """A task that is given back without blame is at the front, its token counts no more, and it is no attempt."""
    desk = Desk()
    worker = desk.consume("w")
    task = desk.submit("a")
    desk.submit("b")
    token = task.token
    desk.reject(worker)
    assert desk.deliveries() == [("w", "a"), ("w", "a")]
    assert task.attempts == 0
    assert desk.broker.work.reclaim(worker, task.id, token, 0.0) == "lost"
    desk.reject(worker, delay=2.0)
    assert desk.deliveries() == [("w", "b")]
    desk.reject(worker, blame=True, reason="too slow")
    assert (desk.queue.requeued, desk.deliveries()) == (3, [("w", "b")])


def test_an_accepted_task_is_not_begun_by_another() -> None:
    """At most once: a task that was accepted and whose worker is lost ends as lost."""
    desk = Desk()
    worker = desk.consume("w")
    desk.consume("other")
    desk.submit("a")
    assert desk.broker.work.accept(worker, next(iter(worker.held)))
    desk.broker.peers.leave(worker.peer, 0.0, goodbye=False)
    desk.take()
    desk.wait(1.0)
    assert desk.said() == [("a", "LOST", "worker w was lost")]


def test_an_accepted_task_keeps_its_slot() -> None:
    """Accepting gives no credit back: back-pressure stays. The end does."""
    desk = Desk()
    worker = desk.consume("w")
    desk.submit("a")
    desk.submit("b")
    desk.broker.work.accept(worker, next(iter(worker.held)))
    assert desk.deliveries() == [("w", "a")]
    desk.settle(worker)
    assert desk.deliveries() == [("w", "b")]


def test_cancel_withdraws_or_asks() -> None:
    """What waits is withdrawn; a worker is asked; a result that comes first wins; then it is too late."""
    desk = Desk()
    cancel = desk.broker.work.cancel
    waiting, delayed = desk.number("a"), desk.number("b", delay=5)
    assert [cancel(waiting, 0.0), cancel(delayed, 0.0), cancel(delayed, 0.0)] == ["withdrawn", "withdrawn", "too late"]
    assert cancel(99 << 64, 0.0) is None
    worker = desk.consume("w")
    number = desk.number("c")
    desk.take()
    assert [cancel(number, 0.0), cancel(number, 0.0)] == ["asked", "asked"]
    assert desk.said() == [("w", "cancelled", "cancelled")]
    assert not desk.broker.work.accept(worker, next(iter(worker.held)))
    assert desk.settle(worker, "done")
    assert desk.said() == [("c", "RESULT", "done")]
    assert cancel(number, 0.0) == "too late"


@pytest.mark.parametrize("how", ["lost", "given back", "given up", "excluded"])
def test_a_cancelled_task_is_not_begun_again(how: str) -> None:
    """When the worker of a task that is being cancelled dies or gives it back, it is cancelled."""
    desk = Desk()
    worker = desk.consume("w")
    number = desk.number("a")
    desk.broker.work.cancel(number, 0.0)
    desk.take()
    if how == "lost":
        desk.broker.peers.leave(worker.peer, 0.0, goodbye=False)
        desk.wait(1.0)
    else:
        desk.reject(worker, requeue=how != "given up", exclude=how == "excluded")
    assert desk.said() == [("a", "CANCELLED", "cancelled while it was worked on")]


def test_the_publisher_can_talk_to_the_worker() -> None:
    """What is said to a task reaches who works on it; without a worker it is not said."""
    desk = Desk()
    number = desk.number("a")
    assert not desk.broker.work.tell(number, "more")
    worker = desk.consume("w")
    desk.take()
    assert desk.broker.work.tell(number, "more")
    assert desk.said() == [("w", "told", "more")]
    desk.broker.peers.leave(worker.peer, 0.0, goodbye=False)
    assert not desk.broker.work.tell(number, "more")
    assert not desk.broker.work.tell(1, "more")


def test_successors_come_with_the_outcome() -> None:
    """Successors are put into their queues in the step that ends a task, or nothing is done."""
    desk = Desk(max_length=1)
    other = desk.declare("next")
    worker = desk.consume("w")
    desk.submit("a")
    token = next(iter(worker.held))
    wrong = [(Publication("nowhere", "x"), 1)]  # type: ignore[arg-type]
    with pytest.raises(NoRoute):
        desk.broker.work.settle(worker, token, 0.0, then=wrong)
    assert token in worker.held
    then = [(Publication("next", "x", priority=1), 1), (Publication("q", "y"), 1)]  # type: ignore[arg-type]
    assert desk.broker.work.settle(worker, token, 0.0, then=then)
    assert not desk.broker.work.settle(worker, token, 0.0, then=then)
    assert (other.ready, desk.deliveries()) == (1, [("w", "a"), ("w", "y")])


def test_an_exclusive_consumer_is_alone() -> None:
    """Nobody joins an exclusive consumer, and none becomes it beside others."""
    desk = Desk()
    alone = desk.consume("w", exclusive=True)
    with pytest.raises(SpecConflict, match="another consumer"):
        desk.consume("x")
    desk.broker.work.close(alone, 0.0)
    desk.consume("y")
    with pytest.raises(SpecConflict):
        desk.consume("z", exclusive=True)
    with pytest.raises(NoRoute):
        desk.consume("y", queue="nowhere")


def test_a_closed_consumer_keeps_what_it_holds() -> None:
    """Closing ends the hand-outs, not the work."""
    desk = Desk()
    worker = desk.consume("w", 2)
    desk.submit("a")
    desk.broker.work.close(worker, 0.0)
    desk.broker.work.close(worker, 0.0)
    desk.submit("b")
    assert desk.deliveries() == [("w", "a")]
    assert desk.settle(worker)
    assert not worker.peer.consumers
    assert desk.queue.ready == 1


def test_only_what_was_begun_is_blamed() -> None:
    """What a worker was given beyond its slots is no attempt when it is lost, and it has that in its history."""
    desk = Desk()
    worker = desk.consume("w")
    desk.broker.work.set_ahead(worker, 1)
    begun, waiting, last = desk.submit("a"), desk.submit("b"), desk.submit("c")
    assert desk.deliveries() == [("w", "a"), ("w", "b")]
    desk.broker.peers.leave(worker.peer, 0.0, goodbye=False)
    desk.wait(1.0)
    assert (begun.attempts, waiting.attempts, last.attempts) == (1, 0, 0)
    assert waiting.more.history == ("worker w was lost before it had begun this",)
    assert [task.payload for task in desk.queue.in_line()] == ["a", "b", "c"]


def test_a_free_slot_is_first() -> None:
    """Nothing is handed out ahead while any worker has a free slot; beyond that workers take turns."""
    desk = Desk()
    workers = [desk.consume(name) for name in "vw"]
    for each in workers:
        desk.broker.work.set_ahead(each, 2)
    for body in "abcdefg":
        desk.submit(body)
    names, bodies = zip(*desk.deliveries(), strict=True)
    assert bodies == tuple("abcdef")
    assert names == ("v", "w") * 3
    idle = desk.consume("x", 2)
    desk.submit("h")
    assert desk.deliveries() == [("x", "g"), ("x", "h")]
    assert idle.credit == 0


@pytest.mark.parametrize("how", ["expires", "is cancelled", "is moved"])
def test_what_stood_behind_goes_ahead(how: str) -> None:
    """A task with a time to live waits for a slot; those behind it are handed out ahead as soon as it has left."""
    desk = Desk()
    worker = desk.consume("w")
    first = [desk.submit("a"), desk.submit("b", ttl=4.0)][1]
    desk.submit("c")
    desk.broker.work.set_ahead(worker, 3)
    assert desk.deliveries() == [("w", "a")]
    if how == "expires":
        desk.wait(5.0)
    elif how == "is cancelled":
        assert desk.broker.work.cancel(first.id, 0.0) == "withdrawn"
    else:
        assert desk.broker.admin.move(desk.queue, desk.declare("other"), 1, 0.0) == 1
    assert desk.deliveries() == [("w", "c")]


def test_what_was_not_begun_is_given_back() -> None:
    """A task that was handed out ahead and given back stands where it stood, unblamed, and goes to the next free slot."""
    desk = Desk()
    worker = desk.consume("w")
    desk.broker.work.set_ahead(worker, 3)
    for body in "abcde":
        desk.submit(body)
    _, *ahead = worker.held
    desk.broker.work.give_back(worker, [ahead[2]], 0.0)
    desk.broker.work.give_back(worker, [*ahead, 77], 0.0)
    assert [task.payload for task in desk.queue.in_line()] == ["b", "c", "d", "e"]
    assert (worker.credit, worker.ahead, desk.queue.taken) == (0, 0, 1)
    desk.take()
    desk.consume("x", 2)
    assert desk.deliveries() == [("x", "b"), ("x", "c")]
    assert not any(task.attempts for task in desk.broker.tasks.found.values())


@pytest.mark.parametrize("spec", [{"priorities": 2}, {"ttl": 9.0}])
def test_what_is_not_handed_out_ahead(spec: dict[str, Any]) -> None:
    """A task waits for a free slot where a later one may come first, and where it expires unless it is begun."""
    desk = Desk(**spec)
    desk.broker.work.set_ahead(desk.consume("w"), 5)
    for body in "ab":
        desk.submit(body)
    assert desk.deliveries() == [("w", "a")]


def test_what_is_watched_goes_back_to_its_place() -> None:
    """Tasks that were watched while they were ahead are given back in their order too."""
    desk = Desk()
    worker = desk.consume("w")
    desk.broker.work.set_ahead(worker, 4)
    numbers = [desk.number(body) for body in "abcde"]
    _, *ahead = worker.held
    for number in numbers[2:4]:
        desk.broker.intake.watch(desk.join("watcher"), number, "watch", 0.0)
    desk.broker.work.give_back(worker, ahead, 0.0)
    assert [task.payload for task in desk.queue.in_line()] == ["b", "c", "d", "e"]


def test_what_is_given_back_keeps_its_priority() -> None:
    """Tasks of several priorities that were not begun are given back to their places."""
    desk = Desk(priorities=2)
    worker = desk.consume("w", 4)
    for body, priority in (("a", 0), ("b", 1), ("c", 0), ("d", 1)):
        desk.submit(body, priority=priority)
    worker.credit -= 4  # it takes none of them again
    desk.broker.work.give_back(worker, list(worker.held), 0.0)
    assert [task.payload for task in desk.queue.in_line()] == ["b", "d", "a", "c"]


def test_a_cancelled_task_is_not_begun_ahead() -> None:
    """A task that was handed out ahead is cancelled: given back, it ends as cancelled."""
    desk = Desk()
    worker = desk.consume("w")
    desk.broker.work.set_ahead(worker, 1)
    desk.submit("a")
    task = desk.submit("b")
    assert desk.broker.work.cancel(task.id, 0.0) == "asked"
    desk.broker.work.give_back(worker, [task.token], 0.0)
    assert ("b", "CANCELLED", "cancelled while it was worked on") in desk.said()


def test_a_worker_keeps_what_nobody_else_was_given() -> None:
    """A late worker has its task again while nobody else was given it, and the attempt is taken back."""
    desk = Desk()
    worker = desk.consume("w")
    task = desk.submit("a")
    token = task.token
    desk.broker.peers.leave(worker.peer, 0.0, goodbye=False)
    desk.wait(1.0)
    assert task.attempts == 1
    back = desk.consume("w")
    desk.broker.work.close(back, desk.now)
    desk.take()
    # It was handed out again, to itself: the old hand-out is over.
    assert desk.broker.work.reclaim(back, task.id, token, desk.now) == "lost"


def test_reclaiming_takes_a_task_out_of_its_queue() -> None:
    """A task that went back and that nobody was given is its old worker's again, wherever it waits."""
    desk = Desk()
    worker = desk.consume("w")
    task = desk.submit("a")
    token = task.token
    desk.queue.paused = True
    desk.broker.peers.leave(worker.peer, 0.0, goodbye=False)
    desk.wait(1.0)
    again = desk.consume("w")
    assert desk.broker.work.reclaim(again, task.id, token, desk.now) == "held"
    desk.broker.peers.settle(again.peer, desk.now)
    assert (task.attempts, desk.queue.ready, desk.queue.taken) == (0, 0, 1)
    assert desk.broker.work.settle(again, token, desk.now, payload="r", size=1)
    assert desk.broker.work.reclaim(again, task.id, token, desk.now) == "done"
    assert desk.broker.work.reclaim(again, task.id, token + 1, desk.now) == "lost"
    assert (task.state, again.credit) == (GONE, 1)


def test_only_the_loss_that_was_none_is_taken_back() -> None:
    """Reclaiming undoes the attempt that its own loss was counted as, and no other."""
    desk = Desk()
    worker = desk.consume("w")
    task = desk.submit("a")
    desk.reject(worker, blame=True, reason="slow")
    token = task.token
    desk.queue.paused = True
    desk.broker.peers.leave(worker.peer, 0.0, goodbye=False)
    # As of one that was there before a restart.
    worker.peer.blame = False
    desk.wait(2.0)
    assert (task.attempts, task.more.lost) == (1, 0)
    again = desk.consume("w")
    assert desk.broker.work.reclaim(again, task.id, token, desk.now) == "held"
    assert (task.attempts, task.more.lost) == (1, 0)


def test_reclaiming_twice_changes_nothing() -> None:
    """A worker that asks twice for its task has it once, and gives it back when it leaves."""
    desk = Desk()
    worker = desk.consume("w")
    task = desk.submit("a")
    desk.broker.peers.leave(worker.peer, 0.0, goodbye=False)
    again = desk.consume("w", 0)
    for _ in range(2):
        assert desk.broker.work.reclaim(again, task.id, task.token, 0.0) == "held"
    assert (again.credit, again.peer.held) == (-1, 1)
    desk.broker.peers.leave(again.peer, 0.0, goodbye=True)
    assert (desk.queue.ready, desk.queue.taken, len(desk.queue.consumers)) == (1, 0, 0)


def test_a_task_can_be_reclaimed_from_another_consumer_of_its_worker() -> None:
    """The other consumer goes on, with its credit, and its tasks go back when its worker leaves."""
    desk = Desk()
    first = desk.consume("w")
    task = desk.submit("a")
    second = desk.consume(first.peer)
    assert desk.broker.work.reclaim(second, task.id, task.token, 0.0) == "held"
    assert (first.credit, second.credit, first.peer.held) == (1, 0, 1)
    desk.submit("b")
    assert [each.payload for each in first.held.values()] == ["b"]
    desk.broker.peers.leave(first.peer, 0.0, goodbye=True)
    assert (desk.queue.ready, desk.queue.taken, len(desk.queue.consumers)) == (2, 0, 0)


def test_a_reclaimed_poison_task_is_still_alone() -> None:
    """A worker that returns with a task that lost two others is given nothing beside it."""
    desk = Desk()
    task = desk.submit("poison")
    task.more.lost = 2
    desk.broker.tasks.leave(task)
    desk.queue.add(task)
    worker = desk.consume("w", 2)
    desk.broker.peers.leave(worker.peer, 0.0, goodbye=False)
    again = desk.consume("w", 2)
    assert desk.broker.work.reclaim(again, task.id, task.token, 0.0) == "held"
    desk.broker.peers.settle(again.peer, 0.0)
    desk.take()
    other = desk.submit("other")
    assert desk.deliveries() == []
    desk.settle(again)
    assert other.consumer is again


def test_an_absent_worker_learns_that_its_task_was_cancelled() -> None:
    """A worker that was asked to stop while its link was lost is asked when it has its task again."""
    desk = Desk()
    worker = desk.consume("w")
    task = desk.submit("a")
    desk.broker.peers.leave(worker.peer, 0.0, goodbye=False)
    assert desk.broker.work.cancel(task.id, 0.0) == "asked"
    again = desk.consume("w", 0)
    desk.take()
    assert desk.broker.work.reclaim(again, task.id, task.token, 0.0) == "held"
    assert desk.said() == [("w", "cancelled", "cancelled")]


def test_a_stranger_cannot_reclaim() -> None:
    """While a worker is there, its tasks are nobody else's."""
    desk = Desk()
    desk.consume("w")
    task = desk.submit("a")
    stranger = desk.consume("x")
    assert desk.broker.work.reclaim(stranger, task.id, task.token, 0.0) == "lost"


def test_finding_a_task() -> None:
    """A task is found while it has no outcome, and its outcome afterwards."""
    desk = Desk()
    number = desk.number("a")
    assert desk.broker.work.find(number, 0.0) is desk.broker.tasks.found[number]
    desk.settle(desk.consume("w"), "r", OutcomeKind.ERROR)
    found = desk.broker.work.find(number, 0.0)
    assert isinstance(found, Ended)
    assert found.payload == "r"
    assert desk.broker.work.find(5, 0.0) is None


@pytest.mark.parametrize("delay", ["5", float("nan"), -1, None])
def test_a_delay_that_cannot_be_changes_nothing(delay: Any) -> None:
    """Who gives a task back for later with a delay that cannot be still holds it."""
    desk = Desk()
    worker = desk.consume("w")
    desk.submit("a")
    with pytest.raises(ConfigError, match="delay"):
        desk.reject(worker, delay=delay)
    assert desk.settle(worker)


def test_a_successor_is_made_once() -> None:
    """A successor whose key was used in its queue is not put there again."""
    desk = Desk()
    desk.declare("next")
    worker = desk.consume("w")
    for _ in range(2):
        desk.submit("a")
        then = [(Publication("next", Envelope("raw", b""), dedup="k"), 0)]
        assert desk.broker.work.settle(worker, next(iter(worker.held)), 0.0, then=then)
    assert desk.broker.queues.get("next").count == 1


def test_a_claim_is_a_hand_out_by_number() -> None:
    """A task is handed to a consumer without credit by its number, once, and only its end or its return frees it."""
    desk = Desk()
    worker, other = desk.consume("w", credit=0), desk.consume("o", credit=0)
    number = desk.number("a")
    task = desk.broker.work.claim(worker, number)
    assert not isinstance(task, str)
    assert (task.attempts, list(worker.held), desk.deliveries()) == (0, [task.token], [])
    assert desk.broker.work.claim(other, number) == "busy"
    assert desk.broker.work.claim(worker, number) == "busy"
    desk.reject(worker)
    again = desk.broker.work.claim(other, number)
    assert not isinstance(again, str)
    assert desk.broker.work.settle(other, again.token, 0.0, payload="r", size=1)
    assert desk.broker.work.claim(worker, number) == "ended"
    assert desk.broker.work.claim(worker, number + (1 << 64)) == "unknown"
    assert desk.deliveries() == []


def test_a_claim_waits_for_a_delay_and_finds_no_cancelled_task() -> None:
    """A task that is not due, of another queue, or of a consumer that is closed, is busy; a cancelled one has ended."""
    desk = Desk()
    desk.declare("other")
    worker = desk.consume("w", credit=0)
    late, cancelled = desk.number("late", delay=1.0), desk.number("cancelled")
    assert desk.broker.work.claim(worker, late) == "busy"
    assert desk.broker.work.claim(desk.consume("w2", credit=0, queue="other"), cancelled) == "busy"
    assert desk.broker.work.cancel(cancelled, 0.0) == "withdrawn"
    assert desk.broker.work.claim(worker, cancelled) == "ended"
    desk.wait(1.5)
    desk.broker.work.close(worker, desk.now)
    assert desk.broker.work.claim(worker, late) == "busy"
    assert not isinstance(desk.broker.work.claim(desk.consume("w3", credit=0), late), str)


def test_a_lost_worker_is_blamed_for_what_it_claimed() -> None:
    """A claimed task goes back when its worker is lost, as a failed attempt, and with a poison task's history too."""
    desk = Desk()
    number = desk.number("a")
    for attempts in range(3):
        worker = desk.consume(f"w{attempts}", credit=0)
        task = desk.broker.work.claim(worker, number)
        assert not isinstance(task, str)
        assert task.attempts == attempts
        desk.broker.peers.leave(worker.peer, desk.now, goodbye=False)
        desk.wait(1.0)
