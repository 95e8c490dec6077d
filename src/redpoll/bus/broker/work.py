"""Operations of workers: take tasks, end them, or give them back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, Final, Literal

from redpoll.bus.broker.outputs import CANCELLED, TOLD, Accepted, Asked, Brief, Changed, Ended, Taken
from redpoll.bus.broker.queue import (
    ACCEPTED,
    ASIDE,
    CANCEL,
    DELAYED,
    DURABLE,
    GONE,
    READY,
    TAKEN,
    Consumer,
    Peer,
    Queue,
    Task,
)
from redpoll.bus.broker.tasks import Tasks
from redpoll.bus.envelope import OutcomeKind
from redpoll.bus.records import Publication, check_flags, check_publishing, check_subject
from redpoll.errors import NoRoute, SpecConflict

__all__ = ["Work"]

_LONGEST: Final = 60.0
_RESULT: Final = OutcomeKind.RESULT


class Work:
    """Consumers, and their tasks.

    A token that is not held any more changes nothing: the method returns False.

    Args:
        tasks: The tasks of the broker.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._out = tasks.out
        # Below all tokens: who was never served is first.
        self._numbers = count(-(2**62))

    # -- consumers

    def consume(
        self,
        peer: Peer,
        name: str,
        now: float,
        credit: int = 1,
        owner: Any = None,
        *,
        auto: bool = True,
        exclusive: bool = False,
        accepts: bool = False,
    ) -> Consumer:
        """Add a consumer of a queue.

        Args:
            peer: Its peer.
            name: Name of the queue.
            now: The time.
            credit: The number of tasks that it takes now.
            owner: The owner's own.
            auto: True if a task that ends gives its credit back.
            exclusive: True if no other consumer is allowed.
            accepts: True if each task is accepted as it is handed out.

        Raises:
            NoRoute: There is no such queue.
            SpecConflict: Another consumer has it, or has it exclusively.
        """
        check_flags(accept=accepts, exclusive=exclusive)
        queue = self._tasks.queues.get(name)
        if queue is None:
            check_subject("queue", name)
            raise NoRoute(name)
        if queue.consumers and (exclusive or next(iter(queue.consumers.values())).exclusive):
            raise SpecConflict(name, "exclusive", not exclusive, exclusive, "another consumer is there")
        consumer = Consumer(next(self._numbers), peer, queue, credit, owner, auto, exclusive, accepts)
        queue.consumers[consumer.number] = peer.consumers[consumer.number] = consumer
        queue.used = now
        self._out.note("consumer", name, 0, peer.name)
        queue.offer(consumer)
        return consumer

    def absent(self, peer: Peer, queue: Queue) -> Consumer:
        """Add the consumer of a worker that was there before a restart, to hold its tasks."""
        consumer = Consumer(next(self._numbers), peer, queue, 0, None, auto=False, closed=True)
        peer.consumers[consumer.number] = consumer
        return consumer

    def add_credit(self, consumer: Consumer, credit: int) -> None:
        """Add to the credit of a consumer; a negative number takes away."""
        consumer.credit += credit
        consumer.slots += credit
        consumer.queue.offer(consumer)

    def set_ahead(self, consumer: Consumer, ahead: int) -> None:
        """Set the number of tasks that a consumer takes ahead: beyond its free slots, while no consumer has one.

        It begins its tasks in the order in which they were handed out, and gives back those that it did not begin soon.
        """
        consumer.ahead = ahead
        consumer.queue.offer(consumer)

    def give_back(self, consumer: Consumer, tokens: Iterable[int], now: float) -> None:
        """Take back tasks that a consumer did not begin, to where they were in the queue; it takes none ahead from now on."""
        consumer.ahead = 0
        for token in tokens:
            task = consumer.held.pop(token, None)
            if task is not None:
                if task.state != GONE:
                    task.token = 0
                    task.state = TAKEN
                    self._tasks.back(task, now, again=True)
                self._freed(consumer)

    def close(self, consumer: Consumer, now: float) -> None:
        """Stop a consumer; its tasks stay with it."""
        if consumer.closed:
            return
        consumer.closed = True
        consumer.auto = False
        queue = consumer.queue
        del queue.consumers[consumer.number]
        queue.used = now
        self._out.note("consumer gone", queue.name, 0, consumer.peer.name)
        peer = consumer.peer
        if not consumer.held:
            peer.consumers.pop(consumer.number, None)
        if peer.solo is queue and queue.reserved is peer and not _consumes(peer, queue):
            Queue.set_free(peer)
        # A task that all others had excluded is excluded by all.
        for task in queue.left_over() if queue.aside else ():
            self._wait(task, now)

    def claim(self, consumer: Consumer, number: int) -> Task | Literal["busy", "ended", "unknown"]:
        """Hand a task to a consumer of its queue by its number, whatever the credit.

        Returns:
            The task, or why it is not handed out: "busy" where another has it, or it is not due yet; "ended"; or there never
            was one.
        """
        task = self._tasks.found.get(number)
        if task is None:
            return "ended" if self._tasks.knows(number) else "unknown"
        if task.state not in {READY, ASIDE} or task.queue is not consumer.queue or consumer.closed:
            return "busy"
        task.queue.claim(task, consumer)
        return task

    # -- the end of a task

    def settle(
        self,
        consumer: Consumer,
        token: int,
        now: float,
        kind: OutcomeKind = _RESULT,
        payload: Any = None,
        size: int = 0,
        detail: str = "",
        then: Sequence[tuple[Publication, int]] = (),
    ) -> bool:
        """Record the outcome of a task.

        Args:
            consumer: Its consumer.
            token: The hand-out.
            now: The time.
            kind: The kind of the outcome.
            payload: Its result or error.
            size: Size of that in bytes.
            detail: The reason in words.
            then: Successors, each with the size of its body; their envelope is the payload.

        Raises:
            NoRoute: There is no such queue for a successor; nothing was done.
        """
        for publication, _ in then:
            if publication.queue not in self._tasks.queues:
                raise NoRoute(publication.queue)
        task = consumer.held.pop(token, None)
        if task is None:
            return False
        ended = task.state != GONE
        if ended:
            self._tasks.end(task, kind, now, payload, size, detail)
            for each, its_size in then:
                queue = self._tasks.queues[each.queue]
                if each.dedup is None or not queue.dedup.find(each.dedup, now, self._tasks.found):
                    self._tasks.put(queue, each.envelope, its_size, now, consumer.peer, None, each.options)
        if consumer.auto and consumer.waiting and not consumer.queue.aside:
            # It stands in line still: nothing waits for this credit.
            consumer.peer.held -= 1
            consumer.credit += 1
            if not consumer.peer.held:
                self._idle(consumer.peer)
        else:
            self._freed(consumer)
        return ended

    def accept(self, consumer: Consumer, token: int) -> bool:
        """Promise that no other worker begins a task from now on."""
        task = consumer.held.get(token)
        if task is None or task.state == GONE or task.flags & CANCEL:
            return False
        if task.state == TAKEN:
            task.state = ACCEPTED
            self._out.write(task.flags & DURABLE, Accepted(task.id))
        return True

    def progress(self, consumer: Consumer, token: int, payload: Any) -> bool:
        """Send progress to the watchers; return True if there are any."""
        task = consumer.held.get(token)
        return task is not None and task.state != GONE and self._tasks.progress(task, payload)

    def reject(
        self,
        consumer: Consumer,
        token: int,
        now: float,
        requeue: bool = True,
        delay: float = 0.0,
        blame: bool = False,
        exclude: bool = False,
        reason: str = "",
        payload: Any = None,
    ) -> bool:
        """Give a task back, or up. See `redpoll.bus.engine.Delivery.reject`; a payload takes the place of the task's.

        Raises:
            ConfigError: The delay cannot be, or a flag is none; nothing was done.
        """
        check_publishing(0, delay)
        check_flags(requeue=requeue, blame=blame, exclude=exclude)
        task = consumer.held.pop(token, None)
        if task is None:
            return False
        live = task.state != GONE
        if live:
            # Given back: this hand-out can claim nothing any more, and what was accepted was not begun.
            task.token = 0
            task.state = TAKEN
            if payload is not None:
                task.payload = payload
                self._out.write(task.flags & DURABLE, Changed(task.id, payload))
            if not requeue and not task.flags & CANCEL:
                self._tasks.bury(task, now, reason or "given up by its worker")
            elif exclude:
                self._exclude(task, consumer, now, delay, blame, reason)
            else:
                self._tasks.back(task, now, delay, blame=blame, reason=reason, front=not blame)
        self._freed(consumer)
        return live

    def _exclude(self, task: Task, consumer: Consumer, now: float, delay: float, blame: bool, reason: str) -> None:
        extra = task.more
        extra.excluded |= {consumer.number}
        if task.queue.consumers.keys() <= extra.excluded:
            delay = max(delay, self._pause(task))
        self._tasks.back(task, now, delay, blame=blame, reason=reason)

    def _pause(self, task: Task) -> float:
        """Begin another round of a task that all consumers excluded; return the seconds that it waits."""
        extra = task.more
        extra.excluded = frozenset()
        extra.rounds += 1
        return float(min(_LONGEST, 2.0 ** min(extra.rounds - 1, 6)))

    def _wait(self, task: Task, now: float) -> None:
        """Delay a task that was taken out of its queue because all consumers excluded it."""
        self._tasks.delay(task, now + self._pause(task))

    def _freed(self, consumer: Consumer) -> None:
        """Give back the credit of a hand-out that ended."""
        peer = consumer.peer
        peer.held -= 1
        if consumer.auto:
            consumer.credit += 1
        elif consumer.closed and not consumer.held:
            peer.consumers.pop(consumer.number, None)
        consumer.queue.offer(consumer)
        if not peer.held:
            self._idle(peer)

    def _idle(self, peer: Peer) -> None:
        """Serve poison tasks that wait for a peer without tasks."""
        if peer.solo is not None:
            Queue.set_free(peer)
        for consumer in tuple(peer.consumers.values()):
            if consumer.queue.poison:
                consumer.queue.dispatch()

    # -- workers that go

    def drop(self, consumer: Consumer, now: float, *, blame: str = "", fence: bool = True) -> None:
        """Take all tasks from a consumer that is gone.

        Args:
            consumer: It is closed.
            now: The time.
            blame: The reason for which begun tasks count as failed attempts; "" blames none.
            fence: True if its tokens count no more. If False, each counts until another consumer is given the task.
        """
        held = tuple(consumer.held.items())
        begun = consumer.slots if consumer.lent else len(held)
        # The youngest first, each to the front: they stand there in their old order then.
        for place, (token, task) in reversed(tuple(enumerate(held))):
            del consumer.held[token]
            consumer.peer.held -= 1
            if task.state != GONE:
                if fence:
                    task.token = 0
                if blame and place < begun:
                    task.more.blamed = token
                    task.more.lost += 1
                # With that in its history a task is not handed out ahead any more: the one that kills its workers is found.
                reason = blame if place < begun or not blame else f"{blame} before it had begun this"
                self._tasks.back(task, now, blame=bool(blame) and place < begun, reason=reason)
        consumer.peer.consumers.pop(consumer.number, None)
        if not consumer.peer.held:
            self._idle(consumer.peer)

    def reclaim(self, consumer: Consumer, number: int, token: int, now: float) -> Literal["held", "done", "lost"]:
        """Give a task back to a worker that returned; its consumer is a new one.

        Args:
            consumer: Its consumer.
            number: The task's.
            token: The hand-out.
            now: The time.

        Returns:
            "held": it has the task again; "done": its outcome was recorded; "lost": it is not its own.
        """
        task = self._tasks.found.get(number)
        if task is None:
            result = self._tasks.results.find(number, now)
            return "done" if result is not None and result.token == token else "lost"
        if task.token != token or task.queue is not consumer.queue:
            return "lost"
        if task.state in {TAKEN, ACCEPTED}:
            holder = task.consumer
            if holder is consumer:
                # It asks twice, as for a task that has ended there and waits for its successors.
                return "held"
            if holder is None or (holder.peer is not consumer.peer and holder.peer.present):
                return "lost"
            del holder.held[token]
        else:
            holder = None
            self._tasks.leave(task)
            if task.extra is not None and task.extra.blamed == token:
                # It was not lost after all.
                task.extra.blamed = 0
                task.extra.attempts -= 1
                task.extra.lost -= 1
            task.state = TAKEN
            task.queue.taken += 1
            if self._out.writes is not None and task.flags & DURABLE:
                self._out.writes += (self._tasks.went_back(task, None), Taken(task.id, token, consumer.peer.name))
            task.queue.close_up()
        task.consumer = consumer
        consumer.held[token] = task
        consumer.peer.held += 1
        consumer.credit -= 1
        if holder is not None:
            # Not before: a peer that holds nothing is kept for its poison task no longer.
            self._freed(holder)
        if task.flags & CANCEL:
            # It may have been asked to stop while it was absent.
            self._out.effects.append((CANCELLED, consumer.peer, consumer, token, "cancelled"))
        return "held"

    # -- publishers, to workers

    def cancel(self, number: int, now: float) -> Literal["withdrawn", "asked", "too late"] | None:
        """Cancel a task; return None if there never was one."""
        task = self._tasks.found.get(number)
        if task is None:
            return "too late" if self._tasks.results.find(number, now) or self._tasks.knows(number) else None
        if task.state in {READY, ASIDE, DELAYED}:
            self._tasks.end(task, OutcomeKind.CANCELLED, now, detail="cancelled before it was begun")
            task.queue.close_up()
            return "withdrawn"
        if not task.flags & CANCEL:
            task.flags |= CANCEL
            self._out.write(task.flags & DURABLE, Asked(number))
            consumer = task.consumer
            if consumer is not None and consumer.peer.present:
                self._out.effects.append((CANCELLED, consumer.peer, consumer, task.token, "cancelled"))
        return "asked"

    def tell(self, number: int, payload: Any) -> bool:
        """Send a message to the worker of a task; return False if there is none."""
        task = self._tasks.found.get(number)
        if task is None or task.state not in {TAKEN, ACCEPTED} or task.consumer is None:
            return False
        if task.consumer.peer.present:
            self._out.effects.append((TOLD, task.consumer.peer, task.consumer, task.token, payload))
        return task.consumer.peer.present

    def find(self, number: int, now: float) -> Task | Ended | Brief | None:
        """Return a task that has no outcome yet, or the outcome if it is kept."""
        return self._tasks.found.get(number) or self._tasks.results.find(number, now)


def _consumes(peer: Peer, queue: Queue) -> bool:
    return any(each.queue is queue and not each.closed for each in peer.consumers.values())
