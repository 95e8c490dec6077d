"""The objects that the engine of a hub returns: deliveries, consumers, subscriptions."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
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
from redpoll.bus.engines.hub.pace import HELD, LEASE, Pace
from redpoll.bus.envelope import Envelope, Outcome, encode, printable
from redpoll.bus.records import Publication, check_flags, check_publishing, task_id
from redpoll.errors import Closed, NotConfirmed, PayloadTooLarge, RedpollError, ResultTooLarge, UsageError

__all__ = ["HubConsumer", "HubDelivery", "HubSubscription", "Owner", "pack_publication", "packed"]


class Owner(Protocol):
    """The engine, as what it hands out needs it.

    Attributes:
        loop: Its loop.
        store: Name of the hub's store.
        max_body: The largest body, in bytes.
        linked: Whether it is linked to a hub.
        suspended: Whether nothing is to be begun now: the hub was told so while the loop was blocked.
    """

    loop: asyncio.AbstractEventLoop
    store: str
    max_body: int
    linked: bool

    @property
    def suspended(self) -> bool: ...  # noqa: D102  # see above

    def refusal(self) -> RedpollError | None:
        """Return the error if it cannot be used, or None."""

    def say(self, *record: Any) -> None:
        """Send a record."""

    def say_if_linked(self, *record: Any) -> None:
        """Send what is said anyhow once the link is there again."""

    def tell_end(self, kind: int, consumer: HubConsumer, delivery: HubDelivery, *rest: Any) -> Awaitable[bool]:
        """Accept a delivery, or end it; False where it was lost."""
        ...

    def give_back(self, number: int, tokens: list[int]) -> asyncio.Future[Any]:
        """Give back deliveries of a consumer that were not begun."""
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

    __slots__ = ("_consumer", "_ends", "number", "since", "token")

    def __init__(
        self,
        consumer: HubConsumer,
        token: int,
        number: int,
        attempt: int,
        ends: float | None,
        envelope: Envelope,
        inputs: Sequence[tuple[str, Outcome]] = (),
    ) -> None:
        self.envelope = envelope
        self.attempt = attempt
        self.inputs = inputs
        self.token = token
        self.number = number
        #: Time of its arrival, and later of its begin, if its consumer takes tasks ahead.
        self.since = 0.0
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

    def begin(self) -> bool:
        """Note that its work begins; False where it must not: it was lost, or goes back as the loop was blocked."""
        consumer = self._consumer
        before = consumer.begun
        if self.token > before:
            # In this order: the thread of the signs of life suspends first, and reads this then.
            consumer.begun = self.token
            if consumer.engine.suspended:
                consumer.begun = before
                consumer.withdraw()
        return self._is_open

    def accept(self) -> Awaitable[bool]:
        """Promise that no other worker begins it."""
        if not self._is_open or self._cancelled:
            return FALSE
        return self._consumer.engine.tell_end(p.ACCEPT, self._consumer, self)

    def progress(self, envelope: Envelope) -> bool:
        """Send progress to the watchers."""
        engine = self._consumer.engine
        if len(envelope.body) > engine.max_body:
            raise PayloadTooLarge(len(envelope.body), engine.max_body)
        if not self._is_open:
            return False
        # Without a link it is lost: there may be watchers, who see by their numbers that a part is missing.
        engine.say_if_linked(p.PROGRESS, self._consumer.number, self.token, packed(envelope))
        return True

    def ack(self, outcome: Outcome | None = None, then: Sequence[Publication] = ()) -> Awaitable[bool]:
        """End the task."""
        consumer = self._consumer
        engine = consumer.engine
        kind, envelope, detail = NOTHING if outcome is None else outcome
        if envelope is not None and len(envelope.body) > engine.max_body:
            raise ResultTooLarge(len(envelope.body), engine.max_body)
        if kind not in ENDINGS:
            raise UsageError(f"a worker cannot end a task as {kind.name}")
        successors = [pack_publication(each, engine.max_body) for each in then] if then else []
        if not self._is_open:
            return FALSE
        payload = None if envelope is None else packed(envelope)
        said = printable(detail) if detail else ""
        done = engine.tell_end(p.DONE, consumer, self, int(kind), payload, said, successors)
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
        check_flags(requeue=requeue, blame=blame, exclude=exclude)
        payload = None if meta is None else packed(self.envelope._replace(meta=meta))
        if not self._is_open:
            return FALSE
        how = (requeue, delay, blame, exclude, printable(reason), payload)
        done = self._consumer.engine.tell_end(p.REJECT, self._consumer, self, *how)
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

    One that takes tasks ahead keeps those that it has no slot for, and hands them over in order. None of them is begun once
    the link is lost, when the hub may give it to others; nor one that came longer than `LEASE` ago. Where none is begun for
    `HELD`, all go back.

    Attributes:
        engine: The engine.
        number: The number by which the hub knows it.
        queue: Name of the queue.
        credit: Maximum number of open deliveries.
        accept: As of `Engine.consume`.
        exclusive: As of `Engine.consume`.
        deliveries: Those that are open, by token.
        closed: Whether it takes no more.
        begun: The token up to which its tasks were begun.
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
        prefetch: bool = False,
    ) -> None:
        super().__init__(queue, sink)
        self.engine = engine
        self.number = number
        self.credit = credit
        self.accept = accept
        self.exclusive = exclusive
        self.closed = False
        self.begun = 0
        self._pace = Pace(credit) if prefetch else None
        self._ahead: dict[int, HubDelivery] = {}
        self._timer: asyncio.TimerHandle | None = None
        # The first of these at the last look, and when the next one is due.
        self._first = 0
        self._due = 0.0
        # True while tasks of these are handed over, or a turn of the loop is to do so.
        self._beginning = False
        # A request to give tasks back. What comes before its answer was handed out before it, and goes back too, without
        # another such wait: for ever, tasks would go back that the hub handed out for what went back before.
        self._returning: asyncio.Future[Any] | None = None

    @property
    def at_once(self) -> bool:
        """True if it is for one task that is there, without waiting; whatever the hub hands it counts as begun."""
        return self.begun == sys.maxsize

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
            self._begin_soon()

    async def close(self) -> None:
        """Receive no more."""
        if self.engine.refusal() is None and not self.closed:
            # Tasks that the hub handed out before are given back when they arrive, which is before the answer.
            answer = self.stop()
            if answer is not None:
                # A hub that is gone, or left, hands it nothing any more.
                with suppress(NotConfirmed, Closed):
                    await answer

    # -- for the engine

    def deliver(self, delivery: HubDelivery) -> None:
        """Hand a task over, or keep it until there is a slot."""
        if self.closed or (self.engine.suspended and delivery.token > self.begun):
            self.engine.say(p.BACK, 0, self.number, [delivery.token])
        elif self._pace is None:
            self._begin(delivery)
        else:
            delivery.since = time.monotonic()
            returning = self._is_returning
            if not self._ahead and not returning and len(self.deliveries) < self.credit:
                self._begin(delivery)
                return
            self._ahead[delivery.token] = delivery
            if returning:
                self.give_back()
            elif self._timer is None:
                self._look_later()

    def _begin(self, delivery: HubDelivery) -> None:
        self.deliveries[delivery.token] = delivery
        if self._pace is None and not delivery.begin():
            return
        self._hand_over(delivery)

    def _begin_soon(self) -> None:
        if self._ahead and not self._beginning:
            self._beginning = True
            self.engine.loop.call_soon(self._begin_ahead)

    def _begin_ahead(self) -> None:
        try:
            while self._ahead and len(self.deliveries) < self.credit:
                token, delivery = next(iter(self._ahead.items()))
                now = time.monotonic()
                if now - delivery.since > LEASE or not self.engine.linked:
                    self.give_back()
                    return
                del self._ahead[token]
                delivery.since = now
                self._begin(delivery)
        finally:
            self._beginning = False

    def _look_later(self) -> None:
        self._first = next(iter(self._ahead))
        self._due = self.engine.loop.time() + HELD
        self._timer = self.engine.loop.call_at(self._due, self._look)

    def _look(self) -> None:
        """Give tasks back if none was begun since the last look."""
        self._timer = None
        # A look that is late itself shows a busy loop, as by a burst of large tasks, and no long handler.
        if self._first in self._ahead and self.engine.loop.time() - self._due < HELD / 2:
            self.give_back()
        elif self._ahead:
            self._look_later()

    def give_back(self) -> None:
        """Give back what was not begun."""
        tokens = list(self._ahead)
        if tokens and self._pace is not None:
            self._ahead.clear()
            self._pace.slow(self.credit)
            if self.engine.linked:
                answer = self.engine.give_back(self.number, tokens)
                if not self._is_returning:
                    self._returning = answer
                    answer.add_done_callback(self.tell_ahead)

    def withdraw(self) -> None:
        """Give back all that was not begun: the loop was blocked, and the hub was told so."""
        late = [each for each in self.deliveries.values() if each.token > self.begun]
        if late:
            self.engine.say_if_linked(p.BACK, 0, self.number, [each.token for each in late])
            for each in late:
                each.lose()
        self.give_back()

    @property
    def _is_returning(self) -> bool:
        return self._returning is not None and not self._returning.done()

    def tell_ahead(self, _: object = None) -> None:
        """Tell the hub how many tasks to send ahead; what is given back ends that."""
        if self._pace is not None and not self.closed and not self._is_returning:
            self.engine.say_if_linked(p.AHEAD, self.number, self._pace.ahead)

    def unlinked(self) -> None:
        """Forget what was not begun: the hub takes it back when it sees that the link is lost."""
        self._ahead.clear()
        if self._pace is not None:
            self._pace.slow(self.credit)

    @property
    def has_more(self) -> bool:
        """True if there are tasks to begin."""
        return bool(self._ahead)

    def find(self, token: int) -> HubDelivery | None:
        """Return an open delivery, begun or not."""
        return self.deliveries.get(token) or self._ahead.get(token)

    def ended(self, token: int) -> None:
        """Forget a delivery that ended."""
        delivery = self.deliveries.pop(token, None)
        if self._pace is not None and delivery is not None:
            if self._pace.ended(time.monotonic() - delivery.since, self.credit):
                self.tell_ahead()
            self._begin_soon()
        self.engine.look_drained()
        if self.closed and not self.deliveries:
            self.engine.forget(self)

    def stop(self, error: Exception | None = None) -> Awaitable[Any] | None:
        """Receive no more, and give back the deliveries that are still in the iterator."""
        if self.closed:
            return None
        self.give_back()
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
