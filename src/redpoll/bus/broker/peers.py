"""The peers of a broker: they join, leave with or without goodbye, and return."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redpoll.bus.broker.queue import Consumer, Peer, Queue, Subscription
from redpoll.bus.broker.tasks import Tasks
from redpoll.bus.broker.topics import Topics
from redpoll.bus.broker.work import Work

__all__ = ["Peers"]

_LOSE, _FORGET = 0, 1


class Peers:
    """The peers by name.

    A peer that goes without goodbye is absent: its subscriptions end, its consumers take nothing more, its tasks stay
    with it for the grace, the effects for its watchers wait for a bounded time. When it returns, under its name, it
    consumes anew, reclaims its tasks by `Work.reclaim`, and then `settle`s.

    Args:
        tasks: The tasks.
        work: The operations of workers.
        topics: The live subscriptions by their patterns.
    """

    def __init__(self, tasks: Tasks, work: Work, topics: Topics[Subscription]) -> None:
        self._limits, self._out, self._timers = tasks.limits, tasks.out, tasks.timers
        self._tasks = tasks
        self._work = work
        self._topics = topics
        self.found = tasks.peers

    def join(self, name: str, now: float, owner: Any = None) -> Peer:
        """Add a peer, or let it return; a present one of that name is replaced.

        The effects for its watchers that waited are among the effects.
        """
        peer = self.found.get(name)
        if peer is None:
            peer = self.found[name] = Peer(name, owner)
            return peer
        if peer.present:
            self._detach(peer, now)
        peer.owner = owner
        for timer in peer.timers:
            self._timers.cancel(timer)
        peer.present = True
        peer.stalled = False
        peer.unread = 0
        peer.look_open()
        self._out.effects.extend(peer.backlog)
        peer.backlog.clear()
        return peer

    def absent(self, name: str) -> Peer:
        """Add a peer that was present before a restart, and is expected back."""
        peer = self.found[name] = Peer(name, None, present=False, open=False)
        return peer

    def stall(self, peer: Peer, begun: Iterable[tuple[Consumer, int]], now: float) -> None:
        """Hand a peer nothing until it resumes, and take back what it has not begun, to where it was in its queue.

        Args:
            peer: The peer.
            begun: Consumers, each with the token up to which it has begun its tasks; it begins no other before `resume`.
            now: The time.
        """
        peer.stalled = True
        peer.look_open()
        if peer.solo is not None and peer.solo.reserved is peer:
            # Nobody knows for how long: the poison task may have another one.
            Queue.set_free(peer)
        for consumer, last in begun:
            self._work.give_back(consumer, [token for token in consumer.held if token > last], now)

    def resume(self, peer: Peer) -> None:
        """Hand tasks to a peer again that had stalled."""
        peer.stalled = False
        self.reopen(peer)

    def reopen(self, peer: Peer) -> None:
        """Hand tasks to a peer again, if nothing stands against it."""
        peer.look_open()
        for consumer in tuple(peer.consumers.values()):
            consumer.queue.offer(consumer)

    def settle(self, peer: Peer, now: float) -> None:
        """Take back the tasks that a peer did not reclaim when it returned: they never reached it."""
        for consumer in tuple(peer.consumers.values()):
            if consumer.closed:
                self._work.drop(consumer, now)

    def leave(self, peer: Peer, now: float, *, goodbye: bool) -> None:
        """Remove a peer, or note its absence.

        Args:
            peer: The peer.
            now: The time.
            goodbye: True if it does not return: its tasks go back at once, without blame.
        """
        if peer.gone:
            return
        self._detach(peer, now)
        if goodbye:
            self._lose(peer, now, "", fence=True)
            self._forget(peer)
        else:
            self.expect(peer, now, self._limits.grace, blame=True)

    def expect(self, peer: Peer, now: float, seconds: float, *, blame: bool) -> None:
        """Wait some seconds for a peer that is absent."""
        peer.blame = blame
        peer.timers = [
            self._timers.add(now + seconds, peer, _LOSE),
            self._timers.add(now + max(seconds, self._limits.inbox_time), peer, _FORGET),
        ]

    def act(self, peer: Peer, what: int, now: float) -> None:
        """Carry out a timer of an absent peer."""
        if what == _LOSE:
            self._lose(peer, now, f"worker {peer.name} was lost" if peer.blame else "", fence=False)
        else:
            self._forget(peer)

    def close(self, subscription: Subscription) -> None:
        """End a live subscription."""
        if subscription in subscription.peer.subscriptions:
            del subscription.peer.subscriptions[subscription]
            for pattern in subscription.patterns:
                self._topics.remove(pattern, subscription)

    def _detach(self, peer: Peer, now: float) -> None:
        # First: the end of a consumer may free tasks, which another of the same peer would be handed.
        peer.present = False
        peer.look_open()
        for subscription in tuple(peer.subscriptions):
            self.close(subscription)
        for consumer in tuple(peer.consumers.values()):
            self._work.close(consumer, now)

    def _lose(self, peer: Peer, now: float, blame: str, *, fence: bool) -> None:
        for consumer in tuple(peer.consumers.values()):
            self._work.drop(consumer, now, blame=blame, fence=fence)
        if peer.solo is not None:
            Queue.set_free(peer)

    def _forget(self, peer: Peer) -> None:
        peer.gone = True
        peer.backlog.clear()
        if self.found.get(peer.name) is peer:
            del self.found[peer.name]
