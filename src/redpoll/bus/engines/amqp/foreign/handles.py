"""Deliveries and consumers of the engine that speaks another library's wire format."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from redpoll.bus.awaitables import FALSE, TRUE
from redpoll.bus.engine import Clock, DeliverySink
from redpoll.bus.engines.amqp.foreign.dialect import Dialect, Request, refuse
from redpoll.bus.engines.amqp.foreign.foreign import ForeignConsumer, ForeignMessage
from redpoll.bus.engines.amqp.foreign.messages import Message
from redpoll.bus.engines.handles import NOTHING, EngineConsumer, EngineDelivery, check_credit
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind
from redpoll.bus.failures import pack_failure
from redpoll.bus.records import Publication, check_flags
from redpoll.checks import duration, require
from redpoll.errors import BadPayload, Closed, EncodeError, RedpollError
from redpoll.node.reports import Repeated

__all__ = ["DialectConsumer", "DialectDelivery", "Sender", "Then"]

_log = logging.getLogger("redpoll.bus")

#: Seconds before a task is handed out again that all of a worker rejected.
_REJECTED: Final = 1.0


Then = Callable[[RedpollError | None], object] | None


class Sender(Protocol):
    """The part of the engine that a delivery needs."""

    @property
    def clock(self) -> Clock:
        """Its time."""

    @property
    def dialect(self) -> Dialect:
        """The wire format."""

    def send(self, message: Message, *, mandatory: bool = False, then: Then = None) -> Awaitable[None]:
        """Publish a message, again if its connection is lost; `then` is called with its error or None."""


class DialectDelivery(EngineDelivery):
    """See `redpoll.bus.engine.Delivery`."""

    __slots__ = ("_accepted", "_consumer", "_message", "_request", "_token")

    def __init__(self, consumer: DialectConsumer, token: int, message: ForeignMessage, request: Request) -> None:
        self.envelope = request.envelope
        self.attempt = 1 + message.redelivered
        self._consumer = consumer
        self._token = token
        self._message = message
        self._request = request
        self._accepted = False
        self._lost = False
        self._cancelled = ""
        self._listener = None
        self._told = None
        self.inputs = ()

    def __repr__(self) -> str:
        return f"<DialectDelivery {self.id} of {self.queue!r}>"

    @property
    def id(self) -> str:
        """The id of its reply, or a number."""
        return self._request.id or f"{self.queue}-{self._token}"

    @property
    def queue(self) -> str:
        """Name of the queue that it came from."""
        return self._consumer.queue

    @property
    def left(self) -> float | None:
        """None: the other library sends no deadlines."""
        return None

    @property
    def accepted(self) -> bool:
        """True if it is not given out again."""
        return self._accepted

    def accept(self) -> Awaitable[bool]:
        """Acknowledge the message, so that no other worker gets it."""
        if self._lost:
            return FALSE
        self._accepted = True
        self._message.ack()
        return TRUE

    def progress(self, envelope: Envelope) -> bool:
        """Send progress, of the kinds that the other library has."""
        if self._lost or not self._request.wanted or self._token not in self._consumer.deliveries:
            return False
        sender = self._consumer.sender
        message = sender.dialect.write_reply(self.queue, self._request, envelope)
        if message is not None:
            sender.send(message)
        return message is not None

    def ack(self, outcome: Outcome | None = None, then: Sequence[Publication] = ()) -> Awaitable[bool]:
        """Send the outcome, and acknowledge the message behind it."""
        if then:
            raise refuse(self._consumer.sender.dialect.name, "successors")
        if not self._end():
            return FALSE
        self._reply(NOTHING if outcome is None else outcome, self._message.ack)
        return TRUE

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
        """Give the task back, which the server hands out at once; a delay is waited for here, with the task.

        What was accepted, or is given up, ends for its sender too.
        """
        require("delay", delay, duration)
        check_flags(requeue=requeue, blame=blame, exclude=exclude)
        if not self._end():
            return FALSE
        if self._accepted or not requeue:
            kind = OutcomeKind.CANCELLED if requeue else OutcomeKind.DEAD
            self._reply(Outcome(kind, None, reason), partial(self._message.nack, requeue=False))
            return TRUE
        delay = max(delay, _REJECTED if exclude else 0.0)

        def back() -> None:
            if meta is None:
                self._message.nack()
            else:
                self._again(meta)

        if delay:
            clock = self._consumer.sender.clock
            clock.call_at(clock.time() + delay, back)
        else:
            back()
        return TRUE

    def _again(self, meta: Mapping[str, Any]) -> None:
        """Publish it again with other fields, and acknowledge it then."""
        sender, request = self._consumer.sender, self._request
        changed = request._replace(envelope=request.envelope._replace(meta=meta))

        def then(error: RedpollError | None) -> None:
            (self._message.ack if error is None else self._message.nack)()

        sender.send(sender.dialect.write(self.queue, changed), mandatory=True, then=then)

    def _reply(self, outcome: Outcome, then: Callable[[], object]) -> None:
        """Send an outcome, and take the message off its queue once the server has that."""
        sender = self._consumer.sender
        message = None
        if self._request.wanted:
            try:
                message = sender.dialect.write_reply(self.queue, self._request, outcome)
            except (EncodeError, BadPayload) as error:
                failed = Outcome(OutcomeKind.ERROR, pack_failure(error))
                message = sender.dialect.write_reply(self.queue, self._request, failed)
        if message is None:
            then()
        else:
            # Closed before it was confirmed, the task goes back with the connection.
            sender.send(message, then=lambda error: None if isinstance(error, Closed) else then())

    def _end(self) -> bool:
        """Note that it ended; return False if it had, or was lost."""
        self._listener = None
        return self._consumer.ended(self._token) and not self._lost


class DialectConsumer(EngineConsumer[DialectDelivery]):
    """See `redpoll.bus.engine.Consumer`.

    Args:
        sender: The engine.
        queue: Name of the queue.
        credit: Maximum number of open deliveries.
        sink: The sink; None iterates.
        accept: Accept each delivery as it is handed out.

    Attributes:
        sender: The engine.
        source: The messages.
        closed: True once it was closed.
    """

    source: ForeignConsumer

    def __init__(self, sender: Sender, queue: str, credit: int, sink: DeliverySink | None, accept: bool) -> None:
        super().__init__(queue, sink)
        check_credit(credit)
        self.sender = sender
        self.closed = False
        self._credit = credit
        self._accept = accept
        # Those beyond the credit, which are not accepted.
        self._waiting: deque[ForeignMessage] = deque()
        self._number = 0
        self._unreadable = Repeated(_log_unreadable)

    @property
    def active(self) -> bool:
        """True if the server hands out to it."""
        return not self.closed and self.source.active

    def set_credit(self, credit: int) -> None:
        """Set the maximum number of open deliveries; above the first one, some of them wait at the server."""
        check_credit(credit)
        self._credit = credit
        self._hand_out()

    async def close(self) -> None:
        """Receive no more."""
        self.closed = True
        self._unreadable.close()
        await self.source.close()
        while self._waiting:
            self._waiting.popleft().nack()
        self._end(None)

    # -- for the engine

    def finish(self) -> None:
        """End the iteration behind what has come."""
        self._feed.end()

    def take(self, message: ForeignMessage) -> None:
        """Take a message."""
        self._waiting.append(message)
        self._hand_out()

    def lose(self) -> None:
        """Note that the connection was lost: what was not accepted is handed out to others."""
        self._waiting.clear()
        for token, delivery in tuple(self.deliveries.items()):
            if not delivery.accepted:
                del self.deliveries[token]
                delivery.lose()

    def ended(self, token: int) -> bool:
        """Note that a delivery ended; return False if it had."""
        found = self.deliveries.pop(token, None)
        if self._waiting:
            # In another turn, lest each begins inside of the one before.
            asyncio.get_running_loop().call_soon(self._hand_out)
        return found is not None

    def _hand_out(self) -> None:
        while self._waiting and len(self.deliveries) < self._credit and not self.closed:
            message = self._waiting.popleft()
            try:
                request = self.sender.dialect.read(self.queue, message.body, message.properties)
            except BadPayload as error:
                self._unreadable.note((self.queue, error))
                message.nack(requeue=False)
                continue
            self._number += 1
            delivery = self.deliveries[self._number] = DialectDelivery(self, self._number, message, request)
            if self._accept:
                delivery.accept()
            self._hand_over(delivery)


def _log_unreadable(count: int, last: tuple[str, BadPayload]) -> None:
    queue, error = last
    what = "a message" if count == 1 else f"{count:,} messages, the last one"
    _log.error("%s of queue %r cannot be read, and was dropped: %s", what, queue, error)
