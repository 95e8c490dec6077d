"""The engine ``amqp://user:password@host:port,host2:port2/virtual-host``: RabbitMQ."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import Any, Final, Literal, Self, Unpack

from redpoll.bus.awaitables import Done, Failed
from redpoll.bus.batch import BatchOptions, publish_all
from redpoll.bus.engine import DeliverySink, EventSink, Watcher
from redpoll.bus.engines.amqp import messages as m
from redpoll.bus.engines.amqp import topology as t
from redpoll.bus.engines.amqp.consumers import AmqpConsumer, AmqpSubscription
from redpoll.bus.engines.amqp.handles import AmqpDelivery
from redpoll.bus.engines.amqp.inbox import Watch
from redpoll.bus.engines.amqp.lacking import BESIDE, WITH_HUB
from redpoll.bus.engines.amqp.link import Broken, Channel, Rejected
from redpoll.bus.engines.amqp.queues import AmqpQueues
from redpoll.bus.engines.amqp.recorded import RecordedDelivery
from redpoll.bus.engines.amqp.results import Gate, Results
from redpoll.bus.engines.amqp.session import refusal_of
from redpoll.bus.engines.amqp.submitting import Submit
from redpoll.bus.engines.amqp.wire import Content
from redpoll.bus.engines.handles import check_credit, check_subscribing
from redpoll.bus.envelope import Envelope
from redpoll.bus.records import (
    AtLimit,
    Publication,
    QueueSpec,
    Receipt,
    ScheduleInfo,
    TaskInfo,
    Times,
    check_flags,
    check_last,
    check_publishing,
    check_subject,
)
from redpoll.errors import (
    Closed,
    Expired,
    NoRoute,
    NotConfirmed,
    PayloadTooLarge,
    QueueEmpty,
    RedpollError,
    UnknownTask,
    Unsupported,
    UsageError,
)

__all__ = ["AmqpEngine"]

#: Unconfirmed publishes of one `publish_many`.
_WINDOW: Final = 1_024


class AmqpEngine(AmqpQueues):
    """See `redpoll.bus.engine.Engine`. The arguments are those of `AmqpMember`."""

    async def __aenter__(self) -> Self:
        """Start on the running loop, and connect."""
        await super().__aenter__()
        if self.results is not None:
            self.session.spawn(self.results.schedules.carry(self.publish, lambda: self.session.ready))
        return self

    # -- publishing

    def publish(
        self,
        envelope: Envelope,
        *,
        queue: str | None = None,
        subject: str | None = None,
        watcher: Watcher | None = None,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        deadline: float | None = None,
        dedup: str | None = None,
        keep: bool = True,
        mandatory: bool = False,
        last: int = 0,
        confirm: bool = True,
        timeout: float | None = None,
    ) -> Awaitable[Receipt]:
        """Put a task into a queue, or send an event to a subject."""
        size = len(envelope.body)
        if size > self.max_body:
            raise PayloadTooLarge(size, self.max_body)
        if (queue is None) is (subject is None):
            raise UsageError("a message goes to a queue or to a subject", "pass one of queue= and subject=")
        check_publishing(priority, delay, ttl, deadline, timeout, dedup)
        check_flags(keep=keep, mandatory=mandatory)
        if subject is not None:
            check_subject("subject", subject)
            check_last(last)
        else:
            check_subject("queue", queue)
        refusal = self.refusal()
        if refusal is not None:
            return Failed(refusal)
        results = self.results
        if dedup is not None and results is None:
            return Failed(Unsupported("amqp", "dedup keys", f"make the work harmless to do twice, or {WITH_HUB}"))
        if last:
            return Failed(Unsupported("amqp", "keeping the last events of a subject", BESIDE))
        if not self.session.ready and timeout is not None and timeout <= 0:
            return Failed(Expired(None, timeout, "waiting for a connection"))
        if queue is None:
            submit = self._event(envelope, subject or "", mandatory, timeout)
            self.publisher.send(submit)
        else:
            spec = self.catalogue.specs.get(queue)
            if ttl is None and deadline is None and spec is not None:
                ttl = spec.ttl
            limit = deadline if ttl is None else ttl
            if limit is not None and limit <= delay:
                return Failed(Expired(None, limit, "waiting to be sent"))
            if results is not None and (spec is None or spec.kind == "task"):
                own = {
                    "delay": delay,
                    "ttl": ttl,
                    "deadline": deadline,
                    "dedup": dedup,
                    "keep": keep,
                    "timeout": timeout,
                }
                recording = self.loop.create_task(
                    self._record(results, envelope, spec or QueueSpec(queue), watcher, priority, limit, mandatory, own)
                )
                recording.add_done_callback(_seen)
                return recording
            submit = self._task(envelope, queue, spec, watcher, priority, delay, limit, deadline, keep, timeout)
            self._submit(submit, queue, delay, mandatory)
        if confirm:
            return submit
        return Done(submit.receipt) if not submit.ended else submit

    async def _record(
        self,
        results: Results,
        envelope: Envelope,
        spec: QueueSpec,
        watcher: Watcher | None,
        priority: int,
        limit: float | None,
        mandatory: bool,
        own: dict[str, Any],
    ) -> Receipt:
        """Make the record of a task, then publish the task: whatever happens in between, it is done once or not at all."""
        queue, timeout, delay = spec.name, own["timeout"], own["delay"]
        began = self.loop.time()
        gate = None if watcher is None else Gate(watcher)
        try:
            receipt = await results.put(spec, gate, **own)
            left = timeout if not timeout else max(0.0, began + timeout - self.loop.time())
            submit = self._task(envelope, queue, spec, None, priority, delay, limit, None, True, left, receipt)
        except BaseException as error:
            if gate is not None:
                gate.close()
            if isinstance(error, NoRoute):
                raise NoRoute(queue) from error
            raise
        try:
            self._submit(submit, queue, delay, mandatory)
            # One with a key is published again where it was there before: its publisher may have failed in between.
            await submit
        except BaseException:
            if gate is not None:
                gate.close()
            if own["dedup"] is None:
                self.session.spawn(results.hub.cancel(receipt.id))
            raise
        return receipt

    def _submit(self, submit: Submit, queue: str, delay: float, mandatory: bool) -> None:
        if mandatory and self._present.get(queue, 0.0) < self.loop.time():
            self._look_first(submit, queue, delay)
        else:
            self._send(submit, queue, delay)

    def _send(self, submit: Submit, queue: str, delay: float) -> None:
        if delay:
            self.publisher.held[submit] = None
            self.session.spawn(self._delay(submit, delay, queue))
        else:
            self.publisher.send(submit)

    def _event(self, envelope: Envelope, subject: str, mandatory: bool, timeout: float | None) -> Submit:
        properties = m.properties_of(envelope, {}, delivery_mode=1)
        return Submit(
            self.parts, subject, t.EVENTS, subject, properties, envelope.body,
            mandatory=mandatory, at_limit="refuse", receipt=Receipt(self.store, 0), timeout=timeout, unwatch=None,
        )  # fmt: skip

    def _task(
        self,
        envelope: Envelope,
        queue: str,
        spec: QueueSpec | None,
        watcher: Watcher | None,
        priority: int,
        delay: float,
        limit: float | None,
        deadline: float | None,
        keep: bool,
        timeout: float | None,
        record: Receipt | None = None,
    ) -> Submit:
        durable, level = True, queue
        at_limit: AtLimit = "wait"
        if spec is not None:
            durable, at_limit = spec.durable, spec.at_limit
            level = t.level(queue, min(priority, spec.priorities - 1))
        receipt = record or Receipt(self.store, next(self._serials) << 64 | random.getrandbits(64))
        task = receipt.id
        extra: dict[str, Any] = {}
        if record is not None:
            extra[m.RECORDED] = queue
            if at_limit == "drop-old":
                extra["CC"] = [self.inbox.name]
        if watcher is not None:
            # Only the exchange for dead letters knows this key.
            extra["CC"] = [self.inbox.name]
        if deadline is not None:
            extra[m.DEADLINE] = deadline
        if delay and limit is not None:
            # RabbitMQ drops the expiration of what was delayed.
            extra[m.EXPIRES] = time.time() + limit
        properties = m.properties_of(
            envelope,
            extra,
            delivery_mode=2 if durable else 1,
            priority=min(priority, 255) or None,
            reply_to=None if watcher is None else self.inbox.name,
            expiration=None if limit is None or delay else str(max(1, round(limit * 1_000))),
            message_id=task,
            type=m.TASK,
        )
        unwatch = None
        if watcher is not None:
            self.inbox.watches[task] = Watch(watcher, level)
            if deadline is not None:
                self._deadlines[task] = self.alarms.set(deadline, lambda: self._expire(task))
            unwatch = self._unwatch if keep else self._uncall
        return Submit(
            self.parts, queue, t.WORK, level, properties, envelope.body,
            mandatory=True, at_limit=at_limit, receipt=receipt, timeout=timeout, unwatch=unwatch, again=record is not None,
        )  # fmt: skip

    def _unwatch(self, submit: Submit, _: bool) -> None:
        self.inbox.watches.pop(submit.receipt.id, None)
        self._over(submit.receipt.id)

    def _uncall(self, submit: Submit, cancel: bool) -> None:
        task = submit.receipt.id
        watch = self.inbox.watches.get(task)
        if cancel and watch is not None:
            self.session.spawn(self.inbox.say(watch, task, m.CANCEL, Envelope("raw", b""), "nobody waits for it"))
        self._unwatch(submit, False)

    def _expire(self, task: str) -> None:
        self.inbox.expire(task, "its deadline passed")

    async def _delay(self, submit: Submit, delay: float, queue: str) -> None:
        try:
            submit.exchange, submit.key = await self.parts.delay(delay, submit.key, queue)
        except Rejected as error:
            submit.end(refusal_of(error, queue))
        except Broken:
            self.session.spawn(self._delay(submit, delay, queue))
        except RedpollError as error:
            submit.end(error)
        else:
            self.publisher.send(submit)

    def _look_first(self, submit: Submit, queue: str, delay: float) -> None:
        """Send it once the queue is seen to have a consumer."""
        self.publisher.held[submit] = None
        waiting = self._checking.get(queue)
        if waiting is not None:
            waiting.append((submit, delay))
            return
        self._checking[queue] = [(submit, delay)]
        self.session.spawn(self._look(queue))

    async def _look(self, queue: str) -> None:
        error: RedpollError | None = None
        try:
            _, consumers = await self.session.look(queue)
            if consumers:
                self._came_from(queue)
            else:
                error = NoRoute(queue)
        except Rejected as refused:
            error = refusal_of(refused, queue)
        except RedpollError as failed:
            error = failed
        finally:
            waiting = self._checking.pop(queue)
        for submit, delay in waiting:
            if error is not None:
                submit.end(error)
            elif not submit.ended:
                self._send(submit, queue, delay)

    def publish_many(
        self, envelopes: Iterable[Envelope], *, queue: str, **options: Unpack[BatchOptions]
    ) -> Awaitable[list[Receipt]]:
        """Put many tasks into a queue, in order."""
        spec = self.catalogue.specs.get(queue) if self.refusal() is None else None
        # Behind one that is refused the next ones would find room.
        window = _WINDOW if spec is None or spec.max_length is None else 1
        return publish_all(self, envelopes, window, self.max_body, queue=queue, **options)

    # -- taking

    async def consume(
        self,
        queue: str,
        *,
        credit: int = 1,
        sink: DeliverySink | None = None,
        accept: bool = False,
        exclusive: bool = False,
        prefetch: bool = False,  # noqa: ARG002  # the server sends ahead what the credit allows
    ) -> AmqpConsumer:
        """Take tasks from a queue as they come."""
        check_credit(credit)
        check_flags(accept=accept, exclusive=exclusive)
        check_subject("queue", queue)
        self._check()
        consumer = AmqpConsumer(self.parts, queue, credit, sink, accept=accept, exclusive=exclusive)
        await self._add(consumer)
        self.parts.note("consumer", queue, consumer.label)
        return consumer

    async def _add(self, consumer: AmqpConsumer) -> None:
        if not await self._exists(consumer.queue):
            raise NoRoute(consumer.queue)
        self._consumers[consumer] = None
        consumer.gone = lambda: self._consumers.pop(consumer, None)
        try:
            await self.session.add(consumer)
        except Rejected as error:
            consumer.stop(None)
            raise refusal_of(error, consumer.queue) from error
        except BaseException:
            consumer.stop(None)
            raise

    async def take(self, queue: str, timeout: float | None = 0.0) -> AmqpDelivery:
        """Take one task, in turn with the consumers."""
        check_publishing(0, 0.0, timeout=timeout)
        check_subject("queue", queue)
        self._check()
        if not self.session.ready and timeout == 0:
            raise Expired(None, timeout, "waiting for a connection")
        taking = self.loop.create_task(self._take(queue, timeout))
        self._takes[taking] = None
        taking.add_done_callback(lambda task: self._takes.pop(task, None))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if taking.cancelled() and current is not None and not current.cancelling():
                raise Closed("bus") from None
            taking.cancel()
            taking.add_done_callback(_give_back)
            raise

    async def _take(self, queue: str, timeout: float | None) -> AmqpDelivery:
        if not await self._exists(queue):
            raise NoRoute(queue)
        consumer = AmqpConsumer(self.parts, queue, 1, None, accept=False, exclusive=False)
        if timeout == 0:
            try:
                await consumer.look_locked()
                delivery = await self._get(consumer)
            except Rejected as error:
                raise refusal_of(error, queue) from error
            except Broken as error:
                raise NotConfirmed(None, f"the connection was lost: {error}") from error
            if delivery is None:
                raise QueueEmpty(queue, timeout)
            return delivery
        await self._add(consumer)
        try:
            async with asyncio.timeout(timeout):
                return await anext(consumer)
        except TimeoutError:
            raise QueueEmpty(queue, timeout) from None
        finally:
            # Without waiting: cancelled there, it would lose what it has.
            self.session.spawn(consumer.close())

    async def _get(self, consumer: AmqpConsumer) -> AmqpDelivery | None:
        queue = consumer.queue
        await self.session.linked()
        await self.inbox.hear(queue)
        if self._getting is None or self._getting.error is not None:
            channel = await self.session.incoming.channel(self._ungotten)
            if self._getting is None or self._getting.error is not None:
                self._getting = channel
            else:
                # Another call was faster.
                channel.retire()
        channel = self._getting
        spec = self.catalogue.specs.get(queue)
        for level in [queue] if spec is None else t.levels(spec):
            asked = channel.ask("basic.get", 0, level, 0)
            try:
                answer = await asyncio.shield(asked)
            except asyncio.CancelledError:
                asked.add_done_callback(lambda got: _ungot(channel, got))
                raise
            while isinstance(answer[0], Content):
                delivery = consumer.make(channel, level, answer[0])[0]
                if not isinstance(delivery, RecordedDelivery) or await delivery.claim():
                    return delivery
                answer = await channel.ask("basic.get", 0, level, 0)
        return None

    def _ungotten(self, _: Exception) -> None:
        for delivery in list(self.parts.open):
            if isinstance(delivery, AmqpDelivery):
                delivery.interrupt_on(self._getting)

    async def subscribe(
        self,
        patterns: Iterable[str],
        *,
        sink: EventSink | None = None,
        last: bool = False,
        buffer: int = 1_000,
    ) -> AmqpSubscription:
        """Take the events of the subjects that match."""
        wanted = check_subscribing(patterns, buffer)
        check_flags(last=last)
        for each in wanted:
            check_subject("patterns", each, pattern=True)
        self._check()
        if last:
            raise Unsupported("amqp", "taking the last events of a subject", BESIDE)
        subscription = AmqpSubscription(self.parts, next(self._numbers), wanted, sink, buffer)
        self._subscriptions[subscription] = None
        subscription.gone = lambda: self._subscriptions.pop(subscription, None)
        try:
            await self.session.add(subscription)
        except Rejected as error:
            subscription.stop()
            raise refusal_of(error, wanted[0]) from error
        except BaseException:
            subscription.stop()
            raise
        return subscription

    # -- tasks that are somewhere

    async def cancel(self, task: str) -> Literal["withdrawn", "asked", "too late"]:
        """Ask the worker of a task of this program to stop.

        Raises:
            Unsupported: Nobody works on it: it cannot be withdrawn from its queue.
        """
        self._check()
        watch = self.inbox.watches.get(task)
        if watch is None:
            if task in self._recent:
                return "too late"
            if self.results is not None:
                return await self.results.hub.cancel(task)
            raise UnknownTask(task)
        if await self.inbox.say(watch, task, m.CANCEL, Envelope("raw", b""), "it was cancelled"):
            return "asked"
        raise Unsupported("amqp", "withdrawing a task from its queue", f"give it a ttl, or {WITH_HUB}")

    async def tell(self, task: str, envelope: Envelope) -> bool:
        """Send a message to the worker of a task of this program."""
        if len(envelope.body) > self.max_body:
            raise PayloadTooLarge(len(envelope.body), self.max_body)
        self._check()
        watch = self.inbox.watches.get(task)
        if watch is None and self.results is not None:
            with suppress(UnknownTask):
                return await self.results.hub.tell(task, envelope)
        return watch is not None and await self.inbox.say(watch, task, m.TELL, envelope)

    async def lookup(self, task: str) -> TaskInfo:
        """Return the state of a task, from the hub beside RabbitMQ, and without its body."""
        self._check()
        return await self._hub_for(f"looking up the task {task}").lookup(task)

    async def watch(self, task: str, watcher: Watcher) -> None:
        """Watch a task that was submitted before."""
        self._check()
        await self._hub_for(f"watching the task {task} later").hub.watch(task, watcher)

    async def schedule(self, name: str, publication: Publication, times: Times) -> None:
        """Put a task into a queue again and again: the hub beside RabbitMQ keeps the times."""
        check_subject("queue", publication.queue)
        self._check()
        results = self._hub_for("schedules")
        # RabbitMQ would refuse it at each firing.
        size = len(publication.envelope.body)
        if size > self.max_body:
            raise PayloadTooLarge(size, self.max_body)
        m.headers_of(publication.envelope)
        if not await self._exists(publication.queue):
            raise NoRoute(publication.queue, "declare it first")
        await results.schedules.set(name, publication, times)

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule."""
        self._check()
        return await self._hub_for("schedules").schedules.remove(name)

    async def schedules(self) -> list[ScheduleInfo]:
        """Return the schedules."""
        self._check()
        return await self._hub_for("schedules").schedules.all()

    def _hub_for(self, what: str) -> Results:
        if self.results is None:
            raise Unsupported("amqp", what, WITH_HUB)
        return self.results


def _seen(recording: asyncio.Task[Receipt]) -> None:
    """Take the error of a publish that may not be awaited."""
    if not recording.cancelled():
        recording.exception()


def _give_back(taking: asyncio.Task[AmqpDelivery]) -> None:
    """Give back what was taken by a call that was cancelled."""
    if not taking.cancelled() and taking.exception() is None:
        taking.result().reject()


def _ungot(channel: Channel, got: asyncio.Future[tuple[Any, ...]]) -> None:
    if not got.cancelled() and got.exception() is None and isinstance(got.result()[0], Content):
        channel.give_back(got.result()[0].arguments[0], True)
