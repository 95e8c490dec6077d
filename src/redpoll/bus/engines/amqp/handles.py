"""Deliveries of the engine of RabbitMQ."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, Final

from redpoll.bus.awaitables import FALSE, TRUE
from redpoll.bus.engines.amqp import messages as m
from redpoll.bus.engines.amqp import topology as t
from redpoll.bus.engines.amqp.link import Broken, Channel, Rejected
from redpoll.bus.engines.amqp.parts import EngineParts
from redpoll.bus.engines.amqp.publishing import Alarm, Sending
from redpoll.bus.engines.amqp.wire import Content
from redpoll.bus.engines.handles import ENDINGS, NOTHING, EngineDelivery
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind
from redpoll.bus.records import Publication, check_flags, check_publishing
from redpoll.errors import (
    Closed,
    NoRoute,
    PayloadTooLarge,
    QueueFull,
    RedpollError,
    ResultTooLarge,
    Unsupported,
    UsageError,
)

__all__ = ["AmqpDelivery", "attempt_of"]

#: Seconds that a task waits which all consumers have rejected, at first and at most.
_EXCLUDED: Final = 1.0
_EXCLUDED_LONGEST: Final = 60.0
#: Errors of a message that was to be put into its queue anew.
_FAILED: Final = (RedpollError, Broken, Rejected)
_LATE: Final = "its deadline passed"


def attempt_of(content: Content) -> int:
    """Return the number of a hand-out, from 1."""
    table = content.properties.headers or {}
    before = table.get(m.ATTEMPTS, 0)
    again = table.get("x-delivery-count")
    if not isinstance(again, int):
        again = 1 if content.name == "basic.deliver" and content.arguments[2] & 1 else 0
    return 1 + again + (before if isinstance(before, int) else 0)


class _Told:
    """True, once the end of a task was told; False if it was not."""

    __slots__ = ("_sending",)

    def __init__(self, sending: Sending) -> None:
        self._sending = sending

    def __await__(self) -> Generator[Any, None, bool]:
        try:
            yield from self._sending.__await__()
        except NoRoute:
            return True  # its publisher is gone
        except RedpollError:
            return False
        return True


class AmqpDelivery(EngineDelivery):
    """See `redpoll.bus.engine.Delivery`.

    Args:
        parts: The parts of the engine.
        queue: Name of the queue.
        level: Name of its level of priority.
        channel: The channel that it came on.
        content: The message.
        envelope: Its envelope.
        consumer: Name of the consumer, for a task that it rejects.
        accepted: True if it is given to nobody else.
        ended: Is called once it has ended.
    """

    __slots__ = (
        "_accepted", "_alarm", "_channel", "_consumer", "_ended", "_late", "_level", "_parts", "_properties", "_then",
        "_until", "_will", "excluded", "handed", "id", "queue", "tag",
    )  # fmt: skip

    def __init__(
        self,
        parts: EngineParts,
        queue: str,
        level: str,
        channel: Channel,
        content: Content,
        envelope: Envelope,
        consumer: str,
        accepted: bool,
        ended: Callable[[AmqpDelivery], object] | None,
    ) -> None:
        self.envelope = envelope
        self.attempt = self.handed = attempt_of(content)
        self._lost = False
        self._cancelled = ""
        self._listener = None
        self._told = None
        self.inputs = ()
        self._parts = parts
        self._level = level
        self._channel: Channel | None = channel
        self._properties = properties = content.properties
        self._consumer = consumer
        self._accepted = accepted
        self._ended = self._late = False
        self._then = ended
        self._alarm: Alarm | None = None
        self._until: float | None = None
        self._will = ""
        self.queue = queue
        self.tag: int = content.arguments[1 if content.name == "basic.deliver" else 0]
        self.id: str = properties.message_id or uuid.uuid4().hex
        table = properties.headers or {}
        excluded = table.get(m.EXCLUDED)
        self.excluded: list[Any] = excluded if isinstance(excluded, list) else []
        seconds = table.get(m.DEADLINE)
        if isinstance(seconds, int | float):
            self._until = parts.session.time() + seconds
            self._alarm = parts.alarms.set(seconds, self._pass_deadline)
        parts.add(self, self.id)

    def __repr__(self) -> str:
        return f"<AmqpDelivery {self.id} of {self.queue!r}, attempt {self.attempt}>"

    @property
    def left(self) -> float | None:
        """Seconds until its deadline."""
        return None if self._until is None else self._until - self._parts.session.time()

    @property
    def held(self) -> bool:
        """True if the server counts it as open."""
        return self._channel is not None and self._channel.error is None

    @property
    def _correlation(self) -> str:
        return self._properties.correlation_id or self.id

    def _pass_deadline(self) -> None:
        if not self._ended:
            self._late = True
            self.cancel(_LATE)

    def accept(self) -> Awaitable[bool]:
        """Promise that no other worker begins it."""
        if self._ended or self._lost or self._cancelled:
            return FALSE
        return TRUE if self._accepted else asyncio.ensure_future(self._accept())

    async def _accept(self) -> bool:
        will = await self._parts.will.leave(self._correlation, self._properties.reply_to)
        if self._ended or self._lost or self._channel is None:
            self._parts.will.drop(will)
            return False
        # From now on nobody else has it; if this program is gone, its will tells the publisher.
        self._channel.settle(self.tag)
        self._accepted = True
        self._channel = None
        self._will = will
        return True

    def progress(self, envelope: Envelope) -> bool:
        """Send progress to the publisher."""
        size = len(envelope.body)
        if size > self._parts.max_body:
            raise PayloadTooLarge(size, self._parts.max_body)
        reply = self._properties.reply_to
        if self._ended or self._lost or self._late or not reply or reply in self._parts.deaf:
            return False
        properties = m.properties_of(
            envelope,
            {},
            delivery_mode=1,
            correlation_id=self._correlation,
            reply_to=self._parts.inbox.name,
            type=m.PROGRESS,
        )
        sending = Sending("", reply, properties, envelope.body, mandatory=True, then=self._progressed)
        self._parts.publisher.send(sending)
        return True

    def _progressed(self, error: RedpollError | None) -> None:
        if isinstance(error, NoRoute):
            self._parts.ignore(error.target)

    def ack(self, outcome: Outcome | None = None, then: Sequence[Publication] = ()) -> Awaitable[bool]:
        """End the task."""
        if outcome is None:
            outcome = NOTHING
        kind, envelope, _ = outcome
        if envelope is not None and len(envelope.body) > self._parts.max_body:
            raise ResultTooLarge(len(envelope.body), self._parts.max_body)
        if kind not in ENDINGS:
            raise UsageError(f"a worker cannot end a task as {kind.name}")
        if then:
            raise Unsupported("amqp", "successors of a task", "submit them from the handler, or use redpoll://")
        if self._ended or (self._lost and not self._accepted):
            return FALSE
        if self._late:
            # The publisher was told that it expired.
            self._settle()
            self._end("expired")
            return FALSE
        return self._finish(outcome, "done")

    def _finish(self, outcome: Outcome, what: str, requeue: bool | None = None) -> Awaitable[bool]:
        """Tell the outcome, and take the task off the broker once that is there; None acknowledges it."""
        reply = self._properties.reply_to
        if not reply or reply in self._parts.deaf:
            settled = self._settle(requeue)
            self._end(what)
            return TRUE if settled or self._accepted else FALSE
        properties, body = m.outcome_properties(outcome, self._correlation, self._parts.inbox.name)
        settle = self._settle
        if self._accepted:
            settle(requeue)
            sending = Sending("", reply, properties, body, mandatory=True, again=True)
        else:

            def told(error: RedpollError | None) -> None:
                if not isinstance(error, Closed):
                    # An outcome that found no place was not told: the task goes back.
                    settle(True if isinstance(error, QueueFull) and not sending.sent else requeue)

            sending = Sending("", reply, properties, body, mandatory=True, again=True, then=told)
        self._parts.publisher.send(sending)
        self._end(what)
        return _Told(sending)

    def _settle(self, requeue: bool | None = None) -> bool:
        """Take it off the broker, or give it back; return False if it is not this channel's any more."""
        channel = self._channel
        if channel is None or channel.error is not None:
            return False
        if requeue is None:
            # An accepted one that comes again is dropped.
            channel.settle(self.tag, soon=self._accepted)
        else:
            channel.give_back(self.tag, requeue)
        return True

    def _end(self, what: str, detail: str = "") -> None:
        self._ended = True
        self._listener = None
        if self._alarm is not None:
            self._alarm.cancel()
        parts = self._parts
        if self._will:
            parts.will.drop(self._will)
        counts = parts.counts(self.queue)
        counts.taken -= 1
        setattr(counts, what, getattr(counts, what) + 1)
        parts.remove(self, self.id)
        if parts.observers:
            parts.note(what, self.queue, self.id, detail)
        then, self._then = self._then, None
        if then is not None:
            then(self)

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
        if self._ended or self._lost:
            return FALSE
        spec = self._parts.spec_of(self.queue)
        if self._late:
            self._settle()
            self._end("expired")
            return TRUE
        if self._accepted and self._cancelled:
            # Nobody would cancel it again.
            return self.withdraw(self._cancelled)
        if requeue and blame and spec is not None and spec.max_attempts is not None:
            requeue = self.attempt < spec.max_attempts
        if not requeue:
            return self._finish(Outcome(OutcomeKind.DEAD, None, reason), "dropped", False)
        if self._accepted or delay or exclude or meta is not None:
            again = self._again(self._channel, delay, self._excluding(exclude), meta)
            self._end("requeued", reason)
            return asyncio.ensure_future(again)
        given = self._settle(True)
        self._end("requeued", reason)
        return TRUE if given else FALSE

    def _excluding(self, exclude: bool) -> list[Any]:
        return [*self.excluded, self._consumer] if exclude else self.excluded

    async def _again(
        self, channel: Channel | None, delay: float, excluded: list[Any], meta: Mapping[str, Any] | None = None
    ) -> bool:
        """Publish it anew, and take it off the broker once that is confirmed: it is there twice if that fails between."""
        tag = self.tag
        try:
            await self.publish_again(delay, excluded, meta)
        except _FAILED:
            # Where it was, it still is.
            if channel is not None:
                channel.give_back(tag, True)
            return False
        if channel is not None:
            channel.settle(tag)
        return True

    async def publish_again(self, delay: float, excluded: list[Any], meta: Mapping[str, Any] | None) -> None:
        """Put a copy into its queue."""
        parts, properties = self._parts, self._properties
        envelope = self.envelope if meta is None else self.envelope._replace(meta=meta)
        extra: dict[str, Any] = {m.ATTEMPTS: self.handed}
        record = (properties.headers or {}).get(m.RECORDED)
        if record is not None:
            extra[m.RECORDED] = record
        if properties.reply_to:
            extra["CC"] = [properties.reply_to]
        if excluded:
            extra[m.EXCLUDED] = excluded
        left = self.left
        if left is not None and record is None:
            extra[m.DEADLINE] = max(0.0, left)
            extra[m.EXPIRES] = time.time() + left
        exchange, key = t.WORK, self._level
        if delay:
            exchange, key = await parts.delay(delay, self._level, self.queue)
        kept = m.properties_of(
            envelope,
            extra,
            delivery_mode=properties.delivery_mode,
            priority=properties.priority,
            correlation_id=properties.correlation_id,
            reply_to=properties.reply_to,
            message_id=self.id,
            type=properties.type,
        )
        sending = Sending(exchange, key, kept, envelope.body, mandatory=True)
        parts.publisher.send(sending)
        await sending

    # -- for the consumer

    def pass_on(self, pause: float | None = None) -> None:
        """Leave it to other consumers: this one excluded it, or cannot have it now.

        Args:
            pause: Seconds before it is given out again; None for those of one that was excluded.
        """
        if pause is None:
            pause = min(_EXCLUDED * 2 ** max(0, len(self.excluded) - 2), _EXCLUDED_LONGEST)
        self._end("requeued", "it cannot be done here")
        self._parts.session.spawn(self._again(self._channel, pause, []))

    def bury(self, detail: str) -> None:
        """End it as a dead letter, before it is begun."""
        self._finish(Outcome(OutcomeKind.DEAD, None, detail), "dropped", False)

    def expire(self) -> None:
        """End it as expired, before it is begun."""
        self._finish(Outcome(OutcomeKind.EXPIRED, None, "it was not begun in time"), "expired")

    def withdraw(self, reason: str) -> Awaitable[bool]:
        """End it as cancelled, before it is begun."""
        return self._finish(Outcome(OutcomeKind.CANCELLED, None, reason), "cancelled")

    def adopt(self, channel: Channel, tag: int) -> None:
        """Go on with it on another channel: it came again while it is being done here."""
        self._channel, self.tag = channel, tag

    def interrupt(self) -> None:
        """Note that its channel is gone: the server gives it to another worker, unless it was accepted."""
        self._channel = None
        if not self._accepted and not self._ended:
            self.lose()
            self._end("requeued", "the connection was lost")

    def interrupt_on(self, channel: Channel | None) -> None:
        """Note that a channel is gone, if it came on that one."""
        if channel is not None and self._channel is channel:
            self.interrupt()

    def remove(self) -> None:
        """Note that its queue was deleted."""
        self._channel = None
        reason = "its queue was deleted"
        self.cancel(reason)
        self.lose()
        self._end("cancelled")
        # Here too, where it was published: the list of queues, which may say later that this one is gone, finds no such task.
        self._parts.inbox.end(self.id, Outcome(OutcomeKind.CANCELLED, None, reason))

    def abandon(self) -> None:
        """Give it up as the engine closes: back to its queue, or as lost."""
        self.lose()
        if self._accepted:
            self._finish(Outcome(OutcomeKind.LOST, None, "its server was closed"), "dropped")
        else:
            self._settle(True)
            self._end("requeued", "its worker was closed")
