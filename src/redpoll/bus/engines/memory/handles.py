"""Deliveries, consumers and subscriptions of the memory engine."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Self

from redpoll.bus.awaitables import FALSE, TRUE
from redpoll.bus.broker.queue import DEADLINE, Consumer, Subscription, Task
from redpoll.bus.engine import DeliverySink, EventSink, Listener
from redpoll.bus.engines.memory.room import Member, call
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind
from redpoll.bus.feed import Feed
from redpoll.bus.records import Event, Publication, task_id
from redpoll.errors import ConfigError, PayloadTooLarge, ResultTooLarge, UsageError

__all__ = ["MemoryConsumer", "MemoryDelivery", "MemorySubscription", "check_credit"]

_log = logging.getLogger("redpoll.bus")

#: Maximum messages of a publisher that are kept for a worker that does not listen yet.
_TOLD: Final = 1_000
_NOTHING: Final = Outcome(OutcomeKind.RESULT)
_ENDINGS: Final = frozenset({OutcomeKind.RESULT, OutcomeKind.ERROR, OutcomeKind.CANCELLED, OutcomeKind.TIME_LIMIT})


def check_credit(credit: int) -> None:
    """Validate the maximum number of open deliveries.

    Raises:
        ConfigError: It cannot be.
    """
    if type(credit) is not int or credit < 0:
        raise ConfigError("credit", credit, "must be an int, 0 or more")


class MemoryDelivery:
    """See `redpoll.bus.engine.Delivery`."""

    __slots__ = (
        "__weakref__",
        "_cancelled",
        "_consumer",
        "_listener",
        "_lost",
        "_task",
        "_token",
        "_told",
        "attempt",
        "envelope",
    )

    def __init__(self, consumer: MemoryConsumer, token: int, task: Task, envelope: Envelope) -> None:
        self.envelope = envelope
        self.attempt = 1 if task.extra is None else 1 + task.extra.attempts
        self._consumer = consumer
        self._token = token
        self._task = task
        self._lost = False
        self._cancelled = ""
        self._listener: Listener | None = None
        self._told: list[Envelope] | None = None

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

    @property
    def lost(self) -> bool:
        """True if it was taken away."""
        return self._lost

    @property
    def cancelled(self) -> bool:
        """True if the work is not wanted any more."""
        return bool(self._cancelled)

    def listen(self, listener: Listener) -> None:
        """Set the listener of the task."""
        self._listener = listener
        told, self._told = self._told or (), None
        for envelope in told:
            call("a listener", listener.told, envelope)
        if self._cancelled:
            call("a listener", listener.cancelled, self._cancelled)
        if self._lost:
            call("a listener", listener.lost)

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
            outcome = _NOTHING
        kind, envelope, detail = outcome
        size = 0
        if envelope is not None:
            size = len(envelope.body)
            if size > member.max_body:
                raise ResultTooLarge(size, member.max_body)
        if kind not in _ENDINGS:
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
            done = room.broker.work.reject(
                consumer.held,
                self._token,
                room.now(),
                requeue=requeue,
                delay=delay,
                blame=blame,
                exclude=exclude,
                reason=reason,
                payload=None if meta is None else self.envelope._replace(meta=meta),
            )
            effects = member.collect()
        consumer.deliveries.pop(self._token, None)
        self._listener = None
        member.route(effects)
        if member.drained is not None:
            member.look_drained()
        return TRUE if done else FALSE

    def extend(self) -> bool:
        """Do nothing: this process lives."""
        return not self._lost

    # -- for the engine

    def lose(self) -> None:
        """Note that it was taken away."""
        self._lost = True
        listener, self._listener = self._listener, None
        if listener is not None:
            call("a listener", listener.lost)

    def cancel(self, reason: str) -> None:
        """Note that the work is not wanted."""
        if not self._cancelled:
            self._cancelled = reason
            if self._listener is not None:
                call("a listener", self._listener.cancelled, reason)

    def tell(self, envelope: Envelope) -> None:
        """Hand on a message of the publisher, or keep it until there is a listener."""
        if self._listener is not None:
            call("a listener", self._listener.told, envelope)
        elif self._told is None:
            self._told = [envelope]
        elif len(self._told) < _TOLD:
            self._told.append(envelope)


class MemoryConsumer:
    """See `redpoll.bus.engine.Consumer`.

    Attributes:
        member: The engine.
        held: The broker's consumer.
        queue: Name of the queue.
        deliveries: The open deliveries by token.
    """

    held: Consumer

    def __init__(self, member: Member, queue: str, credit: int, sink: DeliverySink | None) -> None:
        self.member = member
        self.queue = queue
        self.deliveries: dict[int, MemoryDelivery] = {}
        self._credit = credit
        self._feed: Feed[MemoryDelivery] = Feed()
        self._sink: Callable[[MemoryDelivery], object] = self._feed.push if sink is None else sink

    @property
    def active(self) -> bool:
        """True if the engine hands out to it."""
        return not self.held.closed

    def set_credit(self, credit: int) -> None:
        """Set the maximum number of open deliveries."""
        check_credit(credit)
        more, self._credit = credit - self._credit, credit
        with self.member.turn() as (broker, _):
            broker.work.add_credit(self.held, more)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MemoryDelivery:
        return await self._feed.take()

    async def close(self) -> None:
        """Receive no more."""
        if self.member.refusal() is None:
            self.stop()

    # -- for the engine

    def open(self, token: int, task: Task, envelope: Envelope) -> MemoryDelivery:
        """Make a delivery."""
        delivery = self.deliveries[token] = MemoryDelivery(self, token, task, envelope)
        return delivery

    def deliver(self, token: int, task: Task, envelope: Envelope) -> None:
        """Hand a task over."""
        delivery = self.deliveries[token] = MemoryDelivery(self, token, task, envelope)
        if self.held.closed:
            delivery.reject()
            return
        try:
            self._sink(delivery)
        except Exception:  # noqa: BLE001  # a callback may raise anything
            _log.exception("the sink of a consumer of %r failed", self.queue)
            delivery.reject(delay=1.0, reason="its worker could not take it")

    def stop(self, error: Exception | None = None) -> None:
        """Receive no more, and give back the deliveries that are still in the iterator."""
        with self.member.turn() as (broker, now):
            broker.work.close(self.held, now)
        while self._feed.items:
            self._feed.items.pop().reject()
        self._feed.end(error)


class MemorySubscription:
    """See `redpoll.bus.engine.Subscription`.

    Attributes:
        member: The engine.
        wanted: The broker's subscription.
        patterns: The patterns.
        delivered: Events that came.
        lost: Events that its loop was too slow for.
    """

    wanted: Subscription

    def __init__(self, member: Member, patterns: tuple[str, ...], sink: EventSink | None, buffer: int) -> None:
        self.member = member
        self.patterns = patterns
        self.delivered = 0
        self.lost = 0
        self._closed = False
        self._feed: Feed[Event] = Feed(buffer)
        self._sink: EventSink = self._feed.push if sink is None else sink

    @property
    def dropped(self) -> int:
        """Events that were lost here."""
        return self.lost + self._feed.dropped

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await self._feed.take()

    async def close(self) -> None:
        """Receive no more."""
        if self.member.refusal() is None:
            self.stop()

    # -- for the engine

    def take(self, event: Event) -> None:
        """Hand an event over."""
        if self._closed:
            return
        self.delivered += 1
        try:
            self._sink(event)
        except Exception:  # noqa: BLE001  # a callback may raise anything
            _log.exception("the sink of a subscription to %r failed", event.subject)

    def stop(self) -> None:
        """Receive no more."""
        self._closed = True
        with self.member.turn() as (broker, _):
            broker.peers.close(self.wanted)
        self._feed.end()
