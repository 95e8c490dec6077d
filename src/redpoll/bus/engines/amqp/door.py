"""The door for what is built on this engine and speaks to exchanges and queues that are not redpoll's.

`AmqpEngine.door` has it. What is added there is restored after each reconnect as the engine's own, and parks alone where the
server refuses it (`EngineState.DEGRADED` names it). Methods have the names and all the arguments of the specification, as
`wire` has them: ``door.ask("queue.bind", 0, queue, exchange, key, 0, {})``.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from redpoll.bus.engines.amqp.link import Channel, Rejected
from redpoll.bus.engines.amqp.publishing import Publisher, Sending
from redpoll.bus.engines.amqp.session import Entity, Session
from redpoll.bus.engines.amqp.wire import Content, Properties

__all__ = ["Door", "Tap"]

_numbers = itertools.count(1)


class Door:
    """Raw access to the broker of an engine.

    Args:
        name: Identifies the engine, for names of queues.
        session: The session.

    Attributes:
        name: The same.
    """

    def __init__(self, name: str, session: Session) -> None:
        self.name = name
        self._session = session
        self._publisher: Publisher | None = None

    async def ask(self, method: str, *arguments: Any) -> tuple[Any, ...]:
        """Send a request, as to declare something, and return the arguments of its answer; wait for a connection.

        Where the server refuses it, nothing else is harmed. Inside of `Entity.restore` use `ask_now`.

        Raises:
            Rejected: The server refuses it, with its number: 404 there is none, 406 there is another one.
            Closed: The engine was closed.
        """
        return await self._session.ask_again(method, *arguments)

    async def ask_now(self, method: str, *arguments: Any) -> tuple[Any, ...]:
        """Send a request on the connection that there is: for `Entity.restore`.

        Raises:
            Rejected: The server refuses it.
            Broken: The connection was lost.
        """
        return await self._session.ask(method, *arguments)

    async def channel(self, closed: Callable[[Exception], object] | None = None) -> Channel:
        """Open a channel for consuming: for `Entity.restore`.

        Args:
            closed: Is called with the error once the server, or the connection, has ended it.
        """
        return await self._session.incoming.channel(closed)

    async def publisher(self) -> Publisher:
        """Return what publishes, on a channel apart from the engine's: a missing exchange ends a channel.

        ``publisher.send(sending)`` publishes; a `Sending` is awaited for its confirmation: `NoRoute` where it is mandatory
        and has none, `QueueFull` where a queue refuses, `NotConfirmed` where the connection was lost.
        """
        if self._publisher is None:
            self._publisher = Publisher(self._session, "publishing to others")
            await self._session.add(self._publisher)
        return self._publisher

    async def publish(
        self,
        exchange: str,
        key: str,
        properties: Properties,
        body: bytes | memoryview,
        *,
        mandatory: bool = False,
        again: bool = False,
    ) -> None:
        """Publish a message, and wait for its confirmation. The arguments are those of `Sending`.

        Raises:
            NoRoute: It is mandatory, and has reached no queue.
            QueueFull: A queue refuses it.
            NotConfirmed: The connection was lost before.
        """
        sending = Sending(exchange, key, properties, body, mandatory=mandatory, again=again)
        (await self.publisher()).send(sending)
        await sending

    async def add(self, entity: Entity) -> None:
        """Set something up, now and after each reconnect."""
        await self._session.add(entity)

    def discard(self, entity: Entity) -> None:
        """Do not restore it any more."""
        self._session.discard(entity)

    def restore_soon(self, entity: Entity, reason: str, pause: float = 0.0) -> None:
        """Restore something whose channel or consumer was ended by the server alone."""
        self._session.restore_soon(entity, reason, pause)

    def close(self, error: Any) -> None:
        """Settle what was not confirmed: for the engine."""
        if self._publisher is not None:
            self._publisher.close(error)


class Tap:
    """A consumer of a queue that is not redpoll's, which is restored.

    Args:
        door: The door.
        queue: Name of the queue.
        deliver: Is called with the channel and each message; ``channel.settle(tag)`` acknowledges, with
            ``tag = content.arguments[1]``, ``channel.give_back(tag, requeue)`` rejects. Both do nothing on a channel that
            is gone.
        setup: Declares, before each consuming, with `Door.ask_now`; None declares nothing.
        prefetch: Maximum number of messages that are not acknowledged; 0 is no limit.
        unacknowledged: True for messages that need no acknowledgement.
        exclusive: True to be the only consumer.
        arguments: Of the consumer.
        lost: Is called when its channel is gone, with all that was not acknowledged.

    Attributes:
        channel: Its channel; None while there is none.
    """

    def __init__(
        self,
        door: Door,
        queue: str,
        deliver: Callable[[Channel, Content], object],
        *,
        setup: Callable[[], Awaitable[object]] | None = None,
        prefetch: int = 0,
        unacknowledged: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
        lost: Callable[[], object] | None = None,
    ) -> None:
        self.label = f"the consumer of {queue!r}"
        self.channel: Channel | None = None
        self._door = door
        self._queue = queue
        self._deliver = deliver
        self._setup = setup
        self._prefetch = prefetch
        self._options: dict[str, Any] = {
            "unacknowledged": unacknowledged,
            "exclusive": exclusive,
            "arguments": arguments,
        }
        self._lost = lost
        self._tag = ""

    async def restore(self) -> None:
        """Declare, and consume."""
        if self._setup is not None:
            await self._setup()
        channel = await self._door.channel(self._closed)
        if self._prefetch:
            await channel.ask("basic.qos", 0, self._prefetch, 0)
        self._tag = f"{self._door.name}-{next(_numbers)}"
        self.channel = channel
        await channel.consume(
            self._queue, self._tag, lambda content: self._deliver(channel, content), self._cancelled, **self._options
        )

    def suspend(self, _: Exception) -> None:
        """Note that its channel is gone."""
        if self.channel is not None:
            self.channel = None
            if self._lost is not None:
                self._lost()

    def _closed(self, error: Exception) -> None:
        if isinstance(error, Rejected):
            self.suspend(error)
            self._door.restore_soon(self, str(error), 0.1)

    def _cancelled(self) -> None:
        channel, error = self.channel, Rejected(404, "the server ended the consumer")
        self.suspend(error)
        if channel is not None:
            channel.retire()
        self._door.restore_soon(self, str(error), 0.1)

    async def close(self) -> None:
        """Consume no more; what was not acknowledged may be, until it is."""
        self._door.discard(self)
        channel, self.channel = self.channel, None
        if channel is not None and channel.error is None:
            await channel.cancel(self._tag)
            channel.retire()
