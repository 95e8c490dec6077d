"""The engine that speaks another library's wire format: ``connect("amqp://…", speak="kiwipy")``."""

# ruff: noqa: ARG002  # the arguments are those of `Engine`

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import uuid
from collections.abc import Awaitable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple, NoReturn, Self, TypeVar
from weakref import WeakSet

from redpoll.bus.awaitables import close_all, sleep
from redpoll.bus.batch import publish_all
from redpoll.bus.engine import Clock, DeliverySink, EventSink, Observer, Timer, Watcher
from redpoll.bus.engines.amqp.foreign.dialect import Dialect, Request, refuse
from redpoll.bus.engines.amqp.foreign.foreign import Foreign, ForeignConsumer, ForeignMessage
from redpoll.bus.engines.amqp.foreign.handles import DialectConsumer, DialectDelivery, Then
from redpoll.bus.engines.amqp.foreign.messages import Message, Queue
from redpoll.bus.engines.amqp.lacking import Lacking
from redpoll.bus.engines.amqp.link import Login, Rejected
from redpoll.bus.engines.amqp.publishing import Sending
from redpoll.bus.engines.amqp.session import Session, refusal_of
from redpoll.bus.engines.handles import EngineSubscription
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind
from redpoll.bus.records import (
    Capabilities,
    Event,
    QueueInfo,
    QueueSpec,
    Receipt,
    check_publishing,
    words_match,
)
from redpoll.bus.state import EngineState, Status
from redpoll.errors import (
    BadPayload,
    Closed,
    Expired,
    PayloadTooLarge,
    QueueEmpty,
    SpecConflict,
    UsageError,
)

__all__ = ["DialectEngine", "DialectSubscription"]

T = TypeVar("T")

_log = logging.getLogger("redpoll.bus")

#: Maximum unconfirmed publishes of `publish_many`.
_WINDOW: Final = 64
#: Seconds that closing waits for publishes to fail.
_GOODBYE: Final = 1.0
#: Replies that wait to be taken.
_REPLIES: Final = 1_000


class _Waiting(NamedTuple):
    watcher: Watcher
    timer: Timer | None


class DialectSubscription(EngineSubscription):
    """See `redpoll.bus.engine.Subscription`."""

    source: ForeignConsumer | None = None

    async def close(self) -> None:
        """Receive no more."""
        self._closed = True
        if self.source is not None:
            await self.source.close()
        self._feed.end()


class DialectEngine(Lacking):
    """See `redpoll.bus.engine.Engine`. What the other library does not have is `Unsupported`.

    Args:
        hosts: Hosts and ports, which are tried in turn.
        login: Data of the handshake.
        dialect: The wire format.
        tls: For encrypted connections.
        wait: True to start without a connection.
        connect_timeout: Seconds to wait for one otherwise.
        split: True for two connections: one for what is published, one for what is consumed.
        max_body: The largest body, in bytes.
        consumer_timeout: Seconds after which the server takes a task away, where it cannot be told otherwise (before
            3.11.15). None: its default, half an hour.

    Attributes:
        status: Its state.
        foreign: The exchanges and queues of the server.
        dialect: The wire format.
    """

    def __init__(
        self,
        hosts: tuple[tuple[str, int], ...],
        login: Login,
        dialect: Dialect,
        *,
        tls: ssl.SSLContext | None,
        wait: bool,
        connect_timeout: float,
        split: bool,
        max_body: int,
        consumer_timeout: float | None,
    ) -> None:
        self.status = Status()
        self.dialect = dialect
        self._store = uuid.uuid4().hex
        login = replace(login, name=login.name or f"redpoll {self._store}")
        self.session = Session(hosts, login, tls, self.status, split, consumer_timeout)
        self.foreign = Foreign(self.session)
        self._wait = wait
        self._connect_timeout = connect_timeout
        self._capabilities = Capabilities(
            engine="amqp",
            confirm="disk",
            results="live",
            max_body=max_body,
            delay=False,
            priorities=1,
            dedup=False,
            fencing=False,
            attempts="none",
            browse=False,
            cancel=False,
            progress=False,
            wildcards=False,
            last=False,
            successors=False,
            schedule=False,
            hold=self.session.hold,
        )
        self._replies = dialect.replies(self._store)
        self._number = 0
        self._waiting: dict[str, _Waiting] = {}
        # Those that are open are held by the session.
        self._consumers: WeakSet[DialectConsumer] = WeakSet()
        self._declared: dict[str, Queue] = {}
        self._listening: asyncio.Task[Any] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"<DialectEngine {self.dialect.name} {self.status.state.value}>"

    @property
    def clock(self) -> Clock:
        """The loop's time."""
        return self._loop

    async def __aenter__(self) -> Self:
        """Connect."""
        self._loop = asyncio.get_running_loop()
        try:
            await self.session.open(self._connect_timeout, self._wait)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close."""
        await self.close()

    async def close(self, drain: float | None = 0.0) -> None:
        """Stop."""
        loop = asyncio.get_running_loop()
        end = None if drain is None else loop.time() + drain
        try:
            await close_all(each.close() for each in tuple(self._consumers))
            while any(each.deliveries for each in self._consumers) and (end is None or loop.time() < end):
                await sleep(loop, 0.01)
            await self.foreign.flush()
        finally:
            self.foreign.close(Closed("bus"))
            await self.session.close()
            if self._tasks:
                # They end as the session did.
                _, late = await asyncio.wait(self._tasks, timeout=_GOODBYE)
                for task in late:
                    task.cancel()
            waiting, self._waiting = self._waiting, {}
            for watcher, timer in waiting.values():
                if timer is not None:
                    timer.cancel()
                watcher.gone(Closed("bus"))
            for consumer in tuple(self._consumers):
                consumer.lose()
            self.status.change(EngineState.CLOSED)

    # -- queues

    async def declare(self, spec: QueueSpec, *, update: bool = False) -> None:
        """Declare the other library's queue. Its settings are that library's, whatever the spec says."""
        if update:
            raise refuse(self.dialect.name, "changing queues")
        queue = self.dialect.queue(spec.name)
        if queue.name:
            await self.foreign.declare(queue)
            self._declared[spec.name] = queue

    async def delete(self, queue: str, *, if_unused: bool = False) -> None:
        """Delete a queue."""
        await self.foreign.delete(self.dialect.queue(queue).name, if_unused=if_unused)

    async def queues(self) -> list[str]:
        """Return the names of the queues that are consumed here, as the server knows them."""
        names = sorted({each.source.queue for each in self._consumers if not each.closed})
        for name in names:
            try:
                await self.session.look(name)
            except Rejected as error:
                raise refusal_of(error, name) from error
        return names

    # -- publishing

    def publish(
        self,
        envelope: Envelope,
        *,
        queue: str | None = None,
        subject: str | None = None,
        watcher: Watcher | None = None,
        ttl: float | None = None,
        deadline: float | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> Awaitable[Receipt]:
        """Send a task or a call to a queue, where it has to arrive; or an event."""
        priority, delay, dedup = (options.get(name, 0) for name in ("priority", "delay", "dedup"))
        check_publishing(priority, delay, ttl, deadline, timeout, dedup or None)
        target = subject if queue is None else queue
        if target is None or None not in {queue, subject}:
            raise UsageError("a message goes to a queue or to a subject")
        if delay or priority or dedup or options.get("last"):
            raise refuse(self.dialect.name, "delays, priorities, dedup keys and last broadcasts")
        if len(envelope.body) > self.capabilities.max_body:
            raise PayloadTooLarge(len(envelope.body), self.capabilities.max_body)
        self._number += 1
        receipt = Receipt(self._store, self._number << 64 | secrets.randbits(64))
        left = ttl if deadline is None else deadline
        request = Request(envelope, receipt.id, self._replies.name, left, subject or "", watcher is not None)
        message = self.dialect.write(target, request)
        return self._task(self._publish(message, receipt, queue, watcher, deadline, timeout))

    async def _publish(
        self,
        message: Message,
        receipt: Receipt,
        queue: str | None,
        watcher: Watcher | None,
        deadline: float | None,
        timeout: float | None,
    ) -> Receipt:
        end = None if timeout is None else self.clock.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                if queue is not None:
                    await self._listen()
                await self.foreign.declare(message.exchange)
        except TimeoutError:
            raise Expired(None, timeout, "waiting for a connection") from None
        if watcher is not None:
            timer = None
            if deadline is not None:
                timer = self.clock.call_at(self.clock.time() + deadline, lambda: self._expire(receipt.id))
            self._waiting[receipt.id] = _Waiting(watcher, timer)
        try:
            exchange, key, body, properties = message
            sending = Sending(exchange.name, key, properties, body, mandatory=queue is not None)
            left = None if end is None else max(0.0, end - self.clock.time())
            await self.foreign.wait(self.foreign.send(sending), left)
        except BaseException:
            self._forget(receipt.id)
            raise
        return receipt

    def publish_many(self, envelopes: Iterable[Envelope], **options: Any) -> Awaitable[list[Receipt]]:
        """Put many tasks into a queue, in order."""
        options = {"watchers": None, "dedup": None, "timeout": None, "priority": 0, "delay": 0.0, "ttl": None} | options
        return publish_all(self, envelopes, _WINDOW, self.capabilities.max_body, **options)

    # -- replies

    async def _listen(self) -> None:
        """Consume the queue of replies, from the first message on that may have one."""
        if self._listening is None or (self._listening.done() and self._listening.exception() is not None):
            self._listening = self._task(self.foreign.consume(self._replies, sink=self._heard, credit=_REPLIES))
        await asyncio.shield(self._listening)

    def _heard(self, message: ForeignMessage) -> None:
        message.ack()
        try:
            found, reply = self.dialect.read_reply(message.body, message.properties)
        except BadPayload as error:
            _log.warning("a reply in %r cannot be read: %s", self._replies.name, error)
            return
        if isinstance(reply, Envelope):
            waiting = self._waiting.get(found)
            if waiting is not None:
                waiting.watcher.progress(reply)
        else:
            self._settle(found, reply)

    def _settle(self, found: str, outcome: Outcome) -> None:
        watcher = self._forget(found)
        if watcher is None:
            _log.debug("a reply to %s came when nobody waited for it", found)
        else:
            watcher.outcome(outcome)

    def _forget(self, found: str) -> Watcher | None:
        watcher, timer = self._waiting.pop(found, (None, None))
        if timer is not None:
            timer.cancel()
        return watcher

    def _expire(self, found: str) -> None:
        self._settle(found, Outcome(OutcomeKind.EXPIRED, None, "no reply came in time"))

    # -- taking

    async def consume(
        self,
        queue: str,
        *,
        credit: int = 1,
        sink: DeliverySink | None = None,
        accept: bool = False,
        exclusive: bool = False,
        prefetch: bool = False,
    ) -> DialectConsumer:
        """Take tasks or calls from the other library's queue."""
        await self.session.linked()
        wanted: Queue | str = self._declared.get(queue) or self.dialect.queue(queue)
        if isinstance(wanted, Queue) and not wanted.name and exclusive:
            self._unsupported("exclusive recipients")
        if isinstance(wanted, Queue) and wanted.name and queue not in self._declared:
            wanted = await self._present(queue, wanted)
        consumer = DialectConsumer(self, queue, credit, sink, accept)
        consumer.source = await self.foreign.consume(
            wanted,
            sink=consumer.take,
            lost=consumer.lose,
            credit=max(1, credit),
            exclusive=exclusive,
            # A task may take for days.
            arguments=self.session.consumer_arguments(),
        )
        self._consumers.add(consumer)
        return consumer

    async def _present(self, name: str, queue: Queue) -> Queue | str:
        """Return a queue that is there, to be declared anew with each connection; its name if others made it otherwise."""
        try:
            await self.session.look(queue.name)
            await self.foreign.declare(queue)
        except Rejected as error:
            raise refusal_of(error, name) from error
        except SpecConflict as error:
            _log.debug("%s is consumed as it is: %s", name, error)
            return queue.name
        return queue

    async def take(self, queue: str, timeout: float | None = 0.0) -> DialectDelivery:
        """Take one task."""
        consumer = await self.consume(queue)
        try:
            if timeout == 0:
                # Once the server has ended it, what there was has come.
                await consumer.source.close()
                consumer.finish()
            async with asyncio.timeout(timeout or None):
                return await consumer.__anext__()
        except (TimeoutError, StopAsyncIteration):
            raise QueueEmpty(queue, timeout or 0.0) from None
        finally:
            await consumer.close()

    async def subscribe(
        self, patterns: Iterable[str], *, sink: EventSink | None = None, last: bool = False, buffer: int = 1_000
    ) -> DialectSubscription:
        """Take events; those of all subjects come, and those that match are handed on."""
        if last:
            raise refuse(self.dialect.name, "last broadcasts")
        wanted = tuple(patterns)
        subscription = DialectSubscription(wanted, sink, buffer)
        queue = self.dialect.events(wanted[0])
        if queue is not None:
            matches = [words_match(each) for each in wanted]

            def take(message: ForeignMessage) -> None:
                message.ack()
                try:
                    request = self.dialect.read(wanted[0], message.body, message.properties)
                except BadPayload as error:
                    _log.warning("an event cannot be read: %s", error)
                    return
                if any(match(request.subject) for match in matches):
                    subscription.take(Event(request.subject, request.envelope))

            subscription.source = await self.foreign.consume(queue, sink=take, credit=_REPLIES)
        return subscription

    # -- for deliveries

    def send(self, message: Message, *, mandatory: bool = False, then: Then = None) -> Awaitable[None]:
        """Publish a message, again if its connection is lost; `then` is called with its error or None."""
        exchange, key, body, properties = message
        return self.foreign.send(
            Sending(exchange.name, key, properties, body, mandatory=mandatory, again=True, then=then)
        )

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # it may not be awaited

    # -- what the other libraries have not

    async def cancel(self, task: str) -> Literal["withdrawn", "asked", "too late"]:
        """Wait for its reply no longer; the task or call itself cannot be cancelled, which raises."""
        self._forget(task)
        self._unsupported("cancelling")

    async def tell(self, task: str, envelope: Envelope) -> bool:
        """Raise `Unsupported`."""
        self._unsupported("streams")

    async def inspect(self, queue: str) -> QueueInfo:
        """Raise `Unsupported`."""
        self._unsupported(f"looking into {queue!r}")

    async def purge(self, queue: str, state: Literal["ready", "dead"] = "ready") -> int:
        """Raise `Unsupported`."""
        self._unsupported("purging")

    def observe(self, observer: Observer) -> NoReturn:
        """Raise `Unsupported`."""
        self._unsupported("observing")

    def _unsupported(self, what: str) -> NoReturn:
        raise refuse(self.dialect.name, what)
