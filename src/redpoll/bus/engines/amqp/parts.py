"""The parts that deliveries, consumers and the engine share: the session, the publisher, the inbox, delays, counters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from redpoll.bus.engine import Observer
from redpoll.bus.engines.amqp import topology as t
from redpoll.bus.engines.amqp.inbox import Inbox
from redpoll.bus.engines.amqp.publishing import Alarms, Publisher
from redpoll.bus.engines.amqp.results import Results
from redpoll.bus.engines.amqp.session import Session
from redpoll.bus.engines.amqp.will import Will
from redpoll.bus.engines.handles import EngineDelivery, call
from redpoll.bus.records import QueueSpec

__all__ = ["Counts", "EngineParts"]

_log = logging.getLogger("redpoll.bus")

#: Inboxes of publishers that are gone.
_DEAF: Final = 1_000


@dataclass(slots=True)
class Counts:
    """The operations of this program on a queue, counted."""

    submitted: int = 0
    delayed: int = 0
    taken: int = 0
    delivered: int = 0
    done: int = 0
    requeued: int = 0
    expired: int = 0
    cancelled: int = 0
    dropped: int = 0


class EngineParts:
    """The parts of an engine, and what it counts.

    Args:
        session: The session.
        publisher: Publishes.
        inbox: The inbox.
        alarms: The timers.
        will: Tells publishers that this program is gone.
        max_body: The largest body, in bytes.
        spec_of: Returns the settings of a queue; None where they are not known.

    Attributes:
        name: Identifies the engine.
        results: A hub beside RabbitMQ, or None.
        deaf: Inboxes of publishers that are gone.
        open: The deliveries that are open.
    """

    def __init__(
        self,
        name: str,
        session: Session,
        publisher: Publisher,
        inbox: Inbox,
        alarms: Alarms,
        will: Will,
        max_body: int,
        spec_of: Callable[[str], QueueSpec | None],
    ) -> None:
        self.name = name
        self.session = session
        self.publisher = publisher
        self.inbox = inbox
        self.alarms = alarms
        self.will = will
        self.max_body = max_body
        self.spec_of = spec_of
        self.results: Results | None = None
        #: Queues whose tasks cannot be begun, and why.
        self.warned: set[tuple[str, str]] = set()
        self.deaf: dict[str, None] = {}
        self.open: dict[EngineDelivery, None] = {}
        self.observers: list[Observer] = []
        self.drained: Callable[[], object] | None = None
        self._counts: dict[str, Counts] = {}
        self._delays: set[int | str] = set()
        self._delays_of = 0
        # True from the first step that is made until they all are secured, which may fail or be cancelled.
        self._insecure = False
        self._delaying = asyncio.Lock()

    def counts(self, queue: str) -> Counts:
        """Return the counters of a queue."""
        found = self._counts.get(queue)
        if found is None:
            found = self._counts[queue] = Counts()
        return found

    def forget(self, queue: str) -> None:
        """Drop the counters of a queue that was deleted."""
        self._counts.pop(queue, None)

    def note(self, what: str, queue: str, which: str = "", detail: str = "") -> None:
        """Tell the observers."""
        for observer in tuple(self.observers):
            call("an observer", observer, what, queue, which, detail)

    def add(self, delivery: EngineDelivery, task: str) -> None:
        """Note that a delivery is open."""
        self.open[delivery] = None
        self.inbox.working[task] = delivery

    def remove(self, delivery: EngineDelivery, task: str) -> None:
        """Note that a delivery has ended."""
        self.open.pop(delivery, None)
        if self.inbox.working.get(task) is delivery:
            del self.inbox.working[task]
        if not self.open and self.drained is not None:
            self.drained()

    def ignore(self, inbox: str) -> None:
        """Note that a publisher is gone."""
        self.deaf[inbox] = None
        if len(self.deaf) > _DEAF:
            del self.deaf[next(iter(self.deaf))]

    async def delay(self, seconds: float, level: str, queue: str) -> tuple[str, str]:
        """Make sure that a message can be delayed, and count it; return the exchange and the routing key.

        Args:
            seconds: The delay.
            level: Name of the queue, for its level of priority.
            queue: Name of the queue.

        Raises:
            Unsupported: The delay, or the name of the queue, is too long.
        """
        levels, key = t.delay_levels(seconds), t.delay_key(seconds, level)
        session = self.session
        await session.linked()
        async with self._delaying:
            if self._delays_of != session.generation:
                # Perhaps another broker, or one without its disk.
                self._delays.clear()
                generation = session.generation
                await session.declare_exchanges(tuple(t.delay_exchanges()))
                self._delays_of = generation
            steps = [each for each in levels if each not in self._delays]
            for each in steps:
                # Not asked behind a new one: each answer that there is none closes a channel.
                self._insecure = self._insecure or not await session.has_queue(t.delay_name(each))
                await session.declare_queue(t.delay_queue(each))
            if self._insecure:
                await session.secure_queues()
                self._insecure = False
            self._delays.update(steps)
            if level not in self._delays:
                exchange, pattern = t.delay_target(level)
                await session.ask("queue.bind", 0, level, exchange, pattern, 0, {})
                self._delays.add(level)
        counts = self.counts(queue)
        counts.delayed += 1
        self.alarms.set(seconds, lambda: setattr(counts, "delayed", counts.delayed - 1))
        return t.delay_name(levels[0] if levels else -1), key
