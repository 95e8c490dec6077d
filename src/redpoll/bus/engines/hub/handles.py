"""What the engine of a hub hands out: deliveries, consumers, subscriptions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from redpoll.bus.awaitables import FALSE
from redpoll.bus.engine import DeliverySink, EventSink
from redpoll.bus.engines.handles import (
    ENDINGS,
    NOTHING,
    EngineConsumer,
    EngineDelivery,
    EngineSubscription,
    check_credit,
)
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.envelope import Envelope, Outcome, encode, printable
from redpoll.bus.records import Publication, check_publishing, task_id
from redpoll.errors import PayloadTooLarge, RedpollError, ResultTooLarge, UsageError

__all__ = ["HubConsumer", "HubDelivery", "HubSubscription", "Owner", "pack_publication", "packed"]

_log = logging.getLogger("redpoll.bus")


class Owner(Protocol):
    """The engine, as what it hands out needs it.

    Attributes:
        loop: Its loop.
        store: Name of the hub's store.
        max_body: The largest body, in bytes.
        linked: Whether it is linked to a hub.
    """

    loop: asyncio.AbstractEventLoop
    store: str
    max_body: int
    linked: bool

    def refusal(self) -> RedpollError | None:
        """Return the error if it cannot be used, or None."""

    def say(self, *record: Any) -> None:
        """Send a record."""

    def say_if_linked(self, *record: Any) -> None:
        """Send what is said anyhow once the link is there again."""

    def tell_end(self, kind: int, number: int, token: int, *rest: Any) -> Awaitable[bool]:
        """Accept a delivery, or end it; False where it was lost."""
        ...

    def look_drained(self) -> None:
        """Look whether any delivery is open still."""

    def close_consumer(self, consumer: HubConsumer) -> Awaitable[Any] | None:
        """Have a consumer take no more."""

    def forget(self, consumer: HubConsumer) -> None:
        """Forget a closed consumer that has no open delivery."""

    def unsubscribe(self, subscription: HubSubscription) -> None:
        """End a subscription."""


def packed(envelope: Envelope) -> bytes:
    """Encode an envelope as a payload."""
    return bytes(encode(envelope))


class HubDelivery(EngineDelivery):
    """See `redpoll.bus.engine.Delivery`."""

    __slots__ = ("_consumer", "_ends", "number", "token")

    def __init__(
        self,
        consumer: HubConsumer,
        token: int,
        number: int,
        attempt: int,
        ends: float | None,
        envelope: Envelope,
    ) -> None:
        self.envelope = envelope
        self.attempt = attempt
        self.token = token
        self.number = number
        self._consumer = consumer
        self._ends = ends
        self._lost = False
        self._cancelled = ""
        self._listener = None
        self._told = None

    def __repr__(self) -> str:
        return f"<HubDelivery {self.id} of {self.queue!r}, attempt {self.attempt}>"

    @property
    def id(self) -> str:
        """The task's id."""
        return task_id(self._consumer.engine.store, self.number)

    @property
    def queue(self) -> str:
        """Name of the queue that it came from."""
        return self._consumer.queue

    @property
    def left(self) -> float | None:
        """Seconds until its deadline."""
        return None if self._ends is None else self._ends - self._consumer.engine.loop.time()

    @property
    def _is_open(self) -> bool:
        return self._consumer.deliveries.get(self.token) is self

    def accept(self) -> Awaitable[bool]:
        """Promise that no other worker begins it."""
        if not self._is_open or self._cancelled:
            return FALSE
        return self._consumer.engine.tell_end(p.ACCEPT, self._consumer.number, self.token)

    def progress(self, envelope: Envelope) -> bool:
        """Send progress to the watchers."""
        engine = self._consumer.engine
        if len(envelope.body) > engine.max_body:
            raise PayloadTooLarge(len(envelope.body), engine.max_body)
        if not self._is_open or not engine.linked:
            return False
        engine.say(p.PROGRESS, self._consumer.number, self.token, packed(envelope))
        return True

    def ack(self, outcome: Outcome | None = None, then: Sequence[Publication] = ()) -> Awaitable[bool]:
        """End the task."""
        engine = self._consumer.engine
        kind, envelope, detail = NOTHING if outcome is None else outcome
        if envelope is not None and len(envelope.body) > engine.max_body:
            raise ResultTooLarge(len(envelope.body), engine.max_body)
        if kind not in ENDINGS:
            raise UsageError(f"a worker cannot end a task as {kind.name}")
        successors = [pack_publication(each, engine.max_body) for each in then]
        if not self._is_open:
            return FALSE
        payload = None if envelope is None else packed(envelope)
        number, said = self._consumer.number, printable(detail)
        done = engine.tell_end(p.DONE, number, self.token, int(kind), payload, said, successors)
        if successors:
            # Nothing was done where one of their queues does not exist.
            return self._after_successors(done)
        self._end()
        return done

    async def _after_successors(self, done: Awaitable[bool]) -> bool:
        ended = await done
        self._end()
        return ended

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
        check_publishing(0, delay)
        payload = None if meta is None else packed(self.envelope._replace(meta=meta))
        if not self._is_open:
            return FALSE
        done = self._consumer.engine.tell_end(
            p.REJECT,
            self._consumer.number,
            self.token,
            requeue,
            delay,
            blame,
            exclude,
            printable(reason),
            payload,
        )
        self._end()
        return done

    def _end(self) -> None:
        self._listener = None
        self._consumer.ended(self.token)

    def lose(self) -> None:
        """Note that it was taken away."""
        self._consumer.ended(self.token)
        super().lose()


def pack_publication(publication: Publication, max_body: int) -> list[Any]:
    """Make plain values of a task to be put into a queue.

    Raises:
        PayloadTooLarge: Its body is larger than the hub takes.
    """
    size = len(publication.envelope.body)
    if size > max_body:
        raise PayloadTooLarge(size, max_body)
    options = {
        "priority": publication.priority,
        "delay": publication.delay,
        "ttl": publication.ttl,
        "deadline": publication.deadline,
        "dedup": publication.dedup,
        "keep": publication.keep,
    }
    return [publication.queue, packed(publication.envelope), options]


class HubConsumer(EngineConsumer[HubDelivery]):
    """See `redpoll.bus.engine.Consumer`.

    Attributes:
        engine: The engine.
        number: The number by which the hub knows it.
        queue: Name of the queue.
        credit: Maximum number of open deliveries.
        accept: As of `Engine.consume`.
        exclusive: As of `Engine.consume`.
        deliveries: Those that are open, by token.
        closed: Whether it takes no more.
    """

    def __init__(
        self,
        engine: Owner,
        number: int,
        queue: str,
        credit: int,
        sink: DeliverySink | None,
        accept: bool,
        exclusive: bool,
    ) -> None:
        super().__init__(queue, sink)
        self.engine = engine
        self.number = number
        self.credit = credit
        self.accept = accept
        self.exclusive = exclusive
        self.closed = False

    @property
    def active(self) -> bool:
        """True if the hub hands out to it."""
        return not self.closed and self.engine.linked

    def set_credit(self, credit: int) -> None:
        """Set the maximum number of open deliveries."""
        check_credit(credit)
        more, self.credit = credit - self.credit, credit
        if more and not self.closed:
            self.engine.say_if_linked(p.CREDIT, self.number, more)

    async def close(self) -> None:
        """Receive no more."""
        if self.engine.refusal() is None and not self.closed:
            # What the hub handed out before is given back when it comes, which is before the answer.
            answer = self.stop()
            if answer is not None:
                await answer

    # -- for the engine

    def deliver(self, delivery: HubDelivery) -> None:
        """Hand a task over."""
        self.deliveries[delivery.token] = delivery
        if self.closed:
            delivery.reject()
            return
        try:
            self._sink(delivery)
        except (Exception, asyncio.CancelledError):  # noqa: BLE001  # a callback may raise anything
            _log.exception("the sink of a consumer of %r failed", self.queue)
            delivery.reject(delay=1.0, reason="its worker could not take it")

    def ended(self, token: int) -> None:
        """Forget a delivery that ended."""
        self.deliveries.pop(token, None)
        self.engine.look_drained()
        if self.closed and not self.deliveries:
            self.engine.forget(self)

    def stop(self, error: Exception | None = None) -> Awaitable[Any] | None:
        """Receive no more, and give back the deliveries that are still in the iterator."""
        if self.closed:
            return None
        self.closed = True
        answer = self.engine.close_consumer(self)
        self._end(error)
        if not self.deliveries:
            self.engine.forget(self)
        return answer


class HubSubscription(EngineSubscription):
    """See `redpoll.bus.engine.Subscription`.

    Attributes:
        number: The number by which the hub knows it.
        patterns: The patterns.
        delivered: Events that came.
    """

    def __init__(
        self, engine: Owner, number: int, patterns: tuple[str, ...], sink: EventSink | None, buffer: int
    ) -> None:
        super().__init__(patterns, sink, buffer)
        self._engine = engine
        self.number = number

    async def close(self) -> None:
        """Receive no more."""
        if self._engine.refusal() is None:
            self.stop()

    # -- for the engine

    def stop(self) -> None:
        """Receive no more."""
        if not self._closed:
            self._closed = True
            self._engine.unsubscribe(self)
            self._feed.end()
