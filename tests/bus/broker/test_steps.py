"""Tasks that come after others: when they begin, what they are given, and what becomes of them where one fails."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from redpoll.bus import OutcomeKind, Publication, Step
from redpoll.bus.broker import Broker, Limits
from redpoll.bus.broker.limits import CHARGE
from redpoll.bus.broker.outputs import Brief, Ended, Forgotten, Write
from redpoll.bus.broker.queue import Consumer, Parked, Task
from redpoll.errors import QueueFull, UsageError
from tests.bus.broker.support import Desk


def again(desk: Desk, log: list[Write]) -> None:
    """Start the broker again from all that it ever wrote."""
    log += desk.broker.out.take_writes()
    desk.broker = Broker.restored(log, desk.now, "s", count(100 * len(log)), epoch=len(log))
    desk.boss = desk.broker.peers.join("boss", desk.now)
    desk.queue = desk.broker.queues.get("q")


def submit(desk: Desk, *steps: Any, dedup: str | None = None, timeout: float | None = None) -> Any:
    """Submit tasks of "q" together, each as its body with the places of those before it; its watcher is called like it."""
    planned = []
    for place, (body, *after) in enumerate(steps):
        collect = "collect" in after
        places = tuple(each for each in after if isinstance(each, int))
        key = dedup if place == len(steps) - 1 else None
        task = Publication("q", body, dedup=key)
        planned.append((Step(task, places, collect), len(body), body))
    return desk.broker.intake.submit_steps(desk.boss, planned, desk.now, timeout, "owner")


def given(desk: Desk, number: int) -> list[Any]:
    """The input of a task: the payloads of the outcomes of those before it."""
    task = desk.broker.tasks.found[number]
    found = [desk.broker.tasks.results.find(each, desk.now) for each in task.more.after]
    return [each.payload if isinstance(each, Ended) else each for each in found]


def take(desk: Desk, worker: Consumer, body: str, **end: Any) -> None:
    """End the task of a body, which a worker holds."""
    (token,) = [token for token, task in worker.held.items() if task.payload == body]
    desk.broker.work.settle(worker, token, desk.now, **{"payload": f"of {body}", "size": 4, **end})


def test_a_task_begins_behind_the_last_of_those_before_it() -> None:
    """It is delayed until all have ended, whatever the order, and then stands behind what was there before."""
    desk = Desk()
    worker = desk.consume("w", 2)
    _, _, last = submit(desk, ("a",), ("b",), ("c", 1, 0))
    desk.submit("d")
    assert desk.deliveries() == [("w", "a"), ("w", "b")]
    assert desk.broker.admin.inspect(desk.queue).delayed == 1
    take(desk, worker, "b")
    assert desk.deliveries() == [("w", "d")]
    take(desk, worker, "a")
    assert desk.deliveries() == [("w", "c")]
    assert given(desk, last) == ["of b", "of a"]
    assert desk.broker.admin.describe(desk.broker.tasks.found[last]).after == tuple(
        desk.broker.tasks.text(each) for each in desk.broker.tasks.found[last].more.after
    )


def test_a_failure_cancels_the_rest_of_a_chain_of_any_length() -> None:
    """All that comes after it is cancelled in the same turn, with the reason of the first, and watchers are told."""
    desk = Desk()
    worker = desk.consume("w")
    first, *_ = submit(desk, ("0",), *[(str(place), place - 1) for place in range(1, 5_000)])
    desk.take()
    take(desk, worker, "0", kind=OutcomeKind.ERROR, detail="ValueError: no")
    said = desk.said()
    reason = f"it came after task {desk.broker.tasks.text(first)}, which failed: ValueError: no"
    assert said[:2] == [("0", "ERROR", "of 0"), ("1", "CANCELLED", reason)]
    assert said[-1] == ("4999", "CANCELLED", reason)
    assert len(said) == 5_000
    assert (desk.queue.count, desk.queue.bytes, desk.broker.tasks.found) == (0, 0, {})
    assert not desk.broker.tasks.results._holds


def test_what_collects_begins_however_those_before_it_end() -> None:
    """It is given their outcomes; what comes after a cancelled one is cancelled all the same."""
    desk = Desk()
    worker = desk.consume("w", 9)
    _, _, last, _ = submit(desk, ("a",), ("b",), ("c", 0, 1, "collect"), ("d", 0))
    take(desk, worker, "a", kind=OutcomeKind.TIME_LIMIT, payload=None)
    assert [each[0] for each in desk.said() if each[1] == "CANCELLED"] == ["d"]
    take(desk, worker, "b")
    assert desk.deliveries() == [("w", "c")]
    found = [desk.broker.tasks.results.find(each, 0.0) for each in desk.broker.tasks.found[last].more.after]
    assert [each.kind.name for each in found if isinstance(each, Ended)] == ["TIME_LIMIT", "RESULT"]


@pytest.mark.parametrize("how", ["purge", "delete"])
def test_a_queue_that_is_emptied(how: str) -> None:
    """A purge, and the end of the queue, end each task once, also those that come after one that is ended there."""
    desk = Desk()
    submit(desk, ("a",), ("b", 0), ("c", 1))
    if how == "purge":
        assert desk.broker.admin.purge(desk.queue, "ready", 0.0) == 3
    else:
        desk.broker.queues.delete(desk.queue, 0.0)
    said = [each for each in desk.said() if each[1] == "CANCELLED"]
    assert [each[0] for each in said] == ["a", "b", "c"]
    assert (desk.queue.count, desk.queue.bytes) == (0, 0)


def test_results_are_held_beyond_their_limits() -> None:
    """The input of a task outlives the time and the bytes of outcomes; it is forgotten when that has ended."""
    desk = Desk(Limits(results_time=10.0, results_bytes=4 * CHARGE), journal=True)
    worker, other = desk.consume("w"), desk.consume("v")
    first, last = submit(desk, ("a",), ("b", 0))
    take(desk, worker, "a")
    held = next(each for each in (worker, other) if each.held)
    free = worker if held is other else other
    for _ in range(9):
        desk.submit("x")
        desk.settle(free, "r")
        desk.wait(5.0)
    assert given(desk, last) == ["of a"]
    assert first not in [each.id for each in desk.broker.out.take_writes() if isinstance(each, Forgotten)]
    desk.settle(held, "r")
    desk.wait(20.0)
    desk.submit("x")
    for each in (worker, other):
        if each.held:
            desk.settle(each, "r")
    gone = {each.id for each in desk.broker.out.take_writes() if isinstance(each, Forgotten)}
    assert {first, last} <= gone


def test_results_count_against_the_queue_of_what_they_are_for() -> None:
    """Until that has ended; so they are bounded, as submitters to that queue wait."""
    desk = Desk(max_bytes=2_000, at_limit="refuse")
    worker = desk.consume("w", 2)
    submit(desk, ("a",), ("b",), ("c", 0, 1))
    before = desk.queue.bytes
    take(desk, worker, "a", payload="r", size=1_000)
    assert desk.queue.bytes == before - 1 - CHARGE + 1_000 + CHARGE
    with pytest.raises(QueueFull):
        desk.submit("x" * 300)
    take(desk, worker, "b")
    assert desk.queue.bytes == 1 + CHARGE + 1_000 + CHARGE + 4 + CHARGE
    take(desk, worker, "c")
    assert desk.queue.bytes == 0


def test_a_dead_letter_is_redriven_with_what_it_was_given() -> None:
    """Its outcomes are held as long as it is there; another queue that takes it has them too."""
    desk = Desk()
    worker = desk.consume("w")
    _, last = submit(desk, ("a",), ("b", 0))
    take(desk, worker, "a")
    desk.reject(worker, requeue=False, reason="bad")
    assert last in desk.queue.dead
    size = 1 + CHARGE + 4 + CHARGE
    assert (desk.queue.bytes, desk.queue.dead_bytes) == (0, size)
    (made,) = desk.broker.admin.redrive(desk.boss, desk.queue, None, 0.0)
    assert (given(desk, made.id), desk.queue.bytes, desk.queue.dead_bytes) == (["of a"], size, 0)
    desk.declare("graves")
    desk.declare("q", update=True, dead_letter="graves")
    desk.reject(worker, requeue=False, reason="bad")
    (there,) = desk.broker.queues.get("graves").in_line()
    assert given(desk, there.id) == ["of a"]
    desk.broker.admin.purge(there.queue, "ready", 0.0)
    assert not desk.broker.tasks.results._holds


def test_a_restart_changes_nothing() -> None:
    """Tasks wait for those that have not ended, others are ready, and each has its input."""
    desk, log = Desk(journal=True), list[Write]()
    worker = desk.consume("w", 2)
    numbers = submit(desk, ("a",), ("b",), ("c", 0, 1), ("d", 0), ("e", 2, 3))
    desk.broker.work.close(worker, 0.0)
    take(desk, worker, "a")
    before = desk.queue.bytes
    again(desk, log)
    assert desk.queue.bytes == before
    assert [each.payload for each in desk.queue.in_line()] == ["d"]
    assert given(desk, numbers[3]) == ["of a"]
    desk.broker.tasks.results.drop(numbers[0])
    assert isinstance(desk.broker.tasks.results.find(numbers[0], 0.0), Brief)
    worker = desk.consume("v", 9)
    desk.wait(20.0)
    # "b" was not reclaimed.
    assert {body for _, body in desk.deliveries()} == {"b", "d"}
    take(desk, worker, "b")
    take(desk, worker, "c")
    again(desk, log)
    worker = desk.consume("u", 9)
    desk.wait(20.0)
    take(desk, worker, "d")
    assert desk.deliveries()[-1] == ("u", "e")
    assert given(desk, numbers[4]) == ["of c", "of d"]


def test_nothing_is_submitted_where_one_has_no_room() -> None:
    """They wait together, behind those that waited before, and are admitted as one."""
    desk = Desk(max_length=3)
    desk.submit("x")
    waiting = submit(desk, ("a",), ("b", 0), ("c", 1))
    assert isinstance(waiting, Parked)
    assert isinstance(desk.submit("y"), Parked)
    assert desk.queue.count == 1
    worker = desk.consume("w")
    desk.settle(worker)
    assert desk.deliveries() == [("w", "x"), ("w", "a")]
    assert desk.queue.count == 3
    assert [each.body for each in desk.queue.delayed] == [1, 1]


def test_a_key_is_that_of_all() -> None:
    """Known, it names the last task, and nothing is submitted; also where they had waited for room meanwhile."""
    desk = Desk(max_length=2)
    *_, last = submit(desk, ("a",), ("b", 0), dedup="k")
    assert submit(desk, ("a",), ("b", 0), dedup="k") == last
    assert desk.queue.submitted == 2


def test_what_cannot_be_waited_for() -> None:
    """A durable task does not come after one that a restart would lose: it would seem to have ended."""
    desk = Desk()
    desk.declare("volatile", durable=False)
    steps = [(Step(Publication("volatile", b"")), 0, None), (Step(Publication("q", b""), (0,)), 0, None)]  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not durable"):
        desk.broker.intake.submit_steps(desk.boss, steps, 0.0)
    assert not desk.broker.tasks.found
    first, second = desk.broker.intake.submit_steps(
        desk.boss, [steps[0], (Step(steps[0][0].publication, (0,)), 0, None)], 0.0
    )  # type: ignore[misc]
    assert isinstance(desk.broker.tasks.found[second], Task)
    assert desk.broker.tasks.found[second].more.after == (first,)
