"""Deliveries of tasks that have a record at a hub: who has the record has the task, whatever becomes of its message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final

from redpoll.bus.awaitables import FALSE
from redpoll.bus.engines.amqp.handles import AmqpDelivery
from redpoll.bus.engines.amqp.lacking import WITH_HUB
from redpoll.bus.engines.hub.handles import HubDelivery
from redpoll.bus.envelope import Envelope, Outcome
from redpoll.bus.records import Publication, QueueSpec
from redpoll.errors import Closed, RedpollError, Unsupported

__all__ = ["RecordedDelivery"]

_log = logging.getLogger("redpoll.bus")

#: Seconds before a message comes again whose task another worker has, at first and at most.
_BUSY: Final = 1.0
_BUSY_LONGEST: Final = 60.0
#: Seconds between two tries to claim, where the hub does not answer.
_PAUSE: Final = 0.5


class _Listener:
    """Tells a delivery what the hub says of its record."""

    __slots__ = ("_delivery",)

    def __init__(self, delivery: RecordedDelivery) -> None:
        self._delivery = delivery

    def lost(self) -> None:
        """Note that another worker may have it."""
        self._delivery.fenced()

    def cancelled(self, reason: str) -> None:
        """Note that it is not wanted."""
        self._delivery.cancel(reason)

    def told(self, envelope: Envelope) -> None:
        """Take what the publisher says."""
        self._delivery.tell(envelope)


class RecordedDelivery(AmqpDelivery):
    """See `redpoll.bus.engine.Delivery`. The arguments are those of `AmqpDelivery`; it is to be claimed first."""

    __slots__ = ("_record",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._record: HubDelivery | None = None

    async def claim(self) -> bool:
        """Claim the record; where that cannot be had the delivery ends, and False is returned.

        Where the hub never had the record, as it lost its disk, the task is done without.
        """
        try:
            return await self._claim()
        except asyncio.CancelledError:
            if not self._ended:
                self._settle(True)
                self._end("requeued")
            raise

    async def _claim(self) -> bool:
        got = await self._ask()
        if not isinstance(got, HubDelivery):
            return not self._ended and self._unclaimed(got)
        if self._ended or (self._accepted and not await got.accept()):
            got.reject()
            if not self._ended:
                # Cancelled meanwhile.
                self._settle()
                self._end("cancelled")
            return False
        self._record = got
        self.attempt = got.attempt
        got.listen(_Listener(self))
        return not self._lost

    async def _ask(self) -> HubDelivery | str:
        parts = self._parts
        if parts.results is None:
            self._warn(f"have records at a hub, which this program lacks: {WITH_HUB}")
            return "busy"
        spec = parts.spec_of(self.queue) or QueueSpec(self.queue)
        while True:
            try:
                return await parts.results.claim(spec, self.id)
            except Closed:
                return "busy"
            except RedpollError as error:
                self._warn(f"wait, as their records cannot be had: {error}")
                await asyncio.sleep(_PAUSE)

    def _warn(self, what: str) -> None:
        """Say once of the tasks of a queue why they are not begun."""
        if (self.queue, what) not in self._parts.warned:
            self._parts.warned.add((self.queue, what))
            _log.warning("tasks of %r %s", self.queue, what)

    def _unclaimed(self, why: str) -> bool:
        if why == "unknown":
            _log.warning("the hub has no record of task %s of %r: it is done without", self.id, self.queue)
            return True
        if why == "busy":
            self.pass_on(min(_BUSY * 2 ** min(self.handed - 1, 6), _BUSY_LONGEST))
        else:
            self._settle()
            self._end("dropped", "it had ended")
        return False

    @property
    def left(self) -> float | None:
        """Seconds until its deadline."""
        return None if self._record is None else self._record.left

    def fenced(self) -> None:
        """Note that the hub gives the task to others; so does RabbitMQ then."""
        if not self._ended:
            self.lose()
            self._settle(True)
            self._end("requeued", "its worker was taken for dead")

    def accept(self) -> Awaitable[bool]:
        """Promise that no other worker begins it."""
        if self._record is None:
            return super().accept()
        if self._ended or self._lost or self._cancelled:
            return FALSE
        self._accepted = True
        return self._record.accept()

    def progress(self, envelope: Envelope) -> bool:
        """Send progress to the watchers."""
        return False if self._record is None else self._record.progress(envelope)

    def ack(self, outcome: Outcome | None = None, then: Sequence[Publication] = ()) -> Awaitable[bool]:
        """End the task: record its outcome, and then take its message off RabbitMQ."""
        if self._record is None:
            return super().ack(outcome, then)
        if then:
            raise Unsupported("amqp", "successors of a task", "submit them from the handler, or use redpoll://")
        if self._ended or self._lost:
            return FALSE
        done = self._record.ack(outcome)
        self._end("done")
        return self._conclude(done, None)

    def _conclude(self, done: Awaitable[bool], requeue: bool | None) -> Awaitable[bool]:
        """Settle the message once the hub has recorded what becomes of the task; it goes back where that is not so."""

        async def conclude() -> bool:
            recorded = await self._answer(done)
            if recorded is None:
                return False
            self._settle(requeue if recorded else True)
            return recorded

        return asyncio.shield(asyncio.ensure_future(conclude()))

    async def _answer(self, done: Awaitable[bool]) -> bool | None:
        """Return the hub's answer to an end; None if there is none: the message goes back with the channel."""
        try:
            return await done
        except Closed:
            return None
        except RedpollError as error:
            _log.warning("the hub did not record the end of task %s of %r: %s", self.id, self.queue, error)
            return None

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
        """Give the task back, or up."""
        record = self._record
        if record is None or self._ended or self._lost:
            return super().reject(requeue=requeue, delay=delay, blame=blame, exclude=exclude, reason=reason, meta=meta)
        done = record.reject(requeue=requeue, delay=delay, blame=blame, reason=reason)
        if not requeue:
            self._end("dropped", reason)
            return self._conclude(done, False)
        self._end("requeued", reason)
        if not (delay or exclude or meta is not None):
            return self._conclude(done, True)

        async def put_again() -> bool:
            # Not before: who has the new message finds the record free.
            given = await self._answer(done)
            if given:
                return await self._again(self._channel, delay, self._excluding(exclude), meta)
            if given is not None:
                self._settle(True)
            return False

        return asyncio.shield(asyncio.ensure_future(put_again()))

    # -- for the consumer

    def interrupt(self) -> None:
        """Note that its channel is gone: the message comes to another worker, which finds the record taken."""
        if self._record is None:
            super().interrupt()
        else:
            self._channel = None

    def remove(self) -> None:
        """Note that its queue was deleted."""
        if self._record is not None:
            self._record.reject()
        super().remove()

    def abandon(self) -> None:
        """Give it up as the engine closes: back to its queue, or as lost."""
        record = self._record
        if record is None:
            super().abandon()
            return
        self.lose()
        if self._accepted:
            # As the engine leaves the hub, that ends it as lost; who gets the message finds that.
            self._settle(True)
        else:
            self._conclude(record.reject(), True)
        self._end("requeued", "its worker was closed")
