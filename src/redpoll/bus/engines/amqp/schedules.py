"""Schedules for queues of RabbitMQ: a hub keeps their times, and programs with that hub carry their tasks to RabbitMQ."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, unquote

from redpoll.bus.engines.hub.client import HubEngine
from redpoll.bus.engines.hub.handles import HubDelivery
from redpoll.bus.envelope import Envelope, decode, encode
from redpoll.bus.records import (
    Publication,
    QueueSpec,
    Receipt,
    ScheduleInfo,
    Times,
    check_subject,
)
from redpoll.errors import (
    DecodeError,
    EncodeError,
    Expired,
    NoRoute,
    NotAuthorized,
    PayloadTooLarge,
    QueueFull,
    RedpollError,
    SpecConflict,
    Unsupported,
    UsageError,
)

__all__ = ["NOTHING", "PREFIX", "Schedules"]

_log = logging.getLogger("redpoll.bus")

PREFIX: Final = "amqp:"
"""Begins the names of the hub's queues and schedules for queues of RabbitMQ."""
NOTHING: Final = Envelope("raw", b"")
"""The body of a record."""

#: The hub's queue of tasks of schedules, on their way to RabbitMQ; how many are with one program, and the seconds for which
#: each waits for room in its queue.
_SCHEDULED: Final = "amqp.scheduled"
_CARRIED: Final = 32
_ROOM: Final = 1.0
#: Seconds between two tries of what failed.
_PAUSE: Final = 1.0
#: Errors that another try does not change: RabbitMQ takes no such task.
_UNFIT: Final = (DecodeError, EncodeError, PayloadTooLarge, Unsupported, UsageError)


class Schedules:
    """The schedules that a hub keeps for queues of RabbitMQ.

    Args:
        hub: The hub.
    """

    def __init__(self, hub: HubEngine) -> None:
        self._hub = hub

    async def carry(self, publish: Callable[..., Awaitable[Receipt]], ready: Callable[[], bool]) -> None:
        """Carry tasks of schedules to RabbitMQ from now on, as every program with this hub does.

        Args:
            publish: `Engine.publish`.
            ready: Returns True if RabbitMQ is there.
        """
        while not self._hub.closed:
            try:
                async with asyncio.TaskGroup() as carrying:
                    await self._hub.declare(QueueSpec(_SCHEDULED))
                    async for delivery in await self._hub.consume(_SCHEDULED, credit=_CARRIED):
                        # Beside each other: one may wait for room in its queue.
                        carrying.create_task(self._carry(delivery, publish, ready))
            except* RedpollError as errors:
                _log.debug("tasks of schedules wait: %s", errors.exceptions[0])
                await asyncio.sleep(_PAUSE)

    async def _carry(
        self, delivery: HubDelivery, publish: Callable[..., Awaitable[Receipt]], ready: Callable[[], bool]
    ) -> None:
        left, record = delivery.left, None
        try:
            queue, priority, ttl, keep = _options(delivery.envelope)
            # With a key: the one that carries it may be killed behind this.
            options: dict[str, Any] = {"dedup": f"scheduled {delivery.id}", "keep": keep}
            if left is not None:
                options["ttl" if ttl else "deadline"] = left
            envelope = decode(delivery.envelope.body)
            with suppress(NoRoute):  # where it is the first record of its queue
                record = await self._hub.publish(NOTHING, queue=PREFIX + queue, **options)
            await publish(envelope, queue=queue, priority=priority, timeout=_ROOM, **options)
        except (NoRoute, QueueFull, Expired) as error:
            if not (ready() and self._hub.linked):
                delivery.reject(delay=_PAUSE)
                return
            _log.info("a task of a schedule was left out: %s", error)
            await self._withdraw(record)
        except _UNFIT as error:
            _log.warning("a task of a schedule is a dead letter of the hub's queue %r: %s", _SCHEDULED, error)
            await self._withdraw(record)
            delivery.reject(requeue=False, reason=str(error))
            return
        except RedpollError as error:
            _log.info("a task of a schedule waits: %s", error)
            # Another program may do what this one may not.
            excluded = isinstance(error, NotAuthorized)
            delivery.reject(delay=0.0 if excluded else _PAUSE, exclude=excluded)
            return
        delivery.ack()

    async def _withdraw(self, record: Receipt | None) -> None:
        """Withdraw the record of a task that nobody has, and nobody carries again: one that was there before may be had."""
        if record is not None and not record.duplicate:
            with suppress(RedpollError):
                await self._hub.cancel(record.id)

    async def set(self, name: str, publication: Publication, times: Times) -> None:
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
        before = [each for each in await self._found(name=name) if each != mine]
        await self._hub.declare(QueueSpec(_SCHEDULED))
        await self._hub.schedule(mine, carried, times)
        for each in before:
            await self._hub.unschedule(each)

    async def remove(self, name: str) -> bool:
        """Remove a schedule."""
        found = await self._found(name=name)
        return any([await self._hub.unschedule(each) for each in found])

    async def remove_for(self, queue: str) -> None:
        """Remove the schedules for a queue."""
        for each in await self._found(queue=queue):
            await self._hub.unschedule(each)

    async def check_remove_for(self, queue: str) -> None:
        """Ask whether this program may remove the schedules for a queue, where there are any.

        Raises:
            NotAuthorized: It may not.
        """
        if await self._found(queue=queue):
            with suppress(NoRoute, SpecConflict):
                # A request with the same permission that changes nothing.
                await self._hub.move(PREFIX + queue, _SCHEDULED, 0)

    async def all(self) -> list[ScheduleInfo]:
        """Return the schedules for queues of RabbitMQ."""
        found = []
        for each in await self._hub.schedules():
            if each.queue == _SCHEDULED:
                name, _, queue = each.name.removeprefix(PREFIX).partition("@")
                found.append(replace(each, name=unquote(name), queue=queue))
        return found

    async def _found(self, *, name: str | None = None, queue: str | None = None) -> list[str]:
        """Return the names that the hub has for schedules: of a name, or for a queue."""
        return [
            _schedule_name(each.name, each.queue)
            for each in await self.all()
            if (name is None or each.name == name) and (queue is None or each.queue == queue)
        ]


def _options(envelope: Envelope) -> tuple[str, int, bool, bool]:
    """Return the queue of a task, its priority, whether its deadline is its `ttl`, and whether its outcome is kept.

    Raises:
        DecodeError: They are not there: any client of the hub may put a task into its queue.
    """
    match (envelope.meta or {}).get("redpoll"):
        case [str() as queue, int() as priority, bool() as ttl, bool() as keep]:
            return queue, priority, ttl, keep
    raise DecodeError("envelope", "expected the options of a task of a schedule")


def _schedule_name(name: str, queue: str) -> str:
    return f"{PREFIX}{quote(name, safe='')}@{queue}"
