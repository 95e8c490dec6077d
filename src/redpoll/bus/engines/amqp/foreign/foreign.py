"""Exchanges and queues that are not redpoll's: ``bus.foreign``."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

from redpoll.bus.engines.amqp.foreign.messages import Exchange, Queue
from redpoll.bus.engines.amqp.link import Broken, Channel, Rejected
from redpoll.bus.engines.amqp.publishing import Publisher, Sending
from redpoll.bus.engines.amqp.session import Session, refusal_of
from redpoll.bus.engines.amqp.wire import NO_PROPERTIES, Content, Properties
from redpoll.bus.feed import Feed
from redpoll.checks import duration, integer, optional, require
from redpoll.errors import Expired, NotConfirmed, RedpollError, UsageError

__all__ = ["Foreign", "ForeignConsumer", "ForeignMessage"]

#: Seconds that closing waits for confirmations.
_GOODBYE: Final = 2.0
#: Seconds before a consumer begins again that the server ended.
_PAUSE: Final = 1.0
Ask = Callable[..., Awaitable[tuple[Any, ...]]]

#: The name of a consumer on its channel.
_TAG: Final = "foreign"
_DURABLE, _AUTO_DELETE, _EXCLUSIVE = 2, 4, 4
_credit: Final = integer(1, 65_535)


class ForeignMessage:
    """A message that was received. Without `ack` or `nack` it goes back to its queue when the connection ends.

    Attributes:
        body: The body.
        properties: The properties.
        exchange: The exchange that it was published to.
        key: Its routing key.
        redelivered: True if it was handed out before.
    """

    __slots__ = ("_channel", "_tag", "body", "exchange", "key", "properties", "redelivered")

    def __init__(self, channel: Channel, content: Content) -> None:
        _, self._tag, redelivered, self.exchange, self.key = content.arguments
        self.redelivered = bool(redelivered)
        self.body = content.body
        self.properties = content.properties
        self._channel: Channel | None = channel

    def __repr__(self) -> str:
        return f"<ForeignMessage {self.exchange!r} {self.key!r}, {len(self.body)} bytes>"

    def ack(self) -> None:
        """Acknowledge it: the server deletes it. A later call, and one after the connection was lost, does nothing."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.settle(self._tag)

    def nack(self, requeue: bool = True) -> None:
        """Give it back to its queue; or drop it, into the queue's dead letters if it has any."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.give_back(self._tag, requeue)


class ForeignConsumer:
    """Receives messages of a queue: by a sink, or by iterating. Made by `Foreign.consume`; it is an async context manager.

    It is restored after a lost connection and after its queue was deleted, once that is there again.

    Attributes:
        queue: Name of the queue.
    """

    def __init__(
        self,
        foreign: Foreign,
        session: Session,
        queue: Queue | str,
        credit: int,
        sink: Callable[[ForeignMessage], object] | None,
        lost: Callable[[], object] | None,
        exclusive: bool,
        arguments: Mapping[str, Any] | None,
    ) -> None:
        self.queue = queue if isinstance(queue, str) else queue.name
        self._foreign = foreign
        self._session = session
        self._wanted = queue
        self._credit = credit
        self._feed: Feed[ForeignMessage] = Feed()
        self._sink = self._feed.push if sink is None else sink
        self._lost = lost
        self._options: dict[str, Any] = {"exclusive": exclusive, "arguments": arguments}
        self._channel: Channel | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<ForeignConsumer of {self.queue!r} {'active' if self.active else 'not active'}>"

    @property
    def active(self) -> bool:
        """True if the server hands out to it."""
        return self._channel is not None and self._channel.usable

    def __aiter__(self) -> Self:
        """Return itself; there is one iteration."""
        return self

    async def __anext__(self) -> ForeignMessage:
        """Wait for the next message. Cancelling it loses nothing."""
        return await self._feed.take()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close."""
        await self.close()

    async def close(self) -> None:
        """Receive no more. Messages that were not handed out go back; open ones can still be acknowledged.

        Cancelled, it ends nevertheless.
        """
        await asyncio.wait((self.leave(),))

    async def _close(self) -> None:
        self._closed = True
        self._session.discard(self)
        channel, self._channel = self._channel, None
        if channel is not None:
            with suppress(Rejected, Broken):  # it has ended with its channel
                await channel.cancel(_TAG)
                if isinstance(self._wanted, Queue) and self._wanted.exclusive:
                    await channel.ask("queue.delete", 0, self.queue, 0)
            while self._feed.items:
                self._feed.items.pop().nack()
            channel.retire()
        self._feed.end()

    def leave(self) -> asyncio.Task[None]:
        """Close it without waiting for that."""
        return self._session.spawn(self._close())

    # -- of `Entity`

    @property
    def label(self) -> str:
        """Its name in reports."""
        return f"the consumer of {self.queue!r}"

    async def restore(self) -> None:
        """Declare its queue, if that is its own, and begin to consume."""
        async with self._session.incoming.opening(self._ended) as channel:
            if isinstance(self._wanted, Queue):
                # An exclusive queue is for the connection that declares it.
                self.queue = await self._foreign.set_up(self._wanted, channel.ask)
            await channel.ask("basic.qos", 0, self._credit, 0)
            self._channel = channel
            deliver = partial(self._deliver, channel)
            await channel.consume(self.queue, _TAG, deliver, self._cancelled, **self._options)
        if self._closed:
            await self.close()

    def suspend(self, error: Exception) -> None:  # noqa: ARG002
        """Note that its messages are handed out again."""
        if self._channel is not None:
            self._channel = None
            self._feed.items.clear()
            if self._lost is not None:
                self._lost()

    def _ended(self, error: Exception) -> None:
        if isinstance(error, Rejected):
            # Of this channel alone.
            self.suspend(error)
            self._session.restore_soon(self, str(error), _PAUSE)

    def _cancelled(self) -> None:
        channel, error = self._channel, Rejected(404, "the server ended it")
        self.suspend(error)
        if channel is not None:
            channel.retire()
        self._session.restore_soon(self, str(error), _PAUSE)

    def _deliver(self, channel: Channel, content: Content) -> None:
        message = ForeignMessage(channel, content)
        if self._closed:
            message.nack()
        else:
            self._sink(message)


class Foreign:
    """Exchanges and queues of the server, whoever declared them: ``bus.foreign``.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._publishing: Publisher | None = None
        self._error: RedpollError | None = None
        self._declared: set[object] = set()
        self._generation = 0

    @property
    def _publisher(self) -> Publisher:
        """Publishes, on a channel of its own: a missing exchange ends a channel."""
        if self._publishing is None:
            self._publishing = Publisher(self._session, "publishing to others")
            self._session.spawn(self._session.add(self._publishing))
        return self._publishing

    async def declare(self, thing: Exchange | Queue) -> None:
        """Make sure that an exchange, or a queue with its exchanges and bindings, is there.

        Raises:
            UsageError: The queue has no name, or AMQP cannot carry a name or an argument.
            SpecConflict: It is there and differs.
            NotAuthorized: It is not allowed.
        """
        if isinstance(thing, Queue) and not thing.name:
            raise UsageError("a queue without a name is its consumer's", "pass it to consume()")
        key = thing if isinstance(thing, Exchange) else (thing.name, thing.bindings)
        if self._generation != self._session.generation:
            # Queues and exchanges that are not durable may be gone.
            self._generation = self._session.generation
            self._declared.clear()
        if key in self._declared:
            return
        while True:
            await self._session.linked()
            try:
                if isinstance(thing, Exchange):
                    await self._exchange(thing, self._session.ask)
                else:
                    await self.set_up(thing, self._session.ask)
            except Rejected as error:
                raise refusal_of(error, thing.name) from error
            except Broken:
                await asyncio.sleep(0)
            else:
                break
        if not (isinstance(thing, Exchange) and thing.auto_delete):
            self._declared.add(key)

    async def _exchange(self, exchange: Exchange, ask: Ask) -> None:
        name, kind, durable, auto_delete = exchange
        if name:
            bits = _DURABLE * durable | _AUTO_DELETE * auto_delete
            await ask("exchange.declare", 0, name, kind, bits, {})

    async def set_up(self, queue: Queue, ask: Ask) -> str:
        """Declare a queue and its bindings on a channel, and return its name."""
        bits = _DURABLE * queue.durable | _EXCLUSIVE * queue.exclusive
        name = queue.name or f"redpoll.{uuid.uuid4().hex}"
        for exchange, _ in queue.bindings:
            await self._exchange(exchange, ask)
        await ask("queue.declare", 0, name, bits, dict(queue.arguments))
        for exchange, key in queue.bindings:
            await ask("queue.bind", 0, name, exchange.name, key, 0, {})
        return name

    async def publish(
        self,
        body: bytes | memoryview,
        *,
        exchange: str = "",
        key: str = "",
        properties: Properties = NO_PROPERTIES,
        mandatory: bool = True,
        timeout: float | None = 30.0,
    ) -> None:
        """Publish a message; this returns when the server has confirmed it.

        Args:
            body: The body.
            exchange: Name of the exchange; "" is the default one, whose routing keys are names of queues.
            key: The routing key.
            properties: The properties, in AMQP's own terms: `expiration` is text, in milliseconds.
            mandatory: Fail if it reaches no queue.
            timeout: Seconds to wait for a connection and for the confirmation; None is no limit.

        Raises:
            NoRoute: It reached no queue.
            NotAuthorized: It is not allowed.
            NotConfirmed: It was sent, and the connection was lost, or the time ended, before the confirmation.
            Expired: It was not sent in time.
            QueueFull: A queue is full and refused it.
            UsageError: AMQP cannot carry a name or a property; nothing was sent.
            Closed: The bus is closed.

        Cancelled, it withdraws what was not sent.
        """
        require("timeout", timeout, optional(duration))
        await self.wait(self.send(Sending(exchange, key, properties, body, mandatory=mandatory)), timeout)

    def send(self, sending: Sending) -> Sending:
        """Publish a message; for engines."""
        if self._error is None:
            self._publisher.send(sending)
        else:
            sending.end(self._error)
        return sending

    async def wait(self, sending: Sending, timeout: float | None) -> None:
        """Wait for the end of a message; for engines."""
        try:
            async with asyncio.timeout(timeout):
                await sending
        except TimeoutError as error:
            if sending.error is not None:
                raise
            if self._publisher.withdraw(sending):
                raise Expired(None, timeout, "waiting for a connection") from error
            raise NotConfirmed(None, f"no confirmation came in {timeout:g} s") from error
        except asyncio.CancelledError:
            self._publisher.withdraw(sending)
            raise

    async def consume(
        self,
        queue: Queue | str,
        *,
        credit: int = 1,
        sink: Callable[[ForeignMessage], object] | None = None,
        lost: Callable[[], object] | None = None,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> ForeignConsumer:
        """Receive the messages of a queue: ``async for message in await bus.foreign.consume("audit"): …``.

        Args:
            queue: Its name; or a queue that is declared, now and after each reconnect.
            credit: Maximum number of messages that are not acknowledged, 1 to 65,535.
            sink: A plain function that is called with each message, on the loop; without it, iterate.
            lost: A plain function that is called when open messages go back because the connection was lost.
            exclusive: Be the only consumer.
            arguments: Arguments of the consumer, as AMQP has them: ``{"x-priority": 10}``.

        Raises:
            NoRoute: The queue does not exist.
            SpecConflict: Another consumer has it exclusively; or it is there and differs.
            NotAuthorized: It is not allowed.
        """
        require("credit", credit, _credit)
        consumer = ForeignConsumer(self, self._session, queue, credit, sink, lost, exclusive, arguments)
        await self._session.linked()
        try:
            await self._session.add(consumer)
        except Rejected as error:
            raise refusal_of(error, consumer.queue) from error
        return consumer

    async def delete(self, queue: str, *, if_unused: bool = False) -> None:
        """Delete a queue and its messages.

        Args:
            queue: Its name.
            if_unused: Leave one that has messages or consumers.

        Raises:
            NoRoute: There is none of that name.
        """
        try:
            await self._session.look(queue)  # deleting what is not there is no error of the server
            await self._session.ask_again("queue.delete", 0, queue, 3 if if_unused else 0)
        except Rejected as error:
            if error.code != 406:
                raise refusal_of(error, queue) from error
        self._declared.clear()

    async def flush(self) -> None:
        """Wait for the confirmations of what was sent; for engines."""
        if self._publishing is not None and self._session.ready:
            with suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    await self._publishing.flush()

    def close(self, error: RedpollError) -> None:
        """Settle what is not confirmed with an error; for engines."""
        self._error = error
        if self._publishing is not None:
            self._publishing.close(error)
