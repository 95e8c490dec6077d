"""The will of a program: messages that reach the publishers of the tasks that it accepted once it is gone.

Each lies in a queue of the program's own, which holds nothing (its messages live for 0 seconds) but what its only consumer
has: the program, which does not acknowledge it. When the connection ends it returns to the queue, expires, and the broker
hands it on to the inbox of the publisher.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Final

from redpoll.bus.engines.amqp import messages as m
from redpoll.bus.engines.amqp.link import Channel, Rejected
from redpoll.bus.engines.amqp.publishing import Publisher, Sending
from redpoll.bus.engines.amqp.session import Session
from redpoll.bus.engines.amqp.topology import WORK, will
from redpoll.bus.engines.amqp.wire import Content, Properties

__all__ = ["Will"]

_KEPT: Final = 60.0


class Will:
    """The will of an engine; it is set up when the first task is accepted.

    Args:
        session: The session.
        publisher: Publishes.
        name: Name of its queue.
    """

    label = "the will"

    def __init__(self, session: Session, publisher: Publisher, name: str) -> None:
        self._session = session
        self._publisher = publisher
        self._first = self._name = name
        self._channel: Channel | None = None
        self._held: dict[str, int] = {}
        self._coming: dict[str, asyncio.Future[None]] = {}
        self._begun: asyncio.Task[None] | None = None

    async def restore(self) -> None:
        """Declare the queue, and consume it."""
        # A new one each time: the last one may be away with its server.
        self._name = f"{self._first}.{self._session.generation}"
        await self._session.declare_queue(will(self._name, _KEPT))
        async with self._session.incoming.opening(self._closed) as channel:
            self._channel = channel
            await channel.consume(self._name, "will", self._came, self._cancelled)

    def suspend(self, _: Exception) -> None:
        """Note that what it held has reached the publishers."""
        self._channel = None
        self._held.clear()

    def _closed(self, error: Exception) -> None:
        if isinstance(error, Rejected):
            self.suspend(error)
            self._session.restore_soon(self, str(error))

    def _cancelled(self) -> None:
        error, channel = Rejected(404, "the server ended its consumer"), self._channel
        self.suspend(error)
        if channel is not None:
            channel.abandon()
        self._session.restore_soon(self, str(error))

    def _came(self, content: Content) -> None:
        name = content.properties.message_id or ""
        self._held[name] = content.arguments[1]
        coming = self._coming.pop(name, None)
        if coming is None:
            self.drop(name)
        elif not coming.done():
            coming.set_result(None)

    async def leave(self, task: str, inbox: str | None) -> str:
        """Have a publisher told once this program is gone, and return a name for it.

        Args:
            task: The task's id.
            inbox: The inbox of the publisher.

        Raises:
            RedpollError: It cannot be.
        """
        if not inbox:
            return ""
        if self._begun is None:
            self._begun = asyncio.ensure_future(self._session.add(self))
        await asyncio.shield(self._begun)
        name = uuid.uuid4().hex
        coming = self._coming[name] = asyncio.get_running_loop().create_future()
        properties = Properties(
            headers={"CC": [inbox]}, delivery_mode=1, correlation_id=task, message_id=name, type=m.LOST
        )
        sending = Sending(WORK, self._name, properties, b"", mandatory=True)
        try:
            self._publisher.send(sending)
            await sending
            await coming
        finally:
            self._coming.pop(name, None)
        return name

    def drop(self, name: str) -> None:
        """Tell that publisher nothing."""
        tag = self._held.pop(name, None)
        if tag is not None and self._channel is not None:
            self._channel.settle(tag)
