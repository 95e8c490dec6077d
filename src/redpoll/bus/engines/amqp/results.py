"""A hub beside RabbitMQ, which keeps what RabbitMQ cannot: outcomes, cancellations, keys, who works on a task.

Each task has a record at the hub, a task without a body in a queue that nobody consumes, and the record's id. The publisher
makes it before the task is published, and a worker claims it before the task begins: at the hub one worker has it at a time,
and none has one that ended or was cancelled. The message of a task is taken off RabbitMQ once the outcome is recorded. So a
message may be there twice, and the task is done once.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from redpoll.bus.engine import Watcher
from redpoll.bus.engines.amqp.schedules import NOTHING, PREFIX, Schedules
from redpoll.bus.engines.hub.client import HubEngine, HubReceipts
from redpoll.bus.engines.hub.handles import HubConsumer, HubDelivery
from redpoll.bus.envelope import Envelope, Outcome
from redpoll.bus.records import (
    Capabilities,
    QueueSpec,
    Receipt,
    TaskInfo,
)
from redpoll.errors import NoRoute, NotAuthorized, RedpollError

__all__ = ["Gate", "Results"]


class Gate:
    """A watcher that hears nothing more once publishing has failed.

    Args:
        watcher: The publisher's.
    """

    __slots__ = ("_watcher",)

    def __init__(self, watcher: Watcher) -> None:
        self._watcher: Watcher | None = watcher

    def close(self) -> None:
        """Tell it nothing more."""
        self._watcher = None

    def progress(self, envelope: Envelope) -> None:
        """Pass progress on."""
        if self._watcher is not None:
            self._watcher.progress(envelope)

    def outcome(self, outcome: Outcome) -> None:
        """Pass the outcome on."""
        if self._watcher is not None:
            self._watcher.outcome(outcome)

    def gone(self, error: RedpollError) -> None:
        """Pass on why there is none."""
        if self._watcher is not None:
            self._watcher.gone(error)


class Results:
    """The records of tasks.

    Args:
        hub: The hub, which is entered and closed by the engine.

    Attributes:
        schedules: Its schedules for queues of RabbitMQ.
    """

    def __init__(self, hub: HubEngine) -> None:
        self.hub = hub
        self.schedules = Schedules(hub)
        self._consumers: dict[str, HubConsumer] = {}
        self._opening = asyncio.Lock()

    def added_to(self, capabilities: Capabilities, max_body: int) -> Capabilities:
        """Return the capabilities of RabbitMQ with such a hub.

        Args:
            capabilities: Those of RabbitMQ.
            max_body: The largest body for RabbitMQ, in bytes.
        """
        return replace(
            capabilities,
            results="stored",
            max_body=min(max_body, self.hub.max_body),
            dedup=True,
            fencing=True,
            attempts="lost",
            cancel=True,
            schedule=True,
        )

    # -- queues

    async def declare(self, spec: QueueSpec) -> None:
        """Make sure that the records of a queue have theirs."""
        if spec.kind == "task":
            records = QueueSpec(
                PREFIX + spec.name, durable=spec.durable, max_attempts=spec.max_attempts, expires=spec.expires
            )
            await self.hub.declare(records, update=True)

    async def check_administer(self, queue: str) -> None:
        """Ask whether this program may delete and purge the records of a queue.

        Raises:
            NotAuthorized: It may not.
        """
        with suppress(NoRoute):
            # A request with the same permission that changes nothing.
            await self.hub.browse(PREFIX + queue, "dead", 0)

    async def delete(self, queue: str) -> None:
        """Delete the records of a queue, whose tasks end as cancelled."""
        try:
            await self.hub.delete(PREFIX + queue)
        except NoRoute:
            return

    async def purge(self, queue: str, state: Literal["ready", "dead"]) -> None:
        """End the tasks that wait as cancelled, or drop the dead letters."""
        try:
            await self.hub.purge(PREFIX + queue, state)
        except NoRoute:
            return

    # -- records

    async def put(self, spec: QueueSpec, watcher: Watcher | None, **options: Any) -> Receipt:
        """Make the record of a task; cancelled, it is withdrawn.

        Args:
            spec: The settings of the queue.
            watcher: Is told of progress and outcome.
            **options: Those of `Engine.publish`.
        """
        for _ in range(2):
            making = self.hub.publish(NOTHING, queue=PREFIX + spec.name, watcher=watcher, **options)
            if isinstance(making, HubReceipts):
                making.unread = True
            try:
                return await making
            except NoRoute:
                # Its queue was declared by a program without a hub.
                await self.declare(spec)
        raise NoRoute(spec.name)

    async def claim(self, spec: QueueSpec, task: str) -> HubDelivery | Literal["busy", "ended", "unknown"]:
        """Claim the record of a task. See `HubEngine.claim`."""
        return await self.hub.claim(await self._consumer(spec), task)

    async def _consumer(self, spec: QueueSpec) -> HubConsumer:
        async with self._opening:
            found = self._consumers.get(spec.name)
            if found is None or found.closed:
                await self.declare(spec)
                # It has no credit: the hub hands it nothing but what is claimed, which counts as begun.
                found = await self.hub.consume(PREFIX + spec.name, credit=0, sink=bool)
                found.begun = sys.maxsize
                self._consumers[spec.name] = found
        return found

    async def bury(self, spec: QueueSpec, task: str, reason: str) -> None:
        """End a task that RabbitMQ has dropped as a dead letter, or as cancelled where this program may not work on it."""
        try:
            got = await self.claim(spec, task)
        except NotAuthorized:
            # This program may submit alone, and so may cancel.
            await self.hub.cancel(task)
            return
        if isinstance(got, HubDelivery):
            await got.reject(requeue=False, reason=reason)

    async def lookup(self, task: str) -> TaskInfo:
        """Return the state of a task, without its body, which RabbitMQ has."""
        found = await self.hub.lookup(task)
        return replace(found, queue=found.queue.removeprefix(PREFIX), envelope=None)
