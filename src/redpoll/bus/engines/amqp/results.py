"""A hub beside RabbitMQ, which keeps what RabbitMQ cannot: outcomes, cancellations, keys, who works on a task.

Each task has a record at the hub, a task without a body in a queue that nobody consumes, and the record's id. The publisher
makes it before the task is published, and a worker claims it before the task begins: at the hub one worker has it at a time,
and none has one that ended or was cancelled. The message of a task is taken off RabbitMQ once the outcome is recorded. So a
message may be there twice, and the task is done once.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, Literal
from urllib.parse import quote, unquote

from redpoll.bus.engine import Watcher
from redpoll.bus.engines.hub.client import HubEngine, HubReceipts
from redpoll.bus.engines.hub.handles import HubConsumer, HubDelivery
from redpoll.bus.envelope import Envelope, Outcome, decode, encode
from redpoll.bus.records import (
    Capabilities,
    Publication,
    QueueSpec,
    Receipt,
    ScheduleInfo,
    TaskInfo,
    Times,
    check_subject,
)
from redpoll.errors import Expired, NoRoute, QueueFull, RedpollError

__all__ = ["Gate", "Results"]

_log = logging.getLogger("redpoll.bus")

#: Begins the names of the hub's queues.
_PREFIX: Final = "amqp:"
#: Its queue of tasks of schedules, on their way to RabbitMQ; how many are with one program, and the seconds for which each
#: waits for room in its queue.
_SCHEDULED: Final = "amqp.scheduled"
_CARRIED: Final = 32
_ROOM: Final = 1.0
#: Seconds between two tries of what failed.
_PAUSE: Final = 1.0
_NOTHING: Final = Envelope("raw", b"")


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
    """

    def __init__(self, hub: HubEngine) -> None:
        self.hub = hub
        self._consumers: dict[str, HubConsumer] = {}
        self._opening = asyncio.Lock()

    def added_to(self, capabilities: Capabilities) -> Capabilities:
        """Return the capabilities of RabbitMQ with such a hub."""
        return replace(
            capabilities,
            results="stored",
            max_body=min(capabilities.max_body, self.hub.max_body),
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
                _PREFIX + spec.name, durable=spec.durable, max_attempts=spec.max_attempts, expires=spec.expires
            )
            await self.hub.declare(records, update=True)

    async def delete(self, queue: str) -> None:
        """Delete the records of a queue, whose tasks end as cancelled, and its schedules."""
        for each in await self._scheduled(queue=queue):
            await self.hub.unschedule(each)
        try:
            await self.hub.delete(_PREFIX + queue)
        except NoRoute:
            return

    async def purge(self, queue: str, state: Literal["ready", "dead"]) -> None:
        """End the tasks that wait as cancelled, or drop the dead letters."""
        try:
            await self.hub.purge(_PREFIX + queue, state)
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
            making = self.hub.publish(_NOTHING, queue=_PREFIX + spec.name, watcher=watcher, **options)
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
                found = await self.hub.consume(_PREFIX + spec.name, credit=0, sink=bool)
                found.begun = sys.maxsize
                self._consumers[spec.name] = found
        return found

    async def bury(self, spec: QueueSpec, task: str, reason: str) -> None:
        """End a task as a dead letter that RabbitMQ has dropped."""
        got = await self.claim(spec, task)
        if isinstance(got, HubDelivery):
            await got.reject(requeue=False, reason=reason)

    # -- schedules

    async def begin(self, publish: Callable[..., Awaitable[Receipt]], ready: Callable[[], bool]) -> None:
        """Carry tasks of schedules to RabbitMQ from now on, as every program with this hub does.

        Args:
            publish: `Engine.publish`.
            ready: Returns True if RabbitMQ is there.
        """
        while not self.hub.closed:
            try:
                await self.hub.declare(QueueSpec(_SCHEDULED))
                async for delivery in await self.hub.consume(_SCHEDULED, credit=_CARRIED):
                    await self._carry(delivery, publish, ready)
            except RedpollError as error:
                _log.debug("tasks of schedules wait: %s", error)
                await asyncio.sleep(_PAUSE)

    async def _carry(
        self, delivery: HubDelivery, publish: Callable[..., Awaitable[Receipt]], ready: Callable[[], bool]
    ) -> None:
        queue, priority, ttl, keep = (delivery.envelope.meta or {})["redpoll"]
        left = delivery.left
        limit = {"ttl" if ttl else "deadline": left} if left is not None else {}
        try:
            # With a key: the one that carries it may be killed behind this.
            await publish(
                decode(delivery.envelope.body), queue=queue, priority=priority, dedup=f"scheduled {delivery.id}",
                keep=keep, timeout=_ROOM, **limit,
            )  # fmt: skip
        except (NoRoute, QueueFull, Expired) as error:
            if not ready():
                delivery.reject(delay=_PAUSE)
                return
            _log.info("a task of a schedule was left out: %s", error)
        except RedpollError:
            delivery.reject(delay=_PAUSE)
            return
        delivery.ack()

    async def schedule(self, name: str, publication: Publication, times: Times) -> None:
        """Put a task into a queue of RabbitMQ again and again."""
        check_subject("name", name)
        options = [publication.queue, publication.priority, publication.ttl is not None, publication.keep]
        carried = Publication(
            _SCHEDULED,
            Envelope("raw", bytes(encode(publication.envelope)), {"redpoll": options}),
            delay=publication.delay,
            deadline=publication.deadline if publication.ttl is None else publication.ttl,
            dedup=publication.dedup,
            keep=False,
        )
        mine = _schedule_name(name, publication.queue)
        before = [each for each in await self._scheduled(name=name) if each != mine]
        await self.hub.declare(QueueSpec(_SCHEDULED))
        await self.hub.schedule(mine, carried, times)
        for each in before:
            await self.hub.unschedule(each)

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule."""
        found = await self._scheduled(name=name)
        return any([await self.hub.unschedule(each) for each in found])

    async def schedules(self) -> list[ScheduleInfo]:
        """Return the schedules for queues of RabbitMQ."""
        found = []
        for each in await self.hub.schedules():
            if each.queue == _SCHEDULED:
                name, _, queue = each.name.removeprefix(_PREFIX).partition("@")
                found.append(replace(each, name=unquote(name), queue=queue))
        return found

    async def _scheduled(self, *, name: str | None = None, queue: str | None = None) -> list[str]:
        """Return the names that the hub has for schedules: of a name, or for a queue."""
        return [
            _schedule_name(each.name, each.queue)
            for each in await self.schedules()
            if (name is None or each.name == name) and (queue is None or each.queue == queue)
        ]

    async def lookup(self, task: str) -> TaskInfo:
        """Return the state of a task, without its body, which RabbitMQ has."""
        found = await self.hub.lookup(task)
        return replace(found, queue=found.queue.removeprefix(_PREFIX), envelope=None)


def _schedule_name(name: str, queue: str) -> str:
    return f"{_PREFIX}{quote(name, safe='')}@{queue}"
