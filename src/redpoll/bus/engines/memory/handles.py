"""Deliveries, consumers and subscriptions of the memory engine."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from redpoll.bus.awaitables import FALSE, TRUE
from redpoll.bus.broker.queue import DEADLINE, Consumer, Subscription, Task
from redpoll.bus.engine import DeliverySink, EventSink
from redpoll.bus.engines.handles import (
    ENDINGS,
    NOTHING,
    EngineConsumer,
    EngineDelivery,
    EngineSubscription,
    check_credit,
)
from redpoll.bus.engines.memory.room import Member
from redpoll.bus.envelope import Envelope, Outcome
from redpoll.bus.records import Publication, task_id
from redpoll.errors import PayloadTooLarge, ResultTooLarge, UsageError

__all__ = ["MemoryConsumer", "MemoryDelivery", "MemorySubscription"]


class MemoryDelivery(EngineDelivery):
    """See `redpoll.bus.engine.Delivery`."""

    __slots__ = ("_consumer", "_task", "_token")

    def __init__(self, consumer: MemoryConsumer, token: int, task: Task, envelope: Envelope) -> None:
        self.envelope = envelope
        self.attempt = 1 if task.extra is None else 1 + task.extra.attempts
        self.inputs = consumer.member.inputs(task.extra.after) if task.extra is not None and task.extra.after else ()
        self._consumer = consumer
        self._token = token
        self._task = task
        self._lost = False
        self._cancelled = ""
        self._listener = None
        self._told = None

    def __repr__(self) -> str:
        return f"<MemoryDelivery {self.id} of {self.queue!r}, attempt {self.attempt}>"

    @property
    def id(self) -> str:
        """The task's id."""
        return task_id(self._consumer.member.room.store, self._task.id)

    @property
    def queue(self) -> str:
        """Name of the queue that it came from."""
        return self._consumer.queue

    @property
    def left(self) -> float | None:
        """Seconds until its deadline."""
        expires = self._task.expires
        if expires is None or not self._task.flags & DEADLINE:
            return None
        return expires - self._consumer.member.room.now()

    def accept(self) -> Awaitable[bool]:
        """Promise that no other worker begins it."""
        room = self._consumer.member.room
        with room.guard:
            accepted = room.broker.work.accept(self._consumer.held, self._token)
        return TRUE if accepted else FALSE

    def progress(self, envelope: Envelope) -> bool:
        """Send progress to the watchers."""
        member = self._consumer.member
        if len(envelope.body) > member.max_body:
            raise PayloadTooLarge(len(envelope.body), member.max_body)
        room = member.room
        with room.guard:
            told = room.broker.work.progress(self._consumer.held, self._token, envelope)
            effects = member.collect()
        member.route(effects)
        return told

    def ack(self, outcome: Outcome | None = None, then: Sequence[Publication] = ()) -> Awaitable[bool]:
        """End the task."""
        consumer = self._consumer
        member = consumer.member
        room = member.room
        if outcome is None:
            outcome = NOTHING
        kind, envelope, detail = outcome
        size = 0
        if envelope is not None:
            size = len(envelope.body)
            if size > member.max_body:
                raise ResultTooLarge(size, member.max_body)
        if kind not in ENDINGS:
            raise UsageError(f"a worker cannot end a task as {kind.name}")
        successors = [(each, len(each.envelope.body)) for each in then] if then else ()
        for _, length in successors:
            if length > member.max_body:
                raise PayloadTooLarge(length, member.max_body)
        lock = room.lock
        if lock is not None:
            lock.acquire()
        try:
            done = room.settle(consumer.held, self._token, room.now(), kind, outcome, size, detail, successors)
        finally:
            effects = room.out.effects
            if effects:
                room.out.effects = []
                if lock is not None:
                    effects = room.post(member, effects)
            if lock is not None:
                lock.release()
        consumer.deliveries.pop(self._token, None)
        # It has the delivery: references that go in a circle are left to the garbage collector.
        self._listener = None
        if effects or room.timers.earlier:
            member.route(effects)
        if member.drained is not None:
            member.look_drained()
        return TRUE if done else FALSE

    def reject(
        self,
        *,
        requeue: bool = True,
        delay: float = 0.0,
        blame: bool = False,
        exclude: bool = False,
        reason: str = "",
        meta: Mapping[str, Any] | None = None,
    ) -> Awaitable[bool]:
        """Give the task back, or up."""
        consumer = self._consumer
        member = consumer.member
        room = member.room
        with room.guard:
            payload = None if meta is None else self.envelope._replace(meta=meta)
            how = (requeue, delay, blame, exclude, reason, payload)
            done = room.broker.work.reject(consumer.held, self._token, room.now(), *how)
            effects = member.collect()
        consumer.deliveries.pop(self._token, None)
        self._listener = None
        member.route(effects)
        if member.drained is not None:
            member.look_drained()
        return TRUE if done else FALSE


class MemoryConsumer(EngineConsumer[MemoryDelivery]):
    """See `redpoll.bus.engine.Consumer`.

    Attributes:
        member: The engine.
        held: The broker's consumer.
    """

    held: Consumer

    def __init__(self, member: Member, queue: str, credit: int, sink: DeliverySink | None) -> None:
        super().__init__(queue, sink)
        self.member = member
        self._credit = credit

    @property
    def active(self) -> bool:
        """True if the engine hands out to it."""
        return not self.held.closed

    def set_credit(self, credit: int) -> None:
        """Set the maximum number of open deliveries."""
        check_credit(credit)
        more, self._credit = credit - self._credit, credit
        if not self.held.closed:
            with self.member.turn() as (broker, _):
                broker.work.add_credit(self.held, more)

    async def close(self) -> None:
        """Receive no more."""
        if self.member.refusal() is None:
            self.stop()

    # -- for the engine

    def deliver(self, token: int, task: Task, envelope: Envelope) -> None:
        """Hand a task over."""
        delivery = self.deliveries[token] = MemoryDelivery(self, token, task, envelope)
        if self.held.closed:
            delivery.reject()
            return
        self._hand_over(delivery)

    def stop(self, error: Exception | None = None) -> None:
        """Receive no more, and give back the deliveries that are still in the iterator."""
        with self.member.turn() as (broker, now):
            broker.work.close(self.held, now)
        self._end(error)


class MemorySubscription(EngineSubscription):
    """See `redpoll.bus.engine.Subscription`.

    Attributes:
        member: The engine.
        wanted: The broker's subscription.
    """

    wanted: Subscription

    def __init__(self, member: Member, patterns: tuple[str, ...], sink: EventSink | None, buffer: int) -> None:
        super().__init__(patterns, sink, buffer)
        self.member = member

    async def close(self) -> None:
        """Receive no more."""
        if self.member.refusal() is None:
            self.stop()

    # -- for the engine

    def stop(self) -> None:
        """Receive no more."""
        self._closed = True
        with self.member.turn() as (broker, _):
            broker.peers.close(self.wanted)
        self._feed.end()
