"""Peers come, go, and return."""

from __future__ import annotations

from redpoll.bus.broker import Limits
from redpoll.bus.broker.limits import CHARGE
from redpoll.bus.broker.outputs import PROGRESS
from tests.bus.broker.support import Desk


def test_goodbye_gives_everything_back() -> None:
    """A peer that says goodbye leaves its tasks at once, in their order and without blame, and its tokens count no more."""
    desk = Desk()
    worker = desk.consume("w", 3)
    tasks = [desk.submit(body) for body in "abc"]
    tokens = [task.token for task in tasks]
    desk.broker.peers.leave(worker.peer, 0.0, goodbye=True)
    assert [task.payload for task in desk.queue.in_line()] == ["a", "b", "c"]
    assert {task.attempts for task in tasks} == {0}
    desk.queue.paused = True
    again = desk.consume("w")
    assert desk.broker.work.reclaim(again, tasks[0].id, tokens[0], 0.0) == "lost"


def test_a_lost_link_keeps_the_tasks_for_the_grace() -> None:
    """Nobody is given the tasks of a peer without a link until its grace is over; then each is an attempt."""
    desk = Desk()
    worker = desk.consume("w", 2)
    task = desk.submit("a")
    desk.consume("other")
    desk.take()
    desk.broker.peers.leave(worker.peer, 0.0, goodbye=False)
    desk.wait(0.49)
    assert desk.deliveries() == []
    desk.wait(0.02)
    assert desk.deliveries() == [("other", "a")]
    assert (task.attempts, task.more.history) == (1, ("worker w was lost",))


def test_a_peer_that_returns_goes_on() -> None:
    """Within the grace a peer returns, reclaims what it holds, and the rest, which never reached it, goes back unblamed."""
    desk = Desk()
    worker = desk.consume("w", 2)
    task, unseen = desk.submit("a"), desk.submit("b")
    token = task.token
    desk.broker.peers.leave(worker.peer, 0.0, goodbye=False)
    desk.wait(0.4)
    again = desk.consume("w", 2)
    assert again.peer is worker.peer
    assert desk.broker.work.reclaim(again, task.id, token, desk.now) == "held"
    desk.take()
    desk.broker.peers.settle(again.peer, desk.now)
    assert desk.deliveries() == [("w", "b")]
    desk.wait(60.0)
    assert (task.attempts, unseen.attempts, again.peer.held) == (0, 0, 2)


def test_a_second_one_of_a_name_replaces_the_first() -> None:
    """Who joins under the name of a peer that is there is that peer on a new link: it has to reclaim."""
    desk = Desk()
    worker = desk.consume("w")
    desk.submit("a")
    peer = desk.join("w")
    assert peer is worker.peer
    assert worker.closed
    desk.take()
    again = desk.consume(peer)
    desk.broker.peers.settle(peer, desk.now)
    assert desk.deliveries() == [("w", "a")]
    assert len(again.held) == 1


def test_an_inbox_outlives_the_link() -> None:
    """What a peer's watchers are to be told waits for its return, in order, for a bounded time."""
    desk = Desk()
    client = desk.join("client")
    submit = desk.broker.intake.submit
    for body in "ab":
        submit(client, "q", body, 1, 0.0, body)
    desk.broker.peers.leave(client, 0.0, goodbye=False)
    worker = desk.consume("w", 2)
    desk.take()
    desk.broker.work.progress(worker, next(iter(worker.held)), "half")
    desk.settle(worker, "ra")
    assert desk.said() == []
    desk.wait(29.0)
    assert desk.join("client") is client
    assert desk.said() == [("a", "PROGRESS", "half"), ("a", "RESULT", "ra")]
    desk.broker.peers.leave(client, desk.now, goodbye=False)
    desk.settle(worker, "rb")
    desk.wait(30.0)
    assert (client.gone, len(client.backlog)) == (True, 0)
    assert desk.join("client") is not client
    assert desk.said() == []


def test_an_inbox_is_bounded() -> None:
    """At the bound progress is dropped, and an outcome takes the place of the oldest."""
    desk = Desk(Limits(inbox_events=2))
    client = desk.join("client")
    desk.broker.intake.submit(client, "q", "a", 1, 0.0, "a")
    worker = desk.consume("w")
    desk.broker.peers.leave(client, 0.0, goodbye=False)
    for number in range(5):
        desk.broker.work.progress(worker, next(iter(worker.held)), number)
    desk.settle(worker, "r")
    desk.take()
    desk.join("client")
    effects = desk.take()
    assert [effect[0] == PROGRESS for effect in effects] == [True, False]


def test_subscriptions_end_with_the_link() -> None:
    """Live subscriptions are not kept for an absent peer."""
    desk = Desk()
    client = desk.join("client")
    desk.broker.intake.subscribe(client, ("a", "b.#"))
    desk.broker.peers.leave(client, 0.0, goodbye=False)
    desk.broker.intake.publish(desk.boss, "a", "x", 1, 0.0)
    assert desk.said() == []


def test_leaving_twice_is_leaving_once() -> None:
    """A peer that is gone cannot leave again."""
    desk = Desk()
    peer = desk.join("w")
    desk.broker.peers.leave(peer, 0.0, goodbye=True)
    desk.broker.peers.leave(peer, 0.0, goodbye=False)
    assert desk.broker.deadline is None


def test_a_stalled_peer_is_given_nothing() -> None:
    """What a stalled peer has not begun goes back to its place, unblamed, and to others; it is served when it resumes."""
    desk = Desk()
    worker = desk.consume("w", 3)
    for body in "abcd":
        desk.submit(body)
    assert desk.deliveries() == [("w", "a"), ("w", "b"), ("w", "c")]
    first, *_ = worker.held
    desk.broker.peers.stall(worker.peer, [(worker, first)], desk.now)
    assert [task.payload for task in desk.queue.in_line()] == ["b", "c", "d"]
    assert list(worker.held) == [first]
    desk.consume("x")
    assert desk.deliveries() == [("x", "b")]
    desk.broker.work.settle(worker, first, desk.now)
    assert not desk.deliveries()
    desk.broker.peers.resume(worker.peer)
    assert desk.deliveries() == [("w", "c"), ("w", "d")]
    assert not any(task.attempts for task in desk.broker.tasks.found.values())


def test_a_stalled_peer_that_returns_takes_tasks() -> None:
    """A peer that stalled and lost its link is as any other when it returns."""
    desk = Desk()
    worker = desk.consume("w")
    desk.broker.peers.stall(worker.peer, [], desk.now)
    desk.submit("a")
    desk.broker.peers.leave(worker.peer, desk.now, goodbye=False)
    assert not desk.deliveries()
    desk.consume("w")
    assert desk.deliveries() == [("w", "a")]


def test_a_full_peer_is_given_no_more() -> None:
    """A peer with so many bytes of tasks on the way to it is given no further one, of any queue, until it has these."""
    desk = Desk()
    full = desk.join("w")
    full.limit = 2 * (CHARGE + 1)
    desk.declare("r")
    desk.submit("a")
    desk.submit("b")
    desk.submit("c")
    desk.submit("d", "r")
    desk.consume(full, 10)
    desk.consume(full, 10, "r")
    assert desk.deliveries() == [("w", "a"), ("w", "b")]
    desk.consume("x", 1)
    assert desk.deliveries() == [("x", "c")]
    full.unread = 0
    desk.broker.peers.reopen(full)
    assert desk.deliveries() == [("w", "d")]
