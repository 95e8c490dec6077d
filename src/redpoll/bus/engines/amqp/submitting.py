"""A task or an event on its way into its queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from redpoll.bus.engines.amqp.parts import EngineParts
from redpoll.bus.engines.amqp.publishing import Publisher, Sending
from redpoll.bus.engines.amqp.wire import Properties
from redpoll.bus.records import AtLimit, Receipt
from redpoll.errors import ConfirmTimeout, Expired, NoRoute, QueueFull, RedpollError

__all__ = ["Submit"]


class Submit(Sending):
    """A message of `Engine.publish`.

    Args:
        parts: The parts of the engine.
        where: The queue or the subject, for errors.
        at_limit: What to do where a queue is full.
        receipt: Its receipt.
        timeout: Seconds until it has to be confirmed.
        again: True if a second one is harmless: the task has a record at a hub.
        unwatch: Is called where nobody will hear of its outcome; True where it is to be cancelled.
    """

    __slots__ = ("_alarm", "_at_limit", "_parts", "_retry", "_timeout", "_unwatch", "_where", "receipt")

    def __init__(
        self,
        parts: EngineParts,
        where: str,
        exchange: str,
        key: str,
        properties: Properties,
        body: bytes | memoryview,
        *,
        mandatory: bool,
        at_limit: AtLimit,
        receipt: Receipt,
        timeout: float | None,
        unwatch: Callable[[Submit, bool], object] | None,
        again: bool = False,
    ) -> None:
        super().__init__(exchange, key, properties, body, mandatory=mandatory, again=again)
        self._parts = parts
        self._where = where
        self._at_limit = at_limit
        self._timeout = timeout
        self._retry: asyncio.TimerHandle | None = None
        self._unwatch = unwatch
        self.receipt = receipt
        self._alarm = None if timeout is None else parts.alarms.set(timeout, self._late)

    def result(self) -> Receipt:
        """Return its receipt."""
        return self.receipt

    def end(self, error: RedpollError | None) -> None:
        """Note its end."""
        if self.ended:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        if self._retry is not None:
            self._retry.cancel()
        if error is not None:
            unwatch, self._unwatch = self._unwatch, None
            if unwatch is not None:
                unwatch(self, False)
        # Else its waiter may still be cancelled in this turn: then nobody has its receipt.
        super().end(error)
        if error is None:
            parts = self._parts
            parts.counts(self._where).submitted += 1
            if parts.observers:
                parts.note("submitted", self._where, self.receipt.id)

    def refused(self, publisher: Publisher) -> None:
        """Refuse it, or try again: a queue is full."""
        if self._at_limit != "wait" or (self._timeout is not None and self._timeout <= 0):
            spec = self._parts.spec_of(self._where)
            limit = 0 if spec is None else spec.max_length or spec.max_bytes
            unit = "tasks" if spec is None or spec.max_length else "bytes"
            self.end(QueueFull(None, limit, unit, queue=self._where))
            return
        self._retry = publisher.send_later(self)

    def no_route(self) -> None:
        """Note that there is no such queue, or that nobody takes that subject."""
        self.end(NoRoute(self._where))

    def _late(self) -> None:
        if self._parts.publisher.withdraw(self) and not self.sent:
            self.end(Expired(None, self._timeout, "waiting for room in the queue, or for a connection"))
        else:
            self.end(ConfirmTimeout(None, self._timeout))

    def cancelled(self) -> None:
        """Withdraw it, or cancel the task if nobody waits for its outcome."""
        unwatch, self._unwatch = self._unwatch, None
        sent = not self._parts.publisher.withdraw(self)
        self.ended = self.ended or not sent
        self._at_limit = "refuse"  # it is not tried again
        if unwatch is not None:
            unwatch(self, sent)
