"""Consumers and subscriptions of the engine of RabbitMQ. Each is restored by itself, on a channel of its own."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections.abc import Callable
from typing import Final

from redpoll.bus.engine import DeliverySink, EventSink
from redpoll.bus.engines.amqp import messages as m
from redpoll.bus.engines.amqp import topology as t
from redpoll.bus.engines.amqp.handles import AmqpDelivery
from redpoll.bus.engines.amqp.link import Broken, Channel, Rejected
from redpoll.bus.engines.amqp.parts import EngineParts
from redpoll.bus.engines.amqp.publishing import Sending
from redpoll.bus.engines.amqp.recorded import RecordedDelivery
from redpoll.bus.engines.amqp.session import refusal_of
from redpoll.bus.engines.amqp.wire import Content
from redpoll.bus.engines.handles import EngineConsumer, EngineSubscription, check_credit
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind
from redpoll.bus.records import Event
from redpoll.errors import DecodeError, NoRoute, RedpollError, SpecConflict

__all__ = ["AmqpConsumer", "AmqpSubscription"]

_log = logging.getLogger("redpoll.bus")

_consumers = itertools.count(1)

#: The largest prefetch of AMQP.
_MOST: Final = 65_535
_UNREADABLE: Final = Envelope("raw", b"")
#: Seconds before a consumer that the server ended begins again.
_PAUSE: Final = 0.1
_IF_UNUSED: Final = 1


class AmqpConsumer(EngineConsumer[AmqpDelivery]):
    """See `redpoll.bus.engine.Consumer`.

    Args:
        parts: The parts of the engine.
        queue: Name of the queue.
        credit: Maximum number of open deliveries.
        sink: Takes them; None iterates.
        accept: True to accept each as it is handed out.
        exclusive: True to be the only consumer.
    """

    def __init__(
        self, parts: EngineParts, queue: str, credit: int, sink: DeliverySink | None, *, accept: bool, exclusive: bool
    ) -> None:
        super().__init__(queue, sink)
        self.label = f"the consumer of {queue!r}"
        self._parts = parts
        self._credit = credit
        #: Its name in a task that it rejected.
        self._name = f"{parts.name}-{next(_consumers)}"
        self._accept = accept
        self._exclusive = exclusive
        self._channel: Channel | None = None
        self._levels: dict[str, str] = {}
        self._numbers = itertools.count()
        # Deliveries beyond the credit, of all levels: those of the highest first.
        self._held: list[tuple[int, int, AmqpDelivery]] = []
        self._closed = False
        self._begun = False
        self._adjusting = False
        # Its consumers on the server are begun and ended one after the other.
        self._order = asyncio.Lock()
        self._prefetch = 0
        #: Is called once it has ended.
        self.gone: Callable[[], object] = bool

    @property
    def active(self) -> bool:
        """True if the server hands out to it."""
        return not self._closed and self._channel is not None and self._channel.error is None

    def set_credit(self, credit: int) -> None:
        """Set the maximum number of open deliveries."""
        check_credit(credit)
        more, self._credit = credit > self._credit, credit
        if more:
            self._hand_out()
        self.renew()

    def renew(self) -> None:
        """Consume anew, if its credit or the levels of its queue are others."""
        if not self._adjusting and not self._closed:
            self._adjusting = True
            self._parts.session.spawn(self._adjust())

    async def close(self) -> None:
        """Take no more. Cancelled, it ends nevertheless."""
        if not self._closed:
            self._stop()
            await asyncio.wait((self._parts.session.spawn(self._leave()),))

    # -- on the server

    async def restore(self) -> None:
        """Begin to consume, on a new channel; a queue that is gone meanwhile ends it."""
        await self._parts.inbox.hear(self.queue)
        async with self._order:
            if self._closed:
                return
            try:
                async with self._parts.session.incoming.opening(self._lost) as channel:
                    await self._restore(channel)
            except BaseException as error:
                # Messages that came meanwhile go back with the channel.
                self.suspend(Broken("it was given up"))
                if not isinstance(error, Rejected) or error.code != 404 or not self._begun:
                    raise
                self.stop(refusal_of(error, self.queue))
            self._begun = True

    async def _restore(self, channel: Channel) -> None:
        if self._exclusive:
            await self._lock(channel)
        self._channel = channel
        await self._begin(channel)
        if not self._exclusive:
            await self.look_locked()

    async def _lock(self, channel: Channel) -> None:
        """Keep other consumers from the queue, if there is none."""
        lock = t.lock(self.queue)
        try:
            await channel.ask("queue.declare", 0, lock.name, lock.bits, lock.arguments)
            await channel.consume(lock.name, "lock", bool, bool, unacknowledged=True)
            _, consumers = await self._parts.session.look(self.queue)
        except BaseException:
            # Without a consumer the lock would stay as long as the connection; with one it goes with the channel.
            if channel.usable:
                channel.ask("queue.delete", 0, lock.name, 0)
            raise
        if consumers:
            await channel.ask("queue.delete", 0, lock.name, 0)
            raise _occupied(self.queue)

    async def look_locked(self) -> None:
        """Look for an exclusive consumer, after this one is there, as that one looks for others after it said so.

        Raises:
            SpecConflict: There is one.
        """
        try:
            # It is never deleted by this: its owner consumes it. Without it, to declare it passively would be an error.
            await self._parts.session.ask("queue.delete", 0, t.lock(self.queue).name, _IF_UNUSED)
        except Rejected as error:
            if error.code in {405, 406}:
                raise _occupied(self.queue) from error
            if error.code != 403:
                raise
            # Deleting needs permission to configure the name. Looking needs none, and costs a channel where there is none.
            await self._look_at_lock()

    async def _look_at_lock(self) -> None:
        try:
            await self._parts.session.ask("queue.declare", 0, t.lock(self.queue).name, 1, {})
        except Rejected as error:
            if error.code == 404:
                return
            if error.code != 405:
                raise
        raise _occupied(self.queue)

    def suspend(self, _: Exception) -> None:
        """Note that its deliveries are lost."""
        self._channel = None
        self._levels.clear()
        held, self._held = self._held, []
        for delivery in [*(each[2] for each in held), *self._feed.items, *self.deliveries.values()]:
            delivery.interrupt()
        self._feed.items.clear()

    def _lost(self, error: Exception) -> None:
        if self._closed:
            # The session knows it no more, and what was handed out is lost all the same.
            self.suspend(error)
        elif isinstance(error, Rejected):
            # This channel alone: a delivery stayed open for longer than the server allows, or the queue is gone.
            self.suspend(error)
            self._parts.session.restore_soon(self, str(error), _PAUSE)

    async def _begin(self, channel: Channel) -> None:
        # One that was accepted, and lost its channel, may come again: it has no place there.
        open_ones = sum(each.held for each in self.deliveries.values())
        self._prefetch = min(_MOST, max(0, self._credit - open_ones))
        if not self._prefetch:
            return
        await channel.ask("basic.qos", 0, self._prefetch, 0)
        channel.prefetch = self._prefetch
        arguments = self._parts.session.consumer_arguments()
        for rank, name in enumerate(self._names):
            tag = f"{self._parts.name}-{next(self._numbers)}"
            self._levels[tag] = name
            await channel.consume(
                name,
                tag,
                lambda content, name=name, rank=rank: self._came(channel, name, rank, content),  # type: ignore[misc]
                lambda tag=tag: self._ended(tag),  # type: ignore[misc]
                exclusive=self._exclusive,
                arguments=arguments,
            )

    @property
    def _names(self) -> list[str]:
        """The names of the levels of its queue, the highest first."""
        spec = self._parts.spec_of(self.queue)
        return [self.queue] if spec is None else t.levels(spec)

    async def _adjust(self) -> None:
        """Consume with another prefetch: RabbitMQ notes it when a consumer begins."""
        try:
            async with self._order:
                while (channel := self._channel) is not None and not self._closed:
                    credit = self._credit
                    if self._prefetch == min(_MOST, credit) and list(self._levels.values()) == self._names:
                        # Messages on their way to a consumer that ends go back, and look as if they had been begun.
                        break
                    await self._cancel(channel)
                    await self._begin(channel)
                    if credit == self._credit:
                        break
        finally:
            self._adjusting = False

    async def _cancel(self, channel: Channel) -> None:
        tags, self._levels = list(self._levels), {}
        for tag in tags:
            await channel.cancel(tag)

    async def _leave(self) -> None:
        async with self._order:
            channel, self._channel = self._channel, None
            try:
                if channel is not None and channel.error is None:
                    await self._cancel(channel)
                    if self._exclusive:
                        await channel.ask("queue.delete", 0, t.lock(self.queue).name, 0)
            except (Broken, Rejected) as error:
                _log.debug("%s ended with %s", self.label, error)
            self._give_back()
            if channel is not None:
                channel.retire()

    def _ended(self, tag: str) -> None:
        """Look why the server ended it: a queue that is gone ends it for good."""
        self._levels.pop(tag, None)
        if not self._closed:
            self._parts.session.spawn(self._look())

    async def _look(self) -> None:
        session = self._parts.session
        try:
            await session.look(self.queue)
        except Rejected as error:
            if error.code == 404:
                self.stop(refusal_of(error, self.queue))
                return
        channel, self._channel = self._channel, None
        if channel is not None and not self._closed:
            self.suspend(Broken("the server ended it"))
            await channel.close()
            session.restore_soon(self, "the server ended it", _PAUSE)

    # -- deliveries

    def _came(self, channel: Channel, level: str, rank: int, content: Content) -> None:
        parts = self._parts
        recorded = m.RECORDED in (content.properties.headers or ())
        if self._accept and content.arguments[2] & 1 and not recorded and self._dropped(channel, content):
            return
        delivery, readable = self.make(channel, level, content)
        spec = parts.spec_of(self.queue)
        expires = (content.properties.headers or {}).get(m.EXPIRES)
        if isinstance(delivery, RecordedDelivery):
            self._take_in(delivery, rank)
        elif not readable:
            problem = "its meta or its headers cannot be read"
            if recorded:
                parts.inbox.died(self.queue, delivery.id, problem)
            delivery.bury(problem)
        elif (
            spec is not None and spec.durable and spec.max_attempts is not None and delivery.attempt > spec.max_attempts
        ):
            delivery.bury(f"it was handed out {delivery.attempt - 1} times")
        elif isinstance(expires, int | float) and time.time() > expires:
            delivery.expire()
        elif self._accept and (reason := parts.inbox.withdrawn.pop(delivery.id, None)) is not None:
            # A task is not withdrawn by this: who cancelled it was told that it cannot be.
            delivery.withdraw(reason)
        else:
            self._take_in(delivery, rank)

    def _take_in(self, delivery: AmqpDelivery, rank: int) -> None:
        if self._name in delivery.excluded:
            delivery.pass_on()
        elif self._closed or len(self.deliveries) >= self._credit:
            heapq.heappush(self._held, (rank, next(self._numbers), delivery))
        else:
            self._hand(delivery)

    def make(self, channel: Channel, level: str, content: Content) -> tuple[AmqpDelivery, bool]:
        """Return the delivery of a message, and whether it could be read."""
        readable = True
        try:
            envelope = m.envelope_of(content.properties, content.body)
        except DecodeError:
            envelope, readable = _UNREADABLE, False
        recorded = readable and m.RECORDED in (content.properties.headers or ())
        delivery = (RecordedDelivery if recorded else AmqpDelivery)(
            self._parts, self.queue, level, channel, content, envelope, self._name, self._accept, self._over
        )
        self._parts.counts(self.queue).taken += 1
        return delivery, readable

    def _dropped(self, channel: Channel, content: Content) -> bool:
        """Drop a call that was handed out before: it may have been begun."""
        parts, properties, tag = self._parts, content.properties, content.arguments[1]
        mine = parts.inbox.working.get(properties.message_id or "")
        if isinstance(mine, AmqpDelivery):
            # Its connection was lost, and it is still being done here.
            mine.adopt(channel, tag)
            return True
        task = properties.correlation_id or properties.message_id or ""
        if properties.reply_to and not parts.publisher.tells(task):
            outcome = Outcome(OutcomeKind.LOST, None, "the connection to its server was lost")
            kept, body = m.outcome_properties(outcome, task, "")
            parts.publisher.send(Sending("", properties.reply_to, kept, body, again=True))
        channel.settle(tag)
        return True

    def _hand(self, delivery: AmqpDelivery) -> None:
        self.deliveries[id(delivery)] = delivery
        if isinstance(delivery, RecordedDelivery):
            self._parts.session.spawn(self._claim(delivery))
        else:
            self._begin_one(delivery)

    async def _claim(self, delivery: RecordedDelivery) -> None:
        if await delivery.claim():
            if self._closed:
                delivery.reject()
            else:
                self._begin_one(delivery)

    def _begin_one(self, delivery: AmqpDelivery) -> None:
        parts = self._parts
        parts.counts(self.queue).delivered += 1
        if parts.observers:
            parts.note("delivered", self.queue, delivery.id)
        self._hand_over(delivery)

    def _hand_out(self) -> None:
        while self._held and not self._closed and len(self.deliveries) < self._credit:
            self._hand(heapq.heappop(self._held)[2])

    def _over(self, delivery: AmqpDelivery) -> None:
        self.deliveries.pop(id(delivery), None)
        if self._held:
            self._hand_out()
        if self._prefetch < min(_MOST, self._credit) and self.active:
            # It began while deliveries were open from before.
            self.renew()

    def _give_back(self) -> None:
        """Give back what was not handed to the sink or the iterator, in its order."""
        held, self._held = sorted(self._held), []
        waiting = [*self._feed.items, *(each[2] for each in held)]
        self._feed.items.clear()
        for delivery in waiting:
            delivery.reject()

    def _stop(self, error: RedpollError | None = None) -> None:
        self._closed = True
        self._parts.session.discard(self)
        self._give_back()
        self._feed.end(error)
        self.gone()
        self._parts.note("consumer gone", self.queue, self.label)

    def stop(self, error: RedpollError | None) -> None:
        """End it: its queue was deleted, or the engine closes."""
        if not self._closed:
            self._closed = True
            if isinstance(error, NoRoute):
                for delivery in list(self.deliveries.values()):
                    delivery.remove()
            self._stop(error)
            self._parts.session.spawn(self._leave())


def _occupied(queue: str) -> SpecConflict:
    return SpecConflict(queue, "exclusive", True, False)


class AmqpSubscription(EngineSubscription):
    """See `redpoll.bus.engine.Subscription`.

    Args:
        parts: The parts of the engine.
        number: Of the subscription.
        patterns: The patterns.
        sink: Takes the events; None iterates.
        buffer: Maximum number of events that wait for the iterator.
    """

    #: Events that wait at the server.
    _waiting: Final = 10_000

    def __init__(
        self, parts: EngineParts, number: int, patterns: tuple[str, ...], sink: EventSink | None, buffer: int
    ) -> None:
        super().__init__(patterns, sink, buffer)
        self.label = f"the subscription to {', '.join(patterns)}"
        self._parts = parts
        self._name = f"redpoll.events.{parts.name}.{number}"
        self._channel: Channel | None = None
        #: Is called once it has ended.
        self.gone: Callable[[], object] = bool

    async def restore(self) -> None:
        """Declare a queue of its own, of a new name with each connection, and consume it."""
        session = self._parts.session
        # An exclusive queue is for the connection that declares it.
        name, bits, arguments, bindings = t.subscription(
            f"{self._name}.{session.generation}.{next(_consumers)}", self.patterns, self._waiting
        )
        async with session.incoming.opening(self._lost) as channel:
            # It is deleted with its last consumer, so it has one before this can be cancelled.
            channel.ask("queue.declare", 0, name, bits, arguments)
            await channel.consume(name, "events", self._came, self._cancelled, unacknowledged=True)
            # From here on events come.
            for exchange, key in bindings:
                await channel.ask("queue.bind", 0, name, exchange, key, 0, {})
        if self._closed:
            channel.abandon()
        else:
            self._channel = channel

    def suspend(self, _: Exception) -> None:
        """Note that its channel is gone."""
        self._channel = None

    def _lost(self, error: Exception) -> None:
        if isinstance(error, Rejected):
            self._parts.session.restore_soon(self, str(error), _PAUSE)

    def _cancelled(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            self._parts.session.spawn(channel.close())
        self._parts.session.restore_soon(self, "the server ended it", _PAUSE)

    def _came(self, content: Content) -> None:
        try:
            envelope = m.envelope_of(content.properties, content.body)
        except DecodeError as error:
            _log.warning("an event cannot be read: %s", error)
            return
        self.take(Event(content.arguments[4], envelope))

    @property
    def active(self) -> bool:
        """True if events come."""
        return self._channel is not None and self._channel.error is None

    async def close(self) -> None:
        """Take no more."""
        if not self._closed:
            self.stop()
            channel, self._channel = self._channel, None
            if channel is not None:
                await channel.close()

    def stop(self) -> None:
        """Take no more: the engine closes."""
        self._closed = True
        self._parts.session.discard(self)
        self._feed.end()
        self.gone()
