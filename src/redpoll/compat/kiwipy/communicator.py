"""The communicator for coroutines."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, Self
from urllib.parse import quote

import kiwipy

from redpoll.bus.awaitables import is_cancelled
from redpoll.bus.broadcast import Broadcast, Broadcasts, BroadcastSubscription
from redpoll.bus.engine import Delivery
from redpoll.bus.envelope import Outcome, OutcomeKind, Payloads
from redpoll.bus.failures import pack_failure
from redpoll.bus.lasting import LastingConsumer
from redpoll.bus.rpc.target import Target, queue_name, queue_spec
from redpoll.compat.kiwipy import defaults
from redpoll.compat.kiwipy.connection import Answer, Codec, Connection, connect_robust, kiwipy_errors, run, run_here
from redpoll.compat.kiwipy.tasks import RmqTaskQueue

__all__ = ["RmqCommunicator", "async_connect"]

_log = logging.getLogger("redpoll.compat.kiwipy")

#: Calls of a recipient at a time, and broadcasts that wait for the subscribers; kiwiPy has no limits.
_CALLS: Final = 65_535
_BROADCASTS: Final = 100_000
#: Seconds that closing waits for calls which have begun.
_DRAIN: Final = 0.5


class RmqCommunicator:
    """Tasks, calls and broadcasts for coroutines, as kiwiPy's, on any engine. It closes its connection with itself.

    Args:
        connection: The connection; it need not be connected.
        message_exchange: The scope of calls and broadcasts: they reach communicators with the same one.
        queue_expires: Without effect.
        task_exchange: Without effect: a queue is found by its name.
        task_queue: The queue of tasks.
        task_prefetch_size: Without effect.
        task_prefetch_count: Maximum tasks that the subscribers of the queue work on; 0 is no limit.
        encoder: Encodes tasks, messages, results and broadcasts.
        decoder: Decodes them.
        testing_mode: Make queues of tasks that do not survive a restart, and are deleted when they were not used for 10 s.

    Attributes:
        call: Calls subscribers.
        face: Their first argument.
    """

    def __init__(
        self,
        connection: Connection,
        message_exchange: str = defaults.MESSAGE_EXCHANGE,
        queue_expires: int = defaults.QUEUE_EXPIRES,  # noqa: ARG002  # kiwiPy's
        task_exchange: str = defaults.TASK_EXCHANGE,
        task_queue: str = defaults.TASK_QUEUE,
        task_prefetch_size: int = defaults.TASK_PREFETCH_SIZE,  # noqa: ARG002
        task_prefetch_count: int = defaults.TASK_PREFETCH_COUNT,
        encoder: Callable[[Any], Any] = defaults.ENCODER,
        decoder: Callable[[bytes], Any] = defaults.DECODER,
        testing_mode: bool = False,
    ) -> None:
        self._connection = connection
        self._scope = quote(message_exchange, safe=" .$&'()+,;=[]")
        self._task_queue = task_queue, task_prefetch_count
        self._of_queues: dict[str, Any] = {
            "exchange_name": task_exchange,
            "encoder": encoder,
            "decoder": decoder,
            "testing_mode": testing_mode,
        }
        self._payloads = Payloads(Codec(encoder, decoder))
        self._order = asyncio.Lock()
        self._queues: list[RmqTaskQueue] = []
        self._default: RmqTaskQueue | None = None
        #: None while one is added.
        self._recipients: dict[str, LastingConsumer | None] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._broadcasts: Broadcasts | None = None
        self._subscription: BroadcastSubscription | None = None
        self._listeners: dict[Any, Callable[..., Any]] = {}
        self.call = run_here
        self.face: Any = self

    def __str__(self) -> str:
        return f"RmqCommunicator({self._connection})"

    # -- life

    async def __aenter__(self) -> Self:
        """Connect."""
        await self.connect()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Disconnect."""
        await self.disconnect()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop on which it is used."""
        return self._connection.loop

    @property
    def server_properties(self) -> dict[str, Any]:
        """See `Connection.server_properties`; empty without a connection."""
        return self._connection.server_properties

    def add_close_callback(self, callback: Callable[..., object], weak: bool = False) -> None:
        """Call a plain function with (connection, exception) on the loop, each time that the connection was lost or closed.

        Args:
            callback: The function.
            weak: True to keep it only as long as something else refers to it.
        """
        self._connection.close_callbacks.add(callback, weak)

    def connected(self) -> bool:
        """Return True if it was connected, and not closed since."""
        return not self._connection.is_closed

    async def connect(self) -> None:
        """Connect, if it is not connected.

        Raises:
            DialFailed: The engine was not reached.
        """
        await self._connection.connect()

    async def disconnect(self) -> None:
        """Close, if it is connected: calls that have begun get half a second, tasks that are worked on go back."""
        if not self.connected():
            return
        try:
            self._listeners.clear()
            await self._adjust()
            for recipient, consumer in tuple(self._recipients.items()):
                if consumer is not None:
                    await self.remove_rpc_subscriber(recipient)
            if self._calls:
                await asyncio.wait(self._calls, timeout=_DRAIN)
            for call in self._calls:
                call.cancel()
            for queue in self._queues:
                await queue.disconnect()
        finally:
            self._queues.clear()
            self._default = self._broadcasts = None
            await self._connection.close()

    async def close(self, drain: float | None = 0.0) -> None:  # noqa: ARG002  # as that of a bus
        """Close. See `disconnect`."""
        await self.disconnect()

    # -- tasks

    async def get_default_task_queue(self) -> RmqTaskQueue:
        """Return the queue of tasks that name none; it is declared when it is first used."""
        async with self._order:
            if self._default is None:
                name, count = self._task_queue
                self._default = await self.task_queue(name, prefetch_count=count)
        return self._default

    async def get_message_subscriber(self) -> Self:
        """Return the end that takes messages, which is this."""
        return self

    async def get_message_publisher(self) -> Self:
        """Return the end that sends messages, which is this."""
        return self

    async def task_queue(
        self,
        queue_name: str,
        prefetch_size: int = defaults.TASK_PREFETCH_SIZE,  # noqa: ARG002
        prefetch_count: int = defaults.TASK_PREFETCH_COUNT,
    ) -> RmqTaskQueue:
        """Return another queue of tasks, which is declared. It is closed with this.

        Raises:
            RuntimeError: It is not connected.
        """
        self._connection.engine  # noqa: B018  # raises
        options = {**self._of_queues, "prefetch_count": prefetch_count}
        queue = RmqTaskQueue(self._connection, queue_name=queue_name, **options)
        queue.subscriber.call, queue.subscriber.face = self.call, self.face
        await queue.connect()
        self._queues.append(queue)
        return queue

    async def add_task_subscriber(self, subscriber: Callable[..., Any], identifier: Any = None) -> Any:
        """Add a subscriber for tasks. See `RmqTaskSubscriber.add_task_subscriber`."""
        return await (await self.get_default_task_queue()).add_task_subscriber(subscriber, identifier)

    async def remove_task_subscriber(self, identifier: Any) -> None:
        """Remove a subscriber for tasks. See `RmqTaskSubscriber.remove_task_subscriber`."""
        await (await self.get_default_task_queue()).remove_task_subscriber(identifier)

    async def task_send(self, task: Any, no_reply: bool = False) -> asyncio.Future[Any] | None:
        """Send a task. See `RmqTaskPublisher.task_send`."""
        return await (await self.get_default_task_queue()).task_send(task, no_reply)

    # -- calls

    def _queue(self, recipient: object) -> str:
        return queue_name(Target(quote(str(recipient), safe=" .$&'()+,;=[]"), exchange=self._scope))

    async def add_rpc_subscriber(self, subscriber: Callable[..., Any], identifier: Any = None) -> Any:
        """Serve a recipient by a function that is called with (communicator, message).

        Its return value is the answer; for a future the caller gets a future at once. A call is begun at most once. Where
        several communicators serve one recipient, each call reaches one of them.

        Returns:
            The identifier of the recipient, which is made where none is given.

        Raises:
            DuplicateSubscriberIdentifier: This communicator serves that recipient.
        """
        identifier = identifier or uuid.uuid4().hex
        if identifier in self._recipients:
            raise kiwipy.DuplicateSubscriberIdentifier(f"RPC identifier '{identifier}'")

        def take(delivery: Delivery) -> None:
            call = self.loop.create_task(self._serve(subscriber, delivery))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

        engine, spec = self._connection.engine, queue_spec(self._queue(identifier))
        self._recipients[identifier] = None
        with kiwipy_errors():
            try:
                self._recipients[identifier] = await LastingConsumer.declared(
                    engine, spec, credit=_CALLS, sink=take, accept=True
                )
            except BaseException:
                del self._recipients[identifier]
                raise
        return identifier

    async def remove_rpc_subscriber(self, identifier: Any) -> None:
        """Serve a recipient no longer.

        Raises:
            ValueError: This communicator does not serve it.
        """
        consumer = self._recipients.get(identifier)
        if consumer is None:
            raise ValueError(f"Unknown subscriber '{identifier}'")
        del self._recipients[identifier]
        await consumer.close()

    async def _serve(self, subscriber: Callable[..., Any], delivery: Delivery) -> None:
        try:
            message = self._payloads.unpack(delivery.envelope)
            result = await run(self.call, delivery.progress, subscriber, self.face, message)
            outcome = Outcome(OutcomeKind.RESULT, self._payloads.pack(result))
        except (Exception, asyncio.CancelledError) as error:  # a subscriber may raise anything
            if isinstance(error, asyncio.CancelledError):
                outcome = Outcome(OutcomeKind.CANCELLED, None, str(error))
            else:
                outcome = Outcome(OutcomeKind.ERROR, pack_failure(error))
            if is_cancelled():
                delivery.ack(outcome)
                raise
        delivery.ack(outcome)

    async def rpc_send(self, recipient_id: Any, msg: Any) -> asyncio.Future[Any]:
        """Call a recipient.

        Returns:
            The future of the answer. The result may be another future: see `Answer`.

        Raises:
            EncodeError: The message cannot be encoded.
            UnroutableError: Nobody serves the recipient.
            DeliveryFailed: The message was not sent, or not confirmed.
            CommunicatorClosed: The connection was closed.

        Cancelling the future changes nothing for the recipient.
        """
        engine, answer = self._connection.engine, Answer(self._payloads)
        envelope = self._payloads.pack(msg)
        with kiwipy_errors():
            await engine.publish(envelope, queue=self._queue(recipient_id), watcher=answer, keep=False, mandatory=True)
        return answer.future

    # -- broadcasts

    async def add_broadcast_subscriber(self, subscriber: Callable[..., Any], identifier: Any = None) -> Any:
        """Call a function with (communicator, body, sender, subject, correlation id) for each broadcast, one by one.

        Returns:
            Its identifier, which is made where none is given.

        Raises:
            DuplicateSubscriberIdentifier: There is one of that identifier.
        """
        identifier = identifier or uuid.uuid4().hex
        if identifier in self._listeners:
            raise kiwipy.DuplicateSubscriberIdentifier(f"Broadcast identifier '{identifier}'")
        self._connection.engine  # noqa: B018  # raises
        self._listeners[identifier] = subscriber
        with kiwipy_errors():
            try:
                await self._adjust()
            except BaseException:
                del self._listeners[identifier]
                raise
        return identifier

    async def remove_broadcast_subscriber(self, identifier: Any) -> None:
        """Remove a subscriber for broadcasts.

        Raises:
            ValueError: There is none of that identifier.
        """
        if self._listeners.pop(identifier, None) is None:
            raise ValueError(f"Broadcast subscriber '{identifier}' unknown")
        await self._adjust()

    async def _adjust(self) -> None:
        """Take broadcasts while there are subscribers for them."""
        async with self._order:
            if self._listeners and self._subscription is None:
                if self._broadcasts is None:
                    self._broadcasts = Broadcasts(self._connection.engine, self._payloads)
                made = self._broadcasts.subscribe(self._hear, subject=self._scope, buffer=_BROADCASTS)
                self._subscription = await made.start()
            elif not self._listeners and self._subscription is not None:
                subscription, self._subscription = self._subscription, None
                await subscription.close()

    async def _hear(self, broadcast: Broadcast) -> None:
        fields = broadcast.body, broadcast.sender, broadcast.subject, broadcast.correlation_id
        for subscriber in tuple(self._listeners.values()):
            try:
                await self.call(subscriber, self.face, *fields)
            except (Exception, asyncio.CancelledError):  # a subscriber may raise anything
                if is_cancelled():
                    raise
                _log.exception("a subscriber failed with a broadcast")

    async def broadcast_send(
        self, body: Any, sender: Any = None, subject: Any = None, correlation_id: Any = None
    ) -> bool:
        """Send a broadcast to all communicators of the scope; having no subscribers is no error.

        Args:
            body: The body.
            sender: The sender, as MessagePack carries it.
            subject: The subject, likewise.
            correlation_id: The correlation id, likewise.

        Returns:
            False: the engine did not take it, or did not confirm it, as when a connection is lost. That is logged.

        Raises:
            EncodeError: It cannot be encoded.
            CommunicatorClosed: The connection was closed.
        """
        fields = {"sender": sender, "subject": subject, "correlation_id": correlation_id}
        meta = {name: value for name, value in fields.items() if value is not None}
        envelope = self._payloads.pack(body, meta or None)
        try:
            with kiwipy_errors():
                await self._connection.engine.publish(envelope, subject=f"broadcast.{self._scope}")
        except kiwipy.DeliveryFailed as error:
            _log.warning("a broadcast was not sent: %s", error)
            return False
        return True


async def async_connect(
    connection_params: str | Mapping[str, Any] | None = None,
    connection_factory: Callable[..., Any] = connect_robust,
    **options: Any,
) -> RmqCommunicator:
    """Return a connected communicator.

    Args:
        connection_params: The URL of an engine, as text or as ``{"url": …}`` with more arguments of the factory.
        connection_factory: Makes the connection.
        **options: Those of `RmqCommunicator`.

    Raises:
        ConfigError: There is no such engine, or option.
        DialFailed: The engine was not reached.
    """
    given = {"url": connection_params} if isinstance(connection_params, str) else dict(connection_params or {})
    communicator = RmqCommunicator(await connection_factory(**given), **options)
    await communicator.connect()
    return communicator
