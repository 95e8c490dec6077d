"""Exchanges and queues of RabbitMQ that are not redpoll's, for threads."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from redpoll.blocking.iteration import Iteration
from redpoll.blocking.verbs import Attribute, Face, maker, verb
from redpoll.bus.engines.amqp.foreign import Foreign, ForeignConsumer, ForeignMessage, Properties
from redpoll.bus.threads.resident import BusResident

__all__ = ["BlockingForeign", "BlockingForeignConsumer", "BlockingForeignMessage"]


class BlockingForeignMessage(Face[ForeignMessage]):
    """A message that was received: see `redpoll.bus.engines.amqp.foreign.ForeignMessage`. For any thread."""

    body = Attribute[bytes]()
    """The body."""

    properties = Attribute[Properties]()
    """The properties."""

    exchange = Attribute[str]()
    """The exchange that it was published to."""

    key = Attribute[str]()
    """Its routing key."""

    redelivered = Attribute[bool]()
    """True if it was handed out before."""

    ack = maker(ForeignMessage.ack, lambda _, nothing: nothing, on_loop=True)
    nack = maker(ForeignMessage.nack, lambda _, nothing: nothing, on_loop=True)


class BlockingForeignConsumer(Face[ForeignConsumer]):
    """Receives messages of a queue, for any number of threads that iterate it; each message goes to one of them.

    See `redpoll.bus.engines.amqp.foreign.ForeignConsumer`.
    """

    _home: BusResident
    _iteration: Iteration[BlockingForeignMessage] | None = None

    queue = Attribute[str]()
    """Name of the queue."""

    active = Attribute[bool]()
    """True if the server hands out to it."""

    close = verb(ForeignConsumer.close)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __iter__(self) -> Self:
        """Return itself; there is one iteration."""
        return self

    def __next__(self) -> BlockingForeignMessage:
        """Wait for the next message; Ctrl-C loses none."""
        if self._iteration is None:
            home = self._home
            self._iteration = home.iterate(self._target, lambda message: BlockingForeignMessage(home, message))
        # Not by `next`, at whose end Ctrl-C may come in.
        return self._iteration.__next__()


class BlockingForeign(Face[Foreign]):
    """Exchanges and queues of the server, whoever declared them: see `redpoll.bus.engines.amqp.foreign.Foreign`."""

    declare = verb(Foreign.declare)
    publish = verb(Foreign.publish)
    delete = verb(Foreign.delete)
    consume = verb(Foreign.consume, BlockingForeignConsumer, undo=lambda made: made._target.leave())
