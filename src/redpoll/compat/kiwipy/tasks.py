"""Queues of tasks as kiwiPy has them: sending, subscribing, taking one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import uuid
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import kiwipy

from redpoll.bus.awaitables import is_cancelled
from redpoll.bus.engine import Consumer, Delivery
from redpoll.bus.envelope import Payloads
from redpoll.bus.lasting import LastingConsumer
from redpoll.bus.records import QueueSpec
from redpoll.bus.tasks.task import Claim
from redpoll.compat.kiwipy import defaults
from redpoll.compat.kiwipy.connection import Answer, Codec, Connection, kiwipy_errors, run, run_here
from redpoll.errors import EncodeError, QueueEmpty, SpecConflict

__all__ = [
    "TASK_FINISHED",
    "TASK_PENDING",
    "TASK_PROCESSING",
    "TASK_REQUEUED",
    "RmqIncomingTask",
    "RmqTaskPublisher",
    "RmqTaskQueue",
    "RmqTaskSubscriber",
]

_log = logging.getLogger("redpoll.compat.kiwipy")

FutureT = TypeVar("FutureT", asyncio.Future[Any], concurrent.futures.Future[Any])

TASK_PENDING: Final = "pending"
"""Nobody works on it: it goes back, unless somebody does."""
TASK_PROCESSING: Final = "processing"
"""Somebody works on it."""
TASK_FINISHED: Final = "finished"
"""It has its outcome."""
TASK_REQUEUED: Final = "requeued"
"""It went back."""

#: Tasks of a subscriber at a time, where the prefetch count is 0: no limit.
_UNLIMITED: Final = 65_535
#: The key of `Envelope.meta` for tasks whose sender wants no reply.
_NO_REPLY: Final = "no_reply"


class _Part:
    """The common part of the ends of a queue."""

    def __init__(
        self,
        connection: Connection,
        exchange_name: str,
        queue_name: str,
        encoder: Callable[[Any], Any],
        decoder: Callable[[bytes], Any],
    ) -> None:
        self._connection = connection
        self._exchange_name = exchange_name
        self._name = queue_name
        self._payloads = Payloads(Codec(encoder, decoder))
        self.is_closing = False

    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop on which it is used."""
        return self._connection.loop

    def get_exchange_name(self) -> str:
        """The name of the exchange that it was given."""
        return self._exchange_name

    async def connect(self) -> None:
        """Connect, if the connection is not there yet."""
        await self._connection.connect()

    async def disconnect(self) -> None:
        """End the use of the connection, which stays open."""
        self.is_closing = True


class RmqTaskSubscriber(_Part):
    """Takes tasks from a queue, which it declares when it connects.

    Args:
        connection: The connection.
        exchange_name: Without effect: a queue is found by its name.
        queue_name: Name of the queue.
        testing_mode: Make a queue that does not survive a restart, and is deleted when it was not used for 10 s.
        decoder: Decodes tasks.
        encoder: Encodes results.
        exchange_params: Without effect.
        prefetch_size: Without effect.
        prefetch_count: Maximum tasks that the subscribers work on; 0 is no limit.
    """

    def __init__(
        self,
        connection: Connection,
        exchange_name: str = defaults.MESSAGE_EXCHANGE,
        queue_name: str = defaults.TASK_QUEUE,
        testing_mode: bool = False,
        decoder: Callable[[bytes], Any] = defaults.DECODER,
        encoder: Callable[[Any], Any] = defaults.ENCODER,
        exchange_params: object = None,  # noqa: ARG002  # kiwiPy's
        prefetch_size: int = defaults.TASK_PREFETCH_SIZE,  # noqa: ARG002
        prefetch_count: int = defaults.TASK_PREFETCH_COUNT,
    ) -> None:
        super().__init__(connection, exchange_name, queue_name, encoder, decoder)
        expires = defaults.TEST_QUEUE_EXPIRES / 1000 if testing_mode else None
        # A task is not given up because its workers were killed.
        self._spec = QueueSpec(queue_name, durable=not testing_mode, expires=expires, max_attempts=None)
        self._credit = prefetch_count or _UNLIMITED
        self._subscribers: dict[Any, Callable[..., Any]] = {}
        self._consumer: LastingConsumer | None = None
        self._order = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()
        self._returning: list[Claim] = []
        #: Calls subscribers, and their first argument; those of a communicator replace them.
        self.call = run_here
        self.face: Any = self

    async def connect(self) -> None:
        """Declare the queue; one that is there, with other settings, is used as it is."""
        await super().connect()
        with kiwipy_errors():
            await self._declare()

    async def _declare(self) -> None:
        with suppress(SpecConflict):
            await self._connection.engine.declare(self._spec)

    async def disconnect(self) -> None:
        """Take no more; tasks that subscribers work on go back."""
        await super().disconnect()
        self._subscribers.clear()
        await self._adjust()
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def add_task_subscriber(self, subscriber: Callable[..., Any], identifier: Any = None) -> Any:
        """Add a function that is called with (this, task), or the communicator in its place.

        Its return value is the result; a future is waited for. Its exception is the outcome, but for `kiwipy.TaskRejected`:
        the task is offered to the next subscriber, and behind the last one to others.

        Returns:
            Its identifier, which is made where none is given.

        Raises:
            DuplicateSubscriberIdentifier: There is one of that identifier.
        """
        identifier = identifier or uuid.uuid4().hex
        if identifier in self._subscribers:
            raise kiwipy.DuplicateSubscriberIdentifier(f"Task identifier '{identifier}'")
        self._subscribers[identifier] = subscriber
        with kiwipy_errors():
            try:
                await self._adjust()
            except BaseException:
                del self._subscribers[identifier]
                raise
        return identifier

    async def remove_task_subscriber(self, identifier: Any) -> None:
        """Remove a subscriber; the tasks that it works on stay with it.

        Raises:
            ValueError: There is none of that identifier.
        """
        if self._subscribers.pop(identifier, None) is None:
            raise ValueError(f"Unknown task subscriber '{identifier}'")
        await self._adjust()

    async def _adjust(self) -> None:
        """Consume while there are subscribers."""
        async with self._order:
            if self._subscribers and self._consumer is None:
                engine = self._connection.engine

                async def begin() -> Consumer:
                    await self._declare()
                    return await engine.consume(self._name, credit=self._credit, sink=self._take)

                self._consumer = await LastingConsumer(engine.clock, self._name, begin).open()
            elif not self._subscribers and self._consumer is not None:
                consumer, self._consumer = self._consumer, None
                await consumer.close()

    def _take(self, delivery: Delivery) -> None:
        task = self.loop().create_task(self._work(Claim(delivery, self._payloads), delivery))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _work(self, claim: Claim, delivery: Delivery) -> None:
        for subscriber in tuple(self._subscribers.values()):
            try:
                result = await run(self.call, delivery.progress, subscriber, self.face, claim.data)
                claim.set_result(result)
            except kiwipy.TaskRejected:
                continue
            except (Exception, asyncio.CancelledError) as error:  # a subscriber may raise anything
                if is_cancelled():
                    claim.requeue()
                    raise
                if not isinstance(error, asyncio.CancelledError):
                    _log.exception("a subscriber failed with a task of %r", self._name)
                claim.set_exception(error)
            return
        claim.reject()

    async def take(self) -> RmqIncomingTask | None:
        """Take a task; return None where there is none."""
        while self._returning:
            # Those that were dropped are there again.
            await self._returning.pop().confirmed()
        with kiwipy_errors():
            try:
                delivery = await self._connection.engine.take(self._name, 0.0)
            except QueueEmpty:
                return None
        return RmqIncomingTask(self, delivery, self._payloads)

    def dropped(self, claim: Claim) -> None:
        """Give a task back of which the outcome was dropped; the next one is taken after that."""
        claim.requeue()
        self._returning.append(claim)

    async def __aiter__(self) -> AsyncGenerator[RmqIncomingTask]:
        """Take all tasks that are there; those that nobody worked on go back at the end."""
        tasks = []
        try:
            while (task := await self.take()) is not None:
                tasks.append(task)
                yield task
        finally:
            for each in tasks:
                await each.leave()

    @asynccontextmanager
    async def next_task(
        self,
        no_ack: bool = False,  # noqa: ARG002  # kiwiPy's
        fail: bool = True,
        timeout: float = defaults.TASK_FETCH_TIMEOUT,
    ) -> AsyncGenerator[RmqIncomingTask]:
        """Take a task; it goes back at the end of the block if nobody worked on it.

        Args:
            no_ack: Without effect: a task is done when it has its outcome.
            fail: False for None in place of an exception.
            timeout: Seconds for the engine to answer. It does not wait for a task.

        Raises:
            QueueEmpty: There is no task.
            TimeoutError: The engine did not answer.
        """
        async with asyncio.timeout(timeout):
            task = await self.take()
        if task is None:
            if fail:
                raise kiwipy.QueueEmpty(f"queue {self._name!r} is empty")
            yield None  # type: ignore[misc]  # where it is asked for
            return
        try:
            yield task
        finally:
            await task.leave()


class RmqIncomingTask:
    """A task that was taken. It goes back when it is dropped without an outcome.

    Args:
        subscriber: Its queue.
        delivery: The delivery.
        payloads: The serializers.
    """

    def __init__(self, subscriber: RmqTaskSubscriber, delivery: Delivery, payloads: Payloads) -> None:
        self._subscriber = subscriber
        self._claim = Claim(delivery, payloads)
        self._no_reply = _NO_REPLY in (delivery.envelope.meta or {})
        self._state = TASK_PENDING
        self._outcome: weakref.ref[Any] | None = None

    @property
    def body(self) -> Any:
        """The task.

        Raises:
            BadPayload: It cannot be decoded.
        """
        return self._claim.data

    @property
    def no_reply(self) -> bool:
        """True if its sender wants no reply."""
        return self._no_reply

    @property
    def state(self) -> str:
        """One of pending, processing, finished and requeued."""
        return self._state

    def process(self) -> asyncio.Future[Any]:
        """Begin to work on it.

        Returns:
            The future of its outcome. Cancelling it makes the task pending again; dropping it without an outcome gives the
            task back.

        Raises:
            asyncio.InvalidStateError: It is not pending.
        """
        return self.begin(self._subscriber.loop().create_future())

    def begin(self, outcome: FutureT) -> FutureT:
        """Begin to work on it, with a future for its outcome. See `process`."""
        self.claim()
        outcome.add_done_callback(lambda done: self._soon(self.finish, done))
        self._outcome = weakref.ref(outcome, lambda _: self._soon(self._forget))
        return outcome

    @asynccontextmanager
    async def processing(self) -> AsyncGenerator[asyncio.Future[Any]]:
        """Work on it in a block, which sets the outcome; without one it goes back, and an exception is one.

        Raises:
            asyncio.InvalidStateError: It is not pending.
        """
        self.claim()
        outcome = self._subscriber.loop().create_future()
        try:
            yield outcome
        except Exception as error:
            if not outcome.done():
                # A future cannot raise StopIteration.
                outcome.set_exception(
                    RuntimeError(f"it raised {error!r}") if isinstance(error, StopIteration) else error
                )
            raise
        finally:
            await self.end(outcome)

    async def requeue(self) -> None:
        """Give it back; it is in the queue when this returns.

        Raises:
            asyncio.InvalidStateError: It has its outcome, or went back.
        """
        if self._state not in {TASK_PENDING, TASK_PROCESSING}:
            raise asyncio.InvalidStateError(f"the task is {self._state}")
        self._state = TASK_REQUEUED
        self._claim.requeue()
        await self._claim.confirmed()

    async def leave(self) -> None:
        """Give it back if nobody works on it."""
        if self._state == TASK_PENDING:
            await self.requeue()

    async def end(self, outcome: asyncio.Future[Any] | concurrent.futures.Future[Any]) -> None:
        """End it with what a block left: an outcome, or nothing, which gives it back."""
        if outcome.done() and not outcome.cancelled():
            self.finish(outcome)
            await self._claim.confirmed()
        elif self._state == TASK_PROCESSING:
            await self.requeue()

    def finish(self, outcome: asyncio.Future[Any] | concurrent.futures.Future[Any]) -> None:
        """On the loop: end it with an outcome."""
        if self._state != TASK_PROCESSING:
            return
        if outcome.cancelled():
            self._state = TASK_PENDING
            return
        self._state = TASK_FINISHED
        error = outcome.exception()
        try:
            if error is None:
                self._claim.set_result(outcome.result())
        except EncodeError as problem:
            error = problem
        if error is not None:
            self._claim.set_exception(error)

    def claim(self) -> None:
        """Note that somebody works on it. See `process`."""
        if self._state != TASK_PENDING:
            raise asyncio.InvalidStateError(f"the task is {self._state}")
        self._state = TASK_PROCESSING

    def _forget(self) -> None:
        if self._state == TASK_PROCESSING:
            self._state = TASK_REQUEUED
            self._subscriber.dropped(self._claim)

    def _soon(self, function: Callable[..., object], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed, and the connection with it
            self._subscriber.loop().call_soon_threadsafe(function, *args)


class RmqTaskPublisher(_Part):
    """Sends tasks to a queue, which has to be there.

    Args:
        connection: The connection.
        queue_name: Name of the queue.
        exchange_name: Without effect: a queue is found by its name.
        exchange_params: Without effect.
        encoder: Encodes tasks.
        decoder: Decodes results.
        confirm_deliveries: Without effect: each task is confirmed.
        testing_mode: Without effect.
    """

    def __init__(
        self,
        connection: Connection,
        queue_name: str = defaults.TASK_QUEUE,
        exchange_name: str = defaults.MESSAGE_EXCHANGE,
        exchange_params: object = None,  # noqa: ARG002  # kiwiPy's
        encoder: Callable[[Any], Any] = defaults.ENCODER,
        decoder: Callable[[bytes], Any] = defaults.DECODER,
        confirm_deliveries: bool = True,  # noqa: ARG002
        testing_mode: bool = False,  # noqa: ARG002
    ) -> None:
        super().__init__(connection, exchange_name, queue_name, encoder, decoder)

    async def task_send(self, task: Any, no_reply: bool = False) -> asyncio.Future[Any] | None:
        """Send a task; it is in the queue as surely as the engine can say when this returns.

        Args:
            task: The task.
            no_reply: Send and store no result.

        Returns:
            The future of its outcome, or None with `no_reply`. The result may be another future: see `Answer`.

        Raises:
            EncodeError: It cannot be encoded.
            UnroutableError: There is no such queue.
            TaskRejected: The queue did not take it, or did not confirm it.
            CommunicatorClosed: The connection was closed.

        Cancelled, it withdraws a task that waits for room; one that was sent may be in the queue. Cancelling the future
        changes nothing for the task.
        """
        answer = None if no_reply else Answer(self._payloads)
        envelope = self._payloads.pack(task, {_NO_REPLY: True} if no_reply else None)
        with kiwipy_errors(kiwipy.TaskRejected):
            await self._connection.engine.publish(envelope, queue=self._name, watcher=answer, keep=not no_reply)
        return None if answer is None else answer.future


class RmqTaskQueue:
    """Both ends of a queue of tasks: see `RmqTaskPublisher` and `RmqTaskSubscriber`, whose arguments these are.

    Attributes:
        publisher: The end that sends.
        subscriber: The end that takes.
    """

    def __init__(
        self,
        connection: Connection,
        exchange_name: str = defaults.MESSAGE_EXCHANGE,
        queue_name: str = defaults.TASK_QUEUE,
        **options: Any,
    ) -> None:
        self.subscriber = RmqTaskSubscriber(connection, exchange_name, queue_name, **options)
        sends = {name: value for name, value in options.items() if not name.startswith("prefetch_")}
        self.publisher = RmqTaskPublisher(connection, queue_name, exchange_name, **sends)
        self.task_send = self.publisher.task_send
        self.add_task_subscriber = self.subscriber.add_task_subscriber
        self.remove_task_subscriber = self.subscriber.remove_task_subscriber
        self.next_task = self.subscriber.next_task

    def __aiter__(self) -> AsyncGenerator[RmqIncomingTask]:
        """Take all tasks that are there. See `RmqTaskSubscriber`."""
        return self.subscriber.__aiter__()

    async def connect(self) -> None:
        """Connect, and declare the queue."""
        await self.subscriber.connect()

    async def disconnect(self) -> None:
        """Take no more; tasks that subscribers work on go back."""
        await self.subscriber.disconnect()
